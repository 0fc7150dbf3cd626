//! The few questions a branch asks its cluster besides Produce: who leads, create this topic, give me a producer id.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    CreateTopicsRequest, InitProducerIdRequest, MetadataRequest, ProducerId as WireProducerId, RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::branch::ids::{ProducerEpoch, ProducerId};
use crate::kafka::api;
use crate::kafka::ids::{ApiKey, ApiVersion, NodeId};
use crate::kafka::wire::Reader;
use crate::kafka::{Malformed, ids::CorrelationId};
use crate::upstream::{Door, OpenError, Opened, Target};

/// From v1 on, no topics means none; from v4 on, asking creates nothing.
const METADATA: RangeInclusive<i16> = 4..=12;
/// From v4 on the broker's own replication factor may be asked for.
const CREATE_TOPICS: RangeInclusive<i16> = 4..=7;
const INIT_PRODUCER_ID: RangeInclusive<i16> = 0..=4;

const CREATE_TOPICS_KEY: ApiKey = ApiKey(19);
const INIT_PRODUCER_ID_KEY: ApiKey = ApiKey(22);

/// The largest answer that is read.
const FRAME: usize = 16 << 20;

/// How long a broker may take to create a topic, in milliseconds.
const CREATE_MS: i32 = 15_000;

/// An answer, by the time it takes at most.
const BOUND: Duration = Duration::from_secs(20);

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("no answer within {BOUND:?}")]
    Timeout,
    #[error("the answer can't be read: {0}")]
    Malformed(#[from] Malformed),
    #[error("no common version of {0}")]
    Version(&'static str),
    #[error("the broker answered error {0}")]
    Broker(i16),
    #[error("the request can't be written")]
    Unwritable,
}

/// What Metadata says of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) name: Arc<str>,
    pub(super) error: i16,
    /// Who leads each partition, by number.
    pub(super) leaders: Vec<Option<NodeId>>,
}

/// Asks about topics. Those that don't exist come back with error 3.
pub(super) async fn topics(door: &Door, names: &[Arc<str>]) -> Result<Vec<Topic>, AskError> {
    let wanted = names.iter().map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
    let request = MetadataRequest::default().with_topics(Some(wanted.collect())).with_allow_auto_topic_creation(false);
    let (version, answer) = ask(door, ApiKey::METADATA, &METADATA, &request).await?;
    Ok(read_topics(version, &answer)?)
}

/// Creates a topic with as many replicas as its broker gives by default. One that exists already is as good.
pub(super) async fn create(door: &Door, name: &str, partitions: u32) -> Result<(), AskError> {
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(i32::try_from(partitions).map_err(|_| AskError::Unwritable)?)
        .with_replication_factor(-1);
    let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(CREATE_MS);
    let (version, answer) = ask(door, CREATE_TOPICS_KEY, &CREATE_TOPICS, &request).await?;
    /// TOPIC_ALREADY_EXISTS: another gateway was first.
    const EXISTS: i16 = 36;
    match read_created(version, &answer)? {
        0 | EXISTS => Ok(()),
        error => Err(AskError::Broker(error)),
    }
}

/// A producer id that is nobody else's.
pub(super) async fn producer(door: &Door) -> Result<(ProducerId, ProducerEpoch), AskError> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(i32::MAX)
        .with_producer_id(WireProducerId(-1))
        .with_producer_epoch(-1);
    let (version, answer) = ask(door, INIT_PRODUCER_ID_KEY, &INIT_PRODUCER_ID, &request).await?;
    match read_producer(version, &answer)? {
        (0, producer, epoch) => Ok((producer, epoch)),
        (error, ..) => Err(AskError::Broker(error)),
    }
}

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// One request on a connection of its own, to any broker. The version, and the whole answer behind its size.
async fn ask<R: Encodable + HeaderVersion>(
    door: &Door,
    key: ApiKey,
    ours: &RangeInclusive<i16>,
    request: &R,
) -> Result<(ApiVersion, Vec<u8>), AskError> {
    let mut opened = door.open(Target::Bootstrap).await?;
    let version = common(&opened, key, ours).ok_or(AskError::Version(api::name(key)))?;
    let id = CorrelationId(0);
    let frame = frame(key, version, id, request).ok_or(AskError::Unwritable)?;
    let answer = timeout(BOUND, exchange(&mut opened, &frame)).await.map_err(|_| AskError::Timeout)??;
    if !answer.starts_with(&id.0.to_be_bytes()) {
        return Err(Malformed { what: "answer to another request", at: 0 }.into());
    }
    Ok((version, answer))
}

/// The highest version that both speak.
pub(super) fn common(opened: &Opened, key: ApiKey, ours: &RangeInclusive<i16>) -> Option<ApiVersion> {
    let theirs = opened.versions.get(&key)?;
    let highest = theirs.max.0.min(*ours.end());
    (highest >= theirs.min.0.max(*ours.start())).then_some(ApiVersion(highest))
}

fn frame<R: Encodable + HeaderVersion>(
    key: ApiKey,
    version: ApiVersion,
    id: CorrelationId,
    request: &R,
) -> Option<BytesMut> {
    let header = RequestHeader::default()
        .with_request_api_key(key.0)
        .with_request_api_version(version.0)
        .with_correlation_id(id.0)
        .with_client_id(Some(StrBytes::from_static_str("turnout")));
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    header.encode(&mut frame, R::header_version(version.0)).ok()?;
    request.encode(&mut frame, version.0).ok()?;
    let size = i32::try_from(frame.len() - 4).ok()?;
    frame[..4].copy_from_slice(&size.to_be_bytes());
    Some(frame)
}

async fn exchange(opened: &mut Opened, frame: &[u8]) -> Result<Vec<u8>, AskError> {
    opened.stream.write_all(frame).await?;
    opened.stream.flush().await?;
    read_frame(&mut opened.stream, FRAME).await
}

/// One frame without its size. Memory grows with the bytes that arrive, not with the size that was declared.
pub(super) async fn read_frame<S: tokio::io::AsyncRead + Unpin>(
    stream: &mut S,
    most: usize,
) -> Result<Vec<u8>, AskError> {
    let size = stream.read_i32().await?;
    let size = usize::try_from(size).ok().filter(|size| (4..=most).contains(size));
    let size = size.ok_or(Malformed { what: "size of an answer that no broker sends", at: 0 })?;
    let mut answer = Vec::new();
    stream.take(size as u64).read_to_end(&mut answer).await?;
    if answer.len() < size {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(answer)
}

fn reader(key: ApiKey, version: ApiVersion, answer: &[u8]) -> Result<Reader<'_>, Malformed> {
    let flexible = api::spec(key).is_some_and(|spec| spec.is_flexible(version));
    let mut reader = Reader::new(answer, flexible);
    reader.skip_response_header()?;
    Ok(reader)
}

fn read_topics(version: ApiVersion, answer: &[u8]) -> Result<Vec<Topic>, Malformed> {
    let mut r = reader(ApiKey::METADATA, version, answer)?;
    r.i32()?;
    for _ in 0..r.count()? {
        r.i32()?;
        r.string()?;
        r.i32()?;
        r.nullable_string()?;
        r.skip_tags()?;
    }
    r.nullable_string()?;
    r.i32()?;
    let mut topics = Vec::new();
    for _ in 0..r.count()? {
        let error = r.i16()?;
        let name = r.nullable_string()?.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default().into();
        if version >= ApiVersion(10) {
            r.take(16)?;
        }
        r.i8()?;
        let mut partitions = Vec::new();
        for _ in 0..r.count()? {
            r.i16()?;
            let index = r.i32()?;
            partitions.push((index, Some(NodeId(r.i32()?)).filter(|leader| leader.0 >= 0)));
            if version >= ApiVersion(7) {
                r.i32()?;
            }
            // Replicas, those in sync, those out of reach.
            for _ in 0..if version >= ApiVersion(5) { 3 } else { 2 } {
                for _ in 0..r.count()? {
                    r.i32()?;
                }
            }
            r.skip_tags()?;
        }
        if version >= ApiVersion(8) {
            r.i32()?;
        }
        r.skip_tags()?;
        topics.push(Topic { name, error, leaders: by_number(&partitions) });
    }
    Ok(topics)
}

/// Leaders by the number of their partition. Numbers without a leader count as well; those that don't fit are dropped:
/// a topic's partitions are numbered from 0.
fn by_number(partitions: &[(i32, Option<NodeId>)]) -> Vec<Option<NodeId>> {
    let mut leaders = vec![None; partitions.len()];
    for (index, leader) in partitions {
        if let Some(place) = usize::try_from(*index).ok().and_then(|index| leaders.get_mut(index)) {
            *place = *leader;
        }
    }
    leaders
}

/// The error of the first topic.
fn read_created(version: ApiVersion, answer: &[u8]) -> Result<i16, Malformed> {
    let mut r = reader(CREATE_TOPICS_KEY, version, answer)?;
    r.i32()?;
    if r.count()? == 0 {
        return r.fail("no topic");
    }
    r.string()?;
    if version >= ApiVersion(7) {
        r.take(16)?;
    }
    r.i16()
}

fn read_producer(version: ApiVersion, answer: &[u8]) -> Result<(i16, ProducerId, ProducerEpoch), Malformed> {
    let mut r = reader(INIT_PRODUCER_ID_KEY, version, answer)?;
    r.i32()?;
    let error = r.i16()?;
    let producer = ProducerId(i64::from_be_bytes(r.array()?));
    Ok((error, producer, ProducerEpoch(r.i16()?)))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
    use kafka_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };
    use kafka_protocol::messages::{BrokerId, CreateTopicsResponse, InitProducerIdResponse, MetadataResponse};

    use super::*;

    fn answer<M: Encodable + HeaderVersion>(version: i16, message: &M) -> Vec<u8> {
        let mut frame = BytesMut::from(&[0, 0, 0, 0][..]);
        if M::header_version(version) >= 1 {
            frame.put_u8(0);
        }
        message.encode(&mut frame, version).unwrap();
        frame.to_vec()
    }

    #[test]
    fn leaders_are_read_from_every_version_of_metadata() {
        for version in METADATA {
            let partition = |index: i32, leader: i32| {
                let nodes = vec![BrokerId(1), BrokerId(2)];
                MetadataResponsePartition::default()
                    .with_partition_index(index)
                    .with_leader_id(BrokerId(leader))
                    .with_replica_nodes(nodes.clone())
                    .with_isr_nodes(nodes)
            };
            let named = |name: &str| MetadataResponseTopic::default().with_name(Some(topic_name(name)));
            let orders = named("orders").with_partitions(vec![partition(1, -1), partition(0, 2), partition(9, 1)]);
            let message = MetadataResponse::default()
                .with_brokers(vec![MetadataResponseBroker::default().with_node_id(BrokerId(2))])
                .with_topics(vec![orders, named("none").with_error_code(3)]);
            let bytes = answer(version, &message);
            let topics = read_topics(ApiVersion(version), &bytes).unwrap();
            assert_eq!(
                topics,
                [
                    Topic { name: "orders".into(), error: 0, leaders: vec![Some(NodeId(2)), None, None] },
                    Topic { name: "none".into(), error: 3, leaders: vec![] },
                ],
                "v{version}"
            );
            // What lies behind the topics isn't read, and is a few bytes at most.
            for cut in 0..bytes.len() - 6 {
                assert!(read_topics(ApiVersion(version), &bytes[..cut]).is_err(), "v{version} cut at {cut}");
            }
        }
    }

    #[test]
    fn the_error_of_a_creation_and_the_producer_are_read_from_every_version() {
        for version in CREATE_TOPICS {
            let topic = CreatableTopicResult::default().with_name(topic_name("orders")).with_error_code(36);
            let bytes = answer(version, &CreateTopicsResponse::default().with_topics(vec![topic]));
            assert_eq!(read_created(ApiVersion(version), &bytes), Ok(36), "v{version}");
        }
        for version in INIT_PRODUCER_ID {
            let message = InitProducerIdResponse::default()
                .with_error_code(0)
                .with_producer_id(WireProducerId(4000))
                .with_producer_epoch(3);
            let read = read_producer(ApiVersion(version), &answer(version, &message));
            assert_eq!(read, Ok((0, ProducerId(4000), ProducerEpoch(3))), "v{version}");
        }
    }

    #[test]
    fn requests_can_be_written_in_every_version() {
        let id = CorrelationId(0);
        for version in METADATA {
            assert!(frame(ApiKey::METADATA, ApiVersion(version), id, &MetadataRequest::default()).is_some());
        }
        for version in CREATE_TOPICS {
            let request = CreateTopicsRequest::default();
            assert!(frame(CREATE_TOPICS_KEY, ApiVersion(version), id, &request).is_some());
        }
        for version in INIT_PRODUCER_ID {
            let request = InitProducerIdRequest::default();
            assert!(frame(INIT_PRODUCER_ID_KEY, ApiVersion(version), id, &request).is_some());
        }
    }
}
