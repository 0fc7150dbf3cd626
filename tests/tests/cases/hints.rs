//! Addresses that brokers add to errors (KIP-951): kroxylicious/kroxylicious#1028, grepplabs/kafka-proxy#223 (the
//! client dials a TLS port in plaintext and runs out of memory), kroxylicious/kroxylicious#1612 for share groups.

use anyhow::{Result, ensure};
use bytes::Bytes;
use harness::mock::{Mock, MockBuilder, Reply};
use harness::raw::{Client, answer};
use kafka_protocol::protocol::{Request, StrBytes};

use crate::support::*;

/// NOT_LEADER_OR_FOLLOWER, with which brokers send hints.
const NOT_LEADER: i16 = 6;
const INTERNAL: &str = "b-3.kafka.internal";

/// Nodes 1 and 2 have a virtual broker, 99 has none.
fn topology() -> Told {
    let told = Told::default();
    told.set(&[(1, INTERNAL, 9092), (2, INTERNAL, 9094)]);
    told
}

/// A mock that gives one answer to requests of one API, in their version.
fn answering<R: Request + 'static>(body: R::Response) -> MockBuilder
where
    R::Response: Clone + Send + Sync,
{
    let told = topology();
    Mock::builder().script(move |request| match request.frame.api_key {
        METADATA => Reply::Bytes(told.answer(&request.frame)),
        key if key == R::KEY => match answer::<R>(request.frame.api_version, request.frame.correlation_id, &body) {
            Ok(bytes) => Reply::Bytes(bytes),
            Err(_) => Reply::Reset,
        },
        _ => Reply::Default,
    })
}

/// The answer to a bare request of this version: its frame, and decoded.
async fn ask<R: Request>(client: &mut Client, version: i16, request: &R) -> Result<(Bytes, R::Response)> {
    client.send_request(version, request).await?;
    let answer = client.read_answer().await?;
    ensure!(!contains(&answer.bytes, b"internal"), "v{version} tells a broker's address");
    Ok((answer.bytes.clone(), answer.decode::<R>(version)?))
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn produce_answer() -> m::ProduceResponse {
    use m::produce_response::{LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse};
    let partition = |index: i32, leader: i32| {
        PartitionProduceResponse::default()
            .with_index(index)
            .with_error_code(NOT_LEADER)
            .with_current_leader(LeaderIdAndEpoch::default().with_leader_id(leader.into()).with_leader_epoch(7))
    };
    let endpoint = |id: i32, port: i32| {
        let host = StrBytes::from_static_str(INTERNAL);
        NodeEndpoint::default().with_node_id(id.into()).with_host(host).with_port(port)
    };
    let topic = TopicProduceResponse::default()
        .with_name(m::TopicName(StrBytes::from_static_str("t")))
        .with_partition_responses(vec![partition(0, 2), partition(1, 99)]);
    m::ProduceResponse::default()
        .with_responses(vec![topic])
        .with_node_endpoints(vec![endpoint(2, 9094), endpoint(99, 9999)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_errors_tell_no_brokers_address() -> Result<()> {
    let bench = plain_bench(answering::<m::ProduceRequest>(produce_answer())).await?;
    let mut client = bench.client().await?;
    let port = i32::from(bench.gateway.broker_addr(2)?.port());
    for version in 10..=12 {
        let (_, body) = ask(&mut client, version, &produce(-1, Bytes::new())).await?;
        let endpoints: Vec<_> = body.node_endpoints.iter().map(|e| (e.node_id.0, e.host.to_string(), e.port)).collect();
        assert_eq!(endpoints, [(2, "127.0.0.1".to_owned(), port)], "v{version}");
        let partitions = &body.responses[0].partition_responses;
        let leaders: Vec<_> = partitions.iter().map(|p| (p.current_leader.leader_id.0, p.error_code)).collect();
        // The hint at a broker that no virtual broker stands for goes with its endpoint.
        assert_eq!(leaders, [(2, NOT_LEADER), (-1, NOT_LEADER)], "v{version}");
    }
    Ok(())
}

fn fetch_answer(payload: usize) -> m::FetchResponse {
    use m::fetch_response::{FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData};
    let partition = |index: i32, leader: i32| {
        PartitionData::default()
            .with_partition_index(index)
            .with_error_code(NOT_LEADER)
            .with_preferred_read_replica((-1).into())
            .with_records(Some(Bytes::from(vec![b'r'; payload])))
            .with_current_leader(LeaderIdAndEpoch::default().with_leader_id(leader.into()).with_leader_epoch(7))
    };
    let endpoint = |id: i32, port: i32| {
        let (host, rack) = (StrBytes::from_static_str(INTERNAL), Some(StrBytes::from_static_str("az1")));
        NodeEndpoint::default().with_node_id(id.into()).with_host(host).with_port(port).with_rack(rack)
    };
    let topic = FetchableTopicResponse::default().with_partitions(vec![partition(0, 2), partition(1, 99)]);
    m::FetchResponse::default()
        .with_responses(vec![topic])
        .with_node_endpoints(vec![endpoint(2, 9094), endpoint(99, 9999)])
}

fn fetch() -> m::FetchRequest {
    m::FetchRequest::default().with_max_wait_ms(0).with_cluster_id(None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_errors_tell_no_brokers_address_where_fetch_is_offered_in_full() -> Result<()> {
    let mock = answering::<m::FetchRequest>(fetch_answer(1000));
    let bench = bench(mock, |gateway| gateway.virtual_line("versions: full")).await?;
    let mut client = bench.client().await?;
    let port = i32::from(bench.gateway.broker_addr(2)?.port());
    for version in 16..=18 {
        let (_, body) = ask(&mut client, version, &fetch()).await?;
        let endpoints: Vec<_> = body.node_endpoints.iter().map(|e| (e.node_id.0, e.host.to_string(), e.port)).collect();
        assert_eq!(endpoints, [(2, "127.0.0.1".to_owned(), port)], "v{version}");
        let leaders: Vec<_> = body.responses[0].partitions.iter().map(|p| p.current_leader.leader_id.0).collect();
        assert_eq!(leaders, [2, -1], "v{version}");
        assert_eq!(body.responses[0].partitions[0].records.as_ref().map(Bytes::len), Some(1000));
    }
    Ok(())
}

// A client that does not negotiate sends Fetch v16 although v15 was offered: its answer streams, with the hints blanked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_errors_tell_no_brokers_address_to_a_client_that_ignores_what_is_offered() -> Result<()> {
    let whole = fetch_answer(1000);
    let bench = plain_bench(answering::<m::FetchRequest>(whole.clone())).await?;
    let mut client = bench.client().await?;
    for version in 16..=18 {
        let (bytes, body) = ask(&mut client, version, &fetch()).await?;
        assert_eq!(body.node_endpoints, [], "v{version}");
        assert_eq!(bytes.len() + 4, answer::<m::FetchRequest>(version, 1, &whole)?.len(), "no length changes");
        for (seen, sent) in body.responses[0].partitions.iter().zip(&whole.responses[0].partitions) {
            assert_eq!(seen.current_leader.leader_id.0, -1, "v{version}");
            assert_eq!((&seen.records, seen.error_code), (&sent.records, sent.error_code), "v{version}");
        }
    }
    Ok(())
}

// An answer too large to be held is not a way around it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_fetch_answers_tell_no_brokers_address() -> Result<()> {
    let mock = answering::<m::FetchRequest>(fetch_answer(2 << 20));
    let limits = "versions: full\nlimits: {rewrite_frame: 1MiB}";
    let bench = bench(mock, |gateway| gateway.virtual_line(limits)).await?;
    let mut client = bench.client().await?;
    let (_, body) = ask(&mut client, 17, &fetch()).await?;
    assert_eq!(body.node_endpoints, []);
    assert_eq!(body.responses[0].partitions[0].current_leader.leader_id.0, -1);
    assert_eq!(body.responses[0].partitions[1].records.as_ref().map(Bytes::len), Some(2 << 20));
    assert_eq!(bench.gateway.metrics()?.sum("turnout_limit_hits_total", &[]), 0.0);
    Ok(())
}

fn share_fetch_answer(payload: usize) -> m::ShareFetchResponse {
    use m::share_fetch_response::{LeaderIdAndEpoch, NodeEndpoint, PartitionData, ShareFetchableTopicResponse};
    let partition = |index: i32, leader: i32| {
        PartitionData::default()
            .with_partition_index(index)
            .with_error_code(NOT_LEADER)
            .with_records(Some(Bytes::from(vec![b'r'; payload])))
            .with_current_leader(LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(7))
    };
    let endpoint = |id: i32, port: i32| {
        let host = StrBytes::from_static_str(INTERNAL);
        NodeEndpoint::default().with_node_id(id.into()).with_host(host).with_port(port)
    };
    let topic = ShareFetchableTopicResponse::default().with_partitions(vec![partition(0, 2), partition(1, 99)]);
    m::ShareFetchResponse::default()
        .with_responses(vec![topic])
        .with_node_endpoints(vec![endpoint(2, 9094), endpoint(99, 9999)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_fetch_errors_tell_no_brokers_address() -> Result<()> {
    let bench = plain_bench(answering::<m::ShareFetchRequest>(share_fetch_answer(100))).await?;
    let port = i32::from(bench.gateway.broker_addr(2)?.port());
    let (_, body) = ask(&mut bench.client().await?, 1, &m::ShareFetchRequest::default()).await?;
    let endpoints: Vec<_> = body.node_endpoints.iter().map(|e| (e.node_id.0, e.host.to_string(), e.port)).collect();
    assert_eq!(endpoints, [(2, "127.0.0.1".to_owned(), port)]);
    let leaders: Vec<_> = body.responses[0].partitions.iter().map(|p| p.current_leader.leader_id).collect();
    assert_eq!(leaders, [2, -1]);
    Ok(())
}

// In ShareFetch the endpoints are no tagged field: in an answer that streams they stay, with everything blanked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_share_fetch_answers_tell_no_brokers_address() -> Result<()> {
    let mock = answering::<m::ShareFetchRequest>(share_fetch_answer(2 << 20));
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {rewrite_frame: 1MiB}")).await?;
    let (_, body) = ask(&mut bench.client().await?, 1, &m::ShareFetchRequest::default()).await?;
    assert!(body.node_endpoints.iter().all(|e| e.node_id.0 == -1 && e.port == -1), "{:?}", body.node_endpoints);
    assert!(body.responses[0].partitions.iter().all(|p| p.current_leader.leader_id == -1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_acknowledge_errors_tell_no_brokers_address() -> Result<()> {
    use m::share_acknowledge_response::{LeaderIdAndEpoch, NodeEndpoint, PartitionData, ShareAcknowledgeTopicResponse};
    let partition = |index: i32, leader: i32| {
        PartitionData::default()
            .with_partition_index(index)
            .with_error_code(NOT_LEADER)
            .with_current_leader(LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(7))
    };
    let endpoint = |id: i32, port: i32| {
        let host = StrBytes::from_static_str(INTERNAL);
        NodeEndpoint::default().with_node_id(id.into()).with_host(host).with_port(port)
    };
    let topic = ShareAcknowledgeTopicResponse::default().with_partitions(vec![partition(0, 2), partition(1, 99)]);
    let body = m::ShareAcknowledgeResponse::default()
        .with_responses(vec![topic])
        .with_node_endpoints(vec![endpoint(2, 9094), endpoint(99, 9999)]);
    let bench = plain_bench(answering::<m::ShareAcknowledgeRequest>(body)).await?;
    let port = i32::from(bench.gateway.broker_addr(2)?.port());
    let (_, body) = ask(&mut bench.client().await?, 1, &m::ShareAcknowledgeRequest::default()).await?;
    let endpoints: Vec<_> = body.node_endpoints.iter().map(|e| (e.node_id.0, e.host.to_string(), e.port)).collect();
    assert_eq!(endpoints, [(2, "127.0.0.1".to_owned(), port)]);
    let leaders: Vec<_> = body.responses[0].partitions.iter().map(|p| p.current_leader.leader_id).collect();
    assert_eq!(leaders, [2, -1]);
    Ok(())
}

// KIP-853: DescribeQuorum v2 lists controllers' listeners, which clients of the gateway can't reach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn describe_quorum_tells_no_controllers_address() -> Result<()> {
    use m::describe_quorum_response::{Listener, Node};
    let listener = Listener::default()
        .with_name(StrBytes::from_static_str("CONTROLLER"))
        .with_host(StrBytes::from_static_str(INTERNAL))
        .with_port(9093);
    let nodes = vec![Node::default().with_node_id(1.into()).with_listeners(vec![listener])];
    let bench =
        plain_bench(answering::<m::DescribeQuorumRequest>(m::DescribeQuorumResponse::default().with_nodes(nodes)))
            .await?;
    let (_, body) = ask(&mut bench.client().await?, 2, &m::DescribeQuorumRequest::default()).await?;
    assert_eq!((body.nodes[0].node_id.0, body.nodes[0].listeners.len()), (1, 0));
    Ok(())
}
