//! What is remembered of each client's producer on each partition: its generation, and the last few batches of it.
//!
//! The table is bounded in size and age. An entry that was lost costs at most a generation, which is found again by
//! trial and counted.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::branch::ids::{Offset, PartitionId, ProducerEpoch, ProducerId, Sequence};
use crate::branch::produce::batch::Batch;

/// Batches that a broker recognises again, per producer and partition (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
const WINDOW: usize = 5;

/// A client's producer on one partition of the mainline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// Topic on the mainline.
    pub topic: Arc<str>,
    /// Partition on the mainline.
    pub partition: PartitionId,
    /// The client's producer id.
    pub producer: ProducerId,
}

/// How often the branch's producer of a stream was replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A batch of a stream as the mainline knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The client's epoch.
    pub epoch: ProducerEpoch,
    /// First sequence.
    pub first: Sequence,
    /// Last sequence.
    pub last: Sequence,
    /// Where the mainline has it, if its answer was waited for.
    pub offset: Option<Offset>,
}

impl Seen {
    /// Of a batch.
    #[must_use]
    pub fn of(batch: &Batch, offset: Option<Offset>) -> Self {
        let stamp = batch.stamp();
        Self { epoch: stamp.epoch, first: stamp.sequence, last: batch.last_sequence(), offset }
    }
}

/// Whether a batch is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Not seen before, as far as is remembered.
    New,
    /// The client's retry of a batch that is written or on its way: the mainline holds it once.
    Repeat,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Streams.
    pub streams: usize,
    /// After so long without a batch a stream is forgotten; brokers forget a producer after a day.
    pub idle: Duration,
}

#[derive(Debug)]
struct Stream {
    generation: Generation,
    /// The first sequence that was taken in this generation, and its epoch.
    start: Option<(ProducerEpoch, Sequence)>,
    window: VecDeque<Seen>,
    /// When it was last used, on the clock and in the order of uses.
    used: Instant,
    turn: u64,
}

/// The table.
#[derive(Debug)]
pub struct Streams {
    bounds: Bounds,
    streams: HashMap<StreamKey, Stream>,
    /// Uses in order, oldest first. An entry whose turn isn't its stream's last one is out of date.
    order: VecDeque<(u64, StreamKey)>,
    turn: u64,
    forgotten: u64,
}

impl Streams {
    /// An empty table.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, streams: HashMap::new(), order: VecDeque::new(), turn: 0, forgotten: 0 }
    }

    /// Whether a batch of `key` is to be written; remembers it if so.
    ///
    /// With offsets a repeat is what has the same offset: the broker answers a retry with the first one's. Without, it is
    /// what has the same epoch and sequences.
    pub fn admit(&mut self, key: &StreamKey, seen: Seen, now: Instant) -> Admission {
        let window = &mut self.touch(key, now).window;
        if window.contains(&seen) {
            return Admission::Repeat;
        }
        if window.len() == WINDOW {
            window.pop_front();
        }
        window.push_back(seen);
        Admission::New
    }

    /// A batch that was admitted didn't reach the branch: a retry of it is new again.
    pub fn retract(&mut self, key: &StreamKey, seen: Seen) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.window.retain(|other| *other != seen);
        }
    }

    /// The generation in which a stream is written.
    pub fn generation(&mut self, key: &StreamKey, now: Instant) -> Generation {
        self.touch(key, now).generation
    }

    /// Generation `from` of a stream ended in a hole: from now on it is written in the next one. Of several batches that
    /// found the same hole only the first moves it. Returns whether this one did.
    pub fn advance(&mut self, key: &StreamKey, from: Generation, now: Instant) -> bool {
        let stream = self.touch(key, now);
        if stream.generation != from {
            return false;
        }
        // A stream that had four billion holes begins anew.
        stream.generation = Generation(from.0.wrapping_add(1));
        stream.start = None;
        true
    }

    /// The branch took a batch of this generation and epoch that begins with `first`.
    pub fn acknowledge(&mut self, key: &StreamKey, generation: Generation, epoch: ProducerEpoch, first: Sequence) {
        if let Some(stream) = self.streams.get_mut(key)
            && stream.generation == generation
            && stream.start.is_none_or(|(of, _)| of != epoch)
        {
            stream.start = Some((epoch, first));
        }
    }

    /// The first sequence that the branch took in the present generation and this epoch.
    #[must_use]
    pub fn start(&self, key: &StreamKey, epoch: ProducerEpoch) -> Option<Sequence> {
        self.streams.get(key)?.start.filter(|(of, _)| *of == epoch).map(|(_, first)| first)
    }

    /// Streams remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Streams that were given up for room, not for age: each may cost a generation.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Gives up the streams that were idle for too long.
    pub fn expire(&mut self, now: Instant) {
        while let Some((turn, key)) = self.order.front() {
            match self.streams.get(key) {
                Some(stream) if stream.turn == *turn => {
                    if now.saturating_duration_since(stream.used) < self.bounds.idle {
                        return;
                    }
                    self.streams.remove(key);
                }
                _ => {}
            }
            self.order.pop_front();
        }
    }

    fn touch(&mut self, key: &StreamKey, now: Instant) -> &mut Stream {
        self.expire(now);
        if !self.streams.contains_key(key) {
            self.make_room();
        }
        self.turn += 1;
        self.order.push_back((self.turn, key.clone()));
        if self.order.len() > 2 * self.streams.len() + WINDOW {
            let Self { order, streams, .. } = self;
            let turn = self.turn;
            order.retain(|(at, key)| *at == turn || streams.get(key).is_some_and(|stream| stream.turn == *at));
        }
        let fresh = || Stream { generation: Generation(0), start: None, window: VecDeque::new(), used: now, turn: 0 };
        let stream = self.streams.entry(key.clone()).or_insert_with(fresh);
        (stream.used, stream.turn) = (now, self.turn);
        stream
    }

    /// Gives up the stream that was used least recently if there is no room for another.
    fn make_room(&mut self) {
        while self.streams.len() >= self.bounds.streams.max(1) {
            let Some((turn, key)) = self.order.pop_front() else { return };
            if self.streams.get(&key).is_some_and(|stream| stream.turn == turn) {
                self.streams.remove(&key);
                self.forgotten += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE: Duration = Duration::from_secs(3600);

    fn streams(most: usize) -> Streams {
        Streams::new(Bounds { streams: most, idle: IDLE })
    }

    fn key(producer: i64) -> StreamKey {
        StreamKey { topic: "orders".into(), partition: PartitionId(0), producer: ProducerId(producer) }
    }

    fn seen(first: i32, offset: Option<i64>) -> Seen {
        Seen { epoch: ProducerEpoch(0), first: Sequence(first), last: Sequence(first + 4), offset: offset.map(Offset) }
    }

    #[test]
    fn a_retry_of_one_of_the_last_five_batches_is_a_repeat() {
        let (mut streams, now) = (streams(10), Instant::now());
        for n in 0..6 {
            assert_eq!(streams.admit(&key(1), seen(n * 5, Some(100 + i64::from(n) * 5)), now), Admission::New);
        }
        for n in 1..6 {
            assert_eq!(streams.admit(&key(1), seen(n * 5, Some(100 + i64::from(n) * 5)), now), Admission::Repeat);
        }
        assert_eq!(streams.admit(&key(1), seen(0, Some(100)), now), Admission::New, "beyond what is remembered");
        assert_eq!(streams.admit(&key(2), seen(5, Some(105)), now), Admission::New, "another producer's");
    }

    #[test]
    fn the_same_sequences_at_another_offset_are_another_batch() {
        let (mut streams, now) = (streams(10), Instant::now());
        streams.admit(&key(1), seen(0, Some(100)), now);
        assert_eq!(streams.admit(&key(1), seen(0, Some(200)), now), Admission::New);
        let raised = Seen { epoch: ProducerEpoch(1), ..seen(0, Some(100)) };
        assert_eq!(streams.admit(&key(1), raised, now), Admission::New);
    }

    #[test]
    fn what_never_reached_the_branch_is_new_when_it_comes_again() {
        let (mut streams, now) = (streams(10), Instant::now());
        streams.admit(&key(1), seen(0, None), now);
        streams.retract(&key(1), seen(0, None));
        streams.retract(&key(9), seen(0, None));
        assert_eq!(streams.admit(&key(1), seen(0, None), now), Admission::New);
    }

    #[test]
    fn one_hole_moves_a_stream_by_one_generation_however_many_batches_found_it() {
        let (mut streams, now) = (streams(10), Instant::now());
        let first = streams.generation(&key(1), now);
        assert_eq!(first, Generation(0));
        assert!(streams.advance(&key(1), first, now));
        assert!(!streams.advance(&key(1), first, now) && !streams.advance(&key(1), first, now));
        assert_eq!(streams.generation(&key(1), now), Generation(1));
        assert_eq!(streams.generation(&key(2), now), Generation(0));
        assert!(streams.advance(&key(1), Generation(1), now));
        assert_eq!(streams.generation(&key(1), now), Generation(2));
    }

    #[test]
    fn a_generation_starts_with_what_was_first_taken_in_it() {
        let (mut streams, now) = (streams(10), Instant::now());
        let (old, new) = (ProducerEpoch(0), ProducerEpoch(1));
        streams.generation(&key(1), now);
        assert_eq!(streams.start(&key(1), old), None);
        streams.acknowledge(&key(1), Generation(0), old, Sequence(40));
        streams.acknowledge(&key(1), Generation(0), old, Sequence(41));
        assert_eq!(streams.start(&key(1), old), Some(Sequence(40)));
        assert_eq!(streams.start(&key(1), new), None, "a raised epoch starts anew");
        streams.advance(&key(1), Generation(0), now);
        streams.acknowledge(&key(1), Generation(0), old, Sequence(50));
        assert_eq!(streams.start(&key(1), old), None, "what the last generation wrote doesn't count");
    }

    #[test]
    fn the_stream_that_was_quiet_longest_gives_way() {
        let (mut streams, now) = (streams(2), Instant::now());
        for producer in [1, 2] {
            streams.advance(&key(producer), Generation(0), now);
        }
        streams.generation(&key(1), now);
        streams.generation(&key(3), now);
        assert_eq!((streams.len(), streams.forgotten()), (2, 1));
        assert_eq!(streams.generation(&key(1), now), Generation(1), "used later than 2");
        assert_eq!(streams.generation(&key(2), now), Generation(0), "forgotten, to be found by trial");
    }

    #[test]
    fn an_idle_stream_is_forgotten() {
        let (mut streams, now) = (streams(10), Instant::now());
        streams.generation(&key(1), now);
        streams.generation(&key(2), now + IDLE / 2);
        streams.expire(now + IDLE);
        assert_eq!((streams.len(), streams.forgotten()), (1, 0));
        streams.expire(now + IDLE * 2);
        assert!(streams.is_empty());
    }

    proptest! {
        /// Against the same table written without a care for speed.
        #[test]
        fn the_table_is_bounded_and_keeps_the_most_recent(
            uses in prop::collection::vec((0..8i64, 0..900u64), 0..300), most in 1..6usize,
        ) {
            let mut streams = streams(most);
            let mut now = Instant::now();
            let mut model: Vec<(i64, Instant)> = Vec::new();
            for (producer, seconds) in uses {
                now += Duration::from_secs(seconds);
                streams.generation(&key(producer), now);
                model.retain(|(other, used)| *other != producer && now - *used < IDLE);
                if model.len() == most {
                    model.remove(0);
                }
                model.push((producer, now));
                let mut known: Vec<_> = streams.streams.keys().map(|key| key.producer.0).collect();
                let mut expected: Vec<_> = model.iter().map(|(producer, _)| *producer).collect();
                known.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(known, expected);
                prop_assert!(streams.order.len() <= 2 * most + WINDOW + 2);
            }
        }
    }
}
