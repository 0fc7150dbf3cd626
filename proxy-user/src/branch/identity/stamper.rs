//! The identity of one branch at work: which stamp a batch gets, and what happens when a broker refuses it.

use std::time::Instant;

use super::derived::Seed;
use super::owned::Owned;
use super::streams::{Generation, StreamKey, Streams};
use super::{Assigned, Mode};
use crate::branch::produce::batch::{Batch, Stamp};

/// Chooses the stamps of one partition of the branch.
pub trait Stamper {
    /// The stamp of a batch. `previous` is the one it had when it was sent before; it stays as long as its generation
    /// does, or the broker couldn't recognise it. `None`: there is none to be had any more.
    fn assign(
        &mut self,
        stream: Option<&StreamKey>,
        batch: &Batch,
        previous: Option<Assigned>,
        now: Instant,
    ) -> Option<Assigned>;

    /// The broker refused the sequence of a batch of this stream and generation for good.
    fn advance(&mut self, stream: Option<&StreamKey>, from: Generation, now: Instant) -> Advance;

    /// The branch took a batch under this stamp.
    fn acknowledge(&mut self, stream: Option<&StreamKey>, assigned: Assigned);

    /// How the stamp is put on.
    fn mode(&self) -> Mode;
}

/// What came of a refused sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A generation starts: what the last one wrote isn't recognised any more.
    Started,
    /// Another batch that found the same hole has started it already.
    Already,
    /// This identity has no generations.
    Impossible,
}

impl Advance {
    fn of(moved: bool) -> Self {
        if moved { Self::Started } else { Self::Already }
    }
}

/// `derived`.
#[derive(Debug)]
pub struct Deriving<'a> {
    /// Of the branch.
    pub seed: &'a Seed,
    /// Of the branch.
    pub streams: &'a mut Streams,
}

impl Stamper for Deriving<'_> {
    fn assign(
        &mut self,
        stream: Option<&StreamKey>,
        batch: &Batch,
        previous: Option<Assigned>,
        now: Instant,
    ) -> Option<Assigned> {
        let Some(stream) = stream else { return Some(anonymous()) };
        let generation = self.streams.generation(stream, now);
        let stamp = match previous.filter(|previous| previous.generation == generation) {
            Some(previous) => previous.stamp,
            None => Stamp { producer: self.seed.producer(stream, generation), ..batch.stamp() },
        };
        Some(Assigned { stamp, generation, start: self.streams.start(stream, stamp.epoch) })
    }

    fn advance(&mut self, stream: Option<&StreamKey>, from: Generation, now: Instant) -> Advance {
        stream.map_or(Advance::Impossible, |stream| Advance::of(self.streams.advance(stream, from, now)))
    }

    fn acknowledge(&mut self, stream: Option<&StreamKey>, assigned: Assigned) {
        if let Some(stream) = stream {
            let Stamp { epoch, sequence, .. } = assigned.stamp;
            self.streams.acknowledge(stream, assigned.generation, epoch, sequence);
        }
    }

    fn mode(&self) -> Mode {
        Mode::Derived
    }
}

impl Stamper for Owned {
    fn assign(
        &mut self,
        _: Option<&StreamKey>,
        batch: &Batch,
        previous: Option<Assigned>,
        _: Instant,
    ) -> Option<Assigned> {
        match previous.filter(|previous| previous.generation == self.generation()) {
            None => Owned::assign(self, batch.span()),
            Some(previous) => Some(Assigned { start: self.start(), ..previous }),
        }
    }

    fn advance(&mut self, _: Option<&StreamKey>, from: Generation, _: Instant) -> Advance {
        Advance::of(Owned::advance(self, from))
    }

    fn acknowledge(&mut self, _: Option<&StreamKey>, assigned: Assigned) {
        Owned::acknowledge(self, assigned.generation, assigned.stamp.sequence);
    }

    fn mode(&self) -> Mode {
        Mode::Owned
    }
}

/// `none`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous;

impl Stamper for Anonymous {
    fn assign(&mut self, _: Option<&StreamKey>, _: &Batch, _: Option<Assigned>, _: Instant) -> Option<Assigned> {
        Some(anonymous())
    }

    fn advance(&mut self, _: Option<&StreamKey>, _: Generation, _: Instant) -> Advance {
        Advance::Impossible
    }

    fn acknowledge(&mut self, _: Option<&StreamKey>, _: Assigned) {}

    fn mode(&self) -> Mode {
        Mode::None
    }
}

/// `preserve`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preserving;

impl Stamper for Preserving {
    fn assign(&mut self, _: Option<&StreamKey>, batch: &Batch, _: Option<Assigned>, _: Instant) -> Option<Assigned> {
        // Its generations are the client's business, and it can't be told where one starts: in flight as it comes.
        let stamp = batch.stamp();
        Some(Assigned { stamp, generation: Generation::default(), start: Some(stamp.sequence) })
    }

    fn advance(&mut self, _: Option<&StreamKey>, _: Generation, _: Instant) -> Advance {
        Advance::Impossible
    }

    fn acknowledge(&mut self, _: Option<&StreamKey>, _: Assigned) {}

    fn mode(&self) -> Mode {
        Mode::Preserve
    }
}

fn anonymous() -> Assigned {
    Assigned { stamp: Stamp::ANONYMOUS, generation: Generation::default(), start: None }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Bounds, FIRST_DERIVED, stamped};
    use super::*;
    use crate::branch::ids::{PartitionId, ProducerEpoch, ProducerId, Sequence};
    use crate::branch::produce::testing::{Draft, batch, by};

    fn stream() -> StreamKey {
        StreamKey { topic: "orders".into(), partition: PartitionId(0), producer: ProducerId(7) }
    }

    #[test]
    fn a_derived_stamp_keeps_epoch_and_sequence_and_changes_with_the_generation() {
        let seed = Seed { cluster: "c".into(), branch: "b".into() };
        let mut streams = Streams::new(Bounds { streams: 10, idle: Duration::from_secs(60) });
        let mut deriving = Deriving { seed: &seed, streams: &mut streams };
        let (now, client) = (Instant::now(), batch(&by(7, 3, 40, 2)));
        let first = deriving.assign(Some(&stream()), &client, None, now).unwrap();
        assert!(first.stamp.producer >= FIRST_DERIVED);
        assert_eq!((first.stamp.epoch, first.stamp.sequence), (ProducerEpoch(3), Sequence(40)));
        assert_eq!(deriving.assign(Some(&stream()), &client, Some(first), now), Some(first));
        assert_eq!(deriving.advance(Some(&stream()), first.generation, now), Advance::Started);
        assert_eq!(deriving.advance(Some(&stream()), first.generation, now), Advance::Already);
        let second = deriving.assign(Some(&stream()), &client, Some(first), now).unwrap();
        assert_ne!(second.stamp.producer, first.stamp.producer);
        assert_eq!(second.stamp.sequence, Sequence(40));
    }

    #[test]
    fn a_batch_without_a_producer_gets_none() {
        let seed = Seed { cluster: "c".into(), branch: "b".into() };
        let mut streams = Streams::new(Bounds { streams: 10, idle: Duration::from_secs(60) });
        let mut deriving = Deriving { seed: &seed, streams: &mut streams };
        let assigned = deriving.assign(None, &batch(&Draft::default()), None, Instant::now()).unwrap();
        assert_eq!(assigned.stamp, Stamp::ANONYMOUS);
        assert_eq!(deriving.advance(None, assigned.generation, Instant::now()), Advance::Impossible);
    }

    #[test]
    fn an_owned_stamp_stays_with_its_batch_until_the_epoch_is_raised() {
        let (mut owned, now) = (Owned::new(ProducerId(4000), ProducerEpoch(0)), Instant::now());
        let client = batch(&by(7, 3, 40, 2));
        let stamper: &mut dyn Stamper = &mut owned;
        let first = stamper.assign(None, &client, None, now).unwrap();
        assert_eq!(stamper.assign(None, &client, Some(first), now), Some(first));
        assert_eq!(stamper.assign(None, &client, None, now).unwrap().stamp.sequence, Sequence(2));
        assert_eq!(stamper.advance(None, first.generation, now), Advance::Started);
        let again = stamper.assign(None, &client, Some(first), now).unwrap();
        assert_eq!((again.stamp.epoch, again.stamp.sequence), (ProducerEpoch(1), Sequence(0)));
    }

    #[test]
    fn only_a_preserved_batch_keeps_its_transaction_and_every_byte() {
        let client = batch(&Draft { transactional: true, ..by(7, 3, 40, 2) });
        let preserved = Preserving.assign(None, &client, None, Instant::now()).unwrap();
        assert_eq!(stamped(&client, Mode::Preserve, preserved), client);
        let plain = stamped(&client, Mode::Derived, preserved);
        assert_eq!(plain, batch(&by(7, 3, 40, 2)));
    }
}
