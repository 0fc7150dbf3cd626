//! A partition as a broker keeps it, for tests.

use std::collections::{HashMap, VecDeque};

use crate::branch::ids::{ProducerEpoch, ProducerId, Sequence};
use crate::branch::produce::batch::Batch;

/// What a broker deduplicates within.
pub(super) type Incarnation = (ProducerId, ProducerEpoch);

/// A partition's log and producer state, by the rules of kafka-rules (`ProducerAppendInfo`, `ProducerStateEntry`).
#[derive(Debug)]
pub(super) struct Broker<P> {
    /// Each batch that was appended, and what the test knows it by.
    pub(super) log: Vec<(Incarnation, P)>,
    producers: HashMap<ProducerId, (ProducerEpoch, VecDeque<(Sequence, Sequence)>)>,
}

impl<P> Default for Broker<P> {
    fn default() -> Self {
        Self { log: Vec::new(), producers: HashMap::new() }
    }
}

impl<P> Broker<P> {
    /// Kafka's error code.
    pub(super) fn append(&mut self, batch: &Batch, payload: P) -> i16 {
        let stamp = batch.stamp();
        let range = (stamp.sequence, batch.last_sequence());
        if stamp.producer.is_idempotent() {
            if let Some((epoch, window)) = self.producers.get(&stamp.producer) {
                if *epoch == stamp.epoch && window.contains(&range) {
                    return 0;
                }
                if stamp.epoch < *epoch {
                    return 47;
                }
                let follows = match window.back() {
                    Some((_, last)) if *epoch == stamp.epoch => range.0 == last.plus(1),
                    _ => range.0 == Sequence::FIRST,
                };
                if !follows {
                    return 45;
                }
            }
            let (epoch, window) =
                self.producers.entry(stamp.producer).or_insert_with(|| (stamp.epoch, VecDeque::new()));
            if *epoch != stamp.epoch {
                *epoch = stamp.epoch;
                window.clear();
            }
            window.push_back(range);
            if window.len() > 5 {
                window.pop_front();
            }
        }
        self.log.push(((stamp.producer, stamp.epoch), payload));
        0
    }

    /// The leader restarts: of each producer it knows the last batch.
    pub(super) fn restart(&mut self) {
        for (_, window) in self.producers.values_mut() {
            window.drain(..window.len().saturating_sub(1));
        }
    }
}
