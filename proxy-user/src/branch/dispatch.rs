//! Between the mainline and a branch's writer: what is copied, and when it may go.
//!
//! ```text
//!   request ─► selected? sampled? ─┬─ on_ack ────► purgatory ── answer ──► acknowledged ─► sink
//!                                  ├─ concurrent ► sink, and purgatory to tell ghosts
//!                                  └─ acks=0 ────► sink
//! ```
//!
//! Called from the threads of the mainline: nothing here waits, and locks are held for moments. The requests of a
//! connection come in order, and so do their answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::account::{Cause, Ledger, Outcome, Tally};
use super::identity::{Seed, Seen, StreamKey};
use super::ids::{Offset, PartitionId};
use super::produce::answer::ProduceAnswer;
use super::produce::batch::Batch;
use super::produce::request::{Acks, ProduceRequest, TopicRef};
use super::purgatory::{
    Bounds, ConnectionId, Ending, Fate, HeldBatch, HeldRequest, Orphans, Purgatory, RequestKey, Settled, TopicKey,
    fate, settle,
};
use super::sample::Share;
use super::select::Selection;
use super::writer::{Item, Writer};
use crate::kafka::ids::{ApiVersion, TopicId};

/// When a batch is dispatched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// When the mainline has acknowledged it.
    #[default]
    OnAck,
    /// As its request is forwarded.
    Concurrent,
}

/// What happens to transactional batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transactions {
    /// They are left out.
    #[default]
    Skip,
    /// They are written as plain ones, those of aborted transactions included.
    Plain,
}

/// What a branch copies.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which topics.
    pub selection: Selection,
    /// Which share of their batches.
    pub share: Share,
    /// When.
    pub when: When,
    /// Transactional ones.
    pub transactions: Transactions,
    /// How much waits for answers, and for how long.
    pub purgatory: Bounds,
    /// Batches whose answer was lost and whose retry is awaited.
    pub orphans: usize,
}

/// Where batches go.
pub trait Sink {
    /// Takes a batch or counts what becomes of it, without waiting.
    fn offer(&self, item: Item);
}

impl Sink for Writer {
    fn offer(&self, item: Item) {
        Writer::offer(self, item);
    }
}

/// Names of the mainline's topics, for requests that go by ids.
pub trait TopicNames {
    /// The name of the topic with this id.
    fn name(&self, id: TopicId) -> Option<Arc<str>>;
}

/// A branch as the mainline sees it.
#[derive(Debug)]
pub struct Dispatcher<S> {
    plan: Plan,
    sink: S,
    ledger: Ledger,
    purgatory: Purgatory<HeldRequest>,
    orphans: Mutex<Orphans>,
}

impl<S: Sink> Dispatcher<S> {
    /// `shards`: about as many as threads use it at once.
    #[must_use]
    pub fn new(plan: Plan, sink: S, ledger: Ledger, shards: usize, now: Instant) -> Self {
        Self {
            purgatory: Purgatory::new(plan.purgatory, shards, now),
            orphans: Mutex::new(Orphans::new(plan.orphans, plan.purgatory.age)),
            plan,
            sink,
            ledger,
        }
    }

    /// The writer behind it.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// A Produce request is being forwarded. `frame` are the bytes behind its size field.
    pub fn on_request(
        &self,
        key: RequestKey,
        version: ApiVersion,
        frame: &Bytes,
        names: &dyn TopicNames,
        now: Instant,
    ) {
        // What can't be read the broker can't read either: it closes the connection.
        let Ok(request) = ProduceRequest::read(version, frame) else { return };
        let mut chosen = self.choose(&request, names);
        if chosen.is_empty() {
            return;
        }
        let bytes = own_memory(&mut chosen, frame);
        let at_once = self.plan.when == When::Concurrent || request.acks == Acks::None;
        if at_once {
            for held in &chosen {
                if request.acks == Acks::None {
                    self.ledger.count(&held.topic, Outcome::Unanswered, &held.batch);
                }
                self.dispatch(held.clone(), None, now);
            }
        }
        if request.acks == Acks::None {
            return;
        }
        if let Err(rejected) = self.purgatory.hold(key, bytes, HeldRequest { batches: chosen }, now) {
            self.leave(rejected, Ending::NoRoom, now);
        }
    }

    /// The batches of a request that the branch is to get.
    fn choose(&self, request: &ProduceRequest<'_>, names: &dyn TopicNames) -> Vec<HeldBatch> {
        let mut chosen = Vec::new();
        for (entry, batch) in request.batches() {
            let (key, topic) = match entry.topic {
                TopicRef::Name(name) if !self.plan.selection.selects(name) => continue,
                TopicRef::Name(name) => {
                    let name: Arc<str> = name.into();
                    (TopicKey::Name(name.clone()), name)
                }
                TopicRef::Id(id) => match names.name(id) {
                    Some(name) if !self.plan.selection.selects(&name) => continue,
                    Some(name) => (TopicKey::Id(id), name),
                    // Whether it would be selected can't be known.
                    None => {
                        let outcome = Outcome::Ambiguous(Cause::TopicId);
                        self.ledger.count(&id.to_string().into(), outcome, batch);
                        continue;
                    }
                },
            };
            if !self.admits(&topic, entry.partition, batch) {
                continue;
            }
            let (partition, answer_is_hidden) = (entry.partition, entry.answer_is_hidden);
            chosen.push(HeldBatch { key, topic, partition, batch: batch.clone(), answer_is_hidden });
        }
        chosen
    }

    fn admits(&self, topic: &Arc<str>, partition: PartitionId, batch: &Batch) -> bool {
        let stamp = batch.stamp();
        // What a branch wrote is never branched again.
        if Seed::is_derived(stamp.producer) {
            return false;
        }
        if stamp.transactional && self.plan.transactions == Transactions::Skip {
            self.ledger.count(topic, Outcome::Skipped, batch);
            return false;
        }
        let kept = self.plan.share.keeps(topic, partition, batch);
        if !kept {
            self.ledger.count(topic, Outcome::Sampled, batch);
        }
        kept
    }

    /// The answer to a Produce request is being forwarded. `frame` are the bytes behind its size field.
    pub fn on_answer(&self, key: RequestKey, version: ApiVersion, frame: &[u8], now: Instant) {
        let Some(request) = self.purgatory.release(key) else { return };
        let Ok(answer) = ProduceAnswer::read(version, frame) else {
            return self.leave(request, Ending::LostAnswer, now);
        };
        for settled in settle(request, &answer) {
            match (settled, self.plan.when) {
                (Settled::Acknowledged(held, offset), When::OnAck) => self.dispatch(held, offset, now),
                (Settled::Acknowledged(..) | Settled::Unclear(_), When::Concurrent)
                | (Settled::Refused(..), When::OnAck) => {}
                (Settled::Refused(held, _), When::Concurrent) => {
                    self.ledger.count(&held.topic, Outcome::Ghost, &held.batch);
                }
                (Settled::Unclear(held), When::OnAck) => self.await_retry(held, Cause::AnswerUnclear, now),
            }
        }
    }

    /// A connection ended. `forwarded`: how many of its requests had been sent to the broker to their last byte.
    pub fn on_connection_end(&self, connection: ConnectionId, forwarded: u64, now: Instant) {
        for (ordinal, request) in self.purgatory.connection_ended(connection) {
            let ending = if ordinal < forwarded { Ending::LostAnswer } else { Ending::NotSent };
            self.leave(request, ending, now);
        }
    }

    /// Lets go of what waits for too long. Due about every hundredth of the purgatory's age.
    pub fn tick(&self, now: Instant) {
        for request in self.purgatory.expire(now) {
            self.leave(request, Ending::Expired, now);
        }
        let given_up = self.orphans().expire(now);
        self.give_up(given_up);
    }

    /// Lets go of everything.
    pub fn end(&self, ending: Ending, now: Instant) {
        for request in self.purgatory.drain() {
            self.leave(request, ending, now);
        }
        let given_up = self.orphans().drain();
        self.give_up(given_up);
    }

    /// Bytes that wait for answers.
    pub fn held(&self) -> usize {
        self.purgatory.bytes()
    }

    fn dispatch(&self, held: HeldBatch, offset: Option<Offset>, now: Instant) {
        let HeldBatch { topic, partition, batch, .. } = held;
        let item = Item::new(topic, partition, batch, offset, now);
        if let Some(stream) = &item.stream {
            self.orphans().resolve(stream, &item.seen);
        }
        self.sink.offer(item);
    }

    fn leave(&self, request: HeldRequest, ending: Ending, now: Instant) {
        for held in request.batches {
            match (fate(ending, &held.batch), self.plan.when) {
                (Fate::Nothing, When::OnAck) => {}
                // It was dispatched, and the mainline never got it.
                (Fate::Nothing, When::Concurrent) => self.ledger.count(&held.topic, Outcome::Ghost, &held.batch),
                (Fate::AwaitsRetry, When::OnAck) => self.await_retry(held, Cause::ConnectionLost, now),
                (Fate::Counted(outcome), When::OnAck) => self.ledger.count(&held.topic, outcome, &held.batch),
                // It was dispatched: what isn't known is whether the mainline has it.
                (Fate::AwaitsRetry | Fate::Counted(_), When::Concurrent) => {
                    self.ledger.count(&held.topic, Outcome::Ambiguous(cause_of(ending)), &held.batch);
                }
            }
        }
    }

    /// Nothing is known of it until a retry; without a producer no retry can be told from another batch.
    fn await_retry(&self, held: HeldBatch, cause: Cause, now: Instant) {
        let HeldBatch { topic, partition, batch, .. } = held;
        let producer = batch.stamp().producer;
        if !producer.is_idempotent() {
            return self.ledger.count(&topic, Outcome::Ambiguous(cause), &batch);
        }
        let stream = StreamKey { topic, partition, producer };
        let given_up = self.orphans().add(stream, Seen::of(&batch, None), Tally::of(&batch), now);
        self.give_up(given_up);
    }

    fn give_up(&self, orphans: Vec<(Arc<str>, Tally)>) {
        for (topic, amount) in orphans {
            self.ledger.add(&topic, Outcome::Ambiguous(Cause::ConnectionLost), amount);
        }
    }

    fn orphans(&self) -> MutexGuard<'_, Orphans> {
        // Another thread can only have panicked between two steps that each leave it whole.
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cause_of(ending: Ending) -> Cause {
    match ending {
        Ending::LostAnswer | Ending::NotSent => Cause::ConnectionLost,
        Ending::Expired => Cause::PurgatoryAge,
        Ending::NoRoom => Cause::PurgatoryFull,
        Ending::Paused => Cause::Paused,
        Ending::Removed => Cause::Removed,
        Ending::Shutdown => Cause::Shutdown,
    }
}

/// Sees to it that what is held is what is counted: a slice keeps its whole frame, so few bytes of a large frame are
/// copied. Returns the bytes held.
fn own_memory(chosen: &mut [HeldBatch], frame: &Bytes) -> usize {
    let own: usize = chosen.iter().map(|held| held.batch.size()).sum();
    if own >= frame.len() / 2 {
        return frame.len();
    }
    for held in chosen {
        held.batch = held.batch.detached();
    }
    own
}

/// How long a purgatory's `tick` may be put off.
#[must_use]
pub fn tick_interval(bounds: Bounds) -> Duration {
    (bounds.age / 100).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
