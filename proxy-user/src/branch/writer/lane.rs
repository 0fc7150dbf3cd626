//! One partition of the branch: batches in order, a few of them in flight.
//!
//! ```text
//!   push ─► [waiting] ── next ──► [sent: in flight] ── answered ──► written, found, never
//!               ▲                        │
//!               └──── round over ────────┘ what came back undone, in order
//! ```
//!
//! Nothing new is sent while something came back undone: when the last one in flight is answered or lost, the *round*
//! is over, and what is undone goes back to the front. So the order is kept, and the verdict on a refused sequence can
//! wait for what came behind it:
//!
//! A broker takes a batch only behind the one before it. If a later batch of the same producer was taken, every earlier
//! one since the start of its generation is there, whatever the broker said of it: its window had shrunk (it does, to
//! one batch, when the partition's leader restarts), or the retry came too late. If none was, there is a hole in front
//! of the first, and a generation starts. A generation's first batch goes alone, so that its start is known.
//!
//! Invariants: at most `in_flight` batches are in flight; every batch that was pushed comes out once as [`Done`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::verdict::{Verdict, verdict};
use crate::branch::account::{Cause, Outcome};
use crate::branch::identity::{Advance, Assigned, Seen, Stamper, StreamKey, stamped};
use crate::branch::ids::{Offset, PartitionId};
use crate::branch::produce::batch::Batch;

/// The first pause before a batch is sent again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Refused sequences that are tried again at once; after that with pauses.
const QUICK_GENERATIONS: u32 = 2;

/// A batch on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Topic on the mainline.
    pub topic: Arc<str>,
    /// Partition there.
    pub partition: PartitionId,
    /// The client's producer there, if it has one.
    pub stream: Option<StreamKey>,
    /// The batch as the mainline knows it.
    pub seen: Seen,
    /// As the client sent it.
    pub batch: Batch,
    /// When it was dispatched.
    pub since: Instant,
}

impl Item {
    /// A batch of the mainline, which has it at `offset` if its answer was waited for.
    #[must_use]
    pub fn new(topic: Arc<str>, partition: PartitionId, batch: Batch, offset: Option<Offset>, now: Instant) -> Self {
        let producer = batch.stamp().producer;
        let stream = producer.is_idempotent().then(|| StreamKey { topic: topic.clone(), partition, producer });
        Self { topic, partition, stream, seen: Seen::of(&batch, offset), batch, since: now }
    }
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The batch.
    pub item: Item,
    /// What became of it.
    pub outcome: Outcome,
}

/// What a step of a lane leads to.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Batches that are done.
    pub(super) done: Vec<Done>,
    /// Batches that are sent once more in a way in which the broker can't recognise them: in another generation, or
    /// without a producer.
    pub(super) possible_duplicates: Vec<Item>,
    /// Fresh metadata may help.
    pub(super) refresh: bool,
}

/// A batch to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    /// Names it in [`Lane::answered`].
    pub(super) number: u64,
    /// With its stamp.
    pub(super) batch: Batch,
}

#[derive(Debug)]
struct Task {
    item: Item,
    number: u64,
    assigned: Option<Assigned>,
    state: State,
    /// An earlier attempt may have been appended.
    doubtful: bool,
    /// Its sequence was refused, and that can also mean that it was appended long ago.
    refused: bool,
    /// The next attempt may write it twice.
    may_double: bool,
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    InFlight,
    Undone,
    OutOfOrder,
    Written,
}

/// A partition of the branch.
#[derive(Debug)]
pub(super) struct Lane {
    most_in_flight: usize,
    age: Duration,
    waiting: VecDeque<Task>,
    sent: VecDeque<Task>,
    next_number: u64,
    /// Rounds that ended with something undone, since the last batch was written.
    failures: u32,
    not_before: Option<Instant>,
}

impl Lane {
    /// An empty lane; batches older than `age` are given up.
    pub(super) fn new(most_in_flight: usize, age: Duration) -> Self {
        Self {
            most_in_flight: most_in_flight.max(1),
            age,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            next_number: 0,
            failures: 0,
            not_before: None,
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    pub(super) fn push(&mut self, item: Item) {
        let number = self.next_number;
        self.next_number += 1;
        let state = State::Waiting;
        self.waiting.push_back(Task {
            item,
            number,
            assigned: None,
            state,
            doubtful: false,
            refused: false,
            may_double: false,
            attempts: 0,
        });
    }

    /// Whether [`Self::next`] would give a batch.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        !self.waiting.is_empty()
            && self.sent.len() < self.most_in_flight
            && self.sent.iter().all(|task| matches!(task.state, State::InFlight | State::Written))
            && self.not_before.is_none_or(|at| at <= now)
    }

    /// Size of the batch that is sent next.
    pub(super) fn next_size(&self) -> usize {
        self.waiting.front().map_or(0, |task| task.item.batch.size())
    }

    /// The next batch to be sent now.
    pub(super) fn next(&mut self, stamper: &mut dyn Stamper, now: Instant, effects: &mut Effects) -> Option<Outgoing> {
        while self.is_ready(now) {
            let mut task = self.waiting.pop_front()?;
            let stream = task.item.stream.as_ref();
            let Some(assigned) = stamper.assign(stream, &task.item.batch, task.assigned, now) else {
                effects.done.push(task.end(Outcome::Mia(Cause::Identity)));
                continue;
            };
            task.may_double |= task.is_unrecognised_as(assigned);
            task.assigned = Some(assigned);
            let has_company = |other: &Task| other.assigned.is_some_and(|other| other.is_of(&assigned));
            if assigned.goes_alone() && self.sent.iter().any(has_company) {
                self.waiting.push_front(task);
                return None;
            }
            if std::mem::take(&mut task.may_double) {
                effects.possible_duplicates.push(task.item.clone());
            }
            task.refused = false;
            task.state = State::InFlight;
            task.attempts += 1;
            let batch = stamped(&task.item.batch, stamper.mode(), assigned);
            let outgoing = Outgoing { number: task.number, batch };
            self.sent.push_back(task);
            return Some(outgoing);
        }
        None
    }

    /// The broker answered for a batch.
    pub(super) fn answered(
        &mut self,
        number: u64,
        error: i16,
        stamper: &mut dyn Stamper,
        now: Instant,
        effects: &mut Effects,
    ) {
        let in_flight = |task: &Task| task.number == number && task.state == State::InFlight;
        let Some(at) = self.sent.iter().position(in_flight) else { return };
        let task = &mut self.sent[at];
        match verdict(error) {
            Verdict::Written => {
                task.state = State::Written;
                self.failures = 0;
                if let Some(assigned) = task.assigned {
                    stamper.acknowledge(task.item.stream.as_ref(), assigned);
                }
            }
            Verdict::OutOfOrder => task.state = State::OutOfOrder,
            Verdict::Again { doubtful } => {
                task.state = State::Undone;
                task.doubtful |= doubtful;
                effects.refresh = true;
            }
            Verdict::Found => effects.done.extend(self.sent.remove(at).map(|task| task.end(Outcome::Found))),
            Verdict::Never(cause) => {
                effects.done.extend(self.sent.remove(at).map(|task| task.give_up(cause)));
            }
        }
        self.step(stamper, now, effects);
    }

    /// The connection by which these batches were sent ended: nothing more will be heard of them.
    /// `sent`: they may have reached the broker.
    pub(super) fn lost(
        &mut self,
        numbers: &[u64],
        sent: bool,
        stamper: &mut dyn Stamper,
        now: Instant,
        effects: &mut Effects,
    ) {
        for task in &mut self.sent {
            if task.state == State::InFlight && numbers.contains(&task.number) {
                task.state = State::Undone;
                task.doubtful |= sent;
                effects.refresh = true;
            }
        }
        self.step(stamper, now, effects);
    }

    /// Gives up what waits for too long. What is in flight waits for its answer.
    pub(super) fn expire(&mut self, now: Instant, effects: &mut Effects) {
        let old = |task: &Task| now.saturating_duration_since(task.item.since) >= self.age;
        while self.waiting.front().is_some_and(old) {
            effects.done.extend(self.waiting.pop_front().map(|task| task.give_up(Cause::QueueAge)));
        }
    }

    /// Gives up everything.
    pub(super) fn end(&mut self, cause: Cause, effects: &mut Effects) {
        for mut task in self.sent.drain(..) {
            task.doubtful |= task.state == State::InFlight;
            effects.done.push(match task.state {
                State::Written => task.end(Outcome::Written),
                _ => task.give_up(cause),
            });
        }
        effects.done.extend(self.waiting.drain(..).map(|task| task.give_up(cause)));
    }

    /// Lets go of what is written at the front, and ends the round when nothing is in flight any more.
    fn step(&mut self, stamper: &mut dyn Stamper, now: Instant, effects: &mut Effects) {
        while self.sent.front().is_some_and(|task| task.state == State::Written) {
            effects.done.extend(self.sent.pop_front().map(|task| task.end(Outcome::Written)));
        }
        if !self.sent.is_empty() && self.sent.iter().all(|task| task.state != State::InFlight) {
            self.end_round(stamper, now, effects);
        }
    }

    fn end_round(&mut self, stamper: &mut dyn Stamper, now: Instant, effects: &mut Effects) {
        let round = std::mem::take(&mut self.sent);
        let mut back = Vec::new();
        let mut pause = false;
        let proofs: Vec<_> = round.iter().map(Task::proof).collect();
        for (at, mut task) in round.into_iter().enumerate() {
            match task.state {
                State::Written => effects.done.push(task.end(Outcome::Written)),
                State::OutOfOrder => {
                    let proven = proofs[at + 1..].iter().flatten().any(|proof| task.is_proven_by(proof));
                    if proven {
                        effects.done.push(task.end(Outcome::Found));
                        continue;
                    }
                    let from = task.assigned.map(|assigned| assigned.generation).unwrap_or_default();
                    match stamper.advance(task.item.stream.as_ref(), from, now) {
                        Advance::Impossible => {
                            effects.done.push(task.give_up(Cause::Identity));
                            continue;
                        }
                        Advance::Started | Advance::Already => task.refused = true,
                    }
                    pause |= task.attempts > QUICK_GENERATIONS;
                    back.push(task);
                }
                State::Waiting | State::InFlight | State::Undone => {
                    pause = true;
                    back.push(task);
                }
            }
        }
        if pause {
            self.not_before = Some(now + backoff(self.failures));
            self.failures = self.failures.saturating_add(1);
        } else {
            self.not_before = None;
        }
        for mut task in back.into_iter().rev() {
            task.state = State::Waiting;
            self.waiting.push_front(task);
        }
    }
}

impl Task {
    fn end(self, outcome: Outcome) -> Done {
        Done { item: self.item, outcome }
    }

    /// Missing, or not known to be.
    fn give_up(self, cause: Cause) -> Done {
        let outcome = if self.doubtful { Outcome::Ambiguous(Cause::ConnectionLost) } else { Outcome::Mia(cause) };
        self.end(outcome)
    }

    /// Whether it may be there, under a stamp by which a broker wouldn't know it from `next`.
    fn is_unrecognised_as(&self, next: Assigned) -> bool {
        let Some(last) = self.assigned else { return false };
        let recognised = last.generation == next.generation && next.stamp.producer.is_idempotent();
        !recognised && (self.doubtful || self.refused)
    }

    /// The producer as which it was written: everything of it that came before is there.
    fn proof(&self) -> Option<Assigned> {
        self.assigned.filter(|assigned| self.state == State::Written && assigned.stamp.producer.is_idempotent())
    }

    /// Whether `later` was taken only because this one had been.
    fn is_proven_by(&self, later: &Assigned) -> bool {
        self.assigned.is_some_and(|own| {
            let sequence = own.stamp.sequence;
            let since_start = own.start.is_some_and(|start| !sequence.is_before(start));
            own.is_of(later) && since_start && sequence.is_before(later.stamp.sequence)
        })
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF.0.saturating_mul(1 << failures.min(10)).min(BACKOFF.1)
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
