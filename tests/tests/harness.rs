//! The harness proves itself against real Kafka, without a gateway.
//!
//! What the clients do directly is also one half of every `e2e_*` suite, so here it is left to the full tier.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use harness::clients::{Client, Consume, Family, Produce, Sasl, Transaction, is_kafka_error};
use harness::kafka::{self, Cluster, Listener};
use harness::mock::{Mock, Reply};
use harness::netns::{Link, World};
use harness::raw;
use harness::relay::{Direction, Faults};
use harness::turnout::Gateway;
use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest, ProduceRequest};

#[test]
fn a_shared_cluster_of_three_racks_is_ready() -> Result<()> {
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let racks: Vec<_> = cluster.brokers().map(|broker| broker.rack().unwrap_or_default()).collect();
    assert_eq!(racks, ["az1", "az2", "az3"]);
    assert_eq!(cluster.bootstrap_of(Listener::Sasl)?.split(',').count(), 3);
    cluster.wait_ready()
}

#[test]
fn a_broker_can_be_frozen_killed_and_restarted() -> Result<()> {
    harness::need_kafka!();
    let cluster = Cluster::builder().node_ids(&[5]).start()?;
    let broker = cluster.broker(5)?;
    broker.freeze()?;
    assert!(broker.connect().and_then(|mut c| c.call(0, &ApiVersionsRequest::default())).is_err());
    broker.thaw()?;
    cluster.wait_ready()?;
    broker.kill();
    assert!(broker.connect().is_err());
    broker.start()?;
    broker.restart()
}

fn writes_and_reads(family: Family) -> Result<()> {
    harness::need_kafka!();
    harness::need_client!(family);
    let cluster = kafka::shared()?;
    let mut client = Client::start(family)?;
    client.connect(&cluster.bootstrap())?;
    let topic = kafka::unique(family.name());
    cluster.create_topic(&mut client, &topic, 3)?;
    let metadata = client.metadata(&[&topic])?;
    let own: Vec<_> = cluster.brokers().map(|broker| broker.plaintext().to_string()).collect();
    assert!(metadata.addresses.iter().all(|address| own.contains(address)), "{metadata:?}");
    assert_eq!(metadata.brokers.len(), 3);
    let written = client.produce(&Produce::to(&topic).partitions(3).count(1000).header("h", "v"))?;
    assert_eq!(written.delivered, 1000);
    let assigned = client.consume(&Consume::from(&topic).count(1000))?;
    assigned.check_complete(1000)?;
    let grouped = client.consume(&Consume::from(&topic).count(1000).group(&topic).commit())?;
    grouped.check_complete(1000)?;
    assert_eq!(assigned, grouped);
    let ends = client.list_offsets(&topic, "latest")?;
    assert_eq!(ends.values().sum::<i64>(), 1000);
    assert_eq!(client.committed(&topic, &topic)?, ends);
    if family.has_transactions() {
        let id = kafka::unique("tx");
        let produce = Produce::to(&topic).partitions(3).first(1000).count(30);
        client.transactions(&Transaction::new(&id, &["commit", "abort", "commit"], produce))?;
        let read = client.consume(&Consume::from(&topic).count(2000).read_committed().timeout_ms(4000))?;
        read.check_complete(1060)?;
    }
    client.close()
}

#[test]
fn java_writes_and_reads() -> Result<()> {
    harness::full_tier!();
    writes_and_reads(Family::Java)
}

#[test]
fn the_admin_sweep_is_repeatable() -> Result<()> {
    harness::full_tier!();
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let mut client = Client::start(Family::Java)?;
    client.connect(&cluster.bootstrap())?;
    let first = client.admin_sweep(&kafka::unique("sweep"))?;
    let second = client.admin_sweep(&kafka::unique("sweep"))?;
    assert_eq!(first.missing, Vec::<String>::new());
    for (method, result) in &first.methods {
        assert_eq!(result, &second.methods[method], "{method}");
    }
    client.close()
}

#[test]
fn librdkafka_writes_and_reads() -> Result<()> {
    harness::full_tier!();
    writes_and_reads(Family::Librdkafka)
}

#[test]
fn kafka_python_writes_and_reads() -> Result<()> {
    harness::full_tier!();
    writes_and_reads(Family::KafkaPython)
}

#[test]
fn franz_writes_and_reads() -> Result<()> {
    harness::full_tier!();
    writes_and_reads(Family::Franz)
}

#[test]
fn sarama_writes_and_reads() -> Result<()> {
    harness::full_tier!();
    writes_and_reads(Family::Sarama)
}

#[test]
fn kafkajs_writes_and_reads() -> Result<()> {
    harness::full_tier!();
    writes_and_reads(Family::Kafkajs)
}

/// Sends `count` numbered datagrams from the gateway host to client host 0 and returns what arrives, in order.
fn datagrams(world: &World, count: u32) -> Result<Vec<Vec<u8>>> {
    let to = (world.client(0).v4, 5000);
    let receiver = world.client(0).netns.run(|| UdpSocket::bind(to))??;
    receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
    let sender = world.gateway().netns.run(|| UdpSocket::bind((world.gateway_seen_by(0), 0)))??;
    let mut arrived = Vec::new();
    let mut buffer = [0; 2048];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let mut packet = [7; 500];
                packet[..4].copy_from_slice(&number.to_be_bytes());
                sender.send_to(&packet, to).expect("the gateway host has a route to the client");
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        while let Ok(len) = receiver.recv(&mut buffer) {
            arrived.push(buffer[..len].to_vec());
        }
    });
    Ok(arrived)
}

fn numbers(arrived: &[Vec<u8>]) -> Vec<u32> {
    arrived.iter().filter_map(|packet| packet.first_chunk::<4>().map(|n| u32::from_be_bytes(*n))).collect()
}

#[test]
fn each_fault_of_the_relay_really_happens() -> Result<()> {
    harness::need_root!();
    let world = World::builder().brokers(1).relay(Link::Client(0), 42).build()?;
    let relay = world.relay(Link::Client(0))?;
    let all: Vec<u32> = (0..300).collect();

    assert_eq!(numbers(&datagrams(&world, 300)?), all, "a transparent relay");

    relay.set(Faults { loss: 0.2, ..Faults::none() });
    let arrived = numbers(&datagrams(&world, 300)?);
    assert!((180..295).contains(&arrived.len()), "loss: {} of 300", arrived.len());

    relay.set(Faults { duplicate: 0.2, ..Faults::none() });
    let arrived = numbers(&datagrams(&world, 300)?);
    assert!((310..420).contains(&arrived.len()), "duplication: {} of 300", arrived.len());

    relay.set(Faults { reorder: 0.2, hold_back: Duration::from_millis(5), ..Faults::none() });
    let arrived = numbers(&datagrams(&world, 300)?);
    assert_eq!(arrived.len(), 300);
    assert!(!arrived.is_sorted(), "reordering");

    // The receiver's IP and UDP checksums catch the damage, so a damaged datagram is a lost one.
    relay.set(Faults { damage: 0.2, ..Faults::none() });
    let arrived = numbers(&datagrams(&world, 300)?);
    assert!((180..295).contains(&arrived.len()), "damage: {} of 300", arrived.len());
    assert!(relay.counts(Direction::Outward).damaged > 5);

    relay.set(Faults { delay: Duration::from_millis(100), ..Faults::none() });
    let begin = Instant::now();
    assert_eq!(numbers(&datagrams(&world, 1)?), [0]);
    assert!(begin.elapsed() >= Duration::from_millis(100), "delay");

    relay.set(Faults { rate: Some(100_000), ..Faults::none() });
    let begin = Instant::now();
    assert_eq!(datagrams(&world, 100)?.len(), 100);
    assert!(begin.elapsed() >= Duration::from_millis(500), "50 kB at 100 kB/s: {:?}", begin.elapsed());
    Ok(())
}

#[test]
fn a_cluster_in_namespaces_loses_and_regains_a_broker_by_its_link() -> Result<()> {
    harness::need_root!();
    harness::need_kafka!();
    let world = Arc::new(World::builder().build()?);
    let _heavy = kafka::heavy()?;
    let cluster = Cluster::builder().brokers(3).racks(&["az1", "az2", "az3"]).world(&world).start()?;
    let mut client = Client::start_in(Family::Librdkafka, &world.client(0).netns)?;
    client.connect(&cluster.bootstrap())?;
    let topic = kafka::unique("cut");
    cluster.create_topic(&mut client, &topic, 3)?;
    client.produce(&Produce::to(&topic).partitions(3).count(300))?;

    cluster.cut(2)?;
    let address = cluster.broker(2)?.plaintext();
    let reach = || harness::raw::blocking::dial(address, Some(&world.client(0).netns), Duration::from_millis(500));
    assert!(reach().is_err(), "a cut broker must not answer");
    // The broker is fenced after its session of 9 s, then the other two lead all partitions.
    client.produce(&Produce::to(&topic).partitions(3).first(300).count(300))?;
    cluster.restore(2)?;
    cluster.wait_ready()?;
    assert!(reach().is_ok());
    client.consume(&Consume::from(&topic).count(600))?.check_complete(600)?;
    client.close()
}

#[tokio::test]
async fn a_raw_client_and_a_mock_talk_in_pieces_and_misbehave() -> Result<()> {
    let mock = Mock::builder()
        .brokers(&[7, 9])
        .script(|request| match request.frame.api_key {
            0 => Reply::Reset,
            3 if request.index == 1 => Reply::WrongCorrelation,
            3 if request.index == 2 => Reply::CloseAfter(bytes::Bytes::from_static(&[0, 0, 1])),
            _ => Reply::Default,
        })
        .start()
        .await?;
    let mut client = raw::Client::connect(mock.address(7)?).await?;
    let request = raw::request(9, 1, &MetadataRequest::default())?;
    client.send_cut(&request, &[1, 5, request.len() - 1], Duration::from_millis(5)).await?;
    let metadata = client.read_answer().await?.decode::<MetadataRequest>(9)?;
    let nodes: Vec<_> = metadata.brokers.iter().map(|broker| broker.node_id.0).collect();
    assert_eq!(nodes, [7, 9]);
    client.send_request(9, &MetadataRequest::default()).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 2, "the mock was asked for a wrong id");
    client.send_request(9, &MetadataRequest::default()).await?;
    assert!(client.read_frame().await.is_err(), "the mock closed inside a frame");

    let mut client = raw::Client::connect(mock.address(9)?).await?;
    client.send_request(9, &ProduceRequest::default()).await?;
    assert_eq!(client.read_to_end().await?, None, "the mock was asked for a reset");
    let seen: Vec<_> = mock.received().iter().map(|r| (r.node_id, r.frame.api_key)).collect();
    assert_eq!(seen, [(7, 3), (7, 3), (7, 3), (9, 0)]);
    Ok(())
}

#[tokio::test]
async fn a_raw_client_talks_to_a_broker() -> Result<()> {
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let address = cluster.broker(1)?.plaintext();
    let mut client = raw::Client::connect(address).await?;
    let table = client.call(0, &ApiVersionsRequest::default()).await?;
    assert!(table.api_keys.iter().any(|range| range.api_key == 78), "share fetch is known to this release");
    Ok(())
}

fn login(mechanism: &str, user: &str) -> Sasl {
    Sasl { mechanism: mechanism.into(), username: user.into(), password: format!("{user}-secret") }
}

#[test]
fn every_family_logs_in_and_names_a_denied_topic() -> Result<()> {
    harness::full_tier!();
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let bootstrap = cluster.bootstrap_of(Listener::Sasl)?;
    for family in Family::available() {
        let topic = kafka::unique("denied");
        let mut client = Client::start(family)?;
        client.connect_sasl(&bootstrap, &login("SCRAM-SHA-512", "alice"), None)?;
        cluster.create_topic(&mut client, &topic, 1)?;
        client.produce(&Produce::to(&topic).count(10))?;
        client.connect_sasl(&bootstrap, &login("PLAIN", "bob"), None)?;
        let error = client.produce(&Produce::to(&topic).count(10)).expect_err("bob may not write");
        assert!(is_kafka_error(&error, "TOPIC_AUTHORIZATION_FAILED"), "{family}: {error:#}");
        client.close()?;
    }
    Ok(())
}

#[test]
fn every_family_speaks_tls() -> Result<()> {
    harness::full_tier!();
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let bootstrap = cluster.bootstrap_of(Listener::Tls)?;
    let authority = cluster.certificates()?.ca_pem();
    for family in Family::available() {
        let mut client = Client::start(family)?;
        client.connect_with(&bootstrap, serde_json::json!({"tls_ca": authority}))?;
        assert_eq!(client.metadata(&[])?.brokers.len(), 3, "{family}");
        client.close()?;
    }
    Ok(())
}

#[test]
fn all_families_read_the_same_bytes_in_every_codec() -> Result<()> {
    harness::full_tier!();
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let mut reader = Client::start(Family::Java)?;
    reader.connect(&cluster.bootstrap())?;
    for family in Family::available() {
        let mut writer = Client::start(family)?;
        writer.connect(&cluster.bootstrap())?;
        let mut read = Vec::new();
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"].into_iter().filter(|codec| family.has_codec(codec)) {
            let topic = kafka::unique(codec);
            cluster.create_topic(&mut reader, &topic, 1)?;
            writer.produce(&Produce::to(&topic).codec(codec).count(50))?;
            read.push(reader.consume(&Consume::from(&topic).count(50))?);
        }
        assert!(read.windows(2).all(|pair| pair[0] == pair[1]), "{family}: {read:?}");
        writer.close()?;
    }
    reader.close()
}

#[test]
fn new_groups_and_share_groups_read_everything() -> Result<()> {
    harness::full_tier!();
    harness::need_kafka!();
    let cluster = kafka::shared()?;
    let topic = kafka::unique("groups");
    let mut java = Client::start(Family::Java)?;
    java.connect(&cluster.bootstrap())?;
    cluster.create_topic(&mut java, &topic, 3)?;
    java.produce(&Produce::to(&topic).partitions(3).count(200).idempotent(true))?;
    java.consume(&Consume::from(&topic).consumer_group(&kafka::unique("new")).count(200))?.check_complete(200)?;
    let share = kafka::unique("share");
    // A share group begins at the end, which it fixes when it first looks.
    java.send(
        "share_consume",
        serde_json::json!({"topic": topic, "group": share, "count": 300, "timeout_ms": 60_000}),
    )?;
    let mut writer = Client::start(Family::Librdkafka)?;
    writer.connect(&cluster.bootstrap())?;
    std::thread::sleep(Duration::from_secs(8));
    writer.produce(&Produce::to(&topic).partitions(3).first(200).count(300))?;
    let shared = java.receive()?;
    assert_eq!((shared["count"].as_u64(), shared["distinct"].as_u64()), (Some(300), Some(300)));
    let group = kafka::unique("new");
    writer.consume(&Consume::from(&topic).consumer_group(&group).count(500))?.check_complete(500)?;
    Ok(())
}

#[test]
fn records_survive_a_rough_link() -> Result<()> {
    harness::need_root!();
    harness::full_tier!();
    harness::need_kafka!();
    let world = Arc::new(World::builder().brokers(1).relay(Link::Client(0), 7).build()?);
    let cluster = Cluster::builder().world(&world).start()?;
    let mut client = Client::start_in(Family::Librdkafka, &world.client(0).netns)?;
    client.connect(&cluster.bootstrap())?;
    let topic = kafka::unique("rough");
    cluster.create_topic(&mut client, &topic, 3)?;
    world.relay(Link::Client(0))?.set(Faults::rough());
    client.produce(&Produce::to(&topic).partitions(3).count(1000).idempotent(true))?;
    client.consume(&Consume::from(&topic).count(1000))?.check_complete(1000)?;
    let counts = world.relay(Link::Client(0))?.counts(Direction::Inward);
    assert!(counts.held_back > 0, "{counts:?}");
    client.close()
}

/// As much of the gateway's outside as the harness relies on.
const STAND_IN: &str = r##"#!/usr/bin/env python3
import http.server, re, signal, sys
config = open(sys.argv[sys.argv.index("--config") + 1]).read()
host, port = re.search(r'http: "([^":]+):(\d+)"', config).groups()
signal.signal(signal.SIGHUP, lambda *_: print("INFO reloaded", file=sys.stderr, flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Admin(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'requests_total{api="Fetch"} 3\nrequests_total{api="Produce"} 4\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body if self.path == "/metrics" else b"ready")
http.server.HTTPServer((host, int(port)), Admin).serve_forever()
"##;

#[test]
fn a_gateway_is_started_asked_signalled_and_stopped() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir()?;
    let binary = dir.path().join("turnout");
    std::fs::write(&binary, STAND_IN)?;
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755))?;

    let gateway = Gateway::before_addresses("127.0.0.1:1", 3).binary(&binary).start()?;
    assert!(gateway.config()?.contains("bootstrap: [\"127.0.0.1:1\"]"));
    assert!(gateway.owns(&gateway.bootstrap()) && gateway.owns(&gateway.broker_addr(3)?.to_string()));
    assert!(!gateway.owns("127.0.0.1:1") && gateway.broker_addr(2).is_err());
    assert_eq!(gateway.metrics()?.sum("requests_total", &[]), 7.0);
    assert!(gateway.resident_bytes()? > 1 << 20);
    gateway.check_quiet(&[])?;
    gateway.signal(libc::SIGHUP)?;
    gateway.wait_log(&["reloaded"], Duration::from_secs(5))?;
    assert!(gateway.check_quiet(&[]).is_ok() && gateway.status().is_err());
    assert!(gateway.stop(Duration::from_secs(5))?.success());

    let error = Gateway::before_addresses("127.0.0.1:1", 3).binary("/bin/false".as_ref()).start().unwrap_err();
    assert!(format!("{error:#}").contains("ended at start"), "{error:#}");
    Ok(())
}
