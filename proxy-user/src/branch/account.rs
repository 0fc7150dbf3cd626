//! What becomes of batches, in numbers: nothing that a branch was to get may go missing uncounted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::produce::batch::Batch;

/// Topics that are counted by name; those beyond are counted together.
const MAX_TOPICS: usize = 1000;

/// The name under which they are. No topic can be called so.
const OTHERS: &str = "(others)";

/// Why a batch isn't where it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The branch's queue was full.
    QueueFull,
    /// It was in the queue for too long.
    QueueAge,
    /// There was no room to hold it until the mainline's answer.
    PurgatoryFull,
    /// The mainline's answer took too long.
    PurgatoryAge,
    /// The branch was paused.
    Paused,
    /// The branch was taken out of the config.
    Removed,
    /// The gateway ended.
    Shutdown,
    /// The branch has no such topic.
    NoTopic,
    /// The branch's topic has no such partition.
    NoPartition,
    /// The name that the template makes is none.
    TopicName,
    /// The name of the topic behind an id isn't known.
    TopicId,
    /// Larger than the branch takes.
    TooLarge,
    /// The branch's user may not write there.
    Unauthorized,
    /// The batch is damaged or not as the branch's broker wants it.
    Invalid,
    /// The branch's broker refused the identity, and another couldn't be had.
    Identity,
    /// The branch's broker refused for another reason.
    Refused,
    /// The connection died between the write and its answer.
    ConnectionLost,
    /// The mainline's answer left open whether it was written.
    AnswerUnclear,
}

impl Cause {
    /// Label of metrics, from a fixed set.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::QueueAge => "queue_age",
            Self::PurgatoryFull => "purgatory_full",
            Self::PurgatoryAge => "purgatory_age",
            Self::Paused => "paused",
            Self::Removed => "removed",
            Self::Shutdown => "shutdown",
            Self::NoTopic => "no_topic",
            Self::NoPartition => "no_partition",
            Self::TopicName => "topic_name",
            Self::TopicId => "topic_id",
            Self::TooLarge => "too_large",
            Self::Unauthorized => "unauthorized",
            Self::Invalid => "invalid",
            Self::Identity => "identity",
            Self::Refused => "refused",
            Self::ConnectionLost => "connection_lost",
            Self::AnswerUnclear => "answer_unclear",
        }
    }
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The branch has it.
    Written,
    /// The branch had it already, by its broker's own account.
    Found,
    /// A client's retry of a batch that is written or on its way.
    Repeat,
    /// The mainline has it, the branch doesn't.
    Mia(Cause),
    /// The branch has it, the mainline doesn't.
    Ghost,
    /// It can't be known whether one of both has it.
    Ambiguous(Cause),
    /// A generation of a producer started with it: if the one before had it, the branch has it twice.
    PossibleDuplicate,
    /// Left out by the sample.
    Sampled,
    /// Left out by the partition policy.
    LeftOut,
    /// Transactional, and the branch skips those.
    Skipped,
    /// Transactional, and its transaction was aborted.
    Aborted,
    /// Written to the dead letter topic instead.
    DeadLetter(Cause),
    /// Dispatched although the mainline will never say whether it has it (`acks=0`); counted besides what becomes of it.
    Unanswered,
}

impl Outcome {
    /// Labels of metrics, from a fixed set: outcome and cause.
    #[must_use]
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Written => ("written", ""),
            Self::Found => ("found", ""),
            Self::Repeat => ("repeat", ""),
            Self::Mia(cause) => ("mia", cause.label()),
            Self::Ghost => ("ghost", ""),
            Self::Ambiguous(cause) => ("ambiguous", cause.label()),
            Self::PossibleDuplicate => ("possible_duplicate", ""),
            Self::Sampled => ("sampled", ""),
            Self::LeftOut => ("left_out", ""),
            Self::Skipped => ("skipped", ""),
            Self::Aborted => ("aborted", ""),
            Self::DeadLetter(cause) => ("dead_letter", cause.label()),
            Self::Unanswered => ("unanswered", ""),
        }
    }
}

/// An amount of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Batches.
    pub batches: u64,
    /// Records, by the headers of the batches.
    pub records: u64,
    /// Bytes, headers of the batches included.
    pub bytes: u64,
}

impl Tally {
    /// One batch.
    #[must_use]
    pub fn of(batch: &Batch) -> Self {
        Self { batches: 1, records: u64::from(batch.record_count()), bytes: batch.size() as u64 }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

/// The numbers of one branch, by the mainline's topic. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Topics>>);

type Topics = BTreeMap<Arc<str>, BTreeMap<Outcome, Tally>>;

impl Ledger {
    /// Takes note.
    pub fn add(&self, topic: &Arc<str>, outcome: Outcome, amount: Tally) {
        let mut topics = self.topics();
        let full = topics.len() >= MAX_TOPICS && !topics.contains_key(topic);
        let topic = if full { Arc::from(OTHERS) } else { topic.clone() };
        *topics.entry(topic).or_default().entry(outcome).or_default() += amount;
    }

    /// Takes note of one batch.
    pub fn count(&self, topic: &Arc<str>, outcome: Outcome, batch: &Batch) {
        self.add(topic, outcome, Tally::of(batch));
    }

    /// All numbers now.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<Arc<str>, BTreeMap<Outcome, Tally>> {
        self.topics().clone()
    }

    /// What became of all topics' batches in this way.
    #[must_use]
    pub fn total(&self, outcome: Outcome) -> Tally {
        let mut total = Tally::default();
        self.topics().values().filter_map(|outcomes| outcomes.get(&outcome)).for_each(|amount| total += *amount);
        total
    }

    fn topics(&self) -> std::sync::MutexGuard<'_, Topics> {
        // Another thread can only have panicked between two additions.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::produce::testing::{batch, by};

    #[test]
    fn batches_records_and_bytes_are_counted_by_topic_and_outcome() {
        let ledger = Ledger::default();
        let (orders, clicks) = ("orders".into(), "clicks".into());
        let one = batch(&by(1, 0, 0, 7));
        ledger.count(&orders, Outcome::Written, &one);
        ledger.count(&orders, Outcome::Written, &one);
        ledger.count(&clicks, Outcome::Written, &one);
        ledger.count(&clicks, Outcome::Mia(Cause::QueueFull), &one);
        let bytes = one.size() as u64;
        assert_eq!(ledger.snapshot()["orders"][&Outcome::Written], Tally { batches: 2, records: 14, bytes: 2 * bytes });
        assert_eq!(ledger.total(Outcome::Written).batches, 3);
        assert_eq!(ledger.total(Outcome::Mia(Cause::QueueFull)).batches, 1);
        assert_eq!(ledger.total(Outcome::Mia(Cause::QueueAge)), Tally::default());
    }

    #[test]
    fn topics_beyond_the_bound_are_counted_together() {
        let ledger = Ledger::default();
        let one = Tally { batches: 1, records: 1, bytes: 1 };
        for n in 0..MAX_TOPICS + 5 {
            ledger.add(&format!("topic-{n}").into(), Outcome::Written, one);
        }
        ledger.add(&"topic-0".into(), Outcome::Written, one);
        let snapshot = ledger.snapshot();
        assert_eq!(snapshot.len(), MAX_TOPICS + 1);
        assert_eq!(snapshot[OTHERS][&Outcome::Written].batches, 5);
        assert_eq!(snapshot["topic-0"][&Outcome::Written].batches, 2);
    }
}
