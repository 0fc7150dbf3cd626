//! What is compared.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::counters::{Cpu, CpuSpent};

/// Column of a connection without a proxy.
pub(crate) const DIRECT: &str = "direct";
/// Column of the gateway.
pub(crate) const TURNOUT: &str = "turnout";
/// Column of the yardstick.
pub(crate) const HAPROXY: &str = "haproxy";

/// Column of the fast path's stage: no proxy, the gateway host forwards packets.
pub(crate) const ROUTED: &str = "routed";
/// The same between hosts on which no kernel program was ever attached.
pub(crate) const BARE: &str = "bare";
/// The gateway with its fast path.
pub(crate) const FAST: &str = "fast path";
/// The gateway with `fast_path: {mode: off}`.
pub(crate) const USERSPACE: &str = "userspace";

/// Column of the edge's stage without the kernel's part.
pub(crate) const BASE: &str = "base";
/// Column of the edge's stage with it.
pub(crate) const EDGE: &str = "edge";

/// A way to the brokers.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Its column.
    pub(crate) name: String,
    /// Where clients start from: `host:port,…`.
    pub(crate) bootstrap: String,
    /// Process to read counters of; none for a direct connection.
    pub(crate) pid: Option<i32>,
}

impl Subject {
    /// One of them.
    #[must_use]
    pub(crate) fn new(name: &str, bootstrap: &str, pid: Option<i32>) -> Self {
        Self { name: name.into(), bootstrap: bootstrap.into(), pid }
    }

    /// The first bootstrap address.
    ///
    /// # Errors
    /// It isn't an IP address with a port.
    pub(crate) fn first_address(&self) -> Result<SocketAddr> {
        self.addresses()?.first().copied().context("no bootstrap address")
    }

    /// All bootstrap addresses.
    ///
    /// # Errors
    /// One isn't an IP address with a port.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let parsed = self.bootstrap.split(',').map(|address| address.parse().with_context(|| address.to_owned()));
        parsed.collect()
    }

    /// Runs something through it, and tells the CPU time spent meanwhile.
    ///
    /// # Errors
    /// What `run` returns, or the proxy has ended.
    pub(crate) fn measure<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<(T, CpuSpent)> {
        let before = Cpu::read(self.pid)?;
        let result = run()?;
        Ok((result, Cpu::read(self.pid)?.since(before)))
    }
}

/// The order of subjects in a round: rotated, so that none is always first or always behind the same one.
pub(crate) fn in_turn<T>(subjects: &[T], round: usize) -> impl Iterator<Item = &T> {
    let (before, after) = subjects.split_at(round % subjects.len().max(1));
    after.iter().chain(before)
}
