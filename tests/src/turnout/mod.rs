//! The real gateway binary, as an operator would run it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let cluster = harness::kafka::shared()?;
//! let gateway = harness::turnout::Gateway::before(cluster).start()?;
//! println!("clients dial {}", gateway.bootstrap());
//! assert_eq!(gateway.status()?.clusters["real"].state, "reached");
//! # Ok(()) }
//! ```

mod builder;
mod http;
mod metrics;
mod pins;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::netns::{Netns, World};
use crate::process::{self, Process};
use crate::rundir::RunDir;
use crate::{paths, wait};

pub use builder::GatewayBuilder;
pub use metrics::Metrics;
pub use pins::PinFolder;
pub(crate) use pins::remove_pins;

/// Name of the virtual cluster in a generated config.
pub const VIRTUAL_CLUSTER: &str = "virtual";
/// Name of the real cluster in a generated config.
pub const CLUSTER: &str = "real";

const READY_PATIENCE: Duration = Duration::from_secs(30);

/// The binary under test: `TURNOUT_BIN`, else the younger of `target/release/turnout` and `target/debug/turnout`.
///
/// # Errors
/// There is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TURNOUT_BIN") {
        return Ok(path.into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths::root().join("target"), PathBuf::from);
    let built = |profile: &str| -> Option<(SystemTime, PathBuf)> {
        let path = target.join(profile).join("turnout");
        Some((fs::metadata(&path).ok()?.modified().ok()?, path))
    };
    let youngest = ["release", "debug"].into_iter().filter_map(built).max();
    youngest.map(|(_, path)| path).context("no turnout binary: run `cargo build`, or name one with TURNOUT_BIN")
}

/// A running gateway; it is killed when this is dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    launch: builder::Launch,
    ports: Ports,
    world: Option<Arc<World>>,
    // These two last, so that the process ends before its pins and its directory go.
    _pins: Option<pins::PinFolder>,
    dir: RunDir,
}

/// Where it listens.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    /// Address that clients on this host, or on client host 0, dial.
    pub(crate) host: std::net::IpAddr,
    pub(crate) bootstrap: u16,
    pub(crate) first_broker: u16,
    pub(crate) broker_count: u16,
    pub(crate) first_node_id: i32,
    pub(crate) admin: SocketAddr,
}

/// What a gateway's metrics say of bytes: how many the kernel passed on, of how many.
///
/// # Errors
/// The admin server at this address of the namespace does not answer.
pub fn passed_on(admin: SocketAddr, netns: &Netns) -> Result<[f64; 2]> {
    let (code, body) = http::get(admin, Some(netns), "/metrics")?;
    ensure!(code == 200, "/metrics answers {code}: {body}");
    Ok(bytes_of(&Metrics::parse(&body)?))
}

/// The same from metrics that were read.
fn bytes_of(metrics: &Metrics) -> [f64; 2] {
    let sum = |names: [&str; 2]| names.map(|name| metrics.sum(name, &[])).iter().sum::<f64>();
    [
        sum(["turnout_spliced_request_bytes_total", "turnout_spliced_answer_bytes_total"]),
        sum(["turnout_request_bytes_total", "turnout_answer_bytes_total"]),
    ]
}

impl Gateway {
    /// Describes a gateway before a cluster; config by template.
    #[must_use]
    pub fn before(cluster: &crate::kafka::Cluster) -> GatewayBuilder {
        GatewayBuilder::new(cluster.bootstrap(), cluster.brokers().map(|broker| broker.node_id()).min().unwrap_or(0))
    }

    /// Describes a gateway before anything that speaks Kafka at these addresses, e.g. a mock broker.
    #[must_use]
    pub fn before_addresses(bootstrap: &str, first_node_id: i32) -> GatewayBuilder {
        GatewayBuilder::new(bootstrap.to_owned(), first_node_id)
    }

    /// `host:port` that clients start from.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        self.bootstrap_addr().to_string()
    }

    /// The same as an address.
    #[must_use]
    pub fn bootstrap_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ports.host, self.ports.bootstrap)
    }

    /// Address of the virtual broker of a node id.
    ///
    /// # Errors
    /// The id is outside the configured range.
    pub fn broker_addr(&self, node_id: i32) -> Result<SocketAddr> {
        let offset = u16::try_from(node_id - self.ports.first_node_id).ok().filter(|o| *o < self.ports.broker_count);
        let offset = offset.with_context(|| format!("node id {node_id} has no port"))?;
        Ok(SocketAddr::new(self.ports.host, self.ports.first_broker + offset))
    }

    /// Whether a `host:port` that a client was told is one of this gateway's.
    #[must_use]
    pub fn owns(&self, address: &str) -> bool {
        let brokers = self.ports.first_broker..self.ports.first_broker + self.ports.broker_count;
        address.parse::<SocketAddr>().is_ok_and(|address| {
            let is_ours = address.port() == self.ports.bootstrap || brokers.contains(&address.port());
            is_ours && self.hosts().contains(&address.ip())
        })
    }

    fn hosts(&self) -> Vec<std::net::IpAddr> {
        match &self.world {
            None => vec![self.ports.host],
            Some(world) => (0..world.client_count())
                .flat_map(|i| [world.gateway_seen_by(i).into(), world.gateway_v6_seen_by(i).into()])
                .collect(),
        }
    }

    /// Path of the config file.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join(builder::CONFIG)
    }

    /// The config as it stands in the file.
    ///
    /// # Errors
    /// The file is gone.
    pub fn config(&self) -> Result<String> {
        Ok(fs::read_to_string(self.config_path())?)
    }

    /// Replaces the config file (by rename, as careful operators do) without telling the gateway.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write_config(&self, text: &str) -> Result<()> {
        let draft = self.dir.path().join("turnout.yaml.new");
        fs::write(&draft, text)?;
        Ok(fs::rename(draft, self.config_path())?)
    }

    /// `GET` on the admin server: status code and body.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        http::get(self.ports.admin, self.netns(), path)
    }

    /// `/status`.
    ///
    /// # Errors
    /// The server does not answer 200, or its JSON has another shape.
    pub fn status(&self) -> Result<::turnout::gateway::status::Status> {
        let (code, body) = self.get("/status")?;
        ensure!(code == 200, "/status answers {code}: {body}");
        serde_json::from_str(&body).with_context(|| format!("the JSON of /status: {body}"))
    }

    /// `/metrics`.
    ///
    /// # Errors
    /// The server does not answer 200, or a line is no metric.
    pub fn metrics(&self) -> Result<Metrics> {
        let (code, body) = self.get("/metrics")?;
        ensure!(code == 200, "/metrics answers {code}: {body}");
        Metrics::parse(&body)
    }

    /// How many bytes the kernel passed on, of how many ([`passed_on`]).
    ///
    /// # Errors
    /// As [`Self::metrics`].
    pub fn passed_on(&self) -> Result<[f64; 2]> {
        Ok(bytes_of(&self.metrics()?))
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// It does not in time; the error carries the last answer and the end of the log.
    pub fn wait_ready(&self) -> Result<()> {
        let ready = wait::until("/readyz", READY_PATIENCE, || {
            if !self.process.is_running() {
                return Ok(Err(anyhow::anyhow!("the gateway ended at start")));
            }
            let (code, body) = self.get("/readyz")?;
            ensure!(code == 200, "/readyz answers {code}: {body}");
            Ok(Ok(()))
        });
        ready
            .and_then(|inner| inner)
            .with_context(|| format!("the gateway is not ready; the end of its log:\n{}", self.log_tail(20)))
    }

    /// Sends a signal, e.g. `libc::SIGHUP`.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It still runs after `patience`.
    pub fn wait(&self, patience: Duration) -> Result<ExitStatus> {
        self.process.wait(patience)
    }

    /// SIGTERM, then waits for the drain.
    ///
    /// # Errors
    /// It had to be killed.
    pub fn stop(&self, patience: Duration) -> Result<ExitStatus> {
        self.process.stop(patience)
    }

    /// Starts it again after its end: on the same ports, with the config as it stands in the file, appending to its log.
    ///
    /// # Errors
    /// It still runs, or it does not become ready.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(!self.process.is_running(), "the gateway still runs");
        self.process = self.launch.spawn(self.dir.path(), self.world.as_deref())?;
        self.wait_ready()
    }

    /// The process, to freeze it or read `/proc`.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Runs another command of the same binary on the gateway's host; stdout, or an error with its words.
    ///
    /// `{config}` and `{socket}` in an argument are replaced by the paths.
    ///
    /// # Errors
    /// It exits with another code than 0.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        let socket = self.dir.path().join(builder::SOCKET).display().to_string();
        let config = self.config_path().display().to_string();
        let mut command = Command::new(binary()?);
        command.args(args.iter().map(|arg| arg.replace("{socket}", &socket).replace("{config}", &config)));
        process::run(command, Duration::from_secs(30))
    }

    /// Everything it logged.
    ///
    /// # Errors
    /// The log is gone.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log_path())?).into_owned())
    }

    /// Waits for a log line that has all of `words`, and returns it.
    ///
    /// # Errors
    /// None comes in time; the error carries the end of the log.
    pub fn wait_log(&self, words: &[&str], patience: Duration) -> Result<String> {
        let line = wait::until("a log line", patience, || {
            let log = self.log()?;
            let found = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
            found.map(str::to_owned).with_context(|| format!("no line has all of {words:?}"))
        });
        line.with_context(|| format!("the end of the log:\n{}", self.log_tail(30)))
    }

    /// Fails if a line has the level WARN or ERROR and none of the `expected` words.
    ///
    /// # Errors
    /// Such a line was found.
    pub fn check_quiet(&self, expected: &[&str]) -> Result<()> {
        for line in self.log()?.lines() {
            let is_loud =
                [" WARN ", " ERROR ", "\"WARN\"", "\"ERROR\"", "panicked at"].iter().any(|w| line.contains(w));
            if is_loud && !expected.iter().any(|word| line.contains(word)) {
                bail!("unexpected in the gateway's log: {line}");
            }
        }
        Ok(())
    }

    /// Its open client connections, as `turnout status --connections` tells them.
    ///
    /// # Errors
    /// The control socket does not answer, or its JSON has another shape.
    pub fn connections(&self) -> Result<Vec<::turnout::gateway::status::ConnectionStatus>> {
        let text = self.cli(&["status", "--connections", "--format", "json", "--socket", "{socket}"])?;
        serde_json::from_str(&text).with_context(|| format!("the JSON of the connections: {text}"))
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS: it has ended")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// The network namespace it runs in.
    #[must_use]
    pub fn netns(&self) -> Option<&Netns> {
        self.world.as_ref().map(|world| &world.gateway().netns)
    }

    fn log_path(&self) -> PathBuf {
        log_path(self.dir.path())
    }

    fn log_tail(&self, lines: usize) -> String {
        process::tail(&self.log_path(), lines)
    }
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("turnout.log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_both_directions_and_all_clusters_count() {
        let text = "turnout_request_bytes_total{virtual_cluster=\"a\"} 100\n\
                    turnout_request_bytes_total{virtual_cluster=\"b\"} 10\n\
                    turnout_answer_bytes_total{virtual_cluster=\"a\"} 1\n\
                    turnout_spliced_request_bytes_total{virtual_cluster=\"a\"} 90\n\
                    turnout_spliced_answer_bytes_total{virtual_cluster=\"b\"} 5\n";
        assert_eq!(bytes_of(&Metrics::parse(text).unwrap()), [95.0, 111.0]);
    }
}
