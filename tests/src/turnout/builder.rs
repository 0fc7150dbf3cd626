//! The config template.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::pins::PinFolder;
use super::{CLUSTER, Gateway, Ports, VIRTUAL_CLUSTER, binary, log_path};
use crate::netns::{World, around};
use crate::ports;
use crate::process::Process;
use crate::rundir::RunDir;

pub(super) const CONFIG: &str = "turnout.yaml";
pub(super) const SOCKET: &str = "turnout.sock";

/// Ports on a gateway host of its own.
const WORLD_BOOTSTRAP_PORT: u16 = 9092;
const WORLD_FIRST_BROKER_PORT: u16 = 9200;
const WORLD_ADMIN_PORT: u16 = 9090;

/// Describes a gateway; [`Self::start`] runs it.
#[derive(Clone, Debug)]
pub struct GatewayBuilder {
    bootstrap: String,
    first_node_id: i32,
    broker_count: u16,
    cluster_lines: Vec<String>,
    virtual_lines: Vec<String>,
    top_lines: Vec<String>,
    fast_path: String,
    log_level: String,
    environment: Vec<(String, String)>,
    open_files: Option<u64>,
    world: Option<Arc<World>>,
    config: Option<fn(&str) -> String>,
    wait_ready: bool,
    binary: Option<PathBuf>,
}

impl GatewayBuilder {
    pub(super) fn new(bootstrap: String, first_node_id: i32) -> Self {
        Self {
            bootstrap,
            first_node_id,
            broker_count: 20,
            cluster_lines: Vec::new(),
            virtual_lines: Vec::new(),
            top_lines: Vec::new(),
            fast_path: std::env::var("TURNOUT_FAST_PATH").unwrap_or_else(|_| "off".into()),
            log_level: std::env::var("TURNOUT_LOG").unwrap_or_else(|_| "info".into()),
            environment: Vec::new(),
            open_files: None,
            world: None,
            config: None,
            wait_ready: true,
            binary: None,
        }
    }

    /// How many broker ports (default 20), the first for the lowest node id of the cluster.
    #[must_use]
    pub fn broker_count(mut self, count: u16) -> Self {
        self.broker_count = count;
        self
    }

    /// Other addresses to find the cluster at, e.g. of its SASL listener.
    #[must_use]
    pub fn bootstrap(mut self, addresses: &str) -> Self {
        self.bootstrap = addresses.to_owned();
        self
    }

    /// A line of YAML under the real cluster, e.g. `connect_timeout: 1s`.
    #[must_use]
    pub fn cluster_line(mut self, line: &str) -> Self {
        self.cluster_lines.push(line.to_owned());
        self
    }

    /// A line of YAML under the virtual cluster, e.g. `limits: {idle: 1s}`.
    #[must_use]
    pub fn virtual_line(mut self, line: &str) -> Self {
        self.virtual_lines.push(line.to_owned());
        self
    }

    /// A line of YAML at the top level, e.g. `workers: 1`.
    #[must_use]
    pub fn top_line(mut self, line: &str) -> Self {
        self.top_lines.push(line.to_owned());
        self
    }

    /// `fast_path.mode` (default: `TURNOUT_FAST_PATH`, else `off`).
    #[must_use]
    pub fn fast_path(mut self, mode: &str) -> Self {
        self.fast_path = mode.to_owned();
        self
    }

    /// `log.level` (default: `TURNOUT_LOG`, else `info`).
    #[must_use]
    pub fn log_level(mut self, level: &str) -> Self {
        self.log_level = level.to_owned();
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Limits its open files (RLIMIT_NOFILE).
    #[must_use]
    pub fn open_files(mut self, limit: u64) -> Self {
        self.open_files = Some(limit);
        self
    }

    /// Runs it on the gateway host of `world`.
    #[must_use]
    pub fn world(mut self, world: &Arc<World>) -> Self {
        self.world = Some(Arc::clone(world));
        self
    }

    /// Changes the generated config text before it is written.
    #[must_use]
    pub fn edit(mut self, edit: fn(&str) -> String) -> Self {
        self.config = Some(edit);
        self
    }

    /// Another binary than [`binary`] finds, e.g. an older release.
    #[must_use]
    pub fn binary(mut self, path: &Path) -> Self {
        self.binary = Some(path.to_owned());
        self
    }

    /// Doesn't wait for `/readyz`: for tests of clusters that are down.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.wait_ready = false;
        self
    }

    /// Starts the binary and waits for `/readyz`.
    ///
    /// # Errors
    /// There is no binary, or it does not become ready; the error carries the end of its log.
    pub fn start(mut self) -> Result<Gateway> {
        // Brokers of the test's own process are on its own loopback, and so is their gateway.
        if self.world.is_none() && !self.bootstrap.contains("127.0.0.1") {
            self.world = around().cloned();
        }
        let binary = self.binary.clone().map_or_else(binary, Ok)?;
        let dir = RunDir::create("turnout")?;
        let ports = self.ports()?;
        let pins = self.has_kernel().then(PinFolder::reserve);
        let generated = self.text(&ports, &dir.path().join(SOCKET).display().to_string(), pins.as_ref());
        let text = self.config.map_or(generated.clone(), |edit| edit(&generated));
        let path = dir.path().join(CONFIG);
        fs::write(&path, text)?;

        let launch = Launch { binary, environment: self.environment, open_files: self.open_files };
        let process = launch.spawn(dir.path(), self.world.as_deref())?;
        let gateway = Gateway { process, launch, ports, world: self.world, _pins: pins, dir };
        if self.wait_ready {
            gateway.wait_ready()?;
        }
        Ok(gateway)
    }

    fn ports(&self) -> Result<Ports> {
        let Self { broker_count, first_node_id, .. } = *self;
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(match &self.world {
            Some(world) if world.is_adopted() => self.free_ports(world.gateway_seen_by(0).into())?,
            Some(world) => Ports {
                host: world.gateway_seen_by(0).into(),
                bootstrap: WORLD_BOOTSTRAP_PORT,
                first_broker: WORLD_FIRST_BROKER_PORT,
                broker_count,
                first_node_id,
                admin: SocketAddr::new(local, WORLD_ADMIN_PORT),
            },
            None => self.free_ports(local)?,
        })
    }

    /// Where other gateways run on the same host.
    fn free_ports(&self, host: IpAddr) -> Result<Ports> {
        let Self { broker_count, first_node_id, .. } = *self;
        let first = ports::block(broker_count + 2).context("ports for a gateway")?;
        Ok(Ports {
            host,
            bootstrap: first,
            first_broker: first + 2,
            broker_count,
            first_node_id,
            admin: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), first + 1),
        })
    }

    fn has_kernel(&self) -> bool {
        self.fast_path != "off"
    }

    /// What a gateway with kernel programs says about them: pins of its own, since many run side by side. On loopback
    /// there is steering alone, for no interface of a test's own carries its clients. Admission is on, and lets tests
    /// through, unless the test has rules of its own.
    fn kernel_lines(&self, pins: Option<&PinFolder>) -> String {
        let Some(pins) = pins else { return format!("fast_path: {{mode: {}}}", self.fast_path) };
        let interfaces = if self.world.is_some() { "auto" } else { "[]" };
        let mut text = format!(
            "fast_path: {{mode: {}, interfaces: {interfaces}, pin: {}}}",
            self.fast_path,
            pins.path().display()
        );
        if !self.top_lines.iter().any(|line| line.starts_with("admission:")) {
            text.push_str(
                "\nadmission: {deny: [203.0.113.0/24, \"2001:db8:bad::/48\"], allow: [0.0.0.0/0, \"::/0\"], \
                 new_connections: {rate: 20000/s, burst: 40000}}",
            );
        }
        text
    }

    fn text(&self, ports: &Ports, socket: &str, pins: Option<&PinFolder>) -> String {
        let listen = if self.world.is_some() { "\"0.0.0.0\", \"::\"" } else { "\"127.0.0.1\"" };
        let quoted: Vec<_> = self.bootstrap.split(',').map(|address| format!("\"{address}\"")).collect();
        let mut text = format!("clusters:\n  {CLUSTER}:\n    bootstrap: [{}]\n", quoted.join(", "));
        let mut lines = |indent: &str, lines: &[String]| {
            for line in lines.iter().flat_map(|line| line.lines()) {
                let _ = writeln!(text, "{indent}{line}");
            }
        };
        lines("    ", &self.cluster_lines);
        let Ports { bootstrap, first_broker, broker_count, first_node_id, admin, host: _ } = ports;
        let own = format!(
            "virtual_clusters:\n  {VIRTUAL_CLUSTER}:\n    cluster: {CLUSTER}\n    listen: [{listen}]\n    \
             bootstrap_port: {bootstrap}\n    broker_ports: {{first: {first_broker}, count: {broker_count}, \
             first_node_id: {first_node_id}}}"
        );
        lines("", &[own]);
        lines("    ", &self.virtual_lines);
        let own = format!(
            "{}\nadmin: {{http: \"{admin}\", socket: \"{socket}\"}}\nlog: {{format: human, level: \"{}\"}}",
            self.kernel_lines(pins),
            self.log_level
        );
        lines("", &[own]);
        lines("", &self.top_lines);
        text
    }
}

/// How the process is started; the same each time.
#[derive(Debug)]
pub(super) struct Launch {
    binary: PathBuf,
    environment: Vec<(String, String)>,
    open_files: Option<u64>,
}

impl Launch {
    /// Starts it with the config and the log in `dir`.
    pub(super) fn spawn(&self, dir: &Path, world: Option<&World>) -> Result<Process> {
        let mut command = match self.open_files {
            None => Command::new(&self.binary),
            Some(limit) => {
                let mut limited = Command::new("prlimit");
                limited.arg(format!("--nofile={limit}:{limit}")).arg(&self.binary);
                limited
            }
        };
        let environment = self.environment.iter().map(|(key, value)| (key, value));
        command.arg("run").arg("--config").arg(dir.join(CONFIG)).envs(environment);
        Process::spawn("turnout", command, world.map(|world| &world.gateway().netns), Some(&log_path(dir)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_puts_lines_where_they_belong() {
        let builder = GatewayBuilder::new("127.0.0.1:1,127.0.0.1:2".into(), 5)
            .fast_path("off")
            .log_level("info")
            .cluster_line("connect_timeout: 1s")
            .virtual_line("limits: {idle: 1s}")
            .top_line("workers: 1");
        let ports = Ports {
            host: Ipv4Addr::LOCALHOST.into(),
            bootstrap: 100,
            first_broker: 102,
            broker_count: 20,
            first_node_id: 5,
            admin: "127.0.0.1:101".parse().unwrap(),
        };
        assert_eq!(
            builder.text(&ports, "/run/x.sock", None),
            "clusters:\n  real:\n    bootstrap: [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n    connect_timeout: 1s\n\
             virtual_clusters:\n  virtual:\n    cluster: real\n    listen: [\"127.0.0.1\"]\n    bootstrap_port: 100\n    \
             broker_ports: {first: 102, count: 20, first_node_id: 5}\n    limits: {idle: 1s}\n\
             fast_path: {mode: off}\nadmin: {http: \"127.0.0.1:101\", socket: \"/run/x.sock\"}\n\
             log: {format: human, level: \"info\"}\nworkers: 1\n"
        );
    }
}
