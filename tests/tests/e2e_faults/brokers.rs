//! Brokers that are down, die, freeze, come and go; leaders that move.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::raw::blocking::Connection;
use harness::turnout::{CLUSTER, Gateway};
use harness::wait;
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::{AlterPartitionReassignmentsRequest, BrokerId, ElectLeadersRequest};

use crate::support::*;

/// Connections that ended because of the broker.
fn ended_by_broker(gateway: &Gateway) -> Result<f64> {
    let metrics = gateway.metrics()?;
    let reasons = ["broker_closed", "broker_error", "unreachable"];
    Ok(reasons.iter().map(|reason| metrics.sum("turnout_connections_closed_total", &[("reason", reason)])).sum())
}

/// Waits until no partition of the streams is led by this broker.
fn wait_moved_from(node: i32, gateway: &Gateway, streams: &[Stream]) -> Result<()> {
    wait::until("other leaders", RECOVERY, || {
        for stream in streams {
            let leaders = leaders(gateway, &stream.topic)?;
            ensure!(!leaders.contains(&node), "{leaders:?}");
        }
        Ok(())
    })
}

#[test]
fn a_gateway_whose_brokers_are_down_says_why_and_heals_by_itself() -> Result<()> {
    need_all!();
    let arrival = &stage()?.arrival;
    assert!(arrival.port_was_open, "the bootstrap port is open from the start");
    let (ready, status) = arrival.down.last().context("nothing was seen")?;
    let cluster = &status.clusters[CLUSTER];
    let reason = cluster.reason.as_deref().context("no reason")?;
    assert_eq!(cluster.state, "degraded", "{reason}");
    let broker = stage()?.cluster.brokers().next().context("no broker")?.plaintext();
    assert!(reason.contains(&format!("{}:", broker.ip())) && reason.contains("refused"), "{reason}");
    assert!(ready.contains(CLUSTER) && ready.contains(reason), "/readyz says {ready}, /status {reason}");
    // Ready or not, never without a word about it.
    assert!(arrival.down.iter().all(|(ready, _)| ready.contains(CLUSTER)), "{:?}", arrival.down);
    arrival.healed_after.clone().map(drop).map_err(anyhow::Error::msg)
}

#[test]
fn a_broker_that_joins_gets_its_port_without_a_restart() -> Result<()> {
    need_all!();
    let stage = stage()?;
    assert_eq!(stage.arrival.first_brokers, NODES[..2]);
    stage.arrival.joined_after.clone().map_err(anyhow::Error::msg)?;
    for broker in metadata(&stage.gateway, &[])?.brokers {
        let told = format!("{}:{}", broker.host, broker.port);
        assert_eq!(told, stage.gateway.broker_addr(broker.node_id.0)?.to_string(), "gaps are kept");
    }
    Ok(())
}

/// SIGKILL, so that clients see resets and half-written answers; it comes back on its port while they still write.
#[test]
fn nothing_is_lost_doubled_or_reordered_when_a_broker_dies_and_returns() -> Result<()> {
    need_all!();
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start(&FAMILIES, cluster, gateway, 16)?;
    let (broker, before) = (cluster.broker(7)?, ended_by_broker(gateway)?);
    let address = gateway.broker_addr(7)?;
    broker.kill();
    wait_moved_from(7, gateway, &streams)?;
    ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
    ensure!(ended_by_broker(gateway)? > before, "no connection noticed the broker's death");
    broker.launch()?;
    cluster.wait_ready()?;
    wait::until("the broker's return", SOON, || {
        // Any client's Metadata tells the gateway; its own comes every `refresh`.
        metadata(gateway, &[])?;
        let present = gateway.status()?.clusters[CLUSTER].brokers[&7].present;
        ensure!(present && gateway.broker_addr(7)? == address, "node 7 is absent");
        Connection::open(address, None, Duration::from_secs(2)).map(drop)
    })?;
    finish(streams)
}

/// SIGSTOP: connections stay open and nothing is answered, until the clients' patience ends.
#[test]
fn nothing_is_lost_doubled_or_reordered_when_a_broker_freezes_and_thaws() -> Result<()> {
    need_all!();
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start(&FAMILIES, cluster, gateway, 16)?;
    let broker = cluster.broker(9)?;
    broker.freeze()?;
    let moved = wait_moved_from(9, gateway, &streams);
    let all_run = streams.iter().all(Stream::is_running);
    // Long enough for requests in flight to time out.
    std::thread::sleep(Duration::from_secs(2));
    broker.thaw()?;
    moved?;
    ensure!(all_run, "the streams ended too early to prove anything");
    finish(streams)?;
    cluster.wait_ready()
}

/// Without any restart, so that clients learn of it from errors, and the hints in them, on connections that live on.
#[test]
fn nothing_is_lost_doubled_or_reordered_when_leaders_move() -> Result<()> {
    need_all!();
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start(&FAMILIES, cluster, gateway, 12)?;
    for _ in 0..3 {
        for stream in &streams {
            let before = leaders(gateway, &stream.topic)?;
            move_leaders(gateway, &stream.topic)?;
            wait::until("other leaders", RECOVERY, || {
                let now = leaders(gateway, &stream.topic)?;
                ensure!(now.iter().zip(&before).all(|(now, before)| now != before), "{before:?}, then {now:?}");
                Ok(())
            })?;
        }
        ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
        std::thread::sleep(Duration::from_millis(700));
    }
    finish(streams)
}

/// The next replica of each partition becomes its leader: by a reassignment that only changes their order, and an
/// election; both through the gateway.
fn move_leaders(gateway: &Gateway, topic: &str) -> Result<()> {
    let mut wanted = Vec::new();
    for partition in partitions(gateway, topic)? {
        let mut replicas: Vec<BrokerId> = partition.replica_nodes.clone();
        let at = replicas.iter().position(|replica| *replica == partition.leader_id).context("no leader")?;
        replicas.rotate_left(at + 1);
        let reassignment = ReassignablePartition::default().with_partition_index(partition.partition_index);
        wanted.push(reassignment.with_replicas(Some(replicas)));
    }
    let topics = vec![ReassignableTopic::default().with_name(name(topic)).with_partitions(wanted)];
    let mut connection = Connection::open(gateway.bootstrap_addr(), None, Duration::from_secs(20))?;
    let request = AlterPartitionReassignmentsRequest::default().with_timeout_ms(10_000).with_topics(topics);
    let answer = connection.call(0, &request)?;
    let refused =
        answer.responses.iter().flat_map(|topic| &topic.partitions).any(|partition| partition.error_code != 0);
    ensure!(answer.error_code == 0 && !refused, "{answer:?}");
    // All partitions; those that stand right already answer ELECTION_NOT_NEEDED (84).
    let answer =
        connection.call(2, &ElectLeadersRequest::default().with_topic_partitions(None).with_timeout_ms(10_000))?;
    ensure!(answer.error_code == 0, "{answer:?}");
    Ok(())
}

/// The whole cluster goes, one broker after the other, with leaders that move in good order each time.
#[test]
fn nothing_is_lost_doubled_or_reordered_by_a_rolling_restart() -> Result<()> {
    harness::full_tier!();
    need_all!();
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start(&FAMILIES, cluster, gateway, 60)?;
    for broker in cluster.brokers() {
        broker.restart()?;
        cluster.wait_ready()?;
    }
    finish(streams)
}
