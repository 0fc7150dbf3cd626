//! SYNs of sources that don't exist.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::*;

/// Bounds of the flood.
const MOST: u32 = 1_000_000;
const LASTS: Duration = Duration::from_secs(5);

fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for pair in parts.concat().chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv4 packet with a SYN (RFC 791, RFC 9293). The kernel fills in the header's checksum of a raw socket.
fn syn(source: SocketAddrV4, destination: SocketAddrV4, sequence: u32) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&40u16.to_be_bytes());
    (packet[8], packet[9]) = (64, 6);
    packet[12..16].copy_from_slice(&source.ip().octets());
    packet[16..20].copy_from_slice(&destination.ip().octets());
    packet[20..22].copy_from_slice(&source.port().to_be_bytes());
    packet[22..24].copy_from_slice(&destination.port().to_be_bytes());
    packet[24..28].copy_from_slice(&sequence.to_be_bytes());
    (packet[32], packet[33]) = (0x50, 0x02);
    packet[34..36].copy_from_slice(&64_000u16.to_be_bytes());
    let sum = checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Sends SYNs of ever other sources from the namespace of the calling thread; how many.
fn flood(to: SocketAddrV4, stop: &AtomicBool) -> Result<u32> {
    let socket =
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).context("a raw socket")?;
    let begin = Instant::now();
    let mut sent = 0;
    while sent < MOST && begin.elapsed() < LASTS && !stop.load(Ordering::Relaxed) {
        // 198.18.0.0/15 is for benchmarks (RFC 2544): no host of a test has such an address.
        let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) | (sent.wrapping_mul(2_654_435_761) >> 15));
        let packet = syn(SocketAddrV4::new(source, 1024 + (sent % 60_000) as u16), to, sent);
        if socket.send_to(&packet, &SocketAddr::V4(to).into()).is_ok() {
            sent += 1;
        }
    }
    Ok(sent)
}

#[test]
fn a_flood_of_spoofed_syns_keeps_no_real_client_out() -> Result<()> {
    need_edge!();
    let rules = "admission: {new_connections: {rate: 200/s, burst: 400}}";
    let stage = Stage::start(&[1, 2], |builder| builder.top_line(rules))?;
    let SocketAddr::V4(target) = stage.bootstrap(1, false) else { anyhow::bail!("not IPv4") };
    let admitted = || Ok::<_, anyhow::Error>(stage.gateway.metrics()?.sum("turnout_edge_admitted_total", &[]));
    let before = admitted()?;
    let stop = AtomicBool::new(false);
    let (sent, calm, stormy) = std::thread::scope(|scope| -> Result<_> {
        let calm = connects(&stage)?;
        let flooding = scope.spawn(|| stage.world.client(1).netns.run(|| flood(target, &stop)));
        std::thread::sleep(Duration::from_millis(200));
        let stormy = connects(&stage);
        let lasted = !flooding.is_finished();
        stop.store(true, Ordering::Relaxed);
        let sent = flooding.join().map_err(|_| anyhow::anyhow!("the flood panicked"))???;
        let stormy = stormy?;
        ensure!(lasted, "the flood of {sent} SYNs ended before the real clients were done");
        Ok((sent, calm, stormy))
    })?;
    println!("{sent} SYNs; connects took at most {calm:?} before, {stormy:?} during the flood");
    ensure!(sent > 5_000, "only {sent} SYNs were sent");
    // Each spoofed source is one of its own, so the rate lets them pass, and SYN cookies bear them.
    let seen = admitted()? - before;
    ensure!(seen > f64::from(sent) / 2.0, "admission saw {seen} of {sent}");
    Ok(())
}

/// A hundred real connections, each with a call; how long the slowest took to be opened. One that needs a second SYN
/// (after a second) fails.
fn connects(stage: &Stage) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    for n in 0..100 {
        let begin = Instant::now();
        let netns = &stage.world.client(0).netns;
        let to = stage.at(0, 1 + n % 2, false);
        let mut stream =
            netns.run(|| connect(None, to, PROMPT))?.with_context(|| format!("connection {n}, slowest {slowest:?}"))?;
        slowest = slowest.max(begin.elapsed());
        ensure!(call(&mut stream)? == 1 + n % 2);
    }
    Ok(slowest)
}
