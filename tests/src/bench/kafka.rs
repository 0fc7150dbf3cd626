//! Real brokers: Kafka's perf tools, and raw frames at a fixed rate.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::args::Args;
use super::haproxy::Haproxy;
use super::perf;
use super::report::{Metric, Report};
use super::subject::{DIRECT, HAPROXY, Subject, TURNOUT, in_turn};
use super::synthetic::{self, Template};
use super::{progress, record_cpu, record_memory};
use crate::kafka::{self, Cluster};
use crate::raw::blocking::Connection;
use crate::turnout::Gateway;
use crate::{ports, wait};

pub(super) const BROKERS: u16 = 3;
pub(super) const PARTITIONS: i32 = 6;
pub(super) const RECORD: usize = 1000;
const PRODUCE: &str = "Kafka: producer, 1 KB records";
const CONSUME: &str = "Kafka: consumer, 1 KB records";
const FRAMES: &str = "Kafka: Produce frames of 1 KB, 16 connections × 1";
const FRAME_CONNECTIONS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(30);

/// How much each run moves.
struct Amounts {
    produced: u64,
    consumed: u64,
    frames: Duration,
}

/// Runs the stage.
///
/// # Errors
/// A subject can't be started or breaks.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    progress("waiting until no other run on this machine has a cluster");
    let _one_cluster = kafka::heavy()?;
    let fronts: Vec<u16> = (0..BROKERS).map(|_| ports::one()).collect::<Result<_>>()?;
    let backs: Vec<u16> = (0..BROKERS).map(|_| ports::one()).collect::<Result<_>>()?;
    progress("starting three Kafka brokers");
    let cluster = start(args, &fronts, &backs)?;
    let routes: Vec<_> = fronts.iter().zip(&backs).map(|(front, back)| (local(*front), local(*back))).collect();
    let haproxy = Haproxy::start(&routes)?;
    let gateway = Gateway::before(&cluster).log_level("warn").start()?;

    let haproxy_bootstrap: Vec<_> = fronts.iter().map(|port| local(*port).to_string()).collect();
    let mut subjects = vec![
        Subject::new(DIRECT, &cluster.bootstrap(), None),
        Subject::new(TURNOUT, &gateway.bootstrap(), Some(gateway.process().pid())),
        Subject::new(HAPROXY, &haproxy_bootstrap.join(","), Some(haproxy.pid())),
    ];
    for peer in &args.peers {
        subjects.push(Subject::new(&peer.name, &peer.bootstrap.to_string(), peer.pid));
        progress(&format!("waiting for {} at {} to reach the brokers", peer.name, peer.bootstrap));
        wait::until(&format!("the peer {}", peer.name), Duration::from_secs(120), || brokers(peer.bootstrap))?;
    }
    report.conditions.push(format!(
        "Kafka stage: Apache Kafka {}, {BROKERS} brokers, {PARTITIONS} partitions without copies; haproxy {}; brokers \
         and tools with the serial collector and the first-tier compiler",
        kafka::VERSION,
        haproxy.version(),
    ));

    let amounts = if args.quick {
        Amounts { produced: 250_000, consumed: 750_000, frames: Duration::from_secs(3) }
    } else {
        Amounts { produced: 1_000_000, consumed: 2_000_000, frames: Duration::from_secs(8) }
    };
    measure(args, report, &cluster, &subjects, &amounts)?;
    for subject in &subjects {
        record_memory(report, "Kafka: all of the above", subject)?;
    }
    for workload in [PRODUCE, CONSUME] {
        report.judge_ratio(workload, Metric::ProxyCpu, Some(1.10), None);
        report.judge_ratio(workload, Metric::Throughput, None, Some(0.95));
    }
    gateway.check_quiet(&[])
}

fn measure(args: &Args, report: &mut Report, cluster: &Cluster, subjects: &[Subject], amounts: &Amounts) -> Result<()> {
    let artifacts = cluster.artifacts();
    let direct = subjects[0].first_address()?;
    let standing = "bench-standing";
    create(direct, standing, PARTITIONS)?;
    progress("filling the topic that consumers read, and warming up");
    perf::produce(artifacts, &subjects[0].bootstrap, standing, amounts.consumed, RECORD, None)?;
    for subject in subjects {
        perf::consume(
            artifacts,
            &subject.bootstrap,
            standing,
            &format!("warm-{}", subject.name),
            amounts.consumed / 4,
            None,
        )?;
    }
    for round in 0..args.rounds() {
        for subject in in_turn(subjects, round) {
            let topic = format!("bench-{}-{round}", subject.name);
            create(direct, &topic, PARTITIONS)?;
            let run = || perf::produce(artifacts, &subject.bootstrap, &topic, amounts.produced, RECORD, None);
            let (done, cpu) = subject.measure(run).with_context(|| format!("through {}", subject.name))?;
            record_tool(report, PRODUCE, subject, done, cpu);
            delete(direct, &topic)?;
        }
        for subject in in_turn(subjects, round) {
            let group = format!("bench-{}-{round}", subject.name);
            let run = || perf::consume(artifacts, &subject.bootstrap, standing, &group, amounts.consumed, None);
            let (done, cpu) = subject.measure(run).with_context(|| format!("through {}", subject.name))?;
            record_tool(report, CONSUME, subject, done, cpu);
        }
    }
    frames(args, report, direct, subjects, amounts.frames)
}

/// Raw Produce frames of one record: throughput, then latency at a rate that all subjects carry.
fn frames(
    args: &Args,
    report: &mut Report,
    direct: SocketAddr,
    subjects: &[Subject],
    duration: Duration,
) -> Result<()> {
    let topic = "bench-frames";
    create(direct, topic, 1)?;
    let template = Template::produce(topic, RECORD)?;
    let leaders = subjects.iter().map(|subject| Ok((subject, leader(subject.first_address()?, topic)?)));
    let leaders: Vec<(&Subject, SocketAddr)> = leaders.collect::<Result<_>>()?;
    let at = |subject: &Subject| {
        let found = leaders.iter().find(|(other, _)| other.name == subject.name);
        found.map(|(_, address)| *address).context("a subject without a leader")
    };
    for round in 0..args.rounds() {
        for subject in in_turn(subjects, round) {
            let address = at(subject)?;
            let run = || synthetic::saturate(address, &template, FRAME_CONNECTIONS, 1, duration);
            let (moved, cpu) = subject.measure(run).with_context(|| format!("{FRAMES}, {}", subject.name))?;
            let per_second = moved.requests as f64 / moved.elapsed.as_secs_f64();
            progress(&format!("{FRAMES}: {} {per_second:.0} req/s", subject.name));
            report.add(FRAMES, Metric::Requests, &subject.name, per_second);
            record_cpu(report, FRAMES, subject, cpu, moved.bytes as f64);
        }
    }
    for round in 0..args.rounds() {
        for subject in in_turn(subjects, round) {
            synthetic::pace(report, FRAMES, subject, at(subject)?, &template, FRAME_CONNECTIONS, duration)?;
        }
    }
    Ok(())
}

pub(super) fn record_tool(
    report: &mut Report,
    workload: &str,
    subject: &Subject,
    done: perf::Throughput,
    cpu: super::counters::CpuSpent,
) {
    let megabytes = done.per_second * RECORD as f64 / 1e6;
    progress(&format!("{workload}: {} {megabytes:.1} MB/s", subject.name));
    report.add(workload, Metric::Throughput, &subject.name, megabytes);
    record_cpu(report, workload, subject, cpu, (done.records * RECORD as u64) as f64);
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Brokers with a listener of its own for haproxy, which advertises haproxy's addresses, and one on fixed ports for
/// peers, which advertises itself: a peer rewrites addresses.
fn start(args: &Args, fronts: &[u16], backs: &[u16]) -> Result<Cluster> {
    let cluster = Cluster::builder()
        .name("bench")
        .brokers(BROKERS.into())
        .racks(&["az1", "az2", "az3"])
        .heap_mb(512)
        .property("log.segment.delete.delay.ms", "1000")
        .build()?;
    for (index, broker) in cluster.brokers().enumerate() {
        let path = cluster.dir().join(format!("broker-{}", broker.node_id())).join("server.properties");
        let mut text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut extra = vec![("HAPROXY", local(backs[index]), local(fronts[index]))];
        if !args.peers.is_empty() {
            let at = local(args.peer_brokers + index as u16);
            extra.push(("PEER", at, at));
        }
        for (name, listen, advertise) in extra {
            text = with_listener(&text, name, listen, advertise)?;
        }
        fs::write(&path, text)?;
        broker.launch()?;
    }
    cluster.wait_ready()?;
    Ok(cluster)
}

/// A broker's properties with one more plaintext listener.
pub(super) fn with_listener(properties: &str, name: &str, listen: SocketAddr, advertise: SocketAddr) -> Result<String> {
    let mut seen = 0;
    let lines: Vec<String> = properties
        .lines()
        .map(|line| {
            let addition = match line.split_once('=').map(|(key, _)| key) {
                Some("listeners") => format!(",{name}://{listen}"),
                Some("advertised.listeners") => format!(",{name}://{advertise}"),
                Some("listener.security.protocol.map") => format!(",{name}:PLAINTEXT"),
                _ => return line.to_owned(),
            };
            seen += 1;
            format!("{line}{addition}")
        })
        .collect();
    ensure!(seen == 3, "the broker's properties name their listeners in {seen} of 3 places");
    Ok(lines.join("\n") + "\n")
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// Creates a topic without copies and waits until each partition has a leader.
pub(super) fn create(address: SocketAddr, topic: &str, partitions: i32) -> Result<()> {
    // The cluster's own default would refuse writes to a partition with one copy.
    let config = CreatableTopicConfig::default()
        .with_name(StrBytes::from_static_str("min.insync.replicas"))
        .with_value(Some(StrBytes::from_static_str("1")));
    let wanted = CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(vec![config]);
    let body = CreateTopicsRequest::default().with_timeout_ms(30_000).with_topics(vec![wanted]);
    let answer = Connection::open(address, None, PATIENCE)?.call(7, &body)?;
    let code = answer.topics.first().map_or(-1, |topic| topic.error_code);
    ensure!(code == 0, "creating {topic}: Kafka error {code}");
    wait::until(&format!("leaders of {topic}"), PATIENCE, || leader(address, topic)).map(drop)
}

pub(super) fn delete(address: SocketAddr, topic: &str) -> Result<()> {
    let body = DeleteTopicsRequest::default().with_timeout_ms(30_000).with_topic_names(vec![name(topic)]);
    let answer = Connection::open(address, None, PATIENCE)?.call(5, &body)?;
    let code = answer.responses.first().map_or(-1, |topic| topic.error_code);
    ensure!(code == 0, "deleting {topic}: Kafka error {code}");
    Ok(())
}

/// Where the leader of partition 0 is dialled by those who start from `bootstrap`, once all partitions have leaders.
fn leader(bootstrap: SocketAddr, topic: &str) -> Result<SocketAddr> {
    let wanted = MetadataRequestTopic::default().with_name(Some(name(topic)));
    let body = MetadataRequest::default().with_topics(Some(vec![wanted])).with_allow_auto_topic_creation(false);
    let metadata = Connection::open(bootstrap, None, PATIENCE)?.call(9, &body)?;
    let partitions = &metadata.topics.first().context("no topic in the answer")?.partitions;
    ensure!(!partitions.is_empty() && partitions.iter().all(|p| p.error_code == 0), "a partition has no leader yet");
    let leader = partitions.iter().find(|p| p.partition_index == 0).context("no partition 0")?.leader_id;
    let broker = metadata.brokers.iter().find(|broker| broker.node_id == leader).context("the leader is not listed")?;
    Ok(format!("{}:{}", &*broker.host, broker.port).parse()?)
}

/// Whether all brokers are listed by those behind `bootstrap`.
fn brokers(bootstrap: SocketAddr) -> Result<()> {
    let body = MetadataRequest::default().with_topics(Some(Vec::new()));
    let metadata = Connection::open(bootstrap, None, PATIENCE)?.call(9, &body)?;
    let listed = metadata.brokers.len();
    ensure!(listed == usize::from(BROKERS), "{bootstrap} lists {listed} of {BROKERS} brokers");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_named_in_three_places() {
        let before = "node.id=1\nlisteners=A://h:1,CONTROLLER://h:2\nadvertised.listeners=A://h:1\n\
                      listener.security.protocol.map=A:PLAINTEXT,CONTROLLER:PLAINTEXT\n";
        let after = with_listener(before, "B", local(3), local(4)).unwrap();
        assert_eq!(
            after,
            "node.id=1\nlisteners=A://h:1,CONTROLLER://h:2,B://127.0.0.1:3\n\
             advertised.listeners=A://h:1,B://127.0.0.1:4\n\
             listener.security.protocol.map=A:PLAINTEXT,CONTROLLER:PLAINTEXT,B:PLAINTEXT\n"
        );
        assert!(with_listener("node.id=1", "B", local(3), local(4)).is_err());
    }
}
