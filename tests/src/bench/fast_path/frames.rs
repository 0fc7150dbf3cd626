//! Raw frames against a mock broker: what a spliced byte and a spliced request cost.
//!
//! The requests are Produce v9 with acks 1, which the kernel passes on, and so are their answers, whatever is in them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::{ApiVersionsRequest, HeartbeatRequest};

use super::hosts::{Hosts, Way, broker};
use super::links::give_queues;
use crate::bench::args::Args;
use crate::bench::counters::CpuSpent;
use crate::bench::report::{Bound, FAST_PATH, Metric, Report};
use crate::bench::subject::{BARE, ROUTED, Subject, USERSPACE, in_turn};
use crate::bench::synthetic::{FastBroker, Latency, Moved, PACE, Template, load, paced};
use crate::bench::{progress, record_cpu};
use crate::netns::World;
use crate::raw::request;

const PORT: u16 = 9092;
/// How long connections may take to become spliced.
const PATIENCE: Duration = Duration::from_secs(3);

/// A kind of load.
struct Shape {
    name: &'static str,
    /// Bytes of the record in a request, and of the answer.
    request: usize,
    answer: usize,
    connections: usize,
    depth: usize,
}

const SMALL: Shape =
    Shape { name: "1 KB requests, 16 connections × 1", request: 1000, answer: 60, connections: 16, depth: 1 };
const MIDDLE: Shape =
    Shape { name: "16 KB requests, 4 connections × 4", request: 16_000, answer: 60, connections: 4, depth: 4 };
const LARGE: Shape = Shape {
    name: "200 KB requests and answers, 4 connections × 2",
    request: 200_000,
    answer: 200_000,
    connections: 4,
    depth: 2,
};

impl Shape {
    fn workload(&self) -> String {
        format!("{FAST_PATH}{}", self.name)
    }
}

/// Runs the workloads.
///
/// # Errors
/// A subject can't be started or breaks.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    let world = Arc::new(World::builder().brokers(1).build()?);
    let bare = World::builder().brokers(1).build()?;
    let _brokers = [mock(&world)?, mock(&bare)?];
    let address = broker(&world, 0, PORT);
    let hosts = Hosts::start(&world, &[address], &[address])?;
    let mut ways = hosts.ways()?;
    // The address is the same in its own world.
    let subject = Subject::new(BARE, &address.to_string(), None);
    give_queues(&bare)?;
    let brokers = vec![&bare.brokers()[0].netns];
    ways.push(Way { subject, client: &bare.client(0).netns, brokers, fast: None });
    report.conditions.push(format!(
        "fast path stage: the gateway says \"{}\"; haproxy {}",
        hosts.words()?,
        hosts.haproxy_version()
    ));

    let duration = Duration::from_millis(if args.quick { 1500 } else { 4000 });
    let is_wanted = |shape: &&Shape| args.workload.as_ref().is_none_or(|words| shape.name.contains(words.as_str()));
    for shape in [&SMALL, &MIDDLE, &LARGE].into_iter().filter(is_wanted) {
        let template = Template::sized(shape.request, shape.answer)?;
        for round in 0..args.rounds() {
            for way in in_turn(&ways, round) {
                saturate(report, way, shape, &template, duration)
                    .with_context(|| format!("{}, {}", shape.name, way.subject.name))?;
            }
        }
        if shape.depth == 1 {
            for round in 0..args.rounds() {
                for way in in_turn(&ways, round) {
                    pace(report, way, shape, &template, duration)
                        .with_context(|| format!("{} at a fixed rate, {}", shape.name, way.subject.name))?;
                }
            }
        }
    }
    judge(report);
    report.conditions.extend(hosts.trouble());
    Ok(())
}

fn judge(report: &mut Report) {
    report.judge_fast(&SMALL.workload(), Metric::RequestCpu, ROUTED, Bound::AtMost(1.15));
    for shape in [MIDDLE, LARGE] {
        report.judge_fast(&shape.workload(), Metric::SystemCpu, ROUTED, Bound::AtMost(1.25));
        report.judge_fast(&shape.workload(), Metric::Throughput, USERSPACE, Bound::AtLeast(1.6));
    }
    report.judge_fast(&paced_workload(&SMALL), Metric::P99, ROUTED, Bound::AtMost(1.15));
}

fn paced_workload(shape: &Shape) -> String {
    format!("{} at a fixed rate", shape.workload())
}

fn mock(world: &World) -> Result<FastBroker> {
    world.brokers()[0].netns.run(|| FastBroker::start_at(broker(world, 0, PORT), &[]))?
}

/// What a run through one way gave.
struct Outcome<T> {
    result: T,
    cpu: CpuSpent,
    kernel_share: Option<f64>,
    retransmitted: u64,
    why_not_spliced: Option<String>,
}

/// Opens connections on the client's host, lets them become spliced where they may, and runs a load on them.
fn on_connections<T: Send>(
    way: &Way<'_>,
    connections: usize,
    run: impl FnOnce(Vec<TcpStream>) -> Result<T> + Send,
) -> Result<Outcome<T>> {
    let address = way.subject.first_address()?;
    // Threads that the load starts are on the same host.
    way.client.run(|| {
        let mut streams = load::open(address, connections)?;
        streams.iter_mut().try_for_each(greet)?;
        let why_not_spliced = way.why_not_spliced(&streams, PATIENCE)?;
        streams.iter_mut().try_for_each(heartbeat)?;
        // Those whose counters are read must not be gone by then.
        let _held: Vec<_> = streams.iter().map(TcpStream::try_clone).collect::<std::io::Result<_>>()?;
        let (passed, before) = (way.passed()?, way.retransmitted()?);
        let (result, cpu) = way.subject.measure(|| run(streams))?;
        let retransmitted = way.retransmitted()? - before;
        Ok(Outcome { result, cpu, kernel_share: way.kernel_share(passed)?, retransmitted, why_not_spliced })
    })?
}

fn saturate(report: &mut Report, way: &Way<'_>, shape: &Shape, template: &Template, duration: Duration) -> Result<()> {
    let run = |streams| load::run_on(streams, template, shape.depth, duration);
    let outcome = on_connections(way, shape.connections, run)?;
    let Moved { requests, bytes, elapsed } = outcome.result;
    let (workload, subject) = (shape.workload(), &way.subject);
    let (seconds, bytes) = (elapsed.as_secs_f64(), bytes as f64);
    progress(&format!("{workload}: {} {:.0} req/s", subject.name, requests as f64 / seconds));
    report.add(&workload, Metric::Requests, &subject.name, requests as f64 / seconds);
    report.add(&workload, Metric::Throughput, &subject.name, bytes / seconds / 1e6);
    record_cpu(report, &workload, subject, outcome.cpu, bytes);
    record(report, &workload, subject, &outcome, requests as f64);
    Ok(())
}

fn pace(report: &mut Report, way: &Way<'_>, shape: &Shape, template: &Template, duration: Duration) -> Result<()> {
    let slowest = report.slowest(&shape.workload(), Metric::Requests).context("latency before throughput")?;
    let rate = slowest * PACE;
    let run = |streams| paced::run_on(streams, template, rate, duration);
    let outcome = on_connections(way, shape.connections, run)?;
    let Latency { p50, p99, p999 } = outcome.result;
    let (workload, subject) = (paced_workload(shape), &way.subject);
    progress(&format!("{workload}, {rate:.0} req/s: {} p50 {p50:.0} µs, p99 {p99:.0} µs", subject.name));
    for (metric, value) in [(Metric::P50, p50), (Metric::P99, p99), (Metric::P999, p999)] {
        report.add(&workload, metric, &subject.name, value);
    }
    record(report, &workload, subject, &outcome, rate * duration.as_secs_f64());
    Ok(())
}

fn record<T>(report: &mut Report, workload: &str, subject: &Subject, outcome: &Outcome<T>, requests: f64) {
    report.add(workload, Metric::RequestCpu, &subject.name, outcome.cpu.system * 1e6 / requests);
    report.add(workload, Metric::Retransmitted, &subject.name, outcome.retransmitted as f64);
    if let Some(share) = outcome.kernel_share {
        report.add(workload, Metric::KernelShare, &subject.name, share);
    }
    if let Some(why) = &outcome.why_not_spliced {
        let line = format!("fast path stage: NOT SPLICED, {workload}: {why}");
        if !report.conditions.contains(&line) {
            progress(&line);
            report.conditions.push(line);
        }
    }
}

/// What a client says first, and one request that makes a gateway dial its broker and may go the kernel's way.
fn greet(stream: &mut TcpStream) -> Result<()> {
    call(stream, &request(0, 1, &ApiVersionsRequest::default())?)?;
    heartbeat(stream)
}

fn heartbeat(stream: &mut TcpStream) -> Result<()> {
    call(stream, &request(1, 2, &HeartbeatRequest::default())?)
}

fn call(stream: &mut TcpStream, frame: &[u8]) -> Result<()> {
    stream.write_all(frame)?;
    let mut head = [0; 8];
    stream.read_exact(&mut head).context("waiting for an answer")?;
    let [size, id] = [[head[0], head[1], head[2], head[3]], [head[4], head[5], head[6], head[7]]];
    ensure!(id == frame[8..12], "an answer with another correlation id");
    let left = usize::try_from(i32::from_be_bytes(size))?.checked_sub(4).context("an answer without an id")?;
    let mut body = vec![0; left];
    stream.read_exact(&mut body).context("inside an answer")
}
