//! What a process holds, read from `/proc`: whom it is connected to, and the most memory it ever had.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

/// How often a [`Watch`] looks. A connection that lives shorter may be missed, those of a client that works don't.
const INTERVAL: Duration = Duration::from_millis(10);

/// `TCP_LISTEN` in `/proc/net/tcp`: such a socket has no peer.
const LISTEN: &str = "0A";

/// The remote addresses of all TCP sockets that a process holds now, attempts to connect included.
///
/// # Errors
/// It has ended.
pub fn peers(pid: i32) -> Result<BTreeSet<SocketAddr>> {
    let mut inodes = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).context("no descriptors: the process has ended")? {
        // A descriptor may be closed between the listing and the look.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        inodes.extend(target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')).map(str::to_owned));
    }
    let mut found = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        found.extend(text.lines().skip(1).filter_map(|line| peer(line, &inodes)));
    }
    Ok(found)
}

/// The remote address of a line of `/proc/net/tcp` or `tcp6` whose socket is one of `inodes`.
fn peer(line: &str, inodes: &BTreeSet<String>) -> Option<SocketAddr> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let (remote, state, inode) = (fields.get(2)?, fields.get(3)?, fields.get(9)?);
    (*state != LISTEN && inodes.contains(*inode)).then(|| address(remote))?
}

/// Reads `0100007F:2382`: words of four bytes as the host stores them, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(host.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let host = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for n in 0..4 {
                bytes[n * 4..n * 4 + 4].copy_from_slice(&word(n * 8)?);
            }
            // A socket for both families shows IPv4 peers as mapped ones.
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, port))
}

/// Gathers the peers of a process for as long as it is held.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<BTreeSet<SocketAddr>>>,
}

impl Watch {
    /// Begins to look.
    #[must_use]
    pub fn start(pid: i32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stopped.load(Ordering::Relaxed) {
                // An ended process has no more peers.
                seen.extend(peers(pid).unwrap_or_default());
                std::thread::sleep(INTERVAL);
            }
            seen
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends, and tells every peer that was seen.
    ///
    /// # Errors
    /// The looking thread panicked.
    pub fn stop(mut self) -> Result<BTreeSet<SocketAddr>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the watch was stopped before")?;
        thread.join().map_err(|_| anyhow!("the thread that watches peers panicked"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The most resident memory, in bytes, since the start or the last [`forget_peak`] (`VmHWM`).
///
/// # Errors
/// The process has ended.
pub fn peak_resident(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM: it has ended")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Sets the peak back to what is resident now.
///
/// # Errors
/// The process has ended, or is another user's.
pub fn forget_peak(pid: i32) -> Result<()> {
    // 5: "reset the peak resident set size", proc(5).
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("resetting VmHWM")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_of_this_process_is_seen_in_both_families() {
        let pid = i32::try_from(std::process::id()).unwrap();
        for host in ["127.0.0.1", "::1"] {
            let Ok(listener) = TcpListener::bind((host, 0)) else { continue };
            let at = listener.local_addr().unwrap();
            assert!(!peers(pid).unwrap().contains(&at), "a listening socket is no peer");
            let watch = Watch::start(pid);
            let stream = TcpStream::connect(at).unwrap();
            std::thread::sleep(INTERVAL * 10);
            drop(stream);
            assert!(watch.stop().unwrap().contains(&at));
        }
    }

    #[test]
    fn a_mapped_address_is_told_as_ipv4() {
        let expected = "127.0.0.1:9090".parse().unwrap();
        assert_eq!(address("0000000000000000FFFF00000100007F:2382"), Some(expected));
        assert_eq!(address("0100007F:2382"), Some(expected));
    }

    #[test]
    fn a_peak_is_remembered_and_forgotten() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let large = vec![1u8; 64 << 20];
        let peak = peak_resident(pid).unwrap();
        assert!(large.iter().map(|&b| u64::from(b)).sum::<u64>() > 0 && peak > 64 << 20);
        drop(large);
        forget_peak(pid).unwrap();
        assert!(peak_resident(pid).unwrap() < peak);
    }
}
