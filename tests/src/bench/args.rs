//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};

/// Compares direct, turnout and haproxy (TCP mode), and any other proxy, in interleaved rounds.
///
/// On real Kafka: throughput of ProducerPerformance and ConsumerPerformance, latency at a fixed rate. On a fast mock
/// broker: Produce and Fetch frames of several sizes, latency at a fixed rate, memory per connection. As root also what
/// the kernel's programs cost, and the fast path beside plain IP forwarding, the daemon alone and haproxy, between
/// network namespaces on this host. The CPU seconds of the proxy and of the whole system are read around every run.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask bench --")]
#[command(
    after_help = "Examples:\n  cargo xtask bench -- --quick\n  cargo xtask bench -- --rounds 9 --out before.md\n  cargo xtask bench -- --fast-path --quick\n  cargo xtask bench -- --peer other=127.0.0.1:29092@4711\n\nA peer must run already or come up within two minutes, and forward to the bench's brokers: node ids 1 to 3 at\n127.0.0.1 on --peer-brokers and the ports after it. It takes part in the real-Kafka stage alone:\nit can't reach the namespaces of the fast-path stage. With @PID its CPU seconds\nand memory are read too."
)]
pub struct Args {
    /// Rounds; each runs every workload through every subject once, in changing order
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Three rounds of short runs: a first impression in some minutes
    #[arg(long)]
    pub quick: bool,
    /// Another proxy to compare with; may be repeated
    #[arg(long = "peer", value_name = "NAME=HOST:PORT[@PID]")]
    pub peers: Vec<Peer>,
    /// First of the ports at which the brokers listen for peers
    #[arg(long, value_name = "PORT", default_value_t = 19_092)]
    pub peer_brokers: u16,
    /// Only this stage
    #[arg(long, value_enum)]
    pub only: Option<Stage>,
    /// Only the fast path beside plain IP forwarding; the same as --only fast-path (root)
    #[arg(long, conflicts_with = "only")]
    pub fast_path: bool,
    /// Only workloads on a mock broker whose name contains this, e.g. "Fetch"
    #[arg(long, value_name = "WORDS")]
    pub workload: Option<String>,
    /// The report; its numbers go beside it as JSON [default: build/bench/DATE.md]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Real brokers, Kafka's own perf tools.
    Kafka,
    /// The mock broker, raw frames.
    Synthetic,
    /// New connections by steering, packets through XDP (root).
    Edge,
    /// Spliced connections beside routed ones, between network namespaces (root).
    FastPath,
}

impl Args {
    /// Rounds to run.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 }).max(1)
    }

    /// Whether a stage is asked for.
    #[must_use]
    pub fn wants(&self, stage: Stage) -> bool {
        let only = if self.fast_path { Some(Stage::FastPath) } else { self.only };
        only.is_none_or(|only| only == stage)
    }
}

/// A proxy that the bench did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its column in the table.
    pub name: String,
    /// Where clients start from.
    pub bootstrap: SocketAddr,
    /// Its process, where it is known.
    pub pid: Option<i32>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = "expected NAME=HOST:PORT or NAME=HOST:PORT@PID";
        let (name, rest) = text.split_once('=').ok_or(shape)?;
        if name.is_empty()
            || ["direct", "turnout", "haproxy", "routed", "fast path", "userspace", "bare"].contains(&name)
        {
            return Err(format!("a peer can't be called {name:?}"));
        }
        let (address, pid) = match rest.split_once('@') {
            Some((address, pid)) => (address, Some(pid.parse().map_err(|_| format!("{pid:?} is no process id"))?)),
            None => (rest, None),
        };
        let resolved =
            std::net::ToSocketAddrs::to_socket_addrs(address).map_err(|error| format!("{error}: {shape}"))?;
        // The brokers are on loopback, so a name like localhost is meant as IPv4 where it has both.
        let mut resolved: Vec<_> = resolved.collect();
        resolved.sort_by_key(SocketAddr::is_ipv6);
        let bootstrap = *resolved.first().ok_or(format!("{address} has no address"))?;
        Ok(Self { name: name.into(), bootstrap, pid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_path_alone_has_a_word_of_its_own() {
        let args = Args::parse_from(["bench", "--fast-path"]);
        assert!(args.wants(Stage::FastPath) && !args.wants(Stage::Kafka));
        assert!(Args::parse_from(["bench"]).wants(Stage::FastPath));
        assert!(Args::try_parse_from(["bench", "--fast-path", "--only", "edge"]).is_err());
    }

    #[test]
    fn a_peer_has_a_name_an_address_and_perhaps_a_process() {
        let peer: Peer = "other=127.0.0.1:9092@17".parse().unwrap();
        assert_eq!((peer.name.as_str(), peer.bootstrap.port(), peer.pid), ("other", 9092, Some(17)));
        assert_eq!("x=127.0.0.1:1".parse::<Peer>().unwrap().pid, None);
        for wrong in ["127.0.0.1:1", "=127.0.0.1:1", "direct=127.0.0.1:1", "x=127.0.0.1", "x=127.0.0.1:1@me"] {
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }
}
