//! What the tests of this module share: a virtual cluster, an encoder, and strategies for the pieces of answers.
//! kafka-protocol is the oracle: it writes the messages and reads what became of them.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::share_fetch_response as share;
use kafka_protocol::messages::{BrokerId, TopicName, fetch_response as fetch, produce_response as produce};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use proptest::prelude::*;

use super::api;
use super::ids::{ApiKey, ApiVersion, NodeId};
use super::rewrite::{Addresses, Rewritten, rewrite_answer};

/// In every real host's name and in no virtual one.
pub(super) const REAL_DOMAIN: &str = ".real.internal";
/// What clients dial.
pub(super) const GATEWAY: &str = "gateway.test";
pub(super) const REAL_PORT: i32 = 19092;
pub(super) const FIRST_PORT: u16 = 9200;
/// Nodes below this one have a virtual broker.
pub(super) const FIRST_UNMAPPED: i32 = 5;
pub(super) const VIRTUAL_CLUSTER: &str = "virtual-cluster";
pub(super) const REAL_CLUSTER: &str = "mk6u1T3xQZ-real";

pub(super) struct World {
    pub(super) cluster_id: Option<&'static str>,
}

impl Addresses for World {
    fn broker(&self, node: NodeId) -> Option<(&str, u16)> {
        is_mapped(node.0).then(|| (GATEWAY, FIRST_PORT + node.0 as u16))
    }

    fn cluster_id(&self) -> Option<&str> {
        self.cluster_id
    }

    fn real_cluster_id(&self) -> Option<&str> {
        Some(REAL_CLUSTER)
    }
}

pub(super) const WORLD: World = World { cluster_id: Some(VIRTUAL_CLUSTER) };

pub(super) fn is_mapped(node: i32) -> bool {
    (0..FIRST_UNMAPPED).contains(&node)
}

pub(super) fn virtual_port(node: i32) -> i32 {
    i32::from(FIRST_PORT) + node
}

pub(super) fn str_bytes(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

pub(super) fn real_host(node: i32) -> StrBytes {
    StrBytes::from_string(format!("kafka-{node}{REAL_DOMAIN}"))
}

/// The frame behind its size field, with an unknown tagged field in a flexible header.
pub(super) fn answer<M: Encodable>(key: ApiKey, version: i16, message: &M) -> Vec<u8> {
    let mut body = BytesMut::from(&77i32.to_be_bytes()[..]);
    if has_flexible_header(key, version) {
        body.extend_from_slice(&[1, 60, 3, b'e', b'x', b't']);
    }
    message.encode(&mut body, version).expect("a message that its version can carry");
    body.to_vec()
}

fn has_flexible_header(key: ApiKey, version: i16) -> bool {
    key != ApiKey::API_VERSIONS && api::spec(key).expect("known").is_flexible(ApiVersion(version))
}

/// The message in a frame made by [`answer`], read to its last byte.
pub(super) fn read_answer<M: Decodable>(key: ApiKey, version: i16, body: &[u8]) -> M {
    let mut left = Bytes::copy_from_slice(&body[if has_flexible_header(key, version) { 10 } else { 4 }..]);
    let message = M::decode(&mut left, version).expect("an answer that clients can read");
    assert!(left.is_empty(), "{} bytes behind the last field", left.len());
    message
}

pub(super) fn rewritten(key: ApiKey, version: i16, body: &[u8]) -> Rewritten {
    rewrite_answer(key, ApiVersion(version), body, &WORLD).expect("an answer by the schema")
}

pub(super) fn contains(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|w| w == needle.as_bytes())
}

/// Rewriting `message` must give what `expected` makes of it, leak no address, leave the header alone, and fail on
/// every cut.
pub(super) fn check<M>(key: ApiKey, version: i16, message: M, expected: impl FnOnce(M) -> M) -> Rewritten
where
    M: Encodable + Decodable + PartialEq + std::fmt::Debug + Clone,
{
    let before = answer(key, version, &message);
    let outcome = rewritten(key, version, &before);
    let after = outcome.body.as_deref().unwrap_or(&before);
    let header = if has_flexible_header(key, version) { 10 } else { 4 };
    assert_eq!(after[..header], before[..header]);
    assert!(!contains(after, REAL_DOMAIN), "a real address is left");
    assert_eq!(read_answer::<M>(key, version, after), expected(message));
    assert!(outcome.body.as_deref().is_none_or(|body| body != before), "unchanged answers aren't copied");
    for cut in 0..before.len() {
        assert!(rewrite_answer(key, ApiVersion(version), &before[..cut], &WORLD).is_err(), "cut at {cut} passes");
    }
    outcome
}

/// Unknown tagged fields; none where the version has none. Not number 127, which fields that are scrubbed get
/// (`hints`): a test could not tell whose it is.
pub(super) fn tags(flexible: bool) -> impl Strategy<Value = BTreeMap<i32, Bytes>> {
    let number = (40..20_000i32).prop_map(|number| if number == 127 { 128 } else { number });
    let field = (number, prop::collection::vec(any::<u8>(), 0..5).prop_map(Bytes::from));
    prop::collection::vec(field, if flexible { 0..3 } else { 0..1 })
        .prop_map(move |fields| if flexible { fields.into_iter().collect() } else { BTreeMap::new() })
}

/// −1, nodes with and without a virtual broker.
pub(super) fn node() -> impl Strategy<Value = BrokerId> {
    (-1..10i32).prop_map(BrokerId)
}

/// Different nodes of a cluster.
pub(super) fn nodes() -> impl Strategy<Value = Vec<i32>> {
    prop::sample::subsequence((0..10i32).collect::<Vec<_>>(), 0..6)
}

pub(super) fn text() -> impl Strategy<Value = StrBytes> {
    "[a-zé]{0,6}".prop_map(StrBytes::from_string)
}

pub(super) fn rack() -> impl Strategy<Value = Option<StrBytes>> {
    prop::option::of("[a-z]{0,3}".prop_map(StrBytes::from_string))
}

/// A message together with one of the versions that can carry it.
pub(super) fn versioned<S: Strategy>(
    versions: std::ops::RangeInclusive<i16>,
    make: impl Fn(i16) -> S + 'static,
) -> impl Strategy<Value = (i16, S::Value)> {
    versions.prop_flat_map(move |v| make(v).prop_map(move |m| (v, m)))
}

/// Endpoints of some nodes, in the type of one message.
macro_rules! endpoints {
    ($module:ident, $nodes:expr, $rack:expr, $tags:expr) => {
        $nodes
            .iter()
            .map(|&n| {
                let e = $module::NodeEndpoint::default().with_node_id(BrokerId(n)).with_host(real_host(n));
                e.with_port(REAL_PORT).with_rack($rack.clone()).with_unknown_tagged_fields($tags.clone())
            })
            .collect::<Vec<_>>()
    };
}

prop_compose! {
    pub(super) fn produce_answer(version: i16)(
        leaders in prop::collection::vec((node(), 0..2i16, tags(version >= 9), text()), 0..4), nodes in nodes(), rack in rack(),
        topic_tags in tags(version >= 9), tags in tags(version >= 9),
    ) -> produce::ProduceResponse {
        let partitions = leaders.into_iter().enumerate().map(|(index, (leader, error, tags, message))| {
            let mut p = produce::PartitionProduceResponse::default()
                .with_index(index as i32).with_error_code(error * 6).with_base_offset(1 << 40).with_log_append_time_ms(-1)
                .with_unknown_tagged_fields(tags.clone());
            if version >= 8 && error != 0 {
                p.error_message = Some(message.clone());
                p.record_errors = vec![produce::BatchIndexAndErrorMessage::default().with_batch_index(3).with_batch_index_error_message(Some(message))];
            }
            if version >= 5 { p.log_start_offset = 7; }
            if version >= 10 && error != 0 {
                p.current_leader = produce::LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(3).with_unknown_tagged_fields(tags);
            }
            p
        });
        let mut topic = produce::TopicProduceResponse::default().with_partition_responses(partitions.collect()).with_unknown_tagged_fields(topic_tags.clone());
        if version < 13 { topic.name = TopicName(str_bytes("orders")); }
        let mut m = produce::ProduceResponse::default().with_responses(vec![topic.clone(), topic]).with_throttle_time_ms(2).with_unknown_tagged_fields(tags);
        if version >= 10 { m.node_endpoints = endpoints!(produce, nodes, rack, topic_tags); }
        m
    }
}

prop_compose! {
    pub(super) fn fetch_answer(version: i16)(
        leaders in prop::collection::vec((node(), tags(true), prop::option::of(prop::collection::vec(any::<u8>(), 0..200)), any::<bool>()), 0..4),
        nodes in nodes(), rack in rack(), tags in tags(true),
    ) -> fetch::FetchResponse {
        let partitions = leaders.into_iter().enumerate().map(|(index, (leader, tags, records, aborted))| {
            let aborted = aborted.then(|| vec![fetch::AbortedTransaction::default().with_first_offset(9).with_unknown_tagged_fields(tags.clone())]);
            fetch::PartitionData::default()
                .with_partition_index(index as i32).with_error_code(6).with_high_watermark(1 << 40)
                .with_aborted_transactions(aborted)
                .with_preferred_read_replica(leader)
                .with_records(records.map(Bytes::from))
                .with_diverging_epoch(fetch::EpochEndOffset::default().with_epoch(4))
                .with_current_leader(fetch::LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(3))
                .with_unknown_tagged_fields(tags)
        });
        let topic = fetch::FetchableTopicResponse::default()
            .with_partitions(partitions.collect()).with_unknown_tagged_fields(tags.clone());
        fetch::FetchResponse::default()
            .with_session_id(7).with_responses(vec![topic.clone(), topic])
            .with_node_endpoints(if version >= 16 { endpoints!(fetch, nodes, rack, tags) } else { vec![] })
            .with_unknown_tagged_fields(tags)
    }
}

prop_compose! {
    pub(super) fn share_fetch_answer()(
        leaders in prop::collection::vec((0..10i32, 0..2i16, 0..2i16, tags(true), prop::collection::vec(any::<u8>(), 0..99)), 0..4),
        nodes in nodes(), rack in rack(), tags in tags(true), message in prop::option::of(text()),
    ) -> share::ShareFetchResponse {
        let partitions = leaders.into_iter().enumerate().map(|(index, (leader, error, acknowledge_error, tags, records))| {
            let leader = share::LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(3).with_unknown_tagged_fields(tags.clone());
            share::PartitionData::default()
                .with_partition_index(index as i32).with_error_code(error).with_error_message(message.clone())
                .with_acknowledge_error_code(acknowledge_error).with_current_leader(leader)
                .with_records(Some(Bytes::from(records)))
                .with_acquired_records(vec![share::AcquiredRecords::default().with_last_offset(9).with_unknown_tagged_fields(tags.clone())])
                .with_unknown_tagged_fields(tags)
        });
        let topic = share::ShareFetchableTopicResponse::default()
            .with_partitions(partitions.collect()).with_unknown_tagged_fields(tags.clone());
        share::ShareFetchResponse::default()
            .with_error_message(message).with_responses(vec![topic.clone(), topic])
            .with_node_endpoints(endpoints!(share, nodes, rack, tags)).with_unknown_tagged_fields(tags)
    }
}

pub(super) use endpoints;
