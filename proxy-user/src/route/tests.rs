use super::*;
use crate::kafka::header::Partial::{Done, Malformed, NeedMore};

fn planned(key: ApiKey, version: i16, policy: Versions) -> Plan {
    let prefix = RequestPrefix { api_key: key.0, api_version: version, correlation_id: 9 };
    match plan(prefix, || panic!("acks asked of {key}"), policy, false) {
        Done(plan) => plan,
        other => panic!("{other:?}"),
    }
}

fn planned_produce(version: i16, acks: Partial<i16>) -> Partial<Plan> {
    plan(RequestPrefix { api_key: 0, api_version: version, correlation_id: 9 }, || acks, Versions::Auto, true)
}

fn forward(answer: AnswerPlan) -> Plan {
    Plan::Forward { answer }
}

#[test]
fn a_produce_is_planned_by_its_acks() {
    assert_eq!(planned_produce(3, Done(0)), Done(forward(AnswerPlan::None)));
    assert_eq!(planned_produce(13, Done(0)), Done(forward(AnswerPlan::None)));
    assert_eq!(planned_produce(9, Done(1)), Done(forward(AnswerPlan::Stream)));
    assert_eq!(planned_produce(10, Done(-1)), Done(forward(AnswerPlan::CheckProduce)));
    assert_eq!(planned_produce(13, NeedMore), NeedMore);
    assert_eq!(planned_produce(13, Malformed("why")), Malformed("why"));
}

#[test]
fn a_version_that_is_not_served_ends_the_connection_before_its_body_is_read() {
    for version in [-1, 0, 2, 14] {
        let plan = planned(ApiKey::PRODUCE, version, Versions::Full);
        assert!(matches!(plan, Plan::Close(CloseReason::UnsupportedVersion { .. })), "v{version}");
    }
    let Plan::Close(reason) = planned(ApiKey::METADATA, 14, Versions::Auto) else { panic!("served") };
    assert_eq!(
        reason.to_string(),
        "Metadata v14 isn't served, v0 to v13 are; the client must negotiate by ApiVersions"
    );
    assert_eq!(reason.label(), "unsupported_version");
}

#[test]
fn unknown_and_vendor_keys_end_the_connection() {
    for key in [4, 58, 93, 10_001, -3] {
        let plan = planned(ApiKey(key), 0, Versions::Auto);
        assert_eq!(plan, Plan::Close(CloseReason::UnknownApi(ApiKey(key))));
    }
}

#[test]
fn an_api_versions_request_newer_than_ours_is_answered_here() {
    assert_eq!(planned(ApiKey::API_VERSIONS, 4, Versions::Auto), forward(AnswerPlan::ApiVersions));
    for version in [5, 99] {
        let Plan::Answer(body) = planned(ApiKey::API_VERSIONS, version, Versions::Auto) else { panic!("forwarded") };
        assert_eq!(body[..], [0, 0, 0, 9, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4]);
    }
}

#[test]
fn fetch_answers_are_looked_at_where_they_may_carry_addresses() {
    for policy in [Versions::Auto, Versions::Conservative, Versions::Full] {
        assert_eq!(planned(ApiKey::FETCH, 15, policy), forward(AnswerPlan::Stream));
        assert_eq!(planned(ApiKey::SHARE_FETCH, 2, policy), forward(AnswerPlan::FetchHints));
    }
    assert_eq!(planned(ApiKey::FETCH, 16, Versions::Full), forward(AnswerPlan::FetchHints));
    assert_eq!(planned(ApiKey::FETCH, 18, Versions::Auto), forward(AnswerPlan::FetchScrub));
}

#[test]
fn each_api_has_its_plan() {
    let rewrite = forward(AnswerPlan::Rewrite);
    for (key, version, wanted) in [
        (ApiKey::METADATA, 0, rewrite.clone()),
        (ApiKey::METADATA, 13, rewrite.clone()),
        (ApiKey::FIND_COORDINATOR, 6, rewrite.clone()),
        (ApiKey::DESCRIBE_CLUSTER, 2, rewrite.clone()),
        (ApiKey::SHARE_ACKNOWLEDGE, 1, rewrite.clone()),
        (ApiKey::DESCRIBE_QUORUM, 1, forward(AnswerPlan::Stream)),
        (ApiKey::DESCRIBE_QUORUM, 2, rewrite),
        (ApiKey::DESCRIBE_TOPIC_PARTITIONS, 0, forward(AnswerPlan::Stream)),
        (ApiKey::SASL_HANDSHAKE, 1, forward(AnswerPlan::Handshake)),
        (ApiKey::SASL_AUTHENTICATE, 2, forward(AnswerPlan::Authenticate)),
        (ApiKey::ADD_RAFT_VOTER, 1, Plan::Rewrite { answer: AnswerPlan::Stream }),
        (ApiKey::REMOVE_RAFT_VOTER, 0, Plan::Rewrite { answer: AnswerPlan::Stream }),
        (ApiKey(8), 10, forward(AnswerPlan::Stream)),
        (ApiKey(68), 1, forward(AnswerPlan::Stream)),
    ] {
        assert_eq!(planned(key, version, Versions::Auto), wanted, "{} v{version}", api::name(key));
    }
}

/// The table's flag and the plan must not part: what may carry an address is never streamed, in any version that is
/// known to carry one.
#[test]
fn whatever_may_carry_an_address_is_planned_as_such() {
    for spec in api::all().iter().filter(|spec| spec.key != ApiKey::PRODUCE) {
        let plan = planned(spec.key, spec.versions.max.0, Versions::Auto);
        let looked_at = !matches!(
            plan,
            Plan::Forward { answer: AnswerPlan::Stream | AnswerPlan::Handshake | AnswerPlan::Authenticate }
                | Plan::Rewrite { .. }
        );
        assert_eq!(looked_at, spec.rewrites, "{}", spec.name);
    }
}

#[test]
fn fetch_is_looked_at_where_reads_are_routed_and_its_version_can_be() {
    let of = |version, routes| {
        let prefix = RequestPrefix { api_key: 1, api_version: version, correlation_id: 9 };
        plan(prefix, || panic!("acks asked of a Fetch"), Versions::Auto, routes)
    };
    for version in 0..=18 {
        let expected = (11..=15).contains(&version);
        assert_eq!(of(version, true) == Partial::Done(Plan::Route), expected, "v{version}");
        assert_ne!(of(version, false), Partial::Done(Plan::Route), "v{version}");
    }
}
