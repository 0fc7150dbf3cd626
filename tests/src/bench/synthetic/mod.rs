//! Raw frames against a broker that costs next to nothing: the proxies' own cost, and memory per connection.

mod broker;
pub(crate) mod load;
pub(crate) mod paced;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use kafka_protocol::messages::MetadataRequest;

pub(crate) use broker::FastBroker;
pub(crate) use load::Moved;
pub(crate) use paced::Latency;
pub(crate) use wire::Template;

use super::args::Args;
use super::counters::Memory;
use super::haproxy::Haproxy;
use super::report::{Metric, Report};
use super::subject::{DIRECT, HAPROXY, Subject, TURNOUT, in_turn};
use super::{progress, record_cpu, record_memory};
use crate::ports;
use crate::raw::blocking::Connection;
use crate::turnout::Gateway;

const MEMORY: &str = "1 000 idle connections";
const IDLE: usize = 1000;
/// Share of the slowest subject's throughput at which latency is measured.
pub(crate) const PACE: f64 = 0.6;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Produce,
    Fetch,
}

/// A kind of load.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    kind: Kind,
    size: usize,
    connections: usize,
    depth: usize,
    /// Whether latency is measured too.
    paced: bool,
}

const SHAPES: [Shape; 6] = {
    use Kind::{Fetch, Produce};
    const fn shape(n: &'static str, kind: Kind, size: usize, connections: usize, depth: usize, paced: bool) -> Shape {
        Shape { name: n, kind, size, connections, depth, paced }
    }
    [
        shape("Produce 1 KB, 64 connections × 1", Produce, 1_000, 64, 1, true),
        shape("Produce 1 KB, 16 connections × 8", Produce, 1_000, 16, 8, false),
        shape("Produce 16 KB, 16 connections × 4", Produce, 16_000, 16, 4, true),
        shape("Produce 200 KB, 4 connections × 4", Produce, 200_000, 4, 4, false),
        shape("Fetch 200 KB, 16 connections × 1", Fetch, 200_000, 16, 1, true),
        shape("Fetch 1 MB, 4 connections × 1", Fetch, 1_000_000, 4, 1, false),
    ]
};

impl Shape {
    fn template(&self) -> Result<Template> {
        match self.kind {
            Kind::Produce => Template::produce(wire::TOPIC, self.size),
            Kind::Fetch => Template::fetch(wire::TOPIC, self.size),
        }
    }
}

/// As fast as it goes; see [`load::run`].
///
/// # Errors
/// As there.
pub(crate) fn saturate(
    address: SocketAddr,
    template: &Template,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<Moved> {
    load::run(address, template, connections, depth, duration)
}

/// At a share of the slowest subject's rate in `workload`; the percentiles become samples.
///
/// # Errors
/// A connection is refused or closed, or an answer is out of order.
pub(super) fn pace(
    report: &mut Report,
    workload: &str,
    subject: &Subject,
    address: SocketAddr,
    template: &Template,
    connections: usize,
    duration: Duration,
) -> Result<()> {
    let slowest = report.slowest(workload, Metric::Requests).context("latency before throughput")?;
    let latency = paced::run(address, template, connections, slowest * PACE, duration)?;
    progress(&format!(
        "{workload}, {:.0} req/s: {} p50 {:.0} µs, p99 {:.0} µs",
        slowest * PACE,
        subject.name,
        latency.p50,
        latency.p99
    ));
    let Latency { p50, p99, p999 } = latency;
    for (metric, value) in [(Metric::P50, p50), (Metric::P99, p99), (Metric::P999, p999)] {
        report.add(workload, metric, &subject.name, value);
    }
    Ok(())
}

/// Runs the stage.
///
/// # Errors
/// A subject can't be started or breaks.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    let fetch_sizes: Vec<_> =
        SHAPES.iter().filter(|shape| matches!(shape.kind, Kind::Fetch)).map(|shape| shape.size).collect();
    let broker = FastBroker::start(&fetch_sizes)?;
    let direct = broker.address();
    let front = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::one()?));
    let haproxy = Haproxy::start(&[(front, direct)])?;
    let gateway = Gateway::before_addresses(&direct.to_string(), broker::NODE).log_level("warn").start()?;
    let subjects = [
        Subject::new(DIRECT, &direct.to_string(), None),
        Subject::new(TURNOUT, &gateway.broker_addr(broker::NODE)?.to_string(), Some(gateway.process().pid())),
        Subject::new(HAPROXY, &front.to_string(), Some(haproxy.pid())),
    ];
    report.conditions.push(format!(
        "synthetic stage: one mock broker and the load, both threads of the bench itself; haproxy {}",
        haproxy.version()
    ));

    for subject in &subjects {
        memory_of_idle_connections(report, subject)?;
    }
    let duration = Duration::from_millis(if args.quick { 1500 } else { 4000 });
    let is_wanted = |shape: &Shape| args.workload.as_ref().is_none_or(|words| shape.name.contains(words.as_str()));
    for shape in SHAPES.into_iter().filter(is_wanted) {
        let template = shape.template()?;
        let workload = format!("mock: {}", shape.name);
        for round in 0..args.rounds() {
            for subject in in_turn(&subjects, round) {
                let address = subject.first_address()?;
                let run = || load::run(address, &template, shape.connections, shape.depth, duration);
                let (moved, cpu) = subject.measure(run).with_context(|| format!("{workload}, {}", subject.name))?;
                let Moved { requests, bytes, elapsed } = moved;
                let per_second = requests as f64 / elapsed.as_secs_f64();
                progress(&format!("{workload}: {} {per_second:.0} req/s", subject.name));
                report.add(&workload, Metric::Requests, &subject.name, per_second);
                report.add(&workload, Metric::Throughput, &subject.name, bytes as f64 / elapsed.as_secs_f64() / 1e6);
                record_cpu(report, &workload, subject, cpu, bytes as f64);
            }
        }
        for round in 0..if shape.paced { args.rounds() } else { 0 } {
            for subject in in_turn(&subjects, round) {
                let address = subject.first_address()?;
                pace(report, &workload, subject, address, &template, shape.connections, duration)?;
            }
        }
    }
    for subject in &subjects {
        record_memory(report, "mock: all of the above", subject)?;
    }
    report.judge_at_most(MEMORY, Metric::RestingMemory, 20.0);
    Ok(())
}

fn memory_of_idle_connections(report: &mut Report, subject: &Subject) -> Result<()> {
    let Some(pid) = subject.pid else { return Ok(()) };
    let address = subject.first_address()?;
    let before = Memory::read(pid)?;
    let connections: Vec<Connection> = (0..IDLE)
        .map(|_| {
            // One answered request, so that the proxy has its connection to the broker too.
            let mut connection = Connection::open(address, None, load::PATIENCE)?;
            connection.call(9, &MetadataRequest::default().with_topics(Some(Vec::new())))?;
            Ok(connection)
        })
        .collect::<Result<_>>()?;
    thread::sleep(Duration::from_millis(500));
    let during = Memory::read(pid)?;
    drop(connections);
    let each = (during.resident as f64 - before.resident as f64) / IDLE as f64 / 1024.0;
    progress(&format!("memory: {} {:.1} MiB at rest, {each:.1} KiB a connection", subject.name, mib(before.resident)));
    report.add(MEMORY, Metric::RestingMemory, &subject.name, mib(before.resident));
    report.add(MEMORY, Metric::ConnectionMemory, &subject.name, each);
    // The proxy notices the ends in its own time; the next measurement shall not pay for it.
    thread::sleep(Duration::from_millis(500));
    drop(TcpStream::connect(address));
    Ok(())
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
