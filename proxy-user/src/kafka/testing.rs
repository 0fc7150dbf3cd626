//! What the tests of this module share: a virtual cluster, an encoder, and strategies for the pieces of answers.
//! kafka-protocol is the oracle: it writes the messages and reads what became of them.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::BrokerId;
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

/// Unknown tagged fields; none where the version has none.
pub(super) fn tags(flexible: bool) -> impl Strategy<Value = BTreeMap<i32, Bytes>> {
    let field = (40..20_000i32, prop::collection::vec(any::<u8>(), 0..5).prop_map(Bytes::from));
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
