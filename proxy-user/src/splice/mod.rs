//! The daemon's side of the splice: which frames and which connections the kernel may have.
//!
//! Decisions only. The machine that both sides share is `proxy_common::splice`.

pub mod eligible;
pub mod policy;
