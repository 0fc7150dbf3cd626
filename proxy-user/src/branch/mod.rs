//! Branches: best-effort copies of part of the produce traffic, written to another topic or cluster.
//!
//! The golden rule: the branch's bad day never becomes the mainline's. Nothing here is waited for by a client's
//! connection; it hands frames and answers over, and everything behind that is bounded and counted.
//!
//! What is decided is pure and takes the time as an argument; what touches sockets is `writer`.

pub mod account;
pub mod dispatch;
mod hash;
pub mod identity;
pub mod ids;
pub mod place;
pub mod produce;
pub mod purgatory;
pub mod queue;
pub mod rename;
pub mod sample;
pub mod select;
pub mod writer;
