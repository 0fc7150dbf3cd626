use bytes::Bytes;
use kafka_protocol::messages::add_raft_voter_request::{self, AddRaftVoterRequest};
use kafka_protocol::messages::describe_cluster_response::{DescribeClusterBroker, DescribeClusterResponse};
use kafka_protocol::messages::describe_quorum_response::{self as quorum, DescribeQuorumResponse};
use kafka_protocol::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use kafka_protocol::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, RequestHeader, TopicName, fetch_response as fetch, produce_response as produce,
};
use kafka_protocol::messages::{share_acknowledge_response as share_ack, share_fetch_response as share};
use kafka_protocol::protocol::{Encodable, StrBytes};
use proptest::prelude::*;

use super::*;
use crate::kafka::testing::*;

fn unreachable_hint(leader: BrokerId) -> bool {
    leader.0 >= FIRST_UNMAPPED
}

macro_rules! show {
    ($brokers:expr, $id:ident) => {
        $brokers.retain(|b| is_mapped(b.$id.0));
        for b in $brokers.iter_mut() {
            b.host = str_bytes(GATEWAY);
            b.port = virtual_port(b.$id.0);
        }
    };
}

// --- Metadata ---

prop_compose! {
    fn metadata_partition(version: i16)(
        ids in prop::collection::vec(node(), 3), leader in node(), tags in tags(version >= 9), error in 0..6i16,
    ) -> MetadataResponsePartition {
        let mut p = MetadataResponsePartition::default()
            .with_error_code(error)
            .with_leader_id(leader)
            .with_replica_nodes(ids.clone())
            .with_isr_nodes(ids[..1].to_vec())
            .with_unknown_tagged_fields(tags);
        if version >= 7 { p.leader_epoch = 4; }
        if version >= 5 { p.offline_replicas = ids[1..].to_vec(); }
        p
    }
}

prop_compose! {
    fn metadata_topic(version: i16)(
        name in text(), partitions in prop::collection::vec(metadata_partition(version), 0..3), tags in tags(version >= 9),
    ) -> MetadataResponseTopic {
        let mut t = MetadataResponseTopic::default()
            .with_name(Some(TopicName(name)))
            .with_partitions(partitions)
            .with_unknown_tagged_fields(tags);
        if version >= 8 { t.topic_authorized_operations = 3; }
        if version >= 12 { t.name = None; }
        t
    }
}

prop_compose! {
    fn metadata(version: i16)(
        nodes in nodes(), rack in rack(), broker_tags in tags(version >= 9), tags in tags(version >= 9),
        controller in node(), cluster_id in prop::option::of(Just(str_bytes(REAL_CLUSTER))),
        topics in prop::collection::vec(metadata_topic(version), 0..3),
    ) -> MetadataResponse {
        let brokers = nodes.into_iter().map(|n| {
            let b = MetadataResponseBroker::default().with_node_id(BrokerId(n)).with_host(real_host(n)).with_port(REAL_PORT);
            b.with_rack(if version >= 1 { rack.clone() } else { None }).with_unknown_tagged_fields(broker_tags.clone())
        });
        let mut m = MetadataResponse::default().with_brokers(brokers.collect()).with_topics(topics).with_unknown_tagged_fields(tags);
        if version >= 1 { m.controller_id = controller; }
        if version >= 2 { m.cluster_id = cluster_id; }
        if version >= 3 { m.throttle_time_ms = 9; }
        m
    }
}

/// A message together with one of the versions that can carry it.
fn versioned<S: Strategy>(
    versions: std::ops::RangeInclusive<i16>,
    make: impl Fn(i16) -> S + 'static,
) -> impl Strategy<Value = (i16, S::Value)> {
    versions.prop_flat_map(move |v| make(v).prop_map(move |m| (v, m)))
}

proptest! {
    #[test]
    fn metadata_names_virtual_brokers_only((version, message) in versioned(0..=13, metadata)) {
        let all: Vec<i32> = message.brokers.iter().map(|b| b.node_id.0).collect();
        let outcome = check(ApiKey::METADATA, version, message.clone(), |mut m| {
            show!(m.brokers, node_id);
            if m.cluster_id.is_some() { m.cluster_id = Some(str_bytes(VIRTUAL_CLUSTER)); }
            m
        });
        let seen = outcome.seen.expect("brokers are always told");
        prop_assert_eq!(seen.brokers.iter().map(|b| b.node.0).collect::<Vec<_>>(), all);
        prop_assert!(seen.brokers.iter().all(|b| b.host.ends_with(REAL_DOMAIN) && i32::from(b.port) == REAL_PORT));
        prop_assert_eq!(seen.complete, !message.brokers.is_empty());
        prop_assert_eq!(seen.cluster_id.as_deref(), message.cluster_id.as_deref());
        prop_assert_eq!(seen.controller.map_or(-1, |c| c.0), message.controller_id.0.max(-1));
    }

    #[test]
    fn a_coordinator_out_of_range_is_not_available(
        (version, n) in (0..=3i16, -1..10i32), error in prop_oneof![Just(0i16), Just(16)], tag in tags(true),
    ) {
        let mut m = FindCoordinatorResponse::default().with_error_code(error).with_node_id(BrokerId(n));
        if n >= 0 { m = m.with_host(real_host(n)).with_port(REAL_PORT); } else { m.port = -1; }
        if version >= 1 { m.error_message = Some(str_bytes("as the broker says")); }
        if version >= 3 { m.unknown_tagged_fields = tag; }
        let outcome = check(ApiKey::FIND_COORDINATOR, version, m, |mut m| {
            (m.error_code, m.node_id, m.host, m.port) = shown_coordinator(error, n);
            m
        });
        prop_assert!(outcome.seen.is_none_or(|seen| !seen.complete));
    }

    #[test]
    fn each_of_several_coordinators_is_mapped_by_itself(
        version in 4..=6i16, found in prop::collection::vec((text(), -1..10i32, tags(true)), 0..4), tag in tags(true),
    ) {
        let coordinators = found.iter().map(|(key, n, tags)| {
            let c = Coordinator::default().with_key(key.clone()).with_node_id(BrokerId(*n)).with_unknown_tagged_fields(tags.clone());
            if *n >= 0 { c.with_host(real_host(*n)).with_port(REAL_PORT) } else { c.with_port(-1).with_error_code(15) }
        });
        let m = FindCoordinatorResponse::default().with_coordinators(coordinators.collect()).with_unknown_tagged_fields(tag);
        check(ApiKey::FIND_COORDINATOR, version, m, |mut m| {
            for c in &mut m.coordinators {
                (c.error_code, c.node_id, c.host, c.port) = shown_coordinator(c.error_code, c.node_id.0);
            }
            m
        });
    }

    #[test]
    fn describe_cluster_lists_reachable_brokers_and_no_controllers(
        version in 0..=2i16, nodes in nodes(), rack in rack(), tag in tags(true), controllers in any::<bool>(), fenced in any::<bool>(),
    ) {
        let brokers = nodes.iter().map(|&n| {
            let b = DescribeClusterBroker::default().with_broker_id(BrokerId(n)).with_host(real_host(n)).with_port(REAL_PORT);
            b.with_rack(rack.clone()).with_is_fenced(fenced && version >= 2).with_unknown_tagged_fields(tag.clone())
        });
        let controllers = controllers && version >= 1;
        let m = DescribeClusterResponse::default()
            .with_cluster_id(str_bytes(REAL_CLUSTER))
            .with_controller_id(BrokerId(2))
            .with_endpoint_type(if controllers { 2 } else { 1 })
            .with_brokers(brokers.collect())
            .with_unknown_tagged_fields(tag.clone());
        let outcome = check(ApiKey::DESCRIBE_CLUSTER, version, m, |mut m| {
            if controllers { m.brokers.clear(); }
            show!(m.brokers, broker_id);
            m.cluster_id = str_bytes(VIRTUAL_CLUSTER);
            m
        });
        let told = outcome.seen.map_or(0, |seen| seen.brokers.len());
        prop_assert_eq!(told, if controllers || fenced && version >= 2 { 0 } else { nodes.len() });
    }
}

fn shown_coordinator(error: i16, n: i32) -> (i16, BrokerId, StrBytes, i32) {
    if is_mapped(n) {
        (error, BrokerId(n), str_bytes(GATEWAY), virtual_port(n))
    } else {
        (if error == 0 { 15 } else { error }, BrokerId(-1), StrBytes::new(), -1)
    }
}

// --- Hints beside errors (KIP-951) ---

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
    fn produce_answer(version: i16)(
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
    fn fetch_answer(version: i16)(
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
    fn share_fetch_answer()(
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

fn show_share_fetch(mut m: share::ShareFetchResponse) -> share::ShareFetchResponse {
    show!(m.node_endpoints, node_id);
    for p in m.responses.iter_mut().flat_map(|t| &mut t.partitions) {
        let error = p.error_code != 0 || p.acknowledge_error_code != 0;
        if error && !is_mapped(p.current_leader.leader_id) {
            (p.current_leader.leader_id, p.current_leader.leader_epoch) = (-1, -1);
        }
    }
    m
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn produce_hints_lead_to_the_gateway_or_are_gone((version, message) in versioned(10..=13, produce_answer)) {
        check(ApiKey::PRODUCE, version, message, |mut m| {
            show!(m.node_endpoints, node_id);
            for p in m.responses.iter_mut().flat_map(|t| &mut t.partition_responses) {
                if unreachable_hint(p.current_leader.leader_id) { p.current_leader = Default::default(); }
            }
            m
        });
    }

    #[test]
    fn fetch_hints_lead_to_the_gateway_or_are_gone((version, message) in versioned(16..=18, fetch_answer)) {
        check(ApiKey::FETCH, version, message, |mut m| {
            show!(m.node_endpoints, node_id);
            for p in m.responses.iter_mut().flat_map(|t| &mut t.partitions) {
                if unreachable_hint(p.current_leader.leader_id) { p.current_leader = Default::default(); }
            }
            m
        });
    }

    #[test]
    fn answers_that_carry_no_address_come_back_unread(
        (produce_version, produced) in versioned(3..=9, produce_answer), (fetch_version, fetched) in versioned(13..=15, fetch_answer),
    ) {
        let body = answer(ApiKey::PRODUCE, produce_version, &produced);
        prop_assert_eq!(rewritten(ApiKey::PRODUCE, produce_version, &body), Rewritten::default());
        let body = answer(ApiKey::FETCH, fetch_version, &fetched);
        prop_assert_eq!(rewritten(ApiKey::FETCH, fetch_version, &body), Rewritten::default());
    }

    #[test]
    fn clean_means_that_rewriting_changes_nothing((version, message) in versioned(3..=13, produce_answer)) {
        let mut body = answer(ApiKey::PRODUCE, version, &message);
        if version >= 9 { body.splice(4..10, [0]); }
        let partitions = || message.responses.iter().flat_map(|t| &t.partition_responses);
        let untagged = message.unknown_tagged_fields.is_empty() && message.node_endpoints.is_empty()
            && message.responses.iter().all(|t| t.unknown_tagged_fields.is_empty())
            && partitions().all(|p| p.unknown_tagged_fields.is_empty());
        let clean = untagged && partitions().all(|p| p.error_code == 0);
        prop_assert_eq!(is_clean_produce_answer(ApiVersion(version), &body), clean);
        if clean { prop_assert_eq!(rewritten(ApiKey::PRODUCE, version, &body), Rewritten::default()); }
    }

    #[test]
    fn share_fetch_hints_lead_to_the_gateway_or_are_unset(message in share_fetch_answer()) {
        check(ApiKey::SHARE_FETCH, 1, message.clone(), show_share_fetch);
        // v2 changed the request only.
        let body = answer(ApiKey::SHARE_FETCH, 1, &message);
        prop_assert_eq!(rewritten(ApiKey::SHARE_FETCH, 2, &body), rewritten(ApiKey::SHARE_FETCH, 1, &body));
    }

    #[test]
    fn share_acknowledge_hints_lead_to_the_gateway_or_are_unset(
        leaders in prop::collection::vec((0..10i32, 0..2i16, tags(true)), 0..4), nodes in nodes(), rack in rack(), tag in tags(true),
    ) {
        let partitions = leaders.into_iter().map(|(leader, error, tags)| {
            let leader = share_ack::LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(3);
            share_ack::PartitionData::default().with_error_code(error).with_current_leader(leader).with_unknown_tagged_fields(tags)
        });
        let topic = share_ack::ShareAcknowledgeTopicResponse::default().with_partitions(partitions.collect()).with_unknown_tagged_fields(tag.clone());
        let m = share_ack::ShareAcknowledgeResponse::default()
            .with_responses(vec![topic.clone(), topic]).with_node_endpoints(endpoints!(share_ack, nodes, rack, tag));
        let v1 = check(ApiKey::SHARE_ACKNOWLEDGE, 1, m.clone(), |mut m| {
            show!(m.node_endpoints, node_id);
            for p in m.responses.iter_mut().flat_map(|t| &mut t.partitions) {
                if p.error_code != 0 && !is_mapped(p.current_leader.leader_id) {
                    (p.current_leader.leader_id, p.current_leader.leader_epoch) = (-1, -1);
                }
            }
            m
        });
        // v2 has one more field behind the header (10), throttle time, error and a null message (7).
        let with_lock_timeout = |body: &[u8]| { let mut b = body.to_vec(); b.splice(17..17, [0, 0, 0x75, 0x30]); b };
        let v2 = rewritten(ApiKey::SHARE_ACKNOWLEDGE, 2, &with_lock_timeout(&answer(ApiKey::SHARE_ACKNOWLEDGE, 1, &m)));
        prop_assert_eq!(v2.body.map(|b| b.to_vec()), v1.body.map(|b| with_lock_timeout(&b)));
        prop_assert_eq!(v2.seen, v1.seen);
    }

    #[test]
    fn describe_quorum_tells_no_listener(ids in prop::collection::vec(node(), 0..4), tag in tags(true)) {
        let replicas = || ids.iter().map(|&id| quorum::ReplicaState::default().with_replica_id(id).with_unknown_tagged_fields(tag.clone())).collect();
        let listener = |id: BrokerId| quorum::Listener::default().with_name(str_bytes("CONTROLLER")).with_host(real_host(id.0)).with_port(9093);
        let nodes = ids.iter().map(|&id| {
            quorum::Node::default().with_node_id(id).with_listeners(vec![listener(id); 2]).with_unknown_tagged_fields(tag.clone())
        });
        let partition = quorum::PartitionData::default().with_leader_id(BrokerId(1)).with_current_voters(replicas()).with_observers(replicas());
        let topic = quorum::TopicData::default().with_topic_name(TopicName(str_bytes("__cluster_metadata"))).with_partitions(vec![partition]);
        let m = DescribeQuorumResponse::default().with_topics(vec![topic]).with_nodes(nodes.collect()).with_unknown_tagged_fields(tag.clone());
        let outcome = check(ApiKey::DESCRIBE_QUORUM, 2, m, |mut m| {
            for node in &mut m.nodes { node.listeners.clear(); }
            m
        });
        prop_assert_eq!(outcome.seen, None);
    }

    #[test]
    fn any_bytes_end_in_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400), which in any::<u8>(), version in any::<u8>()) {
        let mut input = vec![which, version];
        input.extend_from_slice(&bytes);
        crate::kafka::fuzzing::rewrite(&input);
        crate::kafka::fuzzing::header(&bytes);
    }

    #[test]
    fn a_damaged_answer_ends_in_an_answer_or_an_error(
        (version, message) in versioned(0..=13, metadata), at in any::<prop::sample::Index>(), to in any::<u8>(),
    ) {
        let mut body = answer(ApiKey::METADATA, version, &message);
        let at = at.index(body.len());
        body[at] = to;
        let _ = rewrite_answer(ApiKey::METADATA, ApiVersion(version), &body, &WORLD);
    }
}

#[test]
fn a_declared_length_allocates_nothing() {
    // Two thousand million brokers in twenty bytes.
    let classic = [&[0, 0, 0, 1][..], &i32::MAX.to_be_bytes(), &[0; 12]].concat();
    assert!(rewrite_answer(ApiKey::METADATA, ApiVersion(0), &classic, &WORLD).is_err());
    let compact = [&[0, 0, 0, 1, 0, 0, 0, 0, 0][..], &[0xff, 0xff, 0xff, 0xff, 0x0f], &[0; 6]].concat();
    assert!(rewrite_answer(ApiKey::METADATA, ApiVersion(12), &compact, &WORLD).is_err());
}

#[test]
fn without_an_override_the_real_cluster_id_is_shown() {
    let world = World { cluster_id: None };
    let m = MetadataResponse::default().with_cluster_id(Some(str_bytes(REAL_CLUSTER)));
    let body = answer(ApiKey::METADATA, 12, &m);
    let outcome = rewrite_answer(ApiKey::METADATA, ApiVersion(12), &body, &world).unwrap();
    assert_eq!(outcome.body, None);
    assert_eq!(outcome.seen.unwrap().cluster_id.as_deref(), Some(REAL_CLUSTER));
}

#[test]
fn metadata_with_an_error_tells_nothing_about_the_cluster() {
    let m = MetadataResponse::default().with_error_code(129);
    let body = answer(ApiKey::METADATA, 13, &m);
    assert_eq!(rewritten(ApiKey::METADATA, 13, &body), Rewritten::default());
}

#[test]
fn a_hint_given_twice_is_refused() {
    // Produce v10: no topics, throttle time, two endpoint fields with an empty array each.
    let body = [0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 2, 0, 1, 1, 0, 1, 1];
    assert!(rewrite_answer(ApiKey::PRODUCE, ApiVersion(10), &body, &WORLD).is_err());
}

#[test]
fn a_version_that_was_not_audited_is_refused() {
    assert!(rewrite_answer(ApiKey::METADATA, ApiVersion(14), &[0; 64], &WORLD).is_err());
    assert!(rewrite_answer(ApiKey::SHARE_FETCH, ApiVersion(0), &[0; 64], &WORLD).is_err());
}

fn add_voter(cluster_id: Option<&str>, client_id: Option<&str>) -> Vec<u8> {
    let mut body = bytes::BytesMut::new();
    RequestHeader::default()
        .with_request_api_key(80)
        .with_correlation_id(5)
        .with_client_id(client_id.map(str_bytes))
        .encode(&mut body, 2)
        .unwrap();
    let listener = add_raft_voter_request::Listener::default().with_host(str_bytes("controller")).with_port(9093);
    AddRaftVoterRequest::default()
        .with_cluster_id(cluster_id.map(str_bytes))
        .with_voter_id(3)
        .with_listeners(vec![listener])
        .encode(&mut body, 0)
        .unwrap();
    body.to_vec()
}

#[test]
fn a_request_that_names_the_virtual_cluster_names_the_real_one_to_the_broker() {
    let (key, v0) = (ApiKey::ADD_RAFT_VOTER, ApiVersion(0));
    for client_id in [None, Some(""), Some("admin-1")] {
        let named = add_voter(Some(VIRTUAL_CLUSTER), client_id);
        let sent = rewrite_request(key, v0, &named, &WORLD).unwrap().expect("changed");
        assert_eq!(sent, add_voter(Some(REAL_CLUSTER), client_id));
        for other in [None, Some("another")] {
            assert_eq!(rewrite_request(key, v0, &add_voter(other, client_id), &WORLD).unwrap(), None);
        }
        let no_override = World { cluster_id: None };
        assert_eq!(rewrite_request(key, v0, &named, &no_override).unwrap(), None);
        assert!(rewrite_request(key, v0, &named[..12], &WORLD).is_err());
    }
    assert_eq!(rewrite_request(ApiKey::FETCH, ApiVersion(13), &[], &WORLD).unwrap(), None);
}
