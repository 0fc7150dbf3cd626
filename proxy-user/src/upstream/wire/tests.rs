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
    fn no_answer_panics_or_yields_more_than_it_holds(bytes in prop::collection::vec(any::<u8>(), 0..200), version in 0..=12i16) {
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
