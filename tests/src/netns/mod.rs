//! Network namespaces as hosts.
//!
//! ```text
//!  client 0 ──┐                                ┌── broker 0
//!  client 1 ──┼── gateway ════ fabric (router) ┼── broker 1
//!  …          ┘  10.90.i.1     10.91.0.0/24    └── broker 2
//!  10.90.i.2     10.91.0.2                         10.92.n.2
//! ```
//! Every host routes, so a client reaches a broker directly through the gateway host's IP forwarding (the *direct*
//! case of a comparison), and brokers reach each other without it. Each `──` is a link that can be cut, or a packet
//! relay that spoils what passes.

mod around;
mod world;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::process;

pub use around::{ADOPT, TALLY, around};
pub use world::{Host, Link, World, WorldBuilder};

static COUNTER: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();
const PREFIX: &str = "turnout-";

/// A network namespace of its own name, deleted on drop by the process that made it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    is_ours: bool,
}

/// An open namespace: entering it needs no path lookup, so it may be done between fork and exec.
#[derive(Debug)]
pub struct OpenNetns {
    file: File,
}

impl OpenNetns {
    /// Moves the calling thread into the namespace.
    ///
    /// # Errors
    /// The thread lacks the privilege.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: setns on a descriptor that `self` keeps open.
        match unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Netns {
    /// Creates a namespace with its loopback up and forwarding on. `role` becomes part of its name.
    ///
    /// # Errors
    /// `ip` is missing or this process is not root.
    pub fn create(role: &str) -> Result<Self> {
        SWEEP.call_once(sweep);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", std::process::id());
        ip(&["netns", "add", &name])?;
        let netns = Self { name, is_ours: true };
        netns.ip(&["link", "set", "lo", "up"])?;
        netns.run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
        })??;
        Ok(netns)
    }

    /// One that another process has made and will delete.
    #[must_use]
    pub(super) fn adopt(name: &str) -> Self {
        Self { name: name.to_owned(), is_ours: false }
    }

    /// Its name, for `ip netns exec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip -n <this namespace> …`.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        ip(&[&["-n", self.name.as_str()], args].concat())
    }

    /// Opens it.
    ///
    /// # Errors
    /// It was deleted by someone else.
    pub fn open(&self) -> Result<OpenNetns> {
        let path = PathBuf::from("/run/netns").join(&self.name);
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        Ok(OpenNetns { file })
    }

    /// Runs `work` on a thread inside the namespace. Sockets and devices it creates stay in the namespace whoever uses
    /// them later.
    ///
    /// # Errors
    /// The namespace can't be entered, or `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let open = self.open()?;
        std::thread::scope(|scope| {
            scope
                .spawn(move || -> Result<T> {
                    open.enter().with_context(|| format!("entering {}", self.name))?;
                    Ok(work())
                })
                .join()
                .map_err(|_| anyhow!("the work inside {} panicked", self.name))?
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            eprintln!("deleting {}: {error:#}", self.name);
        }
    }
}

fn ip(args: &[&str]) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(args);
    process::run(command, Duration::from_secs(10)).with_context(|| format!("ip {}", args.join(" ")))
}

/// Deletes the namespaces of test processes that were killed.
fn sweep() {
    for name in names_of(|pid| !PathBuf::from("/proc").join(pid.to_string()).exists()) {
        let _ = ip(&["netns", "del", &name]);
    }
}

/// Deletes the namespaces that this process has made, with the links in them: for an end without drops.
pub(crate) fn delete_own() {
    for name in names_of(|pid| pid == std::process::id()) {
        // Not as a child of the harness: it starts none any more.
        let deleted = Command::new("ip").args(["netns", "del", &name]).status();
        if !deleted.is_ok_and(|status| status.success()) {
            eprintln!("{name} is left behind: `ip netns del {name}`");
        }
    }
}

/// Names of all namespaces of test processes with such a process id.
fn names_of(is_meant: impl Fn(u32) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| owner(name).is_some_and(&is_meant)).collect()
}

/// Id of the process that made the namespace of this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_whose_the_namespace_is() {
        assert_eq!(owner("turnout-123-0-client0"), Some(123));
        assert_eq!(["turnout-x-0", "other-123-0", "turnout"].map(owner), [None; 3]);
    }
}
