//! The frames of the synthetic load, made once and sent many times.

use anyhow::{Result, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::raw::{Batch, answer, frame, request};

/// Version of the Produce requests.
pub(super) const PRODUCE: i16 = 11;
/// Version of Produce requests whose answer nobody on the way looks into: the mock makes it as long as wanted.
pub(super) const SIZED: i16 = 9;
/// Version of the Fetch requests.
pub(super) const FETCH: i16 = 12;
/// The topic of requests to the mock.
pub(super) const TOPIC: &str = "bench";

/// Where the correlation id stands in a request frame, size field included.
const REQUEST_ID: usize = 8;
/// The same in an answer.
pub(super) const ANSWER_ID: usize = 4;
/// Length in bytes of an answer that has nothing behind its correlation id.
pub(super) const SMALLEST_ANSWER: usize = 8;

/// A request that is sent again and again under other correlation ids.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<u8>);

impl Template {
    /// Produce of one record of `size` bytes to partition 0 of `topic`, acks 1.
    ///
    /// # Errors
    /// The record can't be encoded.
    pub(crate) fn produce(topic: &str, size: usize) -> Result<Self> {
        Ok(Self(request(PRODUCE, 0, &one_record(topic, size, 30_000)?)?.to_vec()))
    }

    /// Produce of one record of `size` bytes, acks 1, to the mock, which answers with `answer` bytes (at least
    /// [`SMALLEST_ANSWER`]), size field included. They are zeros, and no answer that a client would understand.
    ///
    /// # Errors
    /// The record can't be encoded.
    pub(crate) fn sized(size: usize, answer: usize) -> Result<Self> {
        ensure!(answer >= SMALLEST_ANSWER, "an answer of {answer} bytes");
        Ok(Self(request(SIZED, 0, &one_record(TOPIC, size, i32::try_from(answer)?)?)?.to_vec()))
    }

    /// Fetch of at most `size` bytes from the start of partition 0 of `topic`.
    ///
    /// # Errors
    /// None in practice: the version has all the fields.
    pub(crate) fn fetch(topic: &str, size: usize) -> Result<Self> {
        let size = i32::try_from(size)?;
        let partition = FetchPartition::default().with_partition(0).with_partition_max_bytes(size);
        let topic = FetchTopic::default().with_topic(name(topic)).with_partitions(vec![partition]);
        let body = FetchRequest::default()
            .with_replica_id((-1).into())
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(size)
            .with_session_epoch(-1)
            .with_topics(vec![topic]);
        Ok(Self(request(FETCH, 0, &body)?.to_vec()))
    }

    /// The frame under a correlation id.
    pub(super) fn numbered(&mut self, id: i32) -> &[u8] {
        self.0[REQUEST_ID..REQUEST_ID + 4].copy_from_slice(&id.to_be_bytes());
        &self.0
    }

    /// Length of the frame in bytes.
    pub(super) fn size(&self) -> usize {
        self.0.len()
    }
}

fn one_record(topic: &str, size: usize, timeout_ms: i32) -> Result<ProduceRequest> {
    let records = Batch::of_size(size).encode()?;
    let partition = PartitionProduceData::default().with_index(0).with_records(Some(records));
    let topic = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![partition]);
    Ok(ProduceRequest::default().with_acks(1).with_timeout_ms(timeout_ms).with_topic_data(vec![topic]))
}

/// The mock's answer to a Produce of [`Template::sized`].
pub(super) fn sized(size: usize) -> Result<Bytes> {
    ensure!(size >= SMALLEST_ANSWER, "an answer of {size} bytes");
    Ok(frame(&vec![0; size - 4]))
}

/// The mock's answer to every Produce.
pub(super) fn produced() -> Result<Bytes> {
    let partition = PartitionProduceResponse::default().with_index(0).with_base_offset(7).with_log_append_time_ms(-1);
    let topic = TopicProduceResponse::default().with_name(name(TOPIC)).with_partition_responses(vec![partition]);
    answer::<ProduceRequest>(PRODUCE, 0, &ProduceResponse::default().with_responses(vec![topic]))
}

/// The mock's answer to a Fetch of `size` bytes: one batch of about that size.
pub(super) fn fetched(size: usize) -> Result<Bytes> {
    let partition = PartitionData::default()
        .with_partition_index(0)
        .with_high_watermark(1)
        .with_last_stable_offset(1)
        .with_log_start_offset(0)
        .with_records(Some(Batch::of_size(size).encode()?));
    let topic = FetchableTopicResponse::default().with_topic(name(TOPIC)).with_partitions(vec![partition]);
    answer::<FetchRequest>(FETCH, 0, &FetchResponse::default().with_responses(vec![topic]))
}

/// `max_bytes` of a Fetch v12 without its size field; `None` when the frame is too short.
///
/// Replica id, max wait, min bytes, max bytes.
pub(super) fn fetch_max_bytes(frame: &[u8]) -> Option<usize> {
    number(frame, 12)
}

/// How long an answer a Produce of [`Template::sized`] (without its size field) wants; `None` when it is too short.
///
/// Transactional id (none), acks, timeout.
pub(super) fn wanted_answer(frame: &[u8]) -> Option<usize> {
    number(frame, 1 + 2)
}

/// The number that stands so many bytes into the body of a request with header v2: key, version, correlation id, client
/// id, tags.
fn number(frame: &[u8], offset: usize) -> Option<usize> {
    let client_id = usize::try_from(i16::from_be_bytes(*frame.get(8..)?.first_chunk()?)).unwrap_or(0);
    let body = 8 + 2 + client_id + 1;
    usize::try_from(i32::from_be_bytes(*frame.get(body + offset..)?.first_chunk()?)).ok()
}

/// An answer under another correlation id.
pub(super) fn renumbered(frame: &Bytes, id: i32) -> BytesMut {
    let mut frame = BytesMut::from(&frame[..]);
    frame[ANSWER_ID..ANSWER_ID + 4].copy_from_slice(&id.to_be_bytes());
    frame
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{AnswerFrame, RequestFrame};

    #[test]
    fn a_template_decodes_under_each_of_its_numbers() {
        let mut template = Template::fetch("t", 200_000).unwrap();
        for id in [1, -5] {
            let frame = Bytes::copy_from_slice(&template.numbered(id)[4..]);
            assert_eq!(fetch_max_bytes(&frame), Some(200_000));
            let (header, body) = RequestFrame::new(frame).unwrap().decode::<FetchRequest>().unwrap();
            assert_eq!((header.correlation_id, body.max_bytes), (id, 200_000));
        }
    }

    #[test]
    fn a_request_says_how_long_an_answer_it_wants() {
        let mut template = Template::sized(1000, 60).unwrap();
        let frame = Bytes::copy_from_slice(&template.numbered(3)[4..]);
        assert_eq!(wanted_answer(&frame), Some(60));
        let (header, body) = RequestFrame::new(frame).unwrap().decode::<ProduceRequest>().unwrap();
        assert_eq!((header.correlation_id, header.request_api_version, body.acks), (3, SIZED, 1));
        let answer = renumbered(&sized(60).unwrap(), 3);
        assert_eq!((answer.len(), &answer[..8]), (60, &[0, 0, 0, 56, 0, 0, 0, 3][..]));
        assert!(Template::sized(1000, SMALLEST_ANSWER - 1).is_err());
    }

    #[test]
    fn the_mocks_answers_fit_their_schemas() {
        let bytes = renumbered(&fetched(5000).unwrap(), 9).freeze().slice(4..);
        let answer = AnswerFrame::new(bytes).unwrap();
        assert_eq!(answer.correlation_id, 9);
        let body = answer.decode::<FetchRequest>(FETCH).unwrap();
        assert!(body.responses[0].partitions[0].records.as_ref().unwrap().len() > 5000);
        AnswerFrame::new(produced().unwrap().slice(4..)).unwrap().decode::<ProduceRequest>(PRODUCE).unwrap();
    }
}
