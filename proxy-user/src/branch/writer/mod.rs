//! Writing to the branch's cluster.
//!
//! ```text
//!   Writer (handle) ── messages ──► task ── commands ──► link, one for each broker
//!     offer: never waits              │  ◄── events ───┘
//!                                     └─ core (no sockets): topics, lanes, requests
//! ```
//!
//! The handle is what everybody else has of a branch: it takes a batch or counts it as missing, and returns. Everything
//! behind it runs in the writer's own tasks.

mod admin;
mod core;
mod encode;
#[cfg(test)]
mod fake;
mod lane;
mod link;
mod task;
#[cfg(test)]
mod testing;
mod verdict;

#[cfg(test)]
mod tests;

pub use core::{Creation, Settings};
pub use lane::{Done, Item};
pub use task::{Clusters, Writer};
