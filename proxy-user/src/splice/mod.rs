//! The daemon's side of the splice: which frames and which connections the kernel may have.
//!
//! Decisions, and what a session is to the daemon ([`session`]). The machine that both sides share is
//! `proxy_common::splice`; the kernel's tables are `kernel`'s.

pub mod eligible;
pub mod mirror;
pub mod policy;
pub mod session;
pub mod socket;
