//! The demo: a real Kafka cluster of three racks, turnout in front of it, real records, and a check of each.
//!
//! Where it may, clients, gateway and brokers get hosts of their own, since the kernel passes nothing on over loopback
//! (`place`). Where no JVM or Kafka can be had, `embedded` plays cluster and client.

mod embedded;
mod java;
mod place;
mod screen;
mod traffic;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::interrupt;
use crate::kafka::{self, Cluster};
use crate::turnout::{Gateway, VIRTUAL_CLUSTER};
use java::Java;
use place::Place;
use screen::{Connections, Passed, Screen, grouped, megabytes, millis};
use traffic::{Plan, Report};

const TOPIC: &str = "demo";
const PARTITIONS: i32 = 6;
/// Records a second: a load that two processors carry beside three brokers.
const RATE: u32 = 4000;
const RECORD: usize = 1000;
const RACKS: [&str; 3] = ["az1", "az2", "az3"];

/// Real Kafka traffic through turnout: a live table, and a check that every record arrived once and in order.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask demo")]
pub struct Args {
    /// How long records are written
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Leave cluster and gateway running until Ctrl-C
    #[arg(long)]
    pub keep: bool,
    /// Stay on loopback also where hosts of their own can be had (network namespaces; root)
    #[arg(long)]
    pub loopback: bool,
}

/// Runs it.
///
/// # Errors
/// Cluster, gateway or client can't be started, or a record was lost, doubled or out of order; in one sentence.
pub fn run(args: &Args) -> Result<()> {
    match Java::prepare() {
        Ok(java) => real(args, &java),
        Err(why) => {
            println!("An embedded test broker stands in for Apache Kafka, which can't be had here: {why:#}");
            embedded::run(args)
        }
    }
}

fn real(args: &Args, java: &Java) -> Result<()> {
    let place = Place::find(args.loopback, RACKS.len() as u8);
    place.introduce();
    println!("Apache Kafka {}: starting three brokers in the racks {}", kafka::VERSION, RACKS.join(", "));
    let _one_cluster = kafka::heavy()?;
    let begin = Instant::now();
    let cluster = Cluster::builder().name("demo").brokers(3).racks(&RACKS);
    let cluster = place.world().into_iter().fold(cluster, |cluster, world| cluster.world(world)).start()?;
    println!("the cluster is ready after {:.0} s; starting turnout in front of it", begin.elapsed().as_secs_f64());
    let gateway = place.settle(Gateway::before(&cluster)).start()?;
    introduce(&gateway, &cluster.bootstrap())?;
    if place.world().is_some() {
        println!("turnout's fast path is {}", gateway.status()?.fast_path);
    }
    println!("starting a client (Apache Kafka's Java library)\n");
    let plan = plan(args, cluster.bootstrap(), &gateway);
    let running = java.start(&plan, place.client())?;
    let report = watch(args, &gateway, &running.reports)?;
    drop(running);
    conclude(args, &place, &gateway, &report)
}

fn plan(args: &Args, direct: String, gateway: &Gateway) -> Plan {
    Plan {
        direct,
        gateway: gateway.bootstrap(),
        topic: TOPIC,
        partitions: PARTITIONS,
        seconds: args.seconds,
        rate: RATE,
        size: RECORD,
    }
}

fn introduce(gateway: &Gateway, direct: &str) -> Result<()> {
    let brokers: Vec<_> = (1..=3).map(|node| Ok(gateway.broker_addr(node)?.to_string())).collect::<Result<_>>()?;
    println!("turnout is ready: clients dial {}, and find the brokers at {}", gateway.bootstrap(), brokers.join(", "));
    println!("the brokers themselves are at {direct}");
    Ok(())
}

/// Shows the table while the traffic runs.
fn watch(args: &Args, gateway: &Gateway, reports: &std::sync::mpsc::Receiver<Result<Report>>) -> Result<Report> {
    let mut screen = Screen::new(args.seconds);
    traffic::follow(reports, Duration::from_secs(120), |report| {
        screen.show(report, connections(gateway), passed(gateway).ok());
    })
}

fn connections(gateway: &Gateway) -> Option<Connections> {
    let status = gateway.status().ok()?;
    let virtual_cluster = status.virtual_clusters.get(VIRTUAL_CLUSTER)?;
    Some(Connections { open: virtual_cluster.connections, accepted: virtual_cluster.accepted })
}

fn passed(gateway: &Gateway) -> Result<Passed> {
    Ok(Passed::of(gateway.passed_on()?))
}

/// Judges, and keeps everything running where that is asked for.
fn conclude(args: &Args, place: &Place, gateway: &Gateway, report: &Report) -> Result<()> {
    report.check(|address| gateway.owns(address))?;
    gateway.check_quiet(&[])?;
    println!(
        "\nEvery record arrived once and in order: {} records in {PARTITIONS} partitions, {}, in {} s.",
        grouped(report.read),
        megabytes(report.bytes),
        report.seconds,
    );
    println!(
        "Latency of the whole run, p50 / p99: direct {} / {}, through turnout {} / {}.",
        millis(report.direct.p50),
        millis(report.direct.p99),
        millis(report.gateway.p50),
        millis(report.gateway.p99),
    );
    println!("{}", passed(gateway).context("reading turnout's metrics")?.summary());
    println!("The client was told no address but turnout's.");
    if args.keep {
        keep(place, gateway)?;
    }
    let ended = gateway.stop(Duration::from_secs(40)).context("stopping turnout")?;
    ensure!(ended.success(), "turnout ended with {ended} instead of a clean drain");
    Ok(())
}

/// Prints how to try it, and waits for Ctrl-C, whose handler cleans up and ends the process.
fn keep(place: &Place, gateway: &Gateway) -> Result<()> {
    let (bootstrap, on_client) = (gateway.bootstrap(), place.prefix());
    let turnout = crate::turnout::binary()?;
    let config = gateway.config_path();
    let socket = config.with_file_name("turnout.sock");
    println!(
        "\nCluster and gateway keep running until Ctrl-C. In another terminal:\n\n  \
         {on_client}kcat -b {bootstrap} -L\n  \
         echo hello | {on_client}kcat -b {bootstrap} -P -t {TOPIC}\n  \
         {on_client}kcat -b {bootstrap} -C -t {TOPIC} -o -3 -e\n  \
         {} status --connections --socket {}\n\n\
         Its config: {}",
        turnout.display(),
        socket.display(),
        config.display(),
    );
    interrupt::expected();
    while gateway.process().is_running() {
        std::thread::sleep(Duration::from_millis(500));
    }
    anyhow::bail!("turnout ended by itself:\n{}", gateway.process().log_tail(20))
}
