//! What an answer, or its absence, means for the batches of a request.

use std::sync::Arc;

use crate::branch::account::{Cause, Outcome};
use crate::branch::ids::{Offset, PartitionId};
use crate::branch::produce::answer::ProduceAnswer;
use crate::branch::produce::batch::Batch;
use crate::branch::produce::request::TopicRef;
use crate::kafka::ids::TopicId;

/// A topic as the request named it, and its answer will.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicKey {
    /// By name.
    Name(Arc<str>),
    /// By id.
    Id(TopicId),
}

impl TopicKey {
    fn is(&self, topic: TopicRef<'_>) -> bool {
        match (self, topic) {
            (Self::Name(own), TopicRef::Name(other)) => **own == *other,
            (Self::Id(own), TopicRef::Id(other)) => *own == other,
            _ => false,
        }
    }
}

/// A batch that a branch is to get once the mainline has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBatch {
    /// How the request named its topic.
    pub key: TopicKey,
    /// The topic's name.
    pub topic: Arc<str>,
    /// Its partition on the mainline.
    pub partition: PartitionId,
    /// The batch as the client sent it.
    pub batch: Batch,
    /// The answer will be about other records of the same partition.
    pub answer_is_hidden: bool,
}

/// What is held of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldRequest {
    /// The batches that the branch is to get.
    pub batches: Vec<HeldBatch>,
}

/// What the answer says of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The mainline has it, there.
    Acknowledged(HeldBatch, Option<Offset>),
    /// The mainline doesn't have it.
    Refused(HeldBatch, i16),
    /// The mainline may have it; a retry will tell.
    Unclear(HeldBatch),
}

/// Errors beside which the leader may have appended the batch.
fn leaves_open(error: i16) -> bool {
    /// UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, DUPLICATE_SEQUENCE_NUMBER,
    /// KAFKA_STORAGE_ERROR.
    const OPEN: [i16; 5] = [-1, 7, 20, 46, 56];
    OPEN.contains(&error)
}

/// Takes a request apart by its answer: each partition has its own.
#[must_use]
pub fn settle(request: HeldRequest, answer: &ProduceAnswer<'_>) -> Vec<Settled> {
    let verdict = |held: HeldBatch| {
        let mine = answer.partitions.iter().find(|p| p.partition == held.partition && held.key.is(p.topic));
        match mine {
            Some(p) if p.error == 0 => Settled::Acknowledged(held, Some(p.base_offset).filter(|o| o.0 >= 0)),
            Some(p) if !held.answer_is_hidden && !leaves_open(p.error) => Settled::Refused(held, p.error),
            _ => Settled::Unclear(held),
        }
    };
    request.batches.into_iter().map(verdict).collect()
}

/// How a request leaves without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its connection ended after its last byte was sent to the broker.
    LostAnswer,
    /// Its connection ended before that: the broker has nothing to append.
    NotSent,
    /// Its time was over.
    Expired,
    /// There was no room for it.
    NoRoom,
    /// The branch was paused.
    Paused,
    /// The branch was taken out.
    Removed,
    /// The gateway ends.
    Shutdown,
}

/// What that means for a batch of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The client will retry it under the same sequences, perhaps on another connection; until then nothing is known.
    AwaitsRetry,
    /// Known, and to be counted.
    Counted(Outcome),
    /// Nothing: the mainline doesn't have it either.
    Nothing,
}

/// The fate of a batch whose request ended so.
#[must_use]
pub fn fate(ending: Ending, batch: &Batch) -> Fate {
    let missing = |cause| Fate::Counted(Outcome::Mia(cause));
    match ending {
        Ending::NotSent => Fate::Nothing,
        Ending::LostAnswer if batch.stamp().producer.is_idempotent() => Fate::AwaitsRetry,
        // Its retry is another batch to every broker.
        Ending::LostAnswer => Fate::Counted(Outcome::Ambiguous(Cause::ConnectionLost)),
        Ending::Expired => missing(Cause::PurgatoryAge),
        Ending::NoRoom => missing(Cause::PurgatoryFull),
        Ending::Paused => missing(Cause::Paused),
        Ending::Removed => missing(Cause::Removed),
        Ending::Shutdown => missing(Cause::Shutdown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::produce::answer::PartitionAnswer;
    use crate::branch::produce::testing::{batch, by};

    fn held(topic: &str, partition: i32) -> HeldBatch {
        HeldBatch {
            key: TopicKey::Name(topic.into()),
            topic: topic.into(),
            partition: PartitionId(partition),
            batch: batch(&by(1000, 0, 0, 1)),
            answer_is_hidden: false,
        }
    }

    fn answered(topic: &str, partition: i32, error: i16, offset: i64) -> PartitionAnswer<'_> {
        let (topic, partition) = (TopicRef::Name(topic), PartitionId(partition));
        PartitionAnswer { topic, partition, error, base_offset: Offset(offset) }
    }

    fn answer(partitions: Vec<PartitionAnswer<'_>>) -> ProduceAnswer<'_> {
        ProduceAnswer { partitions, throttle_ms: 0 }
    }

    #[test]
    fn each_partition_goes_its_own_way() {
        let request = HeldRequest { batches: vec![held("orders", 0), held("orders", 1), held("clicks", 0)] };
        let settled = settle(
            request,
            &answer(vec![
                answered("clicks", 0, 0, 70),
                answered("orders", 1, 6, -1),
                answered("orders", 0, 0, 50),
                answered("others", 0, 3, -1),
            ]),
        );
        assert_eq!(
            settled,
            [
                Settled::Acknowledged(held("orders", 0), Some(Offset(50))),
                Settled::Refused(held("orders", 1), 6),
                Settled::Acknowledged(held("clicks", 0), Some(Offset(70))),
            ]
        );
    }

    #[test]
    fn errors_beside_which_the_leader_may_have_it_settle_nothing() {
        for error in [-1, 7, 20, 46, 56] {
            let request = HeldRequest { batches: vec![held("orders", 0)] };
            let settled = settle(request, &answer(vec![answered("orders", 0, error, -1)]));
            assert_eq!(settled, [Settled::Unclear(held("orders", 0))], "error {error}");
        }
    }

    #[test]
    fn an_answer_about_other_records_or_without_the_partition_settles_nothing() {
        let hidden = HeldBatch { answer_is_hidden: true, ..held("orders", 0) };
        let request = HeldRequest { batches: vec![hidden.clone(), held("orders", 1)] };
        let settled = settle(request, &answer(vec![answered("orders", 0, 87, -1)]));
        assert_eq!(settled, [Settled::Unclear(hidden), Settled::Unclear(held("orders", 1))]);
    }

    #[test]
    fn an_id_is_answered_by_an_id() {
        let id = TopicId([3; 16]);
        let by_id = HeldBatch { key: TopicKey::Id(id), ..held("orders", 0) };
        let mine = PartitionAnswer { topic: TopicRef::Id(id), ..answered("", 0, 0, 9) };
        let request = HeldRequest { batches: vec![by_id.clone()] };
        let settled = settle(request.clone(), &answer(vec![answered("orders", 0, 0, 8), mine]));
        assert_eq!(settled, [Settled::Acknowledged(by_id.clone(), Some(Offset(9)))]);
        let settled = settle(request, &answer(vec![answered("orders", 0, 0, 8)]));
        assert_eq!(settled, [Settled::Unclear(by_id)]);
    }

    #[test]
    fn success_without_an_offset_is_success() {
        let settled =
            settle(HeldRequest { batches: vec![held("orders", 0)] }, &answer(vec![answered("orders", 0, 0, -1)]));
        assert_eq!(settled, [Settled::Acknowledged(held("orders", 0), None)]);
    }

    /// The table of lost answers: how it ended, with and without a producer id.
    #[test]
    fn every_ending_has_its_fate() {
        let counted = |outcome| Fate::Counted(outcome);
        let missing = |cause| [counted(Outcome::Mia(cause)); 2];
        let ambiguous = counted(Outcome::Ambiguous(Cause::ConnectionLost));
        let table = [
            (Ending::LostAnswer, [Fate::AwaitsRetry, ambiguous]),
            (Ending::NotSent, [Fate::Nothing; 2]),
            (Ending::Expired, missing(Cause::PurgatoryAge)),
            (Ending::NoRoom, missing(Cause::PurgatoryFull)),
            (Ending::Paused, missing(Cause::Paused)),
            (Ending::Removed, missing(Cause::Removed)),
            (Ending::Shutdown, missing(Cause::Shutdown)),
        ];
        let batches = [batch(&by(1000, 0, 0, 1)), batch(&by(-1, -1, -1, 1))];
        for (ending, expected) in table {
            assert_eq!([0, 1].map(|n| fate(ending, &batches[n])), expected, "{ending:?}");
        }
    }
}
