//! Replica routing: which broker a consumer should read a partition from, and when it should go back to the leader.
//! Decisions are pure; the [`Runtime`] of a virtual cluster holds what is remembered between them.
//!
//! ```text
//!              place: whose rack            choice: which of its replicas
//!                    │                            │
//!   at the leader ───┴──► decide ◄── table of partitions, brokers ──► send to a replica, or why not
//!   at a replica  ───────► decide ◄── book: who was sent where, what is held down ──► back to the leader
//!                                                │
//!                                              tally: bytes by rack and topic
//! ```
//!
//! A consumer is only ever *told* where to read (`preferred_read_replica`, KIP-392), never led elsewhere in secret: an
//! offset that a replica does not have is judged by the leader alone.

mod book;
mod choice;
pub mod decide;
mod place;
mod runtime;
pub mod tally;

pub use book::{Book, Held, HoldRules, Reader, Spot};
pub use choice::choose;
pub use place::{By, Client, Places, Rack};
pub use runtime::{Runtime, Settings};
