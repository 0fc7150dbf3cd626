//! A Produce answer, v3 to v13: what became of each partition.

use super::request::TopicRef;
use crate::branch::ids::{Offset, PartitionId};
use crate::kafka::Malformed;
use crate::kafka::api;
use crate::kafka::ids::{ApiKey, ApiVersion};
use crate::kafka::wire::Reader;

/// What became of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionAnswer<'a> {
    /// Its topic.
    pub topic: TopicRef<'a>,
    /// Its number.
    pub partition: PartitionId,
    /// Kafka's error code; 0: written, now or before.
    pub error: i16,
    /// Offset of the batch's first record; −1 beside an error.
    pub base_offset: Offset,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceAnswer<'a> {
    /// In the broker's order, which isn't the request's.
    pub partitions: Vec<PartitionAnswer<'a>>,
    /// How long the broker holds the connection back from now on, in milliseconds (KIP-219).
    pub throttle_ms: i32,
}

impl<'a> ProduceAnswer<'a> {
    /// Reads the bytes behind a frame's size field, header included.
    ///
    /// # Errors
    /// Bytes that don't follow the schema of `version`.
    pub fn read(version: ApiVersion, frame: &'a [u8]) -> Result<Self, Malformed> {
        let flexible = api::spec(ApiKey::PRODUCE).is_some_and(|produce| produce.is_flexible(version));
        let mut reader = Reader::new(frame, flexible);
        if !(ApiVersion(3)..=ApiVersion(13)).contains(&version) {
            return reader.fail("answer to a Produce of a version that isn't served");
        }
        reader.skip_response_header()?;
        let mut partitions = Vec::new();
        for _ in 0..reader.count()? {
            let topic = TopicRef::read(&mut reader, version)?;
            for _ in 0..reader.count()? {
                partitions.push(partition(&mut reader, version, topic)?);
            }
            reader.skip_tags()?;
        }
        let throttle_ms = reader.i32()?;
        reader.skip_tags()?;
        reader.end()?;
        Ok(Self { partitions, throttle_ms })
    }
}

fn partition<'a>(
    reader: &mut Reader<'a>,
    version: ApiVersion,
    topic: TopicRef<'a>,
) -> Result<PartitionAnswer<'a>, Malformed> {
    let partition = PartitionId(reader.i32()?);
    let error = reader.i16()?;
    let base_offset = Offset(i64::from_be_bytes(reader.array()?));
    // Time of the append.
    reader.take(8)?;
    if version >= ApiVersion(5) {
        // First offset of the log.
        reader.take(8)?;
    }
    if version >= ApiVersion(8) {
        for _ in 0..reader.count()? {
            // Which record, and what is wrong with it.
            reader.i32()?;
            reader.nullable_string()?;
            reader.skip_tags()?;
        }
        reader.nullable_string()?;
    }
    reader.skip_tags()?;
    Ok(PartitionAnswer { topic, partition, error, base_offset })
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::produce_response::{
        BatchIndexAndErrorMessage, LeaderIdAndEpoch, PartitionProduceResponse, TopicProduceResponse,
    };
    use kafka_protocol::messages::{BrokerId, ProduceResponse, TopicName};
    use kafka_protocol::protocol::{Encodable, StrBytes};
    use proptest::prelude::*;

    use super::*;
    use crate::kafka::ids::TopicId;

    fn text(s: &str) -> StrBytes {
        StrBytes::from_string(s.to_owned())
    }

    fn encoded(version: i16, partitions: &[(i32, i16, i64)]) -> Vec<u8> {
        let partitions = partitions.iter().map(|(index, error, offset)| {
            let mut partition = PartitionProduceResponse::default()
                .with_index(*index)
                .with_error_code(*error)
                .with_base_offset(*offset)
                .with_log_append_time_ms(-1);
            if version >= 8 && *error != 0 {
                let record =
                    BatchIndexAndErrorMessage::default().with_batch_index(3).with_batch_index_error_message(None);
                partition = partition.with_record_errors(vec![record]).with_error_message(Some(text("no")));
            }
            if version >= 10 && *error != 0 {
                let leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(4)).with_leader_epoch(2);
                partition = partition.with_current_leader(leader);
            }
            partition
        });
        let mut topic = TopicProduceResponse::default().with_partition_responses(partitions.collect());
        if version >= 13 {
            topic.topic_id = TopicId([7; 16]).to_string().parse().unwrap();
        } else {
            topic.name = TopicName(text("orders"));
        }
        let mut frame = BytesMut::from(&[0, 0, 0, 9][..]);
        if version >= 9 {
            frame.extend_from_slice(&[0]);
        }
        ProduceResponse::default()
            .with_responses(vec![topic])
            .with_throttle_time_ms(250)
            .encode(&mut frame, version)
            .unwrap();
        frame.to_vec()
    }

    proptest! {
        #[test]
        fn every_version_tells_what_became_of_each_partition(
            version in 3..=13i16,
            partitions in prop::collection::vec((any::<i32>(), prop_oneof![Just(0i16), any::<i16>()], any::<i64>()), 0..5),
        ) {
            let frame = encoded(version, &partitions);
            let answer = ProduceAnswer::read(ApiVersion(version), &frame).unwrap();
            let topic = if version >= 13 { TopicRef::Id(TopicId([7; 16])) } else { TopicRef::Name("orders") };
            let expected: Vec<_> = partitions.iter().map(|(partition, error, offset)| PartitionAnswer {
                topic, partition: PartitionId(*partition), error: *error, base_offset: Offset(*offset),
            }).collect();
            prop_assert_eq!(answer, ProduceAnswer { partitions: expected, throttle_ms: 250 });
            for cut in 0..frame.len() {
                prop_assert!(ProduceAnswer::read(ApiVersion(version), &frame[..cut]).is_err(), "cut at {}", cut);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(version in 0..=14i16, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ProduceAnswer::read(ApiVersion(version), &bytes);
        }
    }
}
