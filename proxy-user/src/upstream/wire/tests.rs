use super::*;
use kafka_protocol::messages::api_versions_response::ApiVersion as Row;
use kafka_protocol::messages::metadata_response::{MetadataResponseBroker, MetadataResponseTopic};
use kafka_protocol::messages::{
    ApiVersionsResponse, BrokerId, MetadataResponse, SaslAuthenticateResponse, SaslHandshakeResponse,
};
use proptest::prelude::*;

fn encoded<R: Encodable>(answer: &R, version: i16) -> Vec<u8> {
    let mut body = BytesMut::new();
    answer.encode(&mut body, version).unwrap();
    body.to_vec()
}

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

#[test]
fn metadata_is_read_in_every_version_offered() {
    for version in METADATA {
        let broker = |id, host, rack: Option<&str>| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(id))
                .with_host(text(host))
                .with_port(9092)
                .with_rack(rack.map(text))
        };
        let answer = MetadataResponse::default()
            .with_brokers(vec![broker(1, "a", Some("az1")), broker(1001, "::1", None)])
            .with_controller_id(BrokerId(1001))
            .with_cluster_id((version >= 2).then(|| text("id")))
            .with_topics(vec![MetadataResponseTopic::default()]);
        let seen = metadata(&encoded(&answer, version), version).unwrap();
        let expected = |id, host: &str, rack: Option<&str>| ObservedBroker {
            id: NodeId(id),
            address: Endpoint::new(host, 9092),
            rack: rack.map(str::to_owned),
        };
        assert_eq!(seen.brokers, [expected(1, "a", Some("az1")), expected(1001, "::1", None)], "version {version}");
        assert_eq!(seen.cluster_id.as_deref(), (version >= 2).then_some("id"));
        assert_eq!(seen.controller, Some(NodeId(1001)));
        assert!(seen.complete && seen.detailed);
    }
}

#[test]
fn api_versions_are_read_in_both_shapes() {
    for version in [0, API_VERSIONS] {
        let row = |key, min, max| Row::default().with_api_key(key).with_min_version(min).with_max_version(max);
        let answer = ApiVersionsResponse::default().with_api_keys(vec![row(0, 3, 13), row(18, 0, 4), row(7, 2, 1)]);
        let (error, table) = api_versions(&encoded(&answer, version), version).unwrap();
        assert_eq!(error, 0);
        assert_eq!(table.len(), 2, "an empty range is no range");
        assert_eq!(table[&ApiKey(0)], VersionRange { min: ApiVersion(3), max: ApiVersion(13) });
    }
    let refusal = ApiVersionsResponse::default()
        .with_error_code(code::UNSUPPORTED_VERSION)
        .with_api_keys(vec![Row::default().with_api_key(18).with_max_version(2)]);
    let read = api_versions(&encoded(&refusal, 0), API_VERSIONS).unwrap();
    assert_eq!(read, (code::UNSUPPORTED_VERSION, VersionTable::new()), "a refusal is always in version 0's shape");
}

#[test]
fn sasl_answers_are_read() {
    let answer =
        SaslHandshakeResponse::default().with_error_code(33).with_mechanisms(vec![text("PLAIN"), text("GSSAPI")]);
    assert_eq!(sasl_handshake(&encoded(&answer, 1)).unwrap(), (33, vec!["PLAIN".into(), "GSSAPI".into()]));
    for version in SASL_AUTHENTICATE {
        let answer = SaslAuthenticateResponse::default()
            .with_error_code(58)
            .with_error_message(Some(text("no")))
            .with_auth_bytes(Bytes::from_static(b"token"));
        assert_eq!(
            sasl_authenticate(&encoded(&answer, version), version).unwrap(),
            Authenticated { error: 58, message: Some("no"), token: b"token" }
        );
    }
}

#[test]
fn requests_are_whole_frames_in_every_version_used() {
    let requests = [
        (Request::ApiVersions, 0..=0),
        (Request::ApiVersions, API_VERSIONS..=API_VERSIONS),
        (Request::Metadata, METADATA),
        (Request::SaslHandshake { mechanism: "PLAIN" }, SASL_HANDSHAKE),
        (Request::SaslAuthenticate { token: Bytes::from_static(b"x") }, SASL_AUTHENTICATE),
    ];
    for (request, versions) in requests {
        for version in versions {
            let frame = request.frame(version, CorrelationId(7), "turnout").unwrap();
            assert_eq!(i32::from_be_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
            assert_eq!(i16::from_be_bytes(frame[4..6].try_into().unwrap()), request.key().0);
            assert_eq!(i16::from_be_bytes(frame[6..8].try_into().unwrap()), version);
            assert_eq!(i32::from_be_bytes(frame[8..12].try_into().unwrap()), 7);
        }
    }
}

#[test]
fn the_highest_common_version_is_used() {
    let of = |min, max| {
        let range = VersionRange { min: ApiVersion(min), max: ApiVersion(max) };
        negotiate(&VersionTable::from([(ApiKey(3), range)]), ApiKey(3), &METADATA)
    };
    assert_eq!((of(0, 13), of(0, 5), of(12, 20), of(13, 20), of(0, 0)), (Some(12), Some(5), Some(12), None, None));
    assert_eq!(negotiate(&VersionTable::new(), ApiKey(3), &METADATA), None);
}

#[test]
fn a_count_or_length_beyond_the_answer_is_an_error_and_allocates_nothing() {
    let huge = i32::MAX.to_be_bytes();
    assert_eq!(metadata(&huge, 1), Err(Malformed("a list longer than the answer")));
    assert!(sasl_handshake(&[&[0, 0][..], &huge].concat()).is_err());
    assert!(api_versions(&[&[0, 0][..], &huge].concat(), 0).is_err());
    assert!(sasl_authenticate(&[&[0, 0, 0xff, 0xff][..], &huge].concat(), 0).is_err());
    assert!(metadata(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f], 9).is_err(), "a compact one too");
    assert!(metadata(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 9).is_err(), "a varint without an end");
    assert_eq!(metadata(&(-2i32).to_be_bytes(), 1), Err(Malformed("a negative length")));
}

proptest! {
    #[test]
    fn no_answer_panics_or_yields_more_than_it_holds(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        version in 0..=12i16,
    ) {
        let brokers = metadata(&bytes, version).map_or(0, |seen| seen.brokers.len());
        prop_assert!(brokers <= bytes.len() / 10);
        let rows = api_versions(&bytes, version.min(3)).map_or(0, |(_, table)| table.len());
        prop_assert!(rows <= bytes.len() / 6);
        let names = sasl_handshake(&bytes).map_or(0, |(_, names)| names.len());
        prop_assert!(names <= bytes.len() / 2);
        let token = sasl_authenticate(&bytes, version.min(2)).map_or(0, |a| a.token.len());
        prop_assert!(token <= bytes.len());
    }
}

#[test]
fn topics_are_read_in_every_version_offered() {
    use kafka_protocol::messages::metadata_response::MetadataResponsePartition;
    for version in METADATA {
        let nodes = |ids: &[i32]| ids.iter().map(|id| BrokerId(*id)).collect::<Vec<_>>();
        let mut partition = MetadataResponsePartition::default()
            .with_partition_index(5)
            .with_leader_id(BrokerId(1))
            .with_replica_nodes(nodes(&[1, 2, 3]))
            .with_isr_nodes(nodes(&[1, 3]));
        if version >= 5 {
            partition.offline_replicas = nodes(&[2]);
        }
        if version >= 7 {
            partition.leader_epoch = 9;
        }
        let mut topic = MetadataResponseTopic::default()
            .with_name(Some(TopicName(text("orders"))))
            .with_partitions(vec![partition, MetadataResponsePartition::default().with_leader_id(BrokerId(-1))]);
        let id = TopicId([7; 16]);
        if version >= 10 {
            topic.topic_id = id.to_string().parse().unwrap();
        }
        let broker = MetadataResponseBroker::default().with_node_id(BrokerId(1)).with_host(text("a")).with_port(1);
        let failed = MetadataResponseTopic::default().with_error_code(3).with_name(Some(TopicName(text("gone"))));
        let answer = MetadataResponse::default().with_brokers(vec![broker]).with_topics(vec![topic, failed]);
        let body = encoded(&answer, version);
        let seen = topics(&body, version).unwrap();
        let nodes = |ids: &[i32]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let expected = SeenPartition {
            index: 5,
            leader: Some(NodeId(1)),
            epoch: if version >= 7 { 9 } else { -1 },
            replicas: nodes(&[1, 2, 3]),
            in_sync: nodes(&[1, 3]),
            offline: if version >= 5 { nodes(&[2]) } else { Vec::new() },
        };
        assert_eq!(seen[0].partitions[0], expected, "version {version}");
        assert_eq!(seen[0].partitions[1].leader, None);
        assert_eq!((seen[0].name.as_deref(), seen[0].error), (Some("orders"), 0));
        assert_eq!(seen[0].id, if version >= 10 { id } else { TopicId::default() });
        assert_eq!((seen[1].name.as_deref(), seen[1].error), (Some("gone"), 3));
        let tail = if version >= 8 { 10 } else { 1 };
        assert!((0..body.len() - tail).all(|cut| topics(&body[..cut], version).is_err()), "version {version}");
    }
}

#[test]
fn topics_are_asked_for_by_name_and_from_version_12_on_by_id() {
    let wanted = vec![Wanted::Name("orders".into()), Wanted::Id(TopicId([7; 16]))];
    for version in METADATA {
        use kafka_protocol::protocol::Decodable;
        let frame = Request::Topics { topics: wanted.clone() }.frame(version, CorrelationId(1), "c").unwrap();
        let mut left = frame.slice(4..);
        RequestHeader::decode(&mut left, MetadataRequest::header_version(version)).unwrap();
        let request = MetadataRequest::decode(&mut left, version).unwrap();
        let topics = request.topics.unwrap();
        assert_eq!(topics.len(), if version >= 12 { 2 } else { 1 }, "version {version}");
        assert_eq!(topics[0].name.as_ref().map(|name| name.0.as_str()), Some("orders"));
        assert!(version < 4 || !request.allow_auto_topic_creation, "asking must not make a topic");
    }
}

#[test]
fn a_brokers_selector_is_read_in_every_version_offered() {
    use kafka_protocol::messages::DescribeConfigsResponse;
    use kafka_protocol::messages::describe_configs_response::{
        DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
    };
    for version in DESCRIBE_CONFIGS {
        for (value, expected) in [(Some("x.RackAwareReplicaSelector"), true), (Some(""), false), (None, false)] {
            let synonym = DescribeConfigsSynonym::default().with_name(text("s")).with_value(Some(text("v")));
            let config = |name, value: Option<&str>| {
                DescribeConfigsResourceResult::default()
                    .with_name(text(name))
                    .with_value(value.map(text))
                    .with_synonyms(vec![synonym.clone()])
            };
            let configs = vec![config("other", Some("y")), config(SELECTOR, value)];
            let result = DescribeConfigsResult::default().with_resource_name(text("1")).with_configs(configs);
            let answer = DescribeConfigsResponse::default().with_results(vec![result]);
            let body = encoded(&answer, version);
            let (error, class) = selector(&body, version).unwrap();
            assert_eq!((error, class.is_some_and(|class| class.ends_with(RACK_AWARE))), (0, expected), "v{version}");
            assert!((0..body.len() - 1).all(|cut| selector(&body[..cut], version).is_err()), "v{version}");
        }
    }
}

proptest! {
    #[test]
    fn no_answer_about_topics_or_configs_panics(version in 1i16..=12, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = topics(&bytes, version);
        let _ = selector(&bytes, version.min(4));
    }
}
