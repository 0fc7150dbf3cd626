//! The kernel's edge beside the same without it: new connections by steering and by one bind for each port, and what
//! the XDP program costs a packet on a veth.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ::turnout::gateway::edge::{AdmissionRules, Edge as _, Port, PortTable, Slot};
use ::turnout::kernel::{self, KernelEdge};
use anyhow::{Context, Result, anyhow, ensure};
use proxy_common::admission::Prefix;
use socket2::{Domain, Protocol, Socket, Type};

use super::args::Args;
use super::counters::Cpu;
use super::progress;
use super::report::{Metric, Report};
use super::stats::percentile;
use super::subject::{BASE, EDGE};
use crate::mock::Mock;
use crate::netns::Netns;
use crate::turnout::Gateway;
use crate::wait;

const SOON: Duration = Duration::from_secs(20);
/// When no more connections are accepted for this long, those that were are all.
const SETTLED: Duration = Duration::from_millis(500);
/// Callers that connect at the same time, so that more than one connection waits to be accepted.
const CALLERS: usize = 8;
/// Prefixes in the deny list while packets are counted: a long one.
const DENIED: u32 = 10_000;

/// Runs the stage. Where the programs can't be loaded it is left out, and the report says so.
///
/// # Errors
/// A gateway or a namespace can't be had.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    // SAFETY: the call takes nothing and can't fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || kernel::object().is_none() {
        report.conditions.push("edge stage: left out, it needs root and a build with kernel programs".into());
        return Ok(());
    }
    report.conditions.push(
        "edge stage: base is one bind for each port, or no XDP program; edge is steering, or the program in native mode"
            .into(),
    );
    // More would leave no block of adjacent ports free beside the mock brokers' own.
    for brokers in [1, 100] {
        accepts(args, report, brokers, 1)?;
    }
    accepts(args, report, 100, CALLERS)?;
    packets(args, report)
}

/// New connections that send nothing, over loopback, to ports in turn, from so many callers.
fn accepts(args: &Args, report: &mut Report, brokers: u16, callers: usize) -> Result<()> {
    let workload = match callers {
        1 => format!("new connections, {brokers} virtual brokers"),
        _ => format!("new connections, {brokers} virtual brokers, {callers} callers"),
    };
    let nodes: Vec<i32> = (1..=i32::from(brokers)).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mock: Arc<Mock> = Arc::new(runtime.block_on(Mock::builder().brokers(&nodes).start())?);
    let start = |mode: &str| -> Result<Gateway> {
        let builder = Gateway::before_addresses(&mock.bootstrap(), 1).broker_count(brokers + 1);
        let gateway =
            builder.fast_path(mode).log_level("warn").top_line("admission: {deny: [203.0.113.0/24]}").start()?;
        let last = gateway.broker_addr(i32::from(brokers))?;
        wait::until("the last broker's port", SOON, || {
            std::net::TcpStream::connect(last).map(drop).with_context(|| last.to_string())
        })?;
        Ok(gateway)
    };
    let subjects = [(BASE, start("off")?), (EDGE, start("required")?)];
    let duration = Duration::from_millis(if args.quick { 800 } else { 3000 });
    for round in 0..args.rounds() {
        for turn in 0..2 {
            let (name, gateway) = &subjects[(round + turn) % 2];
            let addresses: Vec<_> = nodes.iter().map(|&node| gateway.broker_addr(node)).collect::<Result<_>>()?;
            let accepted = || -> Result<f64> { Ok(gateway.metrics()?.sum("turnout_connections_accepted_total", &[])) };
            let (before, begin) = (accepted()?, Instant::now());
            let mut latencies = connects_of(callers, &addresses, duration)?;
            // One that found the queue of its socket full was open to its caller alone: not all need arrive.
            let mut done = accepted()? - before;
            let mut last = begin.elapsed();
            while done < latencies.len() as f64 && begin.elapsed() < last + SETTLED {
                thread::sleep(Duration::from_millis(5));
                let now = accepted()? - before;
                if now > done {
                    (done, last) = (now, begin.elapsed());
                }
            }
            let rate = done / last.as_secs_f64();
            latencies.sort_unstable();
            progress(&format!("{workload}: {name} {rate:.0}/s"));
            report.add(&workload, Metric::Connections, name, rate);
            for (metric, share) in [(Metric::P50, 0.5), (Metric::P99, 0.99)] {
                report.add(&workload, metric, name, percentile(&latencies, share) as f64 / 1e3);
            }
        }
    }
    Ok(())
}

/// As [`connects`], from so many threads; each begins at another address.
fn connects_of(callers: usize, addresses: &[SocketAddr], duration: Duration) -> Result<Vec<u64>> {
    thread::scope(|scope| {
        let callers: Vec<_> = (0..callers)
            .map(|caller| {
                let (before, from) = addresses.split_at(caller % addresses.len());
                let addresses = [from, before].concat();
                scope.spawn(move || connects(&addresses, duration))
            })
            .collect();
        let mut all = Vec::new();
        for caller in callers {
            all.extend(caller.join().map_err(|_| anyhow!("a caller panicked"))??);
        }
        Ok(all)
    })
}

/// Connects one after the other for a while; how long each took, in nanoseconds. Each is reset, so that no port waits.
fn connects(addresses: &[SocketAddr], duration: Duration) -> Result<Vec<u64>> {
    let (mut latencies, begin) = (Vec::new(), Instant::now());
    for address in addresses.iter().cycle() {
        if begin.elapsed() >= duration {
            break;
        }
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let started = Instant::now();
        socket.connect(&(*address).into()).with_context(|| format!("connecting to {address}"))?;
        latencies.push(u64::try_from(started.elapsed().as_nanos())?);
        socket.set_linger(Some(Duration::ZERO))?;
    }
    Ok(latencies)
}

/// What a packet costs the whole system on its way from one namespace into another.
fn packets(args: &Args, report: &mut Report) -> Result<()> {
    const HERE: Ipv4Addr = Ipv4Addr::new(10, 81, 0, 1);
    const PORT: u16 = 9092;
    let (sender, receiver) = (Netns::create("send")?, Netns::create("receive")?);
    receiver.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", sender.name()])?;
    for (netns, address) in [(&receiver, "10.81.0.1/24"), (&sender, "10.81.0.2/24")] {
        netns.ip(&["address", "add", address, "dev", "eth0"])?;
        netns.ip(&["link", "set", "eth0", "up"])?;
    }
    let sink = receiver.run(|| UdpSocket::bind((HERE, 7000)))??;
    let pin = PathBuf::from(format!("/sys/fs/bpf/turnout-test-{}-bench", std::process::id()));
    let mut fewest = 1.0f64;
    let counted = receiver.run(|| -> Result<()> {
        let edge = KernelEdge::open(&pin)?;
        let port = Port { slot: Slot(1), open: false };
        edge.set_ports(&PortTable::from([(SocketAddrV4::new(HERE, PORT).into(), port)]))?;
        // 100.64.0.0/10: nobody's here.
        let first = u32::from(Ipv4Addr::new(100, 64, 0, 0));
        let deny = (0..DENIED).filter_map(|n| Prefix::new(Ipv4Addr::from(first + n * 256).into(), 24)).collect();
        edge.set_admission(&AdmissionRules { deny, ..AdmissionRules::default() })?;
        let interface = ["eth0".to_owned()];
        let many = if args.quick { 150_000 } else { 600_000 };
        for (workload, packet) in [
            ("packet of another port (UDP) on veth", Packet::Udp(SocketAddrV4::new(HERE, 7000))),
            ("packet of a port of ours (ACK, answered by RST) on veth", Packet::Ack(SocketAddrV4::new(HERE, PORT))),
        ] {
            for round in 0..args.rounds() {
                for turn in 0..2 {
                    let name = [BASE, EDGE][(round + turn) % 2];
                    edge.set_interfaces(Some(if name == EDGE { &interface } else { &[] }));
                    let status = edge.status().interfaces;
                    let native = status.iter().any(|interface| interface.mode == Some("native"));
                    ensure!(native == (name == EDGE), "{name}: {status:?}");
                    // A veth changes its ways with the program: let it settle.
                    thread::sleep(Duration::from_millis(100));
                    let (before, seen) = (Cpu::read(None)?, packet.seen()?);
                    sender.run(|| packet.send(many))??;
                    // What lies in a queue is worked off.
                    thread::sleep(Duration::from_millis(50));
                    let (cpu, arrived) = (Cpu::read(None)?.since(before).system, packet.seen()? - seen);
                    ensure!(arrived > 0 && arrived <= u64::from(many) + 10, "{arrived} of {many} packets arrived");
                    fewest = fewest.min(arrived as f64 / f64::from(many));
                    let cost = cpu * 1e9 / arrived as f64;
                    progress(&format!("{workload}: {name} {cost:.0} ns, {arrived} of {many} arrived"));
                    report.add(workload, Metric::PacketCpu, name, cost);
                }
            }
        }
        Ok(())
    });
    drop(sink);
    let cleared = kernel::detach(&pin, true);
    counted??;
    report.conditions.push(format!(
        "packets on veth: CPU over those that the receiver's stack counted; in the worst round {:.1} % of those sent",
        fewest * 100.0
    ));
    cleared.map(drop).context("taking the programs off again")
}

#[derive(Clone, Copy)]
enum Packet {
    Udp(SocketAddrV4),
    Ack(SocketAddrV4),
}

impl Packet {
    /// Sends many from the namespace of the calling thread.
    fn send(self, many: u32) -> Result<()> {
        let (socket, bytes, to) = match self {
            Self::Udp(to) => (Socket::new(Domain::IPV4, Type::DGRAM, None)?, vec![0; 64], to),
            Self::Ack(to) => {
                let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP))?;
                (raw, ack(Ipv4Addr::new(10, 81, 0, 2), to), to)
            }
        };
        for _ in 0..many {
            // A full queue is the receiver's to show, not an error of the sender's.
            let _ = socket.send_to(&bytes, &SocketAddr::V4(to).into());
        }
        Ok(())
    }
}

impl Packet {
    /// Packets of this kind that the stack of the calling thread's namespace has taken in (`/proc/net/snmp`), whatever
    /// became of them.
    fn seen(self) -> Result<u64> {
        let (protocol, fields): (_, &[&str]) = match self {
            Self::Udp(_) => ("Udp:", &["InDatagrams", "NoPorts", "InErrors"]),
            Self::Ack(_) => ("Tcp:", &["InSegs"]),
        };
        // The process's own file is that of its first thread.
        let text = fs::read_to_string("/proc/thread-self/net/snmp").context("reading /proc/thread-self/net/snmp")?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol));
        let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
        let counts = names.split_whitespace().zip(values.split_whitespace());
        let mine = counts.filter(|(name, _)| fields.contains(name));
        mine.map(|(name, count)| count.parse::<u64>().with_context(|| name.to_owned())).sum()
    }
}

/// A TCP header with ACK alone (RFC 9293); the kernel puts the IP header before it.
fn ack(from: Ipv4Addr, to: SocketAddrV4) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..2].copy_from_slice(&40_000u16.to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    (header[12], header[13]) = (0x50, 0x10);
    let pseudo = [&from.octets()[..], &to.ip().octets(), &[0, 6, 0, 20]].concat();
    let mut sum: u32 =
        pseudo.chunks(2).chain(header.chunks(2)).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    header
}
