//! The gateway itself restarts, is killed, reloads; its clients sleep.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Family, Produce, Produced};
use harness::raw::blocking::Connection;
use harness::turnout::{Gateway, VIRTUAL_CLUSTER};
use harness::{kafka, ports, wait};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, MetadataRequest};

use crate::support::*;

/// SIGTERM under load. A long poll that waits for records gets its answer, though it takes longer than anything else.
#[test]
fn nothing_is_lost_doubled_or_reordered_when_the_gateway_drains_and_starts_again() -> Result<()> {
    need_all!();
    let cluster = &stage()?.cluster;
    let mut gateway = Gateway::before(cluster).start()?;
    let quiet = kafka::unique("quiet");
    let mut admin = Client::start(Family::Librdkafka)?;
    admin.connect(&gateway.bootstrap())?;
    cluster.create_topic(&mut admin, &quiet, 1)?;
    admin.close()?;
    let leader = gateway.broker_addr(leaders(&gateway, &quiet)?[0])?;
    let streams = Stream::start(&FAMILIES, cluster, &gateway, 12)?;

    let wait = Duration::from_secs(4);
    let poll = std::thread::spawn(move || -> Result<(i16, Duration)> {
        let mut connection = Connection::open(leader, None, Duration::from_secs(20))?;
        let begin = Instant::now();
        let answer = connection.call(12, &long_poll(&quiet, wait))?;
        Ok((answer.responses[0].partitions[0].error_code, begin.elapsed()))
    });
    std::thread::sleep(Duration::from_millis(500));
    gateway.signal(libc::SIGTERM)?;
    let status = gateway.wait(Duration::from_secs(20))?;
    let polled = poll.join().map_err(|_| anyhow::anyhow!("the poll panicked"))?;
    let (error, took) = polled.context("the long poll in flight")?;
    assert_eq!(error, 0);
    assert!(took >= wait - Duration::from_millis(500), "answered after {took:?}: nobody waited");
    assert_eq!(status.code(), Some(0), "{status}");
    ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
    gateway.start_again()?;
    finish(streams)
}

fn long_poll(topic: &str, wait: Duration) -> FetchRequest {
    let partition = FetchPartition::default().with_partition_max_bytes(1 << 20).with_current_leader_epoch(-1);
    let topics = vec![FetchTopic::default().with_topic(name(topic)).with_partitions(vec![partition])];
    let wait = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(wait)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(topics)
}

#[test]
fn nothing_is_lost_doubled_or_reordered_when_the_gateway_is_killed() -> Result<()> {
    need_all!();
    let cluster = &stage()?.cluster;
    let mut gateway = Gateway::before(cluster).start()?;
    let streams = Stream::start(&FAMILIES, cluster, &gateway, 8)?;
    for _ in 0..2 {
        gateway.process().kill();
        ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
        gateway.start_again()?;
        std::thread::sleep(Duration::from_secs(1));
    }
    finish(streams)
}

/// Limits, a second virtual cluster that comes and goes, a bad file: connections at work don't notice.
#[test]
fn reloads_leave_connections_at_work_alone() -> Result<()> {
    need_all!();
    let cluster = &stage()?.cluster;
    let gateway = Gateway::before(cluster).virtual_line("limits: {idle: 5m}").start()?;
    let streams = Stream::start(&[Family::Java], cluster, &gateway, 12)?;
    let mut before = requests_by_id(&gateway)?;
    // What is at work stays, and goes on.
    let mut check = |step: &str| -> Result<()> {
        ensure!(streams[0].is_running(), "the stream ended before {step}");
        wait::until("more requests on the same connections", SOON, || {
            let now = requests_by_id(&gateway)?;
            let lost: Vec<_> = before.keys().filter(|id| !now.contains_key(id)).collect();
            ensure!(lost.is_empty(), "{step}: connections {lost:?} are gone");
            let grown = now.iter().filter(|(id, requests)| before.get(id).is_some_and(|b| b < requests)).count();
            ensure!(grown >= 2, "{step}: {grown} connections go on");
            before = now;
            Ok(())
        })
    };
    let reload = || gateway.cli(&["reload", "--socket", "{socket}"]);

    let first = gateway.config()?;
    let limits = first.replace("limits: {idle: 5m}", "limits: {idle: 4m, in_flight: 100, frame: 50MiB}");
    gateway.write_config(&limits)?;
    gateway.signal(libc::SIGHUP)?;
    wait::until("the reload by signal", SOON, || {
        let generation = gateway.status()?.config_generation;
        ensure!(generation == 2, "generation {generation}");
        Ok(())
    })?;
    check("other limits")?;

    let port = ports::block(21)?;
    let second = format!(
        "  second:\n    cluster: real\n    listen: [\"127.0.0.1\"]\n    bootstrap_port: {port}\n    broker_ports: {{first: \
         {}, count: 20, first_node_id: 1}}\nfast_path:",
        port + 1
    );
    gateway.write_config(&limits.replace("fast_path:", &second))?;
    let said = reload()?;
    ensure!(said.contains("second"), "{said}");
    let mut connection = Connection::open(([127, 0, 0, 1], port).into(), None, SOON)?;
    let told = connection.call(9, &MetadataRequest::default().with_topics(Some(Vec::new())))?;
    let ports_told: Vec<_> = told.brokers.iter().map(|broker| broker.port - i32::from(port)).collect();
    ensure!(ports_told.iter().all(|offset| (1..=20).contains(offset)) && ports_told.len() == 3, "{told:?}");
    check("a second virtual cluster")?;

    gateway.write_config(&limits.replace("in_flight: 100", "in_flight: many"))?;
    let refused = reload().err().context("a bad file was taken")?.to_string();
    let line = limits.lines().position(|line| line.contains("in_flight")).context("no such line")? + 1;
    ensure!(refused.contains(&format!(":{line}:")), "line {line} is not named: {refused}");
    let status = gateway.status()?;
    ensure!(status.config_generation == 3 && status.last_reload_error.is_some(), "{status:?}");
    check("a bad file")?;

    gateway.write_config(&limits)?;
    let said = reload()?;
    ensure!(said.contains("second"), "{said}");
    ensure!(TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), SOON).is_err(), "the second one still listens");
    check("the second virtual cluster's end")?;
    ensure!(gateway.status()?.last_reload_error.is_none());
    finish(streams)
}

fn requests_by_id(gateway: &Gateway) -> Result<BTreeMap<u64, u64>> {
    let open = gateway.connections()?;
    let mine = open.iter().filter(|connection| connection.virtual_cluster == VIRTUAL_CLUSTER);
    // The harness's own short ones have no client software.
    let clients = mine.filter(|connection| connection.software.is_some());
    Ok(clients.map(|connection| (connection.id, connection.requests)).collect())
}

/// Each record finds its connection closed; the producer opens another and goes on.
#[test]
fn a_client_that_was_idle_too_long_reconnects_and_loses_nothing() -> Result<()> {
    need_all!();
    const COUNT: u64 = 6;
    let cluster = &stage()?.cluster;
    let gateway = Gateway::before(cluster).virtual_line("limits: {idle: 400ms}").start()?;
    let mut clients = Vec::new();
    for family in FAMILIES {
        let mut client = Client::start(family)?;
        client.connect_with(&gateway.bootstrap(), impatient(family))?;
        let topic = kafka::unique(&format!("idle-{family}"));
        cluster.create_topic(&mut client, &topic, 1)?;
        let produce = Produce::to(&topic).count(COUNT).rate(1).idempotent(true);
        client.send("produce", serde_json::to_value(produce)?)?;
        clients.push((client, topic));
    }
    for (mut client, topic) in clients {
        let family = client.family();
        let written: Produced = serde_json::from_value(client.receive().with_context(|| family.to_string())?)?;
        ensure!(written.delivered == COUNT, "{family}: {written:?}");
        client
            .consume(&Consume::from(&topic).count(COUNT))?
            .check_complete(COUNT)
            .with_context(|| family.to_string())?;
        client.close()?;
    }
    let idle = gateway.metrics()?.sum("turnout_connections_closed_total", &[("reason", "idle")]);
    ensure!(idle >= 2.0 * (COUNT - 1) as f64, "only {idle} connections were closed as idle");
    Ok(())
}

/// With the default limits minutes of silence cost nothing: the same connections serve what comes next.
#[test]
fn a_client_that_is_idle_for_minutes_keeps_its_connections() -> Result<()> {
    harness::full_tier!();
    need_all!();
    let cluster = &stage()?.cluster;
    let gateway = Gateway::before(cluster).start()?;
    let mut client = Client::start(Family::Java)?;
    // The Admin client's own timer would fetch metadata meanwhile.
    client.connect_with(
        &gateway.bootstrap(),
        serde_json::json!({"properties": {"metadata.max.age.ms": "3600000", "enable.metrics.push": "false"}}),
    )?;
    let topic = kafka::unique("idle-minutes");
    cluster.create_topic(&mut client, &topic, 1)?;
    client.list_offsets(&topic, "latest")?;
    std::thread::sleep(Duration::from_secs(1));
    let before = requests_by_id(&gateway)?;
    std::thread::sleep(Duration::from_secs(4 * 60));
    assert_eq!(requests_by_id(&gateway)?, before, "nobody closed, nobody spoke");
    client.list_offsets(&topic, "latest")?;
    let after = requests_by_id(&gateway)?;
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert!(after.values().sum::<u64>() > before.values().sum(), "{after:?}");
    client.close()
}
