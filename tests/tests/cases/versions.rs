//! What is negotiated.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use harness::mock::{Mock, Reply};
use harness::raw::{answer, frame};
use harness::wait;
use kafka_protocol::protocol::StrBytes;

use crate::support::*;

/// What a virtual broker offers: key → (lowest, highest).
type Table = BTreeMap<i16, (i16, i16)>;

async fn table(client: &mut harness::raw::Client) -> Result<Table> {
    let answer = client.call(3, &api_versions()).await?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    Ok(answer.api_keys.iter().map(|key| (key.api_key, (key.min_version, key.max_version))).collect())
}

fn api_versions() -> m::ApiVersionsRequest {
    m::ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("raw"))
        .with_client_software_version(StrBytes::from_static_str("1"))
}

// kroxylicious/kroxylicious#1635, confluentinc/librdkafka#3090: a version newer than ours is answered in the shape of
// v0 with error 35 and the range of ApiVersions in it, so that the client comes down in one step. The request's body
// may be anything; its header is flexible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_versions_request_from_the_future_is_answered_in_v0_with_error_35() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    for (version, rest) in
        [(5u8, &b"\0\x04raw\x021\0"[..]), (5, b"\0"), (99, b"\0\xff\xff\xff\xff unreadable"), (127, b"")]
    {
        client.send(&frame(&[b"\0\x12\0", &[version][..], b"\0\0\0\x07\0\x01c", rest].concat())).await?;
        let answer = client.read_frame().await?.unwrap_or_default();
        assert_eq!(answer[..], *b"\0\0\0\x07\0\x23\0\0\0\x01\0\x12\0\0\0\x04", "v{version}");
    }
    assert!(bench.received(API_VERSIONS).is_empty(), "the broker needs not see them");
    // As the clients do: down to what was told.
    assert!(table(&mut client).await?.len() > 50);
    Ok(())
}

// KIP-511: a broker that does not know the version says so in the shape of v0; that must pass untouched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_own_error_35_passes_untouched() -> Result<()> {
    const ANSWER: &[u8] = b"\0\0\0\x07\0\x23\0\0\0\x01\0\x12\0\0\0\x03";
    let mock = Mock::builder().script(|request| match (request.frame.api_key, request.frame.api_version) {
        (API_VERSIONS, 4) => Reply::Bytes(frame(ANSWER)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&harness::raw::request(4, 7, &api_versions())?).await?;
    assert_eq!(client.read_frame().await?.unwrap_or_default(), ANSWER);
    Ok(())
}

// The header of an ApiVersions answer has no tagged fields whatever the version (KIP-511).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_header_of_an_api_versions_answer_stays_v0() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    for version in 0..=4 {
        client
            .send(&harness::raw::request(version, 9, &if version >= 3 { api_versions() } else { Default::default() })?)
            .await?;
        let answer = client.read_frame().await?.unwrap_or_default();
        // Correlation id, then at once the error code.
        assert_eq!(answer[..6], [0, 0, 0, 9, 0, 0], "v{version}");
        harness::raw::AnswerFrame::new(answer)?.decode::<m::ApiVersionsRequest>(version)?;
    }
    Ok(())
}

// tulios/kafkajs#1656, dpkp/kafka-python#1455: clients take the first broker's table for all. During a rolling upgrade
// every virtual broker offers what all brokers speak.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_virtual_broker_offers_the_same_table_during_a_rolling_upgrade() -> Result<()> {
    let mock = Mock::builder().brokers(&[1, 2, 3]).script(|request| {
        let range = |key: i16, min: i16, max: i16| {
            m::api_versions_response::ApiVersion::default()
                .with_api_key(key)
                .with_min_version(min)
                .with_max_version(max)
        };
        match (request.frame.api_key, request.node_id) {
            // Node 2 is not upgraded yet, node 3 speaks what only a later release does.
            (API_VERSIONS, node) => {
                let keys = match node {
                    2 => vec![range(0, 0, 9), range(1, 0, 13), range(3, 0, 11), range(12, 0, 4), range(18, 0, 3)],
                    3 => vec![
                        range(0, 3, 13),
                        range(1, 4, 18),
                        range(3, 0, 14),
                        range(12, 0, 5),
                        range(18, 0, 5),
                        range(68, 0, 1),
                    ],
                    _ => vec![
                        range(0, 0, 13),
                        range(1, 0, 17),
                        range(3, 0, 13),
                        range(12, 0, 4),
                        range(18, 0, 4),
                        range(68, 0, 1),
                    ],
                };
                let body = m::ApiVersionsResponse::default().with_api_keys(keys);
                match answer::<m::ApiVersionsRequest>(request.frame.api_version, request.frame.correlation_id, &body) {
                    Ok(bytes) => Reply::Bytes(bytes),
                    Err(_) => Reply::Reset,
                }
            }
            _ => Reply::Default,
        }
    });
    let bench = plain_bench(mock).await?;
    let expected: Table = [(0, (3, 9)), (1, (4, 13)), (3, (0, 11)), (12, (0, 4)), (18, (0, 3))].into();
    // The table is that of all brokers once all were asked; until then it may be wider.
    let mut seen = Table::new();
    for _ in 0..100 {
        seen = table(&mut bench.client().await?).await?;
        if seen == expected {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(seen, expected);
    for node in 1..=3 {
        assert_eq!(table(&mut bench.broker_client(node).await?).await?, expected, "node {node}");
    }
    Ok(())
}

// kroxylicious/kroxylicious#2851, confluentinc/librdkafka#4956, KAFKA-18659: librdkafka turns compression off where
// Produce does not begin at v0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_is_offered_from_v0_where_the_broker_offers_it() -> Result<()> {
    for (broker, offered) in [((0, 13), (0, 13)), ((3, 13), (3, 13)), ((0, 20), (0, 13))] {
        let bench = plain_bench(Mock::builder().api(PRODUCE, broker.0, broker.1)).await?;
        assert_eq!(table(&mut bench.client().await?).await?[&PRODUCE], offered);
    }
    Ok(())
}

// grepplabs/kafka-proxy#194, kroxylicious/kroxylicious#444: a broker newer than the proxy. What the proxy could not
// rewrite, and keys it does not know, are not offered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_newer_than_the_gateway_is_offered_as_far_as_it_is_understood() -> Result<()> {
    let mock =
        Mock::builder().api(METADATA, 0, 14).api(10, 0, 9).api(93, 0, 0).api(999, 0, 3).api(10_000, 0, 1).api(12, 3, 9);
    let bench = plain_bench(mock).await?;
    let table = table(&mut bench.client().await?).await?;
    assert_eq!((table[&METADATA], table[&10], table[&12]), ((0, 13), (0, 6), (3, 4)));
    for key in [93, 999, 10_000] {
        assert!(!table.contains_key(&key), "{key}");
    }
    Ok(())
}

// An API of which broker and gateway have no version in common is left out, not offered as an empty range.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_without_a_common_version_is_not_offered() -> Result<()> {
    let bench = plain_bench(Mock::builder().api(12, 7, 9)).await?;
    let table = table(&mut bench.client().await?).await?;
    assert!(!table.contains_key(&12));
    assert!(table.values().all(|(min, max)| min <= max), "{table:?}");
    Ok(())
}

/// A mock whose ApiVersions answers carry features.
fn with_features() -> harness::mock::MockBuilder {
    use m::api_versions_response::{FinalizedFeatureKey, SupportedFeatureKey};
    Mock::builder().script(|request| match (request.frame.api_key, request.frame.api_version) {
        (API_VERSIONS, version @ 3..) => {
            let name = || StrBytes::from_static_str("transaction.version");
            let whole = harness::raw::AnswerFrame::new(api_versions_of_all(&request.frame).slice(4..));
            let Ok(mut body) = whole.and_then(|frame| frame.decode::<m::ApiVersionsRequest>(version)) else {
                return Reply::Reset;
            };
            body.supported_features = vec![
                SupportedFeatureKey::default().with_name(name()).with_min_version(0).with_max_version(2),
                SupportedFeatureKey::default()
                    .with_name(StrBytes::from_static_str("group.version"))
                    .with_max_version(1),
            ];
            body.finalized_features_epoch = 77;
            body.finalized_features = vec![
                FinalizedFeatureKey::default()
                    .with_name(StrBytes::from_static_str("group.version"))
                    .with_max_version_level(1),
                FinalizedFeatureKey::default().with_name(name()).with_max_version_level(2).with_min_version_level(2),
            ];
            match answer::<m::ApiVersionsRequest>(version, request.frame.correlation_id, &body) {
                Ok(bytes) => Reply::Bytes(bytes),
                Err(_) => Reply::Reset,
            }
        }
        _ => Reply::Default,
    })
}

// Rule of the protocol: Produce capped below 12 with transaction.version 2 still advertised breaks transactions of
// Java and franz-go (48, 120): both are lowered together, or neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_is_never_capped_without_lowering_the_transaction_version() -> Result<()> {
    for (policy, fetch, produce, transaction) in [("auto", 15, 13, 2), ("conservative", 15, 9, 1), ("full", 18, 13, 2)]
    {
        let bench = bench(with_features(), |gateway| gateway.virtual_line(&format!("versions: {policy}"))).await?;
        let mut client = bench.client().await?;
        let answer = client.call(4, &api_versions()).await?;
        let max = |key: i16| answer.api_keys.iter().find(|k| k.api_key == key).map(|k| k.max_version);
        assert_eq!((max(FETCH), max(PRODUCE)), (Some(fetch), Some(produce)), "{policy}");
        let finalized: Vec<_> =
            answer.finalized_features.iter().map(|f| (f.name.as_str(), f.max_version_level)).collect();
        assert_eq!(finalized, [("group.version", 1), ("transaction.version", transaction)], "{policy}");
        let supported: Vec<_> = answer.supported_features.iter().map(|f| (f.name.as_str(), f.max_version)).collect();
        assert_eq!(supported, [("transaction.version", transaction), ("group.version", 1)], "{policy}");
        assert_eq!(answer.finalized_features_epoch, 77, "{policy}");
    }
    Ok(())
}

// A reload of the policy reaches the next connection, and leaves those that are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_version_policy_is_offered_without_a_restart() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line("versions: auto")).await?;
    let mut open = bench.client().await?;
    assert_eq!(table(&mut open).await?[&FETCH].1, 15);
    bench.gateway.write_config(&bench.gateway.config()?.replace("versions: auto", "versions: full"))?;
    bench.gateway.signal(libc::SIGHUP)?;
    wait::until("the reload", SOON, || {
        let generation = bench.gateway.status()?.config_generation;
        ensure!(generation == 2, "generation {generation}");
        Ok(())
    })?;
    assert_eq!(table(&mut bench.client().await?).await?[&FETCH].1, 18);
    assert_eq!(open.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}
