//! A second gateway beside the one with kernel programs: all bytes pass through the daemon.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result};

use crate::netns::World;
use crate::process::Process;
use crate::rundir::RunDir;
use crate::turnout;

/// The first gateway has 9090, 9092 and 9200 to 9219.
const BOOTSTRAP: u16 = 9492;
const ADMIN: u16 = 9490;
const FIRST_BROKER: u16 = 9500;

/// It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Userspace {
    process: Process,
    host: Ipv4Addr,
    // Last, so that the process ends before its directory goes.
    _dir: RunDir,
}

impl Userspace {
    /// Starts it on the gateway host, before brokers of the node ids from 1.
    ///
    /// # Errors
    /// There is no binary.
    pub(super) fn start(world: &World, bootstrap: &str) -> Result<Self> {
        let dir = RunDir::create("turnout-userspace")?;
        let path = dir.path().join("turnout.yaml");
        fs::write(&path, config(bootstrap, &dir.path().join("turnout.sock").display().to_string()))?;
        let mut command = Command::new(turnout::binary()?);
        command.arg("run").arg("--config").arg(&path);
        let log = dir.path().join("turnout.log");
        let process = Process::spawn("turnout", command, Some(&world.gateway().netns), Some(&log))
            .context("the gateway without kernel programs")?;
        Ok(Self { process, host: world.gateway_seen_by(0), _dir: dir })
    }

    pub(super) fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Where clients dial the broker at `index`.
    pub(super) fn broker(&self, index: u16) -> SocketAddr {
        SocketAddr::from((self.host, FIRST_BROKER + index))
    }

    /// The end of its log.
    pub(super) fn log_tail(&self) -> String {
        self.process.log_tail(20)
    }
}

fn config(bootstrap: &str, socket: &str) -> String {
    let quoted: Vec<_> = bootstrap.split(',').map(|address| format!("\"{address}\"")).collect();
    format!(
        "clusters:\n  real:\n    bootstrap: [{}]\nvirtual_clusters:\n  virtual:\n    cluster: real\n    \
         listen: [\"0.0.0.0\"]\n    bootstrap_port: {BOOTSTRAP}\n    \
         broker_ports: {{first: {FIRST_BROKER}, count: 20, first_node_id: 1}}\nfast_path: {{mode: off}}\n\
         admin: {{http: \"127.0.0.1:{ADMIN}\", socket: \"{socket}\"}}\nlog: {{format: human, level: \"warn\"}}\n",
        quoted.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_is_one() {
        let text = config("10.92.0.2:9092,10.92.1.2:9092", "/run/x.sock");
        let config = ::turnout::config::load_str(&text, "x.yaml", &::turnout::config::Environment::empty());
        assert!(config.is_ok(), "{config:?}");
    }
}
