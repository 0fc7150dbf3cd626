//! Real brokers on hosts of their own, and Kafka's perf tools on the client host.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::hosts::{Hosts, Way, broker};
use crate::bench::args::Args;
use crate::bench::kafka::{BROKERS, PARTITIONS, RECORD, create, delete, record_tool, with_listener};
use crate::bench::perf::{self, Throughput};
use crate::bench::progress;
use crate::bench::report::{Bound, FAST_PATH, Metric, Report};
use crate::bench::subject::{ROUTED, in_turn};
use crate::kafka::{self, Cluster};
use crate::netns::World;

const PORT: u16 = 9092;
/// The brokers' listener that advertises haproxy's addresses.
const BACK: u16 = 9192;
const STANDING: &str = "bench-standing";

/// Runs the workloads.
///
/// # Errors
/// A subject can't be started or breaks.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    progress("waiting until no other run on this machine has a cluster");
    let _one_cluster = kafka::heavy()?;
    let world = Arc::new(World::builder().brokers(BROKERS as u8).build()?);
    progress("starting three Kafka brokers on hosts of their own");
    let cluster = start(&world)?;
    let at = |port| (0..usize::from(BROKERS)).map(|index| broker(&world, index, port)).collect::<Vec<_>>();
    let hosts = Hosts::start(&world, &at(PORT), &at(BACK))?;
    report.conditions.push(format!(
        "fast path stage: Apache Kafka {}, {BROKERS} brokers, {PARTITIONS} partitions without copies",
        kafka::VERSION
    ));
    measure(args, report, &cluster, &hosts.ways()?)?;
    for workload in [produce(), consume()] {
        report.judge_fast(&workload, Metric::Throughput, ROUTED, Bound::AtLeast(0.97));
    }
    report.conditions.extend(hosts.trouble());
    Ok(())
}

fn produce() -> String {
    format!("{FAST_PATH}Kafka producer, 1 KB records")
}

fn consume() -> String {
    format!("{FAST_PATH}Kafka consumer, 1 KB records")
}

fn measure(args: &Args, report: &mut Report, cluster: &Cluster, ways: &[Way<'_>]) -> Result<()> {
    let [produced, consumed] = if args.quick { [250_000, 750_000] } else { [1_000_000, 2_000_000] };
    let artifacts = cluster.artifacts();
    let direct = ways[0].subject.first_address()?;
    let on_client = |work: &(dyn Fn() -> Result<()> + Sync)| ways[0].client.run(work)?;
    on_client(&|| create(direct, STANDING, PARTITIONS))?;
    progress("filling the topic that consumers read, and warming up");
    perf::produce(artifacts, &ways[0].subject.bootstrap, STANDING, consumed, RECORD, Some(ways[0].client))?;
    for way in ways {
        let group = format!("warm-{}", way.subject.name);
        perf::consume(artifacts, &way.subject.bootstrap, STANDING, &group, consumed / 4, Some(way.client))?;
    }
    for round in 0..args.rounds() {
        for way in in_turn(ways, round) {
            let topic = format!("bench-{}-{round}", way.subject.name.replace(' ', "-"));
            on_client(&|| create(direct, &topic, PARTITIONS))?;
            through(report, &produce(), way, || {
                perf::produce(artifacts, &way.subject.bootstrap, &topic, produced, RECORD, Some(way.client))
            })?;
            on_client(&|| delete(direct, &topic))?;
        }
        for way in in_turn(ways, round) {
            let group = format!("bench-{}-{round}", way.subject.name);
            through(report, &consume(), way, || {
                perf::consume(artifacts, &way.subject.bootstrap, STANDING, &group, consumed, Some(way.client))
            })?;
        }
    }
    Ok(())
}

fn through(report: &mut Report, workload: &str, way: &Way<'_>, run: impl FnOnce() -> Result<Throughput>) -> Result<()> {
    let (passed, before) = (way.passed()?, way.retransmitted()?);
    let (done, cpu) = way.subject.measure(run).with_context(|| format!("through {}", way.subject.name))?;
    record_tool(report, workload, &way.subject, done, cpu);
    let retransmitted = way.retransmitted()? - before;
    report.add(workload, Metric::Retransmitted, &way.subject.name, retransmitted as f64);
    if let Some(share) = way.kernel_share(passed)? {
        report.add(workload, Metric::KernelShare, &way.subject.name, share);
    }
    Ok(())
}

/// Brokers with a listener more that advertises haproxy's addresses.
fn start(world: &Arc<World>) -> Result<Cluster> {
    let cluster = Cluster::builder()
        .name("bench-fast-path")
        .brokers(BROKERS.into())
        .heap_mb(512)
        .property("log.segment.delete.delay.ms", "1000")
        .world(world)
        .build()?;
    for (index, node) in cluster.brokers().enumerate() {
        let path = cluster.dir().join(format!("broker-{}", node.node_id())).join("server.properties");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let front = Hosts::haproxy_front(world, index as u16);
        fs::write(&path, with_listener(&text, "HAPROXY", broker(world, index, BACK), front)?)?;
        node.launch()?;
    }
    cluster.wait_ready()?;
    Ok(cluster)
}
