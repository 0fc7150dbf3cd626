//! The mainline: listeners, one client connection's life, response order, drain.

pub mod status;
