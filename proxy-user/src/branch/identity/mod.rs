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
mod stamper;
mod streams;

pub use derived::{FIRST_DERIVED, Seed};
pub use owned::Owned;
pub use stamper::{Advance, Anonymous, Deriving, Preserving, Stamper};
pub use streams::{Admission, Bounds, Generation, Seen, StreamKey, Streams};

use super::ids::Sequence;
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
    /// The sequence with which a broker was first seen to take this incarnation, in this epoch. Until then its batches
    /// go out one by one: a broker that doesn't know a producer takes any first sequence, so a second batch could
    /// overtake a first one that fails.
    pub start: Option<Sequence>,
}

impl Assigned {
    /// Whether both are of one producer, as a broker sees it.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        (self.generation, self.stamp.producer, self.stamp.epoch)
            == (other.generation, other.stamp.producer, other.stamp.epoch)
    }

    /// Whether it must not be sent while another batch of its producer is in flight.
    #[must_use]
    pub fn goes_alone(&self) -> bool {
        self.stamp.producer.is_idempotent() && self.start.is_none()
    }
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
