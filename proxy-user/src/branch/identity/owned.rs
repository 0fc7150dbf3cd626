//! A producer of the gateway's own, one per process start, and its sequences on one partition of the branch.

use super::Assigned;
use super::streams::Generation;
use crate::branch::ids::{ProducerEpoch, ProducerId, Sequence};
use crate::branch::produce::batch::Stamp;

/// The producer on one partition. Brokers keep sequences and epoch per partition, so each has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    producer: ProducerId,
    first_epoch: ProducerEpoch,
    generation: Generation,
    next: Sequence,
    /// The first sequence that was taken in this generation.
    start: Option<Sequence>,
}

impl Owned {
    /// As InitProducerId on the branch's cluster gave it.
    #[must_use]
    pub fn new(producer: ProducerId, epoch: ProducerEpoch) -> Self {
        Self { producer, first_epoch: epoch, generation: Generation(0), next: Sequence::FIRST, start: None }
    }

    /// The epoch of this generation; `None` when there are no more: another producer id is needed.
    fn epoch(&self) -> Option<ProducerEpoch> {
        let raised = i32::from(self.first_epoch.0).checked_add(i32::try_from(self.generation.0).ok()?)?;
        // The highest one is never used: a coordinator can raise it no more.
        i16::try_from(raised).ok().filter(|epoch| *epoch < i16::MAX).map(ProducerEpoch)
    }

    /// Numbers the next batch, of `span` records. `None`: the epochs are used up.
    pub fn assign(&mut self, span: u32) -> Option<Assigned> {
        let stamp = Stamp { producer: self.producer, epoch: self.epoch()?, sequence: self.next, transactional: false };
        self.next = self.next.plus(span);
        Some(Assigned { stamp, generation: self.generation, start: self.start })
    }

    /// Generation `from` ended in a hole: raises the epoch, which a producer may do by itself (KIP-360), and counts from
    /// 0. Of several batches that found the same hole only the first does. Returns whether this one did.
    pub fn advance(&mut self, from: Generation) -> bool {
        if self.generation != from {
            return false;
        }
        self.generation = Generation(from.0.saturating_add(1));
        self.next = Sequence::FIRST;
        self.start = None;
        true
    }

    /// The branch took a batch of `generation` that begins with `first`.
    pub fn acknowledge(&mut self, generation: Generation, first: Sequence) {
        if generation == self.generation {
            self.start.get_or_insert(first);
        }
    }

    /// The first sequence that the branch took in the present generation.
    #[must_use]
    pub fn start(&self) -> Option<Sequence> {
        self.start
    }

    /// The generation that is written now.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(owned: &mut Owned, span: u32) -> (i16, i32, u32) {
        let assigned = owned.assign(span).unwrap();
        assert_eq!(assigned.stamp.producer, ProducerId(4000));
        (assigned.stamp.epoch.0, assigned.stamp.sequence.0, assigned.generation.0)
    }

    #[test]
    fn batches_are_numbered_without_gaps() {
        let mut owned = Owned::new(ProducerId(4000), ProducerEpoch(2));
        assert_eq!([3, 1, 1 << 31, 1].map(|span| assigned(&mut owned, span).1), [0, 3, 4, 4]);
    }

    #[test]
    fn a_hole_raises_the_epoch_once_and_counts_from_zero() {
        let mut owned = Owned::new(ProducerId(4000), ProducerEpoch(2));
        assigned(&mut owned, 3);
        assert!(owned.advance(Generation(0)));
        assert!(!owned.advance(Generation(0)));
        assert_eq!(assigned(&mut owned, 3), (3, 0, 1));
        assert_eq!(assigned(&mut owned, 3), (3, 3, 1));
    }

    #[test]
    fn epochs_end_before_the_last_one() {
        let mut owned = Owned::new(ProducerId(4000), ProducerEpoch(i16::MAX - 2));
        assert_eq!(assigned(&mut owned, 1), (i16::MAX - 2, 0, 0));
        owned.advance(Generation(0));
        assert_eq!(assigned(&mut owned, 1), (i16::MAX - 1, 0, 1));
        owned.advance(Generation(1));
        assert_eq!(owned.assign(1), None);
    }
}
