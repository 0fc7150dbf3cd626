//! One broker's life.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::artifacts::Artifacts;
use super::{Addresses, Listener, READY_PATIENCE, ready};
use crate::netns::{Netns, World};
use crate::process::Process;
use crate::raw::blocking::Connection;

/// How long a controlled shutdown may take before the broker is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// A broker: its addresses, its process, its directory.
#[derive(Debug)]
pub struct Broker {
    pub(super) node_id: i32,
    pub(super) rack: Option<String>,
    pub(super) addresses: Addresses,
    pub(super) dir: PathBuf,
    pub(super) heap_mb: u32,
    pub(super) artifacts: Artifacts,
    /// The namespaces and the index of this broker's host in them.
    pub(super) place: Option<(Arc<World>, usize)>,
    pub(super) process: Mutex<Option<Process>>,
}

impl Broker {
    /// Node id.
    #[must_use]
    pub fn node_id(&self) -> i32 {
        self.node_id
    }

    /// `broker.rack`.
    #[must_use]
    pub fn rack(&self) -> Option<&str> {
        self.rack.as_deref()
    }

    /// Address of the plaintext listener.
    #[must_use]
    pub fn plaintext(&self) -> SocketAddr {
        self.addresses[&Listener::Plaintext]
    }

    /// Address of a listener.
    ///
    /// # Errors
    /// The builder was not asked for that listener.
    pub fn address(&self, listener: Listener) -> Result<SocketAddr> {
        let found = self.addresses.get(&listener).copied();
        found.with_context(|| format!("the cluster was built without the listener {listener:?}"))
    }

    /// Whether its process runs (a frozen one does).
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().as_ref().is_some_and(Process::is_running)
    }

    /// Process id.
    ///
    /// # Errors
    /// It does not run.
    pub fn pid(&self) -> Result<i32> {
        self.with_process(|process| Ok(process.pid()))
    }

    /// Starts its process without waiting for it to be ready.
    ///
    /// # Errors
    /// It runs already, or Java can't be started.
    pub fn launch(&self) -> Result<()> {
        ensure!(!self.is_running(), "node {} runs already", self.node_id);
        let mut java = self.artifacts.java(self.heap_mb, &[]);
        java.arg("kafka.Kafka").arg(self.dir.join("server.properties"));
        let name = format!("Kafka broker {}", self.node_id);
        let process = Process::spawn(&name, java, self.netns(), Some(&self.log()))?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Starts it and waits until it answers and hands out producer ids.
    ///
    /// # Errors
    /// It does not become ready in time.
    pub fn start(&self) -> Result<()> {
        self.launch()?;
        ready::wait(&[self], READY_PATIENCE)
    }

    /// Controlled shutdown: leaders move away first.
    ///
    /// # Errors
    /// It had to be killed.
    pub fn stop(&self) -> Result<()> {
        let process = self.process().take();
        process.with_context(|| self.does_not_run())?.stop(STOP_PATIENCE).map(drop)
    }

    /// Ends it at once (SIGKILL): the peers' connections are reset.
    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.kill();
        }
    }

    /// [`Self::stop`] and [`Self::start`].
    ///
    /// # Errors
    /// As these.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// SIGSTOP: its connections stay open, the kernel accepts new ones, nothing is answered.
    ///
    /// # Errors
    /// It does not run.
    pub fn freeze(&self) -> Result<()> {
        self.with_process(Process::freeze)
    }

    /// Undoes [`Self::freeze`].
    ///
    /// # Errors
    /// It does not run.
    pub fn thaw(&self) -> Result<()> {
        self.with_process(Process::thaw)
    }

    /// Its log file.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("broker.log")
    }

    /// Its data directory, for DumpLogSegments.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        data(&self.dir)
    }

    /// The network namespace of its host; `None` on loopback.
    #[must_use]
    pub fn netns(&self) -> Option<&Netns> {
        self.place.as_ref().map(|(world, index)| &world.brokers()[*index].netns)
    }

    /// A plain blocking connection to its plaintext listener, made on its own host.
    ///
    /// # Errors
    /// It does not accept.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.plaintext(), self.netns(), Duration::from_secs(5))
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_process<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        act(self.process().as_ref().with_context(|| self.does_not_run())?)
    }

    fn does_not_run(&self) -> String {
        format!("node {} does not run", self.node_id)
    }
}

/// Data directory inside a broker's directory.
pub(super) fn data(dir: &Path) -> PathBuf {
    dir.join(crate::rundir::DATA)
}
