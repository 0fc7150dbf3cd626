//! Batches whose answer was lost, until a retry of the client tells what became of them.
//!
//! Only who they are is kept, not their bytes: the retry brings those again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::branch::account::Tally;
use crate::branch::identity::{Seen, StreamKey};
use crate::branch::ids::{ProducerEpoch, Sequence};

/// A batch, whatever connection it comes by.
type Key = (StreamKey, ProducerEpoch, Sequence);

/// Orphans, bounded in number and age.
#[derive(Debug)]
pub struct Orphans {
    most: usize,
    age: Duration,
    waiting: HashMap<Key, (u64, Tally)>,
    /// By time. An entry whose number isn't the one that waits is out of date.
    order: VecDeque<(Instant, u64, Key)>,
    next: u64,
}

impl Orphans {
    /// None so far.
    #[must_use]
    pub fn new(most: usize, age: Duration) -> Self {
        Self { most, age, waiting: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    /// Waits for a retry of this batch. What has to give way for it is given back, to be counted as ambiguous.
    pub fn add(&mut self, stream: StreamKey, seen: Seen, amount: Tally, now: Instant) -> Vec<(Arc<str>, Tally)> {
        let key = (stream, seen.epoch, seen.first);
        // A retry whose answer was lost too is the same orphan.
        self.waiting.remove(&key);
        self.next += 1;
        self.order.push_back((now, self.next, key.clone()));
        self.waiting.insert(key, (self.next, amount));
        let mut gone = Vec::new();
        while self.waiting.len() > self.most || self.order.len() > 2 * self.most {
            gone.extend(self.pop());
        }
        gone
    }

    /// A batch was acknowledged: if it was an orphan, it is none any more.
    pub fn resolve(&mut self, stream: &StreamKey, seen: &Seen) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&(stream.clone(), seen.epoch, seen.first));
        }
    }

    /// Those that nobody retried: topic and amount of each, to be counted as ambiguous.
    pub fn expire(&mut self, now: Instant) -> Vec<(Arc<str>, Tally)> {
        let mut gone = Vec::new();
        while self.order.front().is_some_and(|(since, ..)| now.saturating_duration_since(*since) >= self.age) {
            gone.extend(self.pop());
        }
        gone
    }

    /// Everything that waits, at the end.
    pub fn drain(&mut self) -> Vec<(Arc<str>, Tally)> {
        let mut gone = Vec::new();
        while !self.order.is_empty() {
            gone.extend(self.pop());
        }
        gone
    }

    fn pop(&mut self) -> Option<(Arc<str>, Tally)> {
        let (_, number, key) = self.order.pop_front()?;
        let (_, amount) = self.waiting.get(&key).filter(|(current, _)| *current == number).copied()?;
        self.waiting.remove(&key);
        Some((key.0.topic, amount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::ids::{PartitionId, ProducerId};

    const AGE: Duration = Duration::from_secs(30);
    const ONE: Tally = Tally { batches: 1, records: 3, bytes: 90 };

    fn stream() -> StreamKey {
        StreamKey { topic: "orders".into(), partition: PartitionId(0), producer: ProducerId(7) }
    }

    fn seen(first: i32) -> Seen {
        Seen { epoch: ProducerEpoch(0), first: Sequence(first), last: Sequence(first + 2), offset: None }
    }

    #[test]
    fn a_retry_tells_what_became_of_an_orphan() {
        let (mut orphans, now) = (Orphans::new(10, AGE), Instant::now());
        assert!(orphans.add(stream(), seen(0), ONE, now).is_empty());
        assert!(orphans.add(stream(), seen(3), ONE, now).is_empty());
        orphans.resolve(&stream(), &Seen { offset: Some(crate::branch::ids::Offset(44)), ..seen(0) });
        assert_eq!(orphans.expire(now + AGE), [("orders".into(), ONE)]);
        assert!(orphans.drain().is_empty());
    }

    #[test]
    fn an_orphan_that_nobody_retries_is_given_up_after_its_time() {
        let (mut orphans, now) = (Orphans::new(10, AGE), Instant::now());
        orphans.add(stream(), seen(0), ONE, now);
        assert!(orphans.expire(now + AGE / 2).is_empty());
        orphans.add(stream(), seen(0), ONE, now + AGE / 2);
        assert!(orphans.expire(now + AGE).is_empty(), "its retry was lost too: it waits anew");
        assert_eq!(orphans.expire(now + AGE * 2).len(), 1);
    }

    #[test]
    fn the_oldest_gives_way_and_is_not_forgotten() {
        let (mut orphans, now) = (Orphans::new(2, AGE), Instant::now());
        orphans.add(stream(), seen(0), ONE, now);
        orphans.add(stream(), seen(3), ONE, now);
        assert_eq!(orphans.add(stream(), seen(6), ONE, now), [("orders".into(), ONE)]);
        orphans.resolve(&stream(), &seen(3));
        assert_eq!(orphans.drain().len(), 1);
    }

    #[test]
    fn memory_is_bounded_when_every_orphan_is_resolved() {
        let (mut orphans, now) = (Orphans::new(4, AGE), Instant::now());
        for n in 0..1000 {
            assert!(orphans.add(stream(), seen(n * 3), ONE, now).is_empty());
            orphans.resolve(&stream(), &seen(n * 3));
            assert!(orphans.order.len() <= 8);
        }
    }
}
