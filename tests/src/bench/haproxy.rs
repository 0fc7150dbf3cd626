//! haproxy in TCP mode: the yardstick.

use std::fmt::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::Netns;
use crate::process::{self, Process};
use crate::raw::blocking::dial;
use crate::rundir::RunDir;
use crate::wait;

/// A running haproxy that passes bytes from each of its ports to one broker.
#[derive(Debug)]
pub(crate) struct Haproxy {
    process: Process,
    version: String,
    // Last, so that the process ends before its directory goes.
    _dir: RunDir,
}

impl Haproxy {
    /// Starts one with a route (listening address, broker's address) for each broker.
    ///
    /// Everything that isn't about addresses and time is left at haproxy's default: the threads (one per processor)
    /// and its 16 KiB buffers.
    ///
    /// # Errors
    /// haproxy isn't installed, or refuses the config.
    pub(crate) fn start(routes: &[(SocketAddr, SocketAddr)]) -> Result<Self> {
        Self::start_in(None, routes)
    }

    /// The same on a host of its own.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_in(netns: Option<&Netns>, routes: &[(SocketAddr, SocketAddr)]) -> Result<Self> {
        let missing = "no haproxy: install Debian's package `haproxy`";
        let mut version = Command::new("haproxy");
        version.arg("-v");
        let version = process::run(version, Duration::from_secs(10)).context(missing)?;
        let version = version.split_whitespace().nth(2).unwrap_or("of unknown version").to_owned();
        let dir = RunDir::create("haproxy")?;
        let path = dir.path().join("haproxy.cfg");
        std::fs::write(&path, config(routes))?;
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f"]).arg(&path);
        let log = dir.path().join("haproxy.log");
        let process = Process::spawn("haproxy", command, netns, Some(&log)).context(missing)?;
        for (listen, _) in routes {
            wait::until(&format!("haproxy at {listen}"), Duration::from_secs(10), || {
                dial(*listen, netns, Duration::from_secs(1))
            })
            .with_context(|| process.log_tail(10))?;
        }
        Ok(Self { process, version, _dir: dir })
    }

    /// Its process id.
    #[must_use]
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Its version.
    #[must_use]
    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

fn config(routes: &[(SocketAddr, SocketAddr)]) -> String {
    let mut text = String::from(
        "global\n    maxconn 9000\n\
         defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 10m\n    timeout server 10m\n",
    );
    for (n, (listen, broker)) in routes.iter().enumerate() {
        let _ = write!(text, "listen broker-{n}\n    bind {listen}\n    server broker {broker}\n");
    }
    text
}
