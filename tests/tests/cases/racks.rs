//! Replica routing, as a consumer's frames see it. The rules of what clients accept: KIP-392, and for the rest the
//! comments above the tests.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use harness::mock::{Mock, Received, Reply};
use harness::raw::{Client, RequestFrame, answer, request};
use harness::turnout::Gateway;
use harness::{ports, wait};
use kafka_protocol::messages::describe_configs_response::{DescribeConfigsResourceResult, DescribeConfigsResult};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::protocol::StrBytes;

use crate::support::*;

const DESCRIBE_CONFIGS: i16 = 32;
const RECORDS: &[u8] = b"not looked at by anybody here";

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

/// Brokers 1, 2 and 3 in racks of their own. Topic `t`: partition 0 is led by broker 1 and copied to 3, partition 1 is led
/// by broker 1 and copied to 2, partition 2 is led by 3 and copied to 1. Clients are in the rack of broker 3.
struct World {
    bench: Bench,
    fetched: Arc<Mutex<Vec<(i32, m::FetchRequest)>>>,
    in_sync: Arc<AtomicBool>,
}

/// What broker 3 does with a Fetch.
#[derive(Clone, Copy, PartialEq)]
enum Near {
    Serves,
    Refuses(i16),
    Empty,
    Silent,
    /// Nobody listens at its address.
    Dead,
}

impl World {
    async fn start(near: Near, racks: &str, selector: bool) -> Result<Self> {
        let addresses: Arc<Mutex<Vec<(i32, SocketAddr)>>> = Arc::default();
        let fetched: Arc<Mutex<Vec<(i32, m::FetchRequest)>>> = Arc::default();
        let in_sync = Arc::new(AtomicBool::new(true));
        let mock = {
            let (addresses, fetched, in_sync) = (Arc::clone(&addresses), Arc::clone(&fetched), Arc::clone(&in_sync));
            Mock::builder().brokers(&[1, 2, 3]).script(move |request| {
                let frame = &request.frame;
                let reply = match frame.api_key {
                    METADATA => {
                        let addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        metadata(frame, &addresses, in_sync.load(Ordering::Relaxed)).map(Reply::Bytes)
                    }
                    DESCRIBE_CONFIGS => selector_answer(frame, selector).map(Reply::Bytes),
                    FETCH => fetch(request, near, &fetched),
                    PRODUCE => Ok(Reply::Silence),
                    _ => Ok(Reply::Default),
                };
                reply.unwrap_or(Reply::Reset)
            })
        };
        let mock = mock.start().await?;
        let dead = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::one()?));
        let at = |id| if id == 3 && near == Near::Dead { Ok(dead) } else { mock.address(id) };
        *addresses.lock().unwrap_or_else(PoisonError::into_inner) =
            [1, 2, 3].into_iter().map(|id| Ok((id, at(id)?))).collect::<Result<_>>()?;
        let bootstrap = format!("{},{}", mock.address(1)?, mock.address(2)?);
        let racks = format!("racks: {{clients: [{{cidr: 127.0.0.0/8, rack: az3}}], {racks}}}");
        let gateway = Gateway::before_addresses(&bootstrap, 1)
            .virtual_line(&racks)
            .cluster_line("refresh: 300ms")
            .cluster_line("partition_refresh: 100ms")
            .start()?;
        Ok(Self { bench: Bench { gateway, mock }, fetched, in_sync })
    }

    /// A connection to a virtual broker on which the client has told its software, once what it takes for a decision is
    /// known: leaders by Metadata that passes.
    async fn client(&self, node: i32, software: &str) -> Result<Client> {
        let mut bootstrap = self.bench.client().await?;
        bootstrap.call(9, &m::MetadataRequest::default().with_topics(None)).await?;
        let mut client = self.bench.broker_client(node).await?;
        let hello = m::ApiVersionsRequest::default()
            .with_client_software_name(text(software))
            .with_client_software_version(text("1"));
        client.call(3, &hello).await?;
        Ok(client)
    }

    /// The last Fetch that a broker got.
    fn last_fetch(&self, node: i32) -> Result<m::FetchRequest> {
        let fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        let last = fetched.iter().rev().find(|(id, _)| *id == node);
        Ok(last.with_context(|| format!("broker {node} got no Fetch"))?.1.clone())
    }

    fn sum(&self, metric: &str) -> Result<f64> {
        Ok(self.bench.gateway.metrics()?.sum(metric, &[]))
    }
}

fn metadata(frame: &RequestFrame, brokers: &[(i32, SocketAddr)], in_sync: bool) -> Result<Bytes> {
    let version = frame.api_version;
    let listed = brokers.iter().map(|(id, address)| {
        let rack = (version >= 1).then(|| text(&format!("az{id}")));
        MetadataResponseBroker::default()
            .with_node_id((*id).into())
            .with_host(text(&address.ip().to_string()))
            .with_port(address.port().into())
            .with_rack(rack)
    });
    let partition = |index: i32, leader: i32, copy: i32| {
        let in_sync = if in_sync { vec![leader, copy] } else { vec![leader] };
        let mut partition = MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(leader.into())
            .with_replica_nodes(vec![leader.into(), copy.into()])
            .with_isr_nodes(in_sync.into_iter().map(Into::into).collect());
        if version >= 7 {
            partition.leader_epoch = 4;
        }
        partition
    };
    let topic = MetadataResponseTopic::default().with_name(Some(m::TopicName(text("t")))).with_partitions(vec![
        partition(0, 1, 3),
        partition(1, 1, 2),
        partition(2, 3, 1),
    ]);
    let mut body = m::MetadataResponse::default().with_brokers(listed.collect()).with_topics(vec![topic]);
    if version >= 1 {
        body.controller_id = 1.into();
    }
    if version >= 2 {
        body.cluster_id = Some(text("mock-cluster"));
    }
    answer::<m::MetadataRequest>(version, frame.correlation_id, &body)
}

fn selector_answer(frame: &RequestFrame, selector: bool) -> Result<Bytes> {
    let class = "org.apache.kafka.common.replica.RackAwareReplicaSelector";
    let config = DescribeConfigsResourceResult::default()
        .with_name(text("replica.selector.class"))
        .with_value(selector.then(|| text(class)));
    let result = DescribeConfigsResult::default().with_resource_type(4).with_configs(vec![config]);
    let body = m::DescribeConfigsResponse::default().with_results(vec![result]);
    answer::<m::DescribeConfigsRequest>(frame.api_version, frame.correlation_id, &body)
}

fn fetch(request: &Received, near: Near, fetched: &Mutex<Vec<(i32, m::FetchRequest)>>) -> Result<Reply> {
    let frame = &request.frame;
    let (_, asked) = frame.decode::<m::FetchRequest>()?;
    fetched.lock().unwrap_or_else(PoisonError::into_inner).push((request.node_id, asked.clone()));
    let (mut error, mut records) = (0, RECORDS);
    if request.node_id == 3 {
        match near {
            Near::Refuses(code) => (error, records) = (code, b""),
            Near::Empty => records = b"",
            Near::Silent => return Ok(Reply::Silence),
            Near::Serves | Near::Dead => {}
        }
    }
    // In a session an answer names only partitions with news.
    let is_quiet = asked.session_epoch > 0 && records.is_empty() && error == 0;
    let topics = asked.topics.iter().filter(|_| !is_quiet).map(|topic| {
        let partition = |partition: &FetchPartition| {
            PartitionData::default()
                .with_partition_index(partition.partition)
                .with_error_code(error)
                .with_preferred_read_replica((-1).into())
                .with_records(Some(Bytes::from_static(records)))
        };
        FetchableTopicResponse::default()
            .with_topic(topic.topic.clone())
            .with_partitions(topic.partitions.iter().map(partition).collect())
    });
    let body = m::FetchResponse::default().with_session_id(7).with_responses(topics.collect());
    answer::<m::FetchRequest>(frame.api_version, frame.correlation_id, &body).map(Reply::Bytes)
}

fn asking(partitions: &[i32]) -> m::FetchRequest {
    let partitions = partitions.iter().map(|index| FetchPartition::default().with_partition(*index)).collect();
    let topic = FetchTopic::default().with_topic(m::TopicName(text("t"))).with_partitions(partitions);
    m::FetchRequest::default()
        .with_max_wait_ms(10)
        .with_session_epoch(-1)
        .with_cluster_id(None)
        .with_topics(vec![topic])
}

/// Error, preferred replica and length of the records (−1: null) of each partition.
fn told(body: &m::FetchResponse) -> Vec<(i16, i32, i64)> {
    let partitions = body.responses.iter().flat_map(|topic| &topic.partitions);
    let length = |p: &PartitionData| p.records.as_ref().map_or(-1, |records| records.len() as i64);
    partitions.map(|p| (p.error_code, p.preferred_read_replica.0, length(p))).collect()
}

const ALL: i64 = RECORDS.len() as i64;

// Empty records are of length 0, never null: librdkafka and kafka-python loop or throw on null.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaders_answer_sends_the_consumer_to_the_replica_in_its_rack_and_nothing_else_changes() -> Result<()> {
    let world = World::start(Near::Serves, "mode: patch", false).await?;
    let mut client = world.client(1, "app").await?;
    for version in 11..=12 {
        let body = client.call(version, &asking(&[0, 1])).await?;
        // Partition 1 has no copy in the client's rack.
        assert_eq!(told(&body), [(0, 3, 0), (0, -1, ALL)], "v{version}");
        assert_eq!(body.session_id, 7, "the session stays the broker's");
    }
    let mut near = world.client(3, "app").await?;
    assert_eq!(told(&near.call(12, &asking(&[0, 2])).await?), [(0, -1, ALL), (0, -1, ALL)]);
    assert_eq!(world.sum("turnout_rack_saved_bytes_total")?, ALL as f64, "partition 2 is led there");
    assert_eq!(world.sum("turnout_rack_redirects_total")?, 2.0);
    Ok(())
}

// A broker serves consumers from a follower from Fetch v11 on; below, whoever was sent there would get error 6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_fetches_those_of_replicas_and_excluded_clients_are_left_alone() -> Result<()> {
    let world = World::start(Near::Serves, "mode: patch, exclude_clients: [kafka-python, old-*]", false).await?;
    for software in ["kafka-python", "old-thing"] {
        let mut client = world.client(1, software).await?;
        assert_eq!(told(&client.call(12, &asking(&[0])).await?), [(0, -1, ALL)], "{software}");
    }
    let mut client = world.client(1, "app").await?;
    assert_eq!(told(&client.call(10, &asking(&[0])).await?), [(0, -1, ALL)]);
    let follower = asking(&[0]).with_replica_id(2.into());
    assert_eq!(told(&client.call(12, &follower).await?), [(0, -1, ALL)]);
    assert_eq!(world.sum("turnout_rack_redirects_total")?, 0.0);
    assert_eq!(told(&client.call(12, &asking(&[0])).await?), [(0, 3, 0)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_own_rack_stands_unless_the_config_says_otherwise() -> Result<()> {
    for (respect, expected) in [(true, [(0, -1, ALL), (0, 2, 0)]), (false, [(0, 3, 0), (0, -1, ALL)])] {
        let world = World::start(Near::Serves, &format!("mode: patch, respect_client_rack: {respect}"), false).await?;
        let mut client = world.client(1, "app").await?;
        let body = client.call(12, &asking(&[0, 1]).with_rack_id(text("az2"))).await?;
        assert_eq!(told(&body), expected, "respect_client_rack: {respect}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_sent_more_often_than_the_bound() -> Result<()> {
    let world = World::start(Near::Serves, "mode: patch, redirects_per_minute: 2", false).await?;
    let mut client = world.client(1, "app").await?;
    for expected in [(0, 3, 0), (0, 3, 0), (0, -1, ALL), (0, -1, ALL)] {
        assert_eq!(told(&client.call(12, &asking(&[0])).await?), [expected]);
    }
    let stays = world.bench.gateway.metrics()?.sum("turnout_rack_stays_total", &[("reason", "redirects_per_minute")]);
    assert_eq!(stays, 2.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_broker_chooses_the_clients_rack_is_filled_in() -> Result<()> {
    let world = World::start(Near::Serves, "mode: auto", true).await?;
    wait::until("the selectors to be known", SOON, || {
        let (_, body) = world.bench.gateway.get("/racks")?;
        ensure!(body.contains("\"1\":\"stamp\""), "{body}");
        Ok(())
    })?;
    let mut client = world.client(1, "app").await?;
    for version in [11, 12] {
        let sent = asking(&[0, 1]);
        assert_eq!(told(&client.call(version, &sent).await?), [(0, -1, ALL), (0, -1, ALL)]);
        assert_eq!(world.last_fetch(1)?, sent.with_rack_id(text("az3")), "v{version}");
        let own = asking(&[0]).with_rack_id(text("mine"));
        client.call(version, &own).await?;
        assert_eq!(world.last_fetch(1)?, own, "v{version}");
    }
    Ok(())
}

// franz-go stays at the follower on all of these for as long as its lease lasts: nothing is lost, and nothing flows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_refuses_sends_its_reader_back_to_the_leader_and_is_held_down() -> Result<()> {
    for error in [1, 6, 9, 74, 75, 78] {
        let world = World::start(Near::Refuses(error), "mode: patch", false).await?;
        let mut leader = world.client(1, "app").await?;
        assert_eq!(told(&leader.call(12, &asking(&[0])).await?), [(0, 3, 0)], "error {error}");
        let mut near = world.client(3, "app").await?;
        // Partition 2 is led there: that error is the leader's own word, and passes.
        assert_eq!(told(&near.call(12, &asking(&[0, 2])).await?), [(0, 1, 0), (error, -1, 0)], "error {error}");
        assert_eq!(told(&leader.call(12, &asking(&[0])).await?), [(0, -1, ALL)], "error {error}: held down");
        assert_eq!(world.sum("turnout_rack_bounces_total")?, 1.0);
        assert_eq!(world.sum("turnout_rack_held_replicas")?, 1.0);
    }
    Ok(())
}

// A follower whose copy is incomplete answers empty for as long as it is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_fell_behind_sends_its_reader_back_to_the_leader() -> Result<()> {
    let world = World::start(Near::Empty, "mode: patch", false).await?;
    let mut leader = world.client(1, "app").await?;
    assert_eq!(told(&leader.call(12, &asking(&[0])).await?), [(0, 3, 0)]);
    let mut near = world.client(3, "app").await?;
    assert_eq!(told(&near.call(12, &asking(&[0])).await?), [(0, -1, 0)], "in sync: nothing new");
    world.in_sync.store(false, Ordering::Relaxed);
    let begin = Instant::now();
    loop {
        match told(&near.call(12, &asking(&[0])).await?)[..] {
            [(0, 1, 0)] => break,
            ref other => ensure!(begin.elapsed() < SOON, "still {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(told(&leader.call(12, &asking(&[0])).await?), [(0, -1, ALL)]);
    Ok(())
}

// The client stays on a dead broker's address for as long as its lease lasts; closed, the port would not tell it better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_replicas_port_is_open_and_sends_its_readers_back() -> Result<()> {
    let world = World::start(Near::Dead, "mode: patch", false).await?;
    let mut near = world.client(3, "app").await?;
    // Partition 2 is led by the dead broker: whoever asks for it must look for another leader.
    assert_eq!(told(&near.call(12, &asking(&[0, 2])).await?), [(0, 1, 0), (6, -1, 0)]);
    ends_within(&mut near, SOON).await?;
    let mut leader = world.client(1, "app").await?;
    assert_eq!(told(&leader.call(12, &asking(&[0])).await?), [(0, -1, ALL)], "nobody is sent there now");

    let mut again = world.client(3, "app").await?;
    let body = again.call(12, &asking(&[0]).with_session_id(9).with_session_epoch(4)).await?;
    assert_eq!((body.error_code, body.responses.len()), (70, 0), "it is to name all its partitions");
    assert_eq!(told(&again.call(12, &asking(&[0])).await?), [(0, 1, 0)]);
    Ok(())
}

// Who reads at a dead broker as the leader is told nothing by the gateway: the connection ends, as it would directly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leaders_readers_lose_their_connection() -> Result<()> {
    let world = World::start(Near::Dead, "mode: patch", false).await?;
    let mut near = world.client(3, "app").await?;
    near.send_request(12, &asking(&[2])).await?;
    ensure!(ends_within(&mut near, SOON).await?.is_empty(), "it was answered");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_replica_is_taken_for_dead() -> Result<()> {
    let world = World::start(Near::Silent, "mode: patch, silence: 300ms", false).await?;
    let mut near = world.client(3, "app").await?;
    let begin = Instant::now();
    assert_eq!(told(&near.call(12, &asking(&[0])).await?), [(0, 1, 0)]);
    ensure!(begin.elapsed() >= Duration::from_millis(300) && begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(world.sum("turnout_rack_stood_in_total")?, 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_an_answer_is_bounded_and_the_rest_passes() -> Result<()> {
    // The first partition's records alone are more than the bound, so that the second is read at the leader.
    let world = World::start(Near::Serves, "mode: patch, patch_buffer: 1KiB", false).await?;
    let mut client = world.client(1, "app").await?;
    let many: Vec<i32> = std::iter::repeat_n(1, 60).chain([0]).collect();
    let body = client.call(12, &asking(&many)).await?;
    let told = told(&body);
    ensure!(told.len() == 61 && told.iter().all(|partition| *partition == (0, -1, ALL)), "{told:?}");
    assert_eq!(world.sum("turnout_rack_overflows_total")?, 1.0);
    Ok(())
}

// In a fetch session (KIP-227) a partition without news is not in the answer at all, so nothing can be said of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_at_a_replica_that_fell_behind_is_ended_so_that_all_its_partitions_are_named() -> Result<()> {
    let world = World::start(Near::Empty, "mode: patch", false).await?;
    let mut leader = world.client(1, "app").await?;
    assert_eq!(told(&leader.call(12, &asking(&[0])).await?), [(0, 3, 0)]);
    let mut near = world.client(3, "app").await?;
    let going_on = |epoch| asking(&[0]).with_session_id(7).with_session_epoch(epoch);
    let body = near.call(12, &going_on(1)).await?;
    assert_eq!((body.error_code, body.session_id, body.responses.len()), (0, 7, 0), "in sync: nothing new");
    world.in_sync.store(false, Ordering::Relaxed);
    let begin = Instant::now();
    for epoch in 2.. {
        let body = near.call(12, &going_on(epoch)).await?;
        if body.error_code != 0 {
            assert_eq!((body.error_code, body.session_id), (70, 0));
            break;
        }
        ensure!(begin.elapsed() < SOON, "the session goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(told(&near.call(12, &asking(&[0]).with_session_epoch(0)).await?), [(0, 1, 0)]);
    Ok(())
}

// A proxy that looks at what arrived with one read, and not at frames.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_arrives_in_pieces_is_routed_and_stamped_like_any_other() -> Result<()> {
    for (mode, expected, rack) in [("patch", (0, 3, 0), ""), ("stamp", (0, -1, ALL), "az3")] {
        let world = World::start(Near::Serves, &format!("mode: {mode}"), false).await?;
        let mut client = world.client(1, "app").await?;
        for cut in [1, 3, 5, 9, 20, 40] {
            let frame = request(12, 100 + cut, &asking(&[0]))?;
            client.send_cut(&frame, &[cut as usize], Duration::from_millis(5)).await?;
            let answer = client.read_answer().await?;
            assert_eq!(answer.correlation_id, 100 + cut);
            assert_eq!(told(&answer.decode::<m::FetchRequest>(12)?), [expected], "{mode}, cut at {cut}");
            assert_eq!(world.last_fetch(1)?, asking(&[0]).with_rack_id(text(rack)), "{mode}, cut at {cut}");
        }
    }
    Ok(())
}

// Another broker would refuse it for as long as the client keeps this connection, even when its leader is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_brokers_producers_lose_their_connection() -> Result<()> {
    let world = World::start(Near::Dead, "mode: patch", false).await?;
    let mut client = world.client(3, "app").await?;
    client.call(9, &m::MetadataRequest::default().with_topics(Some(Vec::new()))).await?;
    client.send_request(7, &produce(-1, Bytes::new())).await?;
    ensure!(ends_within(&mut client, SOON).await?.is_empty(), "it was answered");
    let stray = world.bench.received(PRODUCE);
    ensure!(stray.is_empty(), "another broker got it: {stray:?}");
    Ok(())
}

// A producer with acks=0 that closes at once: every byte before its FIN must reach the broker, dialled or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_before_a_fin_reaches_the_broker_where_reads_are_routed() -> Result<()> {
    let world = World::start(Near::Serves, "mode: patch", false).await?;
    let mut dialled = world.bench.broker_client(1).await?;
    dialled.send(&joined(&produce_frames(0, 20, 500)?)).await?;
    dialled.half_close().await?;
    drop(dialled);
    world.bench.wait_received(PRODUCE, 20)?;
    Ok(())
}
