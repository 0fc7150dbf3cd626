//! Large batches and many connections: what they cost the gateway.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Consumed, Family, Produce};
use harness::turnout::Gateway;
use harness::{kafka, procfs, raw, wait};
use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest};
use kafka_protocol::protocol::StrBytes;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::*;

const MIB: u64 = 1 << 20;

/// They stream through: the gateway never holds one.
#[test]
fn batches_of_50_mb_pass_both_ways_in_little_memory() -> Result<()> {
    need_all!();
    const COUNT: u64 = 3;
    let cluster = &stage()?.cluster;
    let gateway = Gateway::before(cluster).start()?;
    let properties = json!({"properties": {
        "fetch.max.bytes": "60000000", "max.partition.fetch.bytes": "60000000", "buffer.memory": "60000000",
    }});
    let start = || -> Result<Client> {
        let mut client = Client::start(Family::Java)?;
        client.connect_with(&gateway.bootstrap(), properties.clone())?;
        Ok(client)
    };
    let (mut producer, mut consumer) = (start()?, start()?);
    let topic = kafka::unique("large");
    producer.create_topic_with(&topic, 1, json!({"max.message.bytes": "60000000"}))?;
    cluster.wait_topic(&topic, 1)?;

    let pid = gateway.process().pid();
    let before = gateway.resident_bytes()?;
    procfs::forget_peak(pid)?;
    consumer.send("consume", serde_json::to_value(Consume::from(&topic).count(COUNT))?)?;
    let written = producer.produce(&Produce::to(&topic).count(COUNT).size(50_000_000).idempotent(true))?;
    let open = gateway.metrics()?.sum("turnout_connections", &[]) as u64;
    ensure!(written.delivered == COUNT, "{written:?}");
    let read: Consumed = serde_json::from_value(consumer.receive()?)?;
    read.check_complete(COUNT)?;
    let grown = procfs::peak_resident(pid)?.saturating_sub(before);
    ensure!(grown < (20 + open) * MIB, "{} MiB more with {open} connections", grown / MIB);
    let passed = gateway.metrics()?;
    for bytes in ["turnout_request_bytes_total", "turnout_answer_bytes_total"] {
        ensure!(passed.sum(bytes, &[]) > 50e6 * COUNT as f64, "the batches did not pass here: {bytes}");
    }
    producer.close()?;
    consumer.close()
}

/// All at once, to all ports; each asks what every client asks first, and stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_served_at_once_and_leave_no_trace() -> Result<()> {
    need_all!();
    const COUNT: u64 = 1000;
    let cluster = &stage()?.cluster;
    let gateway = Gateway::before(cluster).start()?;
    let mut ports = vec![gateway.bootstrap_addr()];
    for node in NODES {
        ports.push(gateway.broker_addr(node)?);
    }
    let mut arriving = JoinSet::new();
    for port in ports.iter().copied().cycle().take(COUNT as usize) {
        arriving.spawn(async move {
            let mut client = raw::Client::connect(port).await?;
            let hello = ApiVersionsRequest::default()
                .with_client_software_name(StrBytes::from_static_str("many"))
                .with_client_software_version(StrBytes::from_static_str("1"));
            let versions = client.call(3, &hello).await?;
            ensure!(versions.error_code == 0, "ApiVersions answers {}", versions.error_code);
            let brokers = brokers_of(&client.call(9, &MetadataRequest::default().with_topics(Some(vec![]))).await?);
            ensure!(brokers == NODES, "{brokers:?}");
            Ok(client)
        });
    }
    let mut clients = Vec::new();
    while let Some(client) = arriving.join_next().await {
        clients.push(client?.with_context(|| format!("after {} good ones", clients.len()))?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (metrics, resident) = (gateway.metrics()?, gateway.resident_bytes()?);
    assert_eq!(metrics.sum("turnout_connections", &[]), COUNT as f64);
    assert_eq!(metrics.sum("turnout_connections_closed_total", &[]), 0.0);
    assert_eq!(gateway.connections()?.len() as u64, COUNT);
    let bound = 20 * MIB + COUNT * 64 * 1024;
    ensure!(resident <= bound, "{} MiB for {COUNT} connections", resident / MIB);

    drop(clients);
    wait::until("the gauges to return to 0", SOON, || {
        let metrics = gateway.metrics()?;
        for gauge in ["turnout_connections", "turnout_in_flight_requests", "turnout_held_bytes"] {
            ensure!(metrics.sum(gauge, &[]) == 0.0, "{gauge}: {}", metrics.sum(gauge, &[]));
        }
        Ok(())
    })?;
    let closed = gateway.metrics()?.sum("turnout_connections_closed_total", &[("reason", "client_closed")]);
    assert_eq!(closed, COUNT as f64, "no other reason");
    gateway.check_quiet(&[])
}
