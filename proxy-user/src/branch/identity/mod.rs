//! Who writes on the branch.
//!
//! A batch carries producer id, epoch and first sequence, and the broker deduplicates by them. Clients never see those of
//! the branch, so the gateway may choose them:
//!
//! | | producer id | epoch, sequences | retries of clients are dropped by |
//! |---|---|---|---|
//! | `derived` | a hash of cluster, branch, source, client's PID, generation | the client's | the branch's broker, and [`Streams`] |
//! | `owned` | the gateway's own on that cluster | counted per partition, in the order of dispatch | [`Streams`] |
//! | `none` | −1 | −1 | nobody |
//! | `preserve` | the client's | the client's | nobody: cluster ids of producers collide |
//!
//! # Generations
//! A broker refuses a sequence that doesn't follow (error 45), for ever. After a hole the producer of that partition is
//! therefore replaced: `derived` hashes another generation, `owned` raises the epoch. A broker knows nothing of a new
//! producer and takes any first sequence from it; what it can't do is recognise what the last one wrote. So each start
//! of a generation is counted as a possible duplicate.

mod derived;
mod owned;
mod streams;

pub use derived::{FIRST_DERIVED, Seed};
pub use owned::Owned;
pub use streams::{Admission, Bounds, Generation, Seen, StreamKey, Streams};

use super::produce::batch::{Batch, Stamp};

/// How a branch chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// See the module.
    #[default]
    Derived,
    /// See the module.
    Owned,
    /// See the module.
    None,
    /// See the module. Nothing is touched: for bodies that are bound to their header.
    Preserve,
}

/// The stamp under which a batch goes out, and the generation it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// What is written into the batch.
    pub stamp: Stamp,
    /// Which incarnation of the producer that is; always the first where the broker doesn't deduplicate.
    pub generation: Generation,
}

/// A `preserve`d batch is sent as it came; every other one loses its transactional bit, under which a broker would
/// look for a transaction that the branch's cluster doesn't have.
#[must_use]
pub fn stamped(batch: &Batch, mode: Mode, assigned: Assigned) -> Batch {
    match mode {
        Mode::Preserve => batch.clone(),
        Mode::Derived | Mode::Owned | Mode::None => batch.stamped(Stamp { transactional: false, ..assigned.stamp }),
    }
}
