//! What an error of the branch's broker means for a batch.

use crate::branch::account::Cause;

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is there, at the offset that the answer has.
    Written,
    /// It was there before.
    Found,
    /// The sequence doesn't follow, or the broker doesn't know the producer as it comes.
    OutOfOrder,
    /// Not now, or not by this broker: once more, with fresh metadata.
    Again {
        /// It may have been appended all the same.
        doubtful: bool,
    },
    /// Never: the batch, the topic or the user is at fault.
    Never(Cause),
}

/// Kafka's error codes (`org.apache.kafka.common.protocol.Errors`) as answers to Produce.
pub(super) fn verdict(error: i16) -> Verdict {
    match error {
        0 => Verdict::Written,
        // DUPLICATE_SEQUENCE_NUMBER
        46 => Verdict::Found,
        // OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID
        45 | 47 | 59 => Verdict::OutOfOrder,
        // UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR
        -1 | 7 | 20 | 56 => Verdict::Again { doubtful: true },
        // UNKNOWN_TOPIC_OR_PARTITION (what Metadata says of it decides), LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER,
        // REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS,
        // NOT_ENOUGH_REPLICAS, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_TOPIC_ID
        3 | 5 | 6 | 9 | 13 | 14 | 19 | 74 | 75 | 89 | 100 => Verdict::Again { doubtful: false },
        // MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE
        10 | 18 => Verdict::Never(Cause::TooLarge),
        // TOPIC_, CLUSTER_, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        29 | 31 | 53 => Verdict::Never(Cause::Unauthorized),
        // INVALID_TOPIC_EXCEPTION
        17 => Verdict::Never(Cause::TopicName),
        // CORRUPT_MESSAGE, INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD
        2 | 32 | 43 | 76 | 87 => Verdict::Never(Cause::Invalid),
        // PRODUCER_FENCED
        90 => Verdict::Never(Cause::Identity),
        _ => Verdict::Never(Cause::Refused),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::ResponseError;

    use super::*;

    /// What comes as an answer to Produce, the sequence's own errors apart. kafka-protocol says of each whether a client
    /// may retry it; UNKNOWN_SERVER_ERROR says nothing, and a corrupt batch won't be better the next time.
    #[test]
    fn what_kafka_calls_retriable_is_tried_again_and_nothing_else() {
        let produce = [3, 5, 6, 7, 9, 10, 13, 14, 17, 18, 19, 20, 29, 31, 32, 43, 53, 56, 74, 75, 76, 87, 89, 90, 100];
        for code in produce {
            let error = ResponseError::try_from_code(code).unwrap();
            let again = matches!(verdict(code), Verdict::Again { .. });
            assert_eq!(again, error.is_retriable(), "{code} {error:?}");
        }
    }

    #[test]
    fn only_a_batch_that_may_be_there_leaves_a_doubt() {
        let doubtful: Vec<_> = (-1..130).filter(|c| verdict(*c) == Verdict::Again { doubtful: true }).collect();
        assert_eq!(doubtful, [-1, 7, 20, 56]);
    }
}
