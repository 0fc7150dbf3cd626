//! A real cluster that grows and moves behind a gateway that was there before it: node ids with gaps, brokers that come
//! late, a broker whose address changes. Ports of virtual brokers stay what they are.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Family, Produce};
use harness::kafka::{self, Cluster};
use harness::turnout::{CLUSTER, Gateway};
use harness::{need_kafka, ports, wait};

const PARTITIONS: u32 = 6;
/// A broker's start, and what follows from it, on a busy host.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the gateway knows exactly these brokers as present, and opened their ports.
fn wait_known(gateway: &Gateway, ids: &[i32]) -> Result<()> {
    wait::until(&format!("brokers {ids:?}"), PATIENCE, || {
        let own = gateway.status()?.clusters.remove(CLUSTER).context("no cluster")?;
        let present: Vec<_> = own.brokers.iter().filter(|(_, broker)| broker.present).map(|(id, _)| *id).collect();
        ensure!(own.state == "reached" && present == ids, "{own:?}");
        for id in ids {
            TcpStream::connect(gateway.broker_addr(*id)?).with_context(|| format!("the port of broker {id}"))?;
        }
        Ok(())
    })
}

/// Writes to and reads from a new topic on all brokers; the client is told these ids at the gateway's addresses.
fn works_on(client: &mut Client, gateway: &Gateway, ids: &[i32]) -> Result<()> {
    let topic = kafka::unique("topology");
    let told = wait::until("the client to be told of all brokers", PATIENCE, || {
        let told = client.metadata(&[])?;
        let listed: Vec<_> = told.brokers.iter().map(|broker| broker.id).collect();
        ensure!(listed == ids, "{listed:?}");
        Ok(told)
    })?;
    for broker in &told.brokers {
        assert_eq!(format!("{}:{}", broker.host, broker.port), gateway.broker_addr(broker.id)?.to_string());
    }
    client.create_topic(&topic, PARTITIONS)?;
    client.produce(&Produce::to(&topic).partitions(PARTITIONS).count(120).idempotent(true))?;
    client.consume(&Consume::from(&topic).count(120))?.check_complete(120)
}

#[test]
fn brokers_that_come_late_join_and_move_are_followed() -> Result<()> {
    harness::full_tier!();
    need_kafka!();
    let _heavy = kafka::heavy()?;
    let cluster = Cluster::builder()
        .node_ids(&[1, 5, 17])
        .property("default.replication.factor", "2")
        .property("min.insync.replicas", "1")
        .property("offsets.topic.replication.factor", "2")
        .property("transaction.state.log.replication.factor", "2")
        .property("broker.session.timeout.ms", "4000")
        .property("broker.heartbeat.interval.ms", "1000")
        .name("late")
        .build()?;
    // No broker runs: the gateway does, and says why it is of no use yet.
    let gateway = Gateway::before(&cluster).cluster_line("refresh: 1s").without_waiting().start()?;
    let reason = wait::until("the reason", PATIENCE, || {
        let own = gateway.status()?.clusters.remove(CLUSTER).context("no cluster")?;
        ensure!(own.state == "degraded", "{own:?}");
        own.reason.context("degraded without a reason")
    })?;
    ensure!(cluster.brokers().any(|broker| reason.contains(&broker.plaintext().to_string())), "{reason}");
    let (_, words) = gateway.get("/readyz")?;
    ensure!(words.contains("real") && words.contains("degraded"), "{words}");
    // The port is there; a client that asks is let go soon instead of left hanging.
    let begin = Instant::now();
    let mut hasty = harness::raw::blocking::Connection::open(gateway.bootstrap_addr(), None, PATIENCE)?;
    ensure!(hasty.call(0, &kafka_protocol::messages::ApiVersionsRequest::default()).is_err(), "nobody can answer");
    ensure!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());

    // It heals by itself when a quorum of brokers starts.
    for id in [1, 5] {
        cluster.broker(id)?.launch()?;
    }
    cluster.wait_ready()?;
    wait_known(&gateway, &[1, 5])?;
    let mut client = Client::start(Family::Java)?;
    client.connect(&gateway.bootstrap())?;
    works_on(&mut client, &gateway, &[1, 5])?;

    // A broker joins: it gets its port, whatever gap lies between the ids.
    let late = cluster.broker(17)?;
    late.launch()?;
    cluster.wait_ready()?;
    wait_known(&gateway, &[1, 5, 17])?;
    works_on(&mut client, &gateway, &[1, 5, 17])?;

    // It moves: the same virtual port leads to the new address.
    let path = cluster.dir().join("broker-17").join("server.properties");
    let was = late.plaintext();
    let is = std::net::SocketAddr::new(was.ip(), ports::one()?);
    late.stop()?;
    let text = std::fs::read_to_string(&path)?;
    let moved = text.replace(&format!("PLAINTEXT://{was}"), &format!("PLAINTEXT://{is}"));
    ensure!(moved != text, "the listener stands in {text}");
    std::fs::write(&path, moved)?;
    late.launch()?;
    wait::until("the new address", PATIENCE, || {
        let own = gateway.status()?.clusters.remove(CLUSTER).context("no cluster")?;
        let address = own.brokers.get(&17).map(|broker| broker.address.clone());
        ensure!(address == Some(is.to_string()), "{address:?}");
        Ok(())
    })?;
    wait_known(&gateway, &[1, 5, 17])?;
    works_on(&mut client, &gateway, &[1, 5, 17])?;
    client.close()?;
    ensure!(!gateway.log()?.contains("panicked"), "the gateway panicked");
    Ok(())
}
