use bytes::BytesMut;
use kafka_protocol::messages::api_versions_response::{self as wire, ApiVersionsResponse};
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader};
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;

use super::*;
use crate::kafka::testing::{answer, read_answer, str_bytes, tags};

type Apis = BTreeMap<ApiKey, VersionRange>;

fn apis(ranges: &[(i16, i16, i16)]) -> Apis {
    let range = |min, max| VersionRange { min: ApiVersion(min), max: ApiVersion(max) };
    ranges.iter().map(|&(key, min, max)| (ApiKey(key), range(min, max))).collect()
}

fn numbers(apis: &Apis) -> Vec<(i16, i16, i16)> {
    apis.iter().map(|(key, r)| (key.0, r.min.0, r.max.0)).collect()
}

/// What a broker of Apache Kafka 4.3.1 offers of a few APIs, one of a later Kafka and one vendor's among them.
const BROKER: &[(i16, i16, i16)] =
    &[(0, 0, 13), (1, 4, 18), (3, 0, 13), (18, 0, 5), (36, 0, 2), (58, 0, 0), (93, 0, 0), (10_000, 0, 3)];

#[test]
fn each_policy_offers_its_caps_and_nothing_unknown() {
    let (auto, conservative, full) = (Versions::Auto, Versions::Conservative, Versions::Full);
    let rest = [(3, 0, 13), (18, 0, 4), (36, 0, 2)];
    for (policy, produce, fetch) in
        [(auto, (0, 0, 13), (1, 4, 15)), (conservative, (0, 0, 9), (1, 4, 15)), (full, (0, 0, 13), (1, 4, 18))]
    {
        let Offered(got) = offered(policy, [apis(BROKER)].iter());
        assert_eq!(numbers(&got), [&[produce, fetch][..], &rest].concat(), "{policy:?}");
    }
}

#[test]
fn during_an_upgrade_only_what_every_broker_speaks_is_offered() {
    let old = apis(&[(0, 3, 11), (1, 4, 17), (18, 0, 3)]);
    let new = apis(BROKER);
    for brokers in [[old.clone(), new.clone()], [new, old]] {
        let Offered(got) = offered(Versions::Full, brokers.iter());
        assert_eq!(numbers(&got), [(0, 3, 11), (1, 4, 17), (18, 0, 3)]);
    }
    let apart = [apis(&[(3, 0, 4)]), apis(&[(3, 5, 9)])];
    assert_eq!(offered(Versions::Full, apart.iter()), Offered::default());
}

#[test]
fn without_a_broker_the_audited_table_is_offered() {
    let Offered(got) = offered(Versions::Full, std::iter::empty());
    assert_eq!(got.len(), api::all().len());
    assert!(got.iter().all(|(key, range)| api::spec(*key).unwrap().versions == *range));
}

#[test]
fn a_cap_below_what_a_broker_speaks_is_not_applied() {
    let Offered(got) = offered(Versions::Conservative, [apis(&[(0, 10, 13), (1, 16, 18)])].iter());
    assert_eq!(numbers(&got), [(0, 10, 13), (1, 16, 18)]);
}

fn answer_of(ranges: &[(i16, i16, i16)], version: i16) -> ApiVersionsResponse {
    let mut m = ApiVersionsResponse::default().with_api_keys(
        ranges
            .iter()
            .map(|&(k, min, max)| {
                wire::ApiVersion::default().with_api_key(k).with_min_version(min).with_max_version(max)
            })
            .collect(),
    );
    if version >= 3 {
        m = m
            .with_supported_features(vec![supported("kraft.version", 0, 1), supported("transaction.version", 0, 2)])
            .with_finalized_features_epoch(77)
            .with_finalized_features(vec![finalized("transaction.version", 2), finalized("metadata.version", 29)]);
    }
    m
}

fn supported(name: &str, min: i16, max: i16) -> wire::SupportedFeatureKey {
    wire::SupportedFeatureKey::default().with_name(str_bytes(name)).with_min_version(min).with_max_version(max)
}

fn finalized(name: &str, level: i16) -> wire::FinalizedFeatureKey {
    wire::FinalizedFeatureKey::default()
        .with_name(str_bytes(name))
        .with_min_version_level(level)
        .with_max_version_level(level)
}

fn rewritten(
    m: &ApiVersionsResponse,
    version: i16,
    offered: Option<&Offered>,
    policy: Versions,
) -> ApiVersionsResponse {
    let body = answer(ApiKey::API_VERSIONS, version, m);
    let out = rewrite_api_versions(ApiVersion(version), &body, offered, policy).unwrap();
    read_answer(ApiKey::API_VERSIONS, version, &out)
}

fn shown(m: &ApiVersionsResponse) -> Vec<(i16, i16, i16)> {
    m.api_keys.iter().map(|a| (a.api_key, a.min_version, a.max_version)).collect()
}

#[test]
fn conservative_lowers_transactions_in_the_same_answer_as_produce() {
    let before = answer_of(BROKER, 4);
    let after = rewritten(&before, 4, None, Versions::Conservative);
    assert_eq!(shown(&after)[0], (0, 0, 9));
    assert_eq!(after.supported_features, [supported("kraft.version", 0, 1), supported("transaction.version", 0, 1)]);
    assert_eq!(after.finalized_features, [finalized("transaction.version", 1), finalized("metadata.version", 29)]);
    assert_eq!(after.finalized_features_epoch, 77);
}

#[test]
fn other_policies_leave_features_alone() {
    let before = answer_of(BROKER, 4);
    for policy in [Versions::Auto, Versions::Full] {
        let after = rewritten(&before, 4, None, policy);
        assert_eq!(shown(&after)[0], (0, 0, 13));
        assert_eq!(after, before.clone().with_api_keys(after.api_keys.clone()));
    }
}

#[test]
fn a_first_protocol_of_transactions_stays_as_it_is() {
    let before = answer_of(BROKER, 3).with_finalized_features(vec![finalized("transaction.version", 0)]);
    let after = rewritten(&before, 3, None, Versions::Conservative);
    assert_eq!(after.finalized_features, before.finalized_features);
}

#[test]
fn the_offer_is_narrowed_by_the_broker_that_answers() {
    let offer = Offered(apis(&[(0, 0, 13), (3, 0, 12), (18, 0, 4)]));
    let after = rewritten(&answer_of(&[(0, 3, 11), (1, 4, 17), (3, 0, 13)], 2), 2, Some(&offer), Versions::Full);
    assert_eq!(shown(&after), [(0, 3, 11), (3, 0, 12)]);
}

/// Behind the size field: correlation id 9, error 35, one key: 18, v0 to v4.
const UNSUPPORTED: [u8; 16] = [0, 0, 0, 9, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4];

#[test]
fn an_error_35_has_the_shape_of_v0_whatever_was_asked() {
    let range = api::spec(ApiKey::API_VERSIONS).unwrap().versions;
    assert_eq!(unsupported_api_versions(CorrelationId(9), range)[..], UNSUPPORTED);
    for version in [0, 3, 4, 99] {
        let out = rewrite_api_versions(ApiVersion(version), &UNSUPPORTED, None, Versions::Conservative).unwrap();
        assert_eq!(out[..], UNSUPPORTED);
        let read = parse_api_versions(ApiVersion(version), &UNSUPPORTED).unwrap();
        assert_eq!((read.error, numbers(&read.apis)), (35, vec![(18, 0, 4)]));
    }
}

proptest! {
    #[test]
    fn an_answer_keeps_everything_but_its_ranges(
        version in 0..=4i16, policy in prop_oneof![Just(Versions::Auto), Just(Versions::Conservative), Just(Versions::Full)],
        ranges in prop::collection::btree_map(-1..100i16, (0..9i16, 0..20i16), 0..40),
        api_tags in tags(true), other_tags in tags(true),
    ) {
        let flexible = version >= 3;
        let ranges: Vec<_> = ranges.into_iter().map(|(key, (min, max))| (key, min, max)).collect();
        let mut message = answer_of(&ranges, version);
        if version >= 1 { message.throttle_time_ms = 3; }
        if flexible {
            message.unknown_tagged_fields = other_tags;
            message.api_keys.iter_mut().for_each(|a| a.unknown_tagged_fields = api_tags.clone());
        }
        let body = answer(ApiKey::API_VERSIONS, version, &message);
        let read = parse_api_versions(ApiVersion(version), &body).unwrap();
        prop_assert_eq!(numbers(&read.apis), ranges);

        let Offered(wanted) = offered(policy, [read.apis].iter());
        let after = rewritten(&message, version, None, policy);
        prop_assert_eq!(shown(&after), numbers(&wanted));
        prop_assert!(after.api_keys.iter().all(|a| !flexible || a.unknown_tagged_fields == api_tags));
        prop_assert_eq!(&after.unknown_tagged_fields, &message.unknown_tagged_fields);
        prop_assert_eq!(after.throttle_time_ms, message.throttle_time_ms);
        prop_assert_eq!(&rewritten(&after, version, Some(&Offered(wanted)), policy), &after, "twice is once");

        for cut in 0..body.len() {
            prop_assert!(rewrite_api_versions(ApiVersion(version), &body[..cut], None, policy).is_err(), "cut at {}", cut);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(version in any::<i16>(), body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_api_versions(ApiVersion(version), &body);
        let _ = rewrite_api_versions(ApiVersion(version), &body, None, Versions::Conservative);
        let _ = client_software(ApiVersion(version), &body);
    }
}

#[test]
fn software_is_told_from_v3_on() {
    let request = |version: i16, header_version| {
        let mut body = BytesMut::new();
        RequestHeader::default().with_client_id(Some(str_bytes("app"))).encode(&mut body, header_version).unwrap();
        let mut m = ApiVersionsRequest::default();
        if version >= 3 {
            m = m
                .with_client_software_name(str_bytes("apache-kafka-java"))
                .with_client_software_version(str_bytes("4.3.1"));
        }
        m.encode(&mut body, version).unwrap();
        body
    };
    let told = Some(("apache-kafka-java".to_owned(), "4.3.1".to_owned()));
    assert_eq!(client_software(ApiVersion(3), &request(3, 2)), told);
    assert_eq!(client_software(ApiVersion(4), &request(4, 2)), told);
    assert_eq!(client_software(ApiVersion(2), &request(2, 1)), None);
    assert_eq!(client_software(ApiVersion(3), &request(3, 2)[..20]), None);
}
