//! kafka-protocol is the oracle: it writes the frames and reads what became of them.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
use kafka_protocol::messages::fetch_response as answer;
use kafka_protocol::messages::{
    ApiVersionsResponse, BrokerId, FetchRequest as Request, FetchResponse as Answer, RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use proptest::prelude::*;

use super::answer::{Advance, Decide, Partition};
use super::*;
use crate::kafka::ids::{CorrelationId, NodeId};
use crate::kafka::testing::{self, tags};
use crate::kafka::versions::Offered;

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

fn id(n: u8) -> TopicId {
    TopicId([n; 16])
}

/// The frame of a request behind its size field.
fn request_frame(version: i16, request: &Request) -> Vec<u8> {
    let mut body = BytesMut::new();
    let mut header = RequestHeader::default()
        .with_request_api_key(1)
        .with_request_api_version(version)
        .with_correlation_id(77)
        .with_client_id(Some(text("app")));
    if version >= 12 {
        header = header.with_unknown_tagged_field(70, Bytes::from_static(b"tagged"));
    }
    header.encode(&mut body, if version >= 12 { 2 } else { 1 }).expect("a header");
    request.encode(&mut body, version).expect("a request that its version can carry");
    body.to_vec()
}

fn read_request_frame(version: i16, frame: &[u8]) -> Request {
    let mut left = Bytes::copy_from_slice(frame);
    RequestHeader::decode(&mut left, if version >= 12 { 2 } else { 1 }).expect("a header");
    let request = Request::decode(&mut left, version).expect("a request that brokers can read");
    assert!(left.is_empty());
    request
}

prop_compose! {
    fn request(version: i16)(
        topics in prop::collection::vec((1u8..5, prop::collection::vec(0i32..9, 0..4), tags(version >= 12)), 0..4),
        forgotten in prop::collection::vec(0i32..9, 0..3), rack in "[a-zé]{0,9}", epoch in -1i32..3,
        replica in prop_oneof![Just(-1i32), Just(5)], wait in 0i32..5000, tags in tags(version >= 12),
    ) -> Request {
        let topics = topics.into_iter().map(|(n, partitions, tags)| {
            let partitions = partitions.into_iter().map(|index| {
                FetchPartition::default().with_partition(index).with_fetch_offset(1 << 40).with_partition_max_bytes(1 << 20)
                    .with_unknown_tagged_fields(tags.clone())
            });
            let mut topic = FetchTopic::default().with_partitions(partitions.collect()).with_unknown_tagged_fields(tags.clone());
            if version < 13 { topic.topic = TopicName(text(&format!("t{n}"))); } else { topic.topic_id = id(n).to_string().parse().expect("an id"); }
            topic
        });
        let mut forget = ForgottenTopic::default().with_partitions(forgotten);
        if version < 13 { forget.topic = TopicName(text("f")); }
        let mut request = Request::default()
            .with_max_wait_ms(wait).with_session_epoch(epoch).with_topics(topics.collect()).with_forgotten_topics_data(vec![forget])
            .with_rack_id(text(&rack)).with_unknown_tagged_fields(tags);
        request.cluster_id = None;
        if version < 15 {
            request.replica_id = BrokerId(replica);
        } else {
            request.replica_state = ReplicaState::default().with_replica_id(BrokerId(replica));
        }
        request
    }
}

proptest! {
    #[test]
    fn a_request_is_read_and_a_rack_put_into_it(
        (version, request) in testing::versioned(11..=15, request), rack in "[a-z]{0,300}",
    ) {
        let frame = request_frame(version, &request);
        let read = FetchRequest::read(ApiVersion(version), &frame).expect("by the schema");
        let replica = if version < 15 { request.replica_id } else { request.replica_state.replica_id };
        prop_assert_eq!(read.is_follower, replica.0 >= 0);
        prop_assert_eq!(read.rack, request.rack_id.as_str());
        prop_assert_eq!(read.max_wait.as_millis(), u128::from(request.max_wait_ms.unsigned_abs()));
        prop_assert_eq!(read.is_incremental, request.session_epoch > 0);
        prop_assert_eq!(FetchRequest::read_again(&frame), Ok(read.clone()));

        let mut named = Vec::new();
        read.names(|topic, index| {
            named.push(match topic {
                Topic::Name(name) => (name.to_owned(), index),
                Topic::Id(id) => (id.to_string(), index),
            });
            false
        });
        let expected: Vec<_> = request.topics.iter().flat_map(|topic| {
            let name = if version < 13 { topic.topic.0.to_string() } else { topic.topic_id.simple().to_string() };
            topic.partitions.iter().map(move |p| (name.clone(), p.partition))
        }).collect();
        prop_assert_eq!(named, expected);

        let stamped = read_request_frame(version, &read.with_rack(&rack));
        prop_assert_eq!(stamped, request.with_rack_id(text(&rack)));
        for cut in 0..frame.len() {
            prop_assert!(FetchRequest::read(ApiVersion(version), &frame[..cut]).is_err(), "cut at {} passes", cut);
        }
    }

    /// What the gateway answers itself names each partition once, with no records and what was decided.
    #[test]
    fn a_made_answer_follows_the_request((version, request) in testing::versioned(11..=15, request)) {
        let frame = request_frame(version, &request);
        let read = FetchRequest::read(ApiVersion(version), &frame).expect("by the schema");
        let word = |_: Topic<'_>, index: i32| if index % 2 == 0 { Word::ReadFrom(NodeId(7)) } else { Word::NotHere };
        let made = made_answer(ApiVersion(version), CorrelationId(77), &read, word).expect("readable");
        let mut left = made;
        prop_assert_eq!(left.split_to(4)[..].to_vec(), 77i32.to_be_bytes());
        if version >= 12 { prop_assert_eq!(left.split_to(1)[0], 0); }
        let answer = Answer::decode(&mut left, version).expect("an answer that clients can read");
        prop_assert!(left.is_empty());
        prop_assert_eq!(answer.session_id, 0);
        if read.is_incremental {
            prop_assert_eq!((answer.error_code, answer.responses.len()), (70, 0));
            return Ok(());
        }
        prop_assert_eq!(answer.error_code, 0);
        prop_assert_eq!(answer.responses.len(), request.topics.len());
        for (told, asked) in answer.responses.iter().zip(&request.topics) {
            prop_assert!(told.topic == asked.topic && told.topic_id == asked.topic_id);
            let indexes: Vec<_> = told.partitions.iter().map(|p| p.partition_index).collect();
            prop_assert_eq!(indexes, asked.partitions.iter().map(|p| p.partition).collect::<Vec<_>>());
            for partition in &told.partitions {
                let expected = if partition.partition_index % 2 == 0 { (0, 7) } else { (6, -1) };
                prop_assert_eq!((partition.error_code, partition.preferred_read_replica.0), expected);
                prop_assert_eq!(partition.records.as_ref().map(Bytes::len), Some(0), "never null");
            }
        }
    }
}

#[test]
fn a_made_answer_to_api_versions_is_what_is_offered() {
    let offered = crate::kafka::versions::offered(crate::config::Versions::Auto, std::iter::empty());
    for version in 0..=4 {
        let mut left = api_versions_answer(ApiVersion(version), CorrelationId(5), &offered);
        assert_eq!(left.split_to(4)[..], 5i32.to_be_bytes());
        let answer = ApiVersionsResponse::decode(&mut left, version).expect("an answer that clients can read");
        assert!(left.is_empty(), "v{version}");
        let Offered(ranges) = &offered;
        assert_eq!((answer.error_code, answer.api_keys.len()), (0, ranges.len()));
        for key in &answer.api_keys {
            let range = ranges[&ApiKey(key.api_key)];
            assert_eq!((key.min_version, key.max_version), (range.min.0, range.max.0));
        }
    }
}

/// Turns over what `wanted` says, and remembers what it was asked.
struct Script<F> {
    wanted: F,
    asked: Vec<(i32, i16, u64, bool)>,
    ends: bool,
}

impl<F: FnMut(&Partition<'_>) -> Option<i32>> Decide for Script<F> {
    fn ends_session(&mut self, _: i16) -> bool {
        self.ends
    }

    fn turn_over(&mut self, partition: &Partition<'_>) -> Option<NodeId> {
        self.asked.push((partition.index, partition.error, partition.records, partition.is_free));
        (self.wanted)(partition).map(NodeId)
    }
}

/// Pushes an answer through a patcher in pieces; what comes out, size field included.
fn patched(
    patcher: &mut AnswerPatcher,
    body: &[u8],
    collects: bool,
    pieces: &[usize],
    decide: &mut dyn Decide,
) -> Result<Vec<u8>, crate::kafka::Malformed> {
    let mut out = Vec::new();
    if !collects {
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    }
    let mut buffer = Vec::new();
    let (mut at, mut pieces) = (0, pieces.iter().cycle());
    loop {
        match patcher.advance(&mut buffer, decide)? {
            Advance::Forward(n) => out.extend(buffer.drain(..n)),
            Advance::Skip(n) => drop(buffer.drain(..n)),
            Advance::Emit(bytes) => out.extend_from_slice(&bytes),
            Advance::Done => {
                assert!(at == body.len() && buffer.is_empty());
                return Ok(out);
            }
            Advance::NeedMore => {
                assert!(at < body.len(), "nothing more will come");
                let n = pieces.next().copied().unwrap_or(1).clamp(1, body.len() - at);
                buffer.extend_from_slice(&body[at..at + n]);
                at += n;
            }
        }
    }
}

prop_compose! {
    fn fetched(version: i16)(
        partitions in prop::collection::vec(
            (
                prop::option::of(0usize..300), prop_oneof![4 => Just(0i16), 1 => Just(6), 1 => Just(1), 1 => Just(3)], 0usize..3,
                prop_oneof![5 => Just(-1i32), 1 => Just(2)], any::<bool>(), tags(version >= 12),
            ), 0..6,
        ),
        split in 0usize..3, tags in tags(version >= 12),
    ) -> Answer {
        let partitions: Vec<_> = partitions.into_iter().enumerate().map(|(index, (records, error, aborted, preferred, diverges, tags))| {
            let records = if error == 0 { records } else { records.map(|_| 0) };
            let mut partition = answer::PartitionData::default()
                .with_partition_index(index as i32).with_error_code(error).with_high_watermark(1 << 33)
                .with_preferred_read_replica(BrokerId(preferred))
                .with_aborted_transactions((aborted > 0).then(|| vec![answer::AbortedTransaction::default().with_first_offset(9); aborted]))
                .with_records(records.map(|n| Bytes::from(vec![b'r'; n])))
                .with_unknown_tagged_fields(tags);
            if version >= 12 && diverges && records.unwrap_or(0) == 0 {
                partition.diverging_epoch = answer::EpochEndOffset::default().with_epoch(4).with_end_offset(8);
            }
            partition
        }).collect();
        let split = split.min(partitions.len());
        let topics = [&partitions[..split], &partitions[split..]].into_iter().enumerate().map(|(n, partitions)| {
            let mut topic = answer::FetchableTopicResponse::default().with_partitions(partitions.to_vec()).with_unknown_tagged_fields(tags.clone());
            if version < 13 { topic.topic = TopicName(text(&format!("t{n}"))); } else { topic.topic_id = id(n as u8 + 1).to_string().parse().expect("an id"); }
            topic
        });
        Answer::default().with_session_id(7).with_responses(topics.collect()).with_unknown_tagged_fields(tags.clone())
    }
}

/// Whether a partition may be turned over, by the rules of the module's documentation.
fn is_free(partition: &answer::PartitionData, collects: bool) -> bool {
    let records = partition.records.as_ref().map_or(0, Bytes::len);
    let aborted = partition.aborted_transactions.as_ref().map_or(0, Vec::len);
    let sound = partition.error_code == 0;
    let fits = if records > 0 { sound && collects } else { sound || aborted == 0 };
    fits && partition.diverging_epoch.epoch < 0 && partition.preferred_read_replica.0 < 0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Cut in whatever pieces: partitions that are wanted and free are turned over, every other byte stays.
    #[test]
    fn what_is_wanted_and_free_is_turned_over_and_nothing_else_changes(
        (version, answer) in testing::versioned(11..=15, fetched), wanted in any::<u8>(), collects: bool,
        pieces in prop::collection::vec(1usize..200, 1..9),
    ) {
        let body = testing::answer(ApiKey::FETCH, version, &answer);
        let is_wanted = |index: i32| wanted >> (index % 8) & 1 == 1;
        let mut script = Script { wanted: |p: &Partition<'_>| is_wanted(p.index).then_some(9), asked: Vec::new(), ends: false };
        let mut patcher = AnswerPatcher::new(ApiVersion(version), body.len() as u64, collects, usize::MAX);
        let out = patched(&mut patcher, &body, collects, &pieces, &mut script).expect("by the schema");

        prop_assert_eq!(out.len() - 4, u32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize, "the size is right");
        let mut expected = answer.clone();
        let mut asked = Vec::new();
        let mut changed = false;
        for partition in expected.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
            let free = is_free(partition, collects);
            let records = partition.records.as_ref().map_or(0, Bytes::len);
            asked.push((partition.partition_index, partition.error_code, records as u64, free));
            if free && is_wanted(partition.partition_index) {
                partition.error_code = 0;
                partition.preferred_read_replica = BrokerId(9);
                partition.records = Some(Bytes::new());
                changed = true;
            }
        }
        prop_assert_eq!(testing::read_answer::<Answer>(ApiKey::FETCH, version, &out[4..]), expected);
        prop_assert_eq!(script.asked, asked, "each partition is asked about once, in order");
        prop_assert_eq!((patcher.changed(), patcher.overflowed()), (changed, false));
        if !changed {
            prop_assert_eq!(&out[4..], &body[..]);
        }
        for cut in 0..body.len() {
            let mut leave = Script { wanted: |_: &Partition<'_>| None, asked: Vec::new(), ends: false };
            let mut patcher = AnswerPatcher::new(ApiVersion(version), cut as u64, false, 0);
            prop_assert!(patched(&mut patcher, &body[..cut], false, &[64], &mut leave).is_err(), "cut at {} passes", cut);
        }
    }

    /// Where the bound is passed, the rest passes; what was dropped before stays dropped, and the size fits all of it.
    #[test]
    fn above_the_bound_the_rest_passes(
        (version, answer) in testing::versioned(11..=15, fetched), wanted in any::<u8>(), bound in 0usize..600,
        pieces in prop::collection::vec(1usize..200, 1..9),
    ) {
        let body = testing::answer(ApiKey::FETCH, version, &answer);
        let is_wanted = |index: i32| wanted >> (index % 8) & 1 == 1;
        let mut free = Vec::new();
        let mut script = Script { wanted: |p: &Partition<'_>| { free.push(p.is_free); is_wanted(p.index).then_some(9) }, asked: Vec::new(), ends: false };
        let mut patcher = AnswerPatcher::new(ApiVersion(version), body.len() as u64, true, bound);
        let out = patched(&mut patcher, &body, true, &pieces, &mut script).expect("by the schema");
        drop(script);
        prop_assert_eq!(out.len() - 4, u32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize);
        let read = testing::read_answer::<Answer>(ApiKey::FETCH, version, &out[4..]);
        let before = answer.responses.iter().flat_map(|topic| &topic.partitions);
        let after = read.responses.iter().flat_map(|topic| &topic.partitions);
        for ((before, after), free) in before.zip(after).zip(free) {
            if free && is_wanted(before.partition_index) {
                prop_assert_eq!(after.preferred_read_replica, BrokerId(9));
                prop_assert_eq!(after.records.as_ref().map(Bytes::len), Some(0));
            } else {
                prop_assert_eq!(after, before);
            }
        }
    }

    #[test]
    fn no_bytes_panic(version in 11i16..=15, collects: bool, mut bytes in prop::collection::vec(any::<u8>(), 0..300), pieces in prop::collection::vec(1usize..50, 1..4)) {
        let _ = FetchRequest::read(ApiVersion(version), &bytes);
        let mut script = Script { wanted: |p: &Partition<'_>| (p.index % 2 == 0).then_some(3), asked: Vec::new(), ends: true };
        let mut patcher = AnswerPatcher::new(ApiVersion(version), bytes.len() as u64, collects, 64);
        let _ = patched(&mut patcher, &bytes, collects, &pieces, &mut script);
        let _ = patcher.advance(&mut bytes, &mut script);
    }
}

#[test]
fn an_empty_answer_can_end_the_session_and_one_with_partitions_cannot() {
    for version in 11..=15 {
        let empty = Answer::default().with_session_id(7);
        let mut topic = answer::FetchableTopicResponse::default();
        if version >= 13 {
            topic.topic_id = id(1).to_string().parse().expect("an id");
        }
        let full = empty.clone().with_responses(vec![topic]);
        for (answer, error, session) in [(empty, 70, 0), (full, 0, 7)] {
            let body = testing::answer(ApiKey::FETCH, version, &answer);
            let mut script = Script { wanted: |_: &Partition<'_>| None, asked: Vec::new(), ends: true };
            let mut patcher = AnswerPatcher::new(ApiVersion(version), body.len() as u64, false, 0);
            let out = patched(&mut patcher, &body, false, &[5], &mut script).expect("by the schema");
            assert_eq!(out.len(), body.len() + 4);
            let read = testing::read_answer::<Answer>(ApiKey::FETCH, version, &out[4..]);
            assert_eq!((read.error_code, read.session_id), (error, session), "v{version}");
        }
    }
}

#[test]
fn only_what_waits_for_the_size_is_held() {
    let partition = |index| {
        answer::PartitionData::default()
            .with_partition_index(index)
            .with_preferred_read_replica(BrokerId(-1))
            .with_records(Some(Bytes::from(vec![b'r'; 1 << 20])))
    };
    let topic = answer::FetchableTopicResponse::default()
        .with_topic(TopicName(text("t")))
        .with_partitions((0..4).map(partition).collect());
    let body = testing::answer(ApiKey::FETCH, 12, &Answer::default().with_responses(vec![topic]));
    let mut most = 0;
    let mut patcher = AnswerPatcher::new(ApiVersion(12), body.len() as u64, true, 1 << 16);
    let mut script = Script { wanted: |_: &Partition<'_>| Some(9), asked: Vec::new(), ends: false };
    let mut out = Vec::new();
    let mut buffer = Vec::new();
    let mut chunks = body.chunks(100_000);
    loop {
        most = most.max(patcher.held());
        match patcher.advance(&mut buffer, &mut script).expect("by the schema") {
            Advance::Forward(n) => out.extend(buffer.drain(..n)),
            Advance::Skip(n) => drop(buffer.drain(..n)),
            Advance::Emit(bytes) => out.extend_from_slice(&bytes),
            Advance::NeedMore => buffer.extend_from_slice(chunks.next().expect("more")),
            Advance::Done => break,
        }
    }
    assert!(most < 300, "4 MiB of records are dropped as they come: {most} bytes were held");
    assert!(out.len() < 300);
}

#[test]
fn records_that_go_beyond_their_frame_are_refused() {
    let partition = answer::PartitionData::default()
        .with_preferred_read_replica(BrokerId(-1))
        .with_records(Some(Bytes::from(vec![b'r'; 100])));
    let topic =
        answer::FetchableTopicResponse::default().with_topic(TopicName(text("t"))).with_partitions(vec![partition]);
    for version in 11..=12 {
        let body = testing::answer(ApiKey::FETCH, version, &Answer::default().with_responses(vec![topic.clone()]));
        for missing in 1..=100 {
            let body = &body[..body.len() - missing];
            // The bound is passed at the records, where their size is taken off that of the frame.
            let mut patcher = AnswerPatcher::new(ApiVersion(version), body.len() as u64, true, 0);
            let mut script = Script { wanted: |_: &Partition<'_>| Some(9), asked: Vec::new(), ends: false };
            assert!(patched(&mut patcher, body, true, &[7], &mut script).is_err(), "v{version}, {missing} missing");
        }
    }
}
