//! What links between namespaces must be like to be measured, and what they lost.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::{Netns, World};
use crate::process;

/// Packets that wait at a device, as Linux has it for a network card (`txqueuelen`).
const QUEUE: &str = "1000";
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives every veth of a world a queue, as network cards have.
///
/// A veth has none. Once the other side has an XDP program, packets that find its ring of 256 full are lost, and a load
/// of large frames is mostly retransmissions. With a queue the sender waits (Linux 6.16).
///
/// # Errors
/// What `ip` or `tc` says.
pub(super) fn give_queues(world: &World) -> Result<()> {
    for netns in world.names().split(',') {
        let links = run("ip", &["-n", netns, "-o", "link", "show", "type", "veth"])?;
        for device in links.lines().filter_map(device) {
            run("tc", &["-n", netns, "qdisc", "replace", "dev", device, "root", "pfifo", "limit", QUEUE])?;
        }
    }
    Ok(())
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    process::run(command, PATIENCE).with_context(|| format!("{program} {}", args.join(" ")))
}

/// `2: eth0@if3: <BROADCAST,…` → `eth0`.
fn device(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(": ")?;
    rest.split(['@', ':']).next()
}

/// TCP segments that hosts have sent again since they were made.
///
/// # Errors
/// A namespace can't be entered.
pub(super) fn retransmitted(hosts: &[&Netns]) -> Result<u64> {
    // The process's own file is that of its first thread.
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    hosts.iter().map(|host| retransmitted_in(&host.run(read)??).context("/proc/net/snmp has another shape")).sum()
}

fn retransmitted_in(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "RetransSegs")?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_and_its_tools_write_is_understood() {
        assert_eq!(device("2: fabric@if3: <BROADCAST,MULTICAST,UP> mtu 1500"), Some("fabric"));
        assert_eq!(device("2: v0: <BROADCAST> mtu 1500"), Some("v0"));
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn RetransSegs InErrs\nTcp: 1 -1 42 0\nUdp: x\n";
        assert_eq!(retransmitted_in(snmp), Some(42));
        assert_eq!(retransmitted_in("Tcp: a\nTcp: 1\n"), None);
    }
}
