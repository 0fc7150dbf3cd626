//! Real Apache Kafka clusters (KRaft, combined mode) whose brokers can be stopped, killed, frozen and cut off.
//!
//! ```no_run
//! use harness::kafka::Cluster;
//! # fn main() -> anyhow::Result<()> {
//! let cluster = Cluster::builder().brokers(3).racks(&["az1", "az2", "az3"]).start()?;
//! println!("{}", cluster.bootstrap());
//! cluster.broker(2)?.freeze()?;
//! # Ok(()) }
//! ```

mod artifacts;
mod broker;
mod builder;
mod ready;
mod security;
mod storage;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::clients::Client;
use crate::netns::{Link, World};
use crate::rundir::RunDir;

pub use artifacts::{Artifacts, VERSION};
pub use broker::Broker;
pub use builder::ClusterBuilder;
pub use security::{Certificates, Listener, User};

/// How long a cluster may take to become ready on a busy host.
pub(crate) const READY_PATIENCE: Duration = Duration::from_secs(120);

/// A running cluster; its brokers end when it is dropped or when the test process ends.
#[derive(Debug)]
pub struct Cluster {
    brokers: BTreeMap<i32, Broker>,
    cluster_id: String,
    artifacts: Artifacts,
    users: Vec<User>,
    certificates: Option<Certificates>,
    // Last, so that brokers end before their directory goes.
    dir: RunDir,
}

impl Cluster {
    /// Starts describing a cluster: one broker on loopback, without racks, unless told otherwise.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// `host:port,…` of all brokers' plaintext listeners.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.brokers.values().map(|broker| broker.plaintext().to_string()).collect();
        addresses.join(",")
    }

    /// The same for another listener.
    ///
    /// # Errors
    /// The builder was not asked for that listener.
    pub fn bootstrap_of(&self, listener: Listener) -> Result<String> {
        let addresses: Result<Vec<_>> =
            self.brokers.values().map(|broker| broker.address(listener).map(|a| a.to_string())).collect();
        Ok(addresses?.join(","))
    }

    /// A broker by node id.
    ///
    /// # Errors
    /// There is none with this id.
    pub fn broker(&self, node_id: i32) -> Result<&Broker> {
        self.brokers.get(&node_id).with_context(|| format!("the cluster has no node {node_id}"))
    }

    /// Brokers in the order of their node ids.
    pub fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.brokers.values()
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Users of the SASL listeners.
    #[must_use]
    pub fn users(&self) -> &[User] {
        &self.users
    }

    /// What the TLS listeners present.
    ///
    /// # Errors
    /// The builder was not asked for a TLS listener.
    pub fn certificates(&self) -> Result<&Certificates> {
        self.certificates.as_ref().context("the cluster was built without a TLS listener")
    }

    /// Kafka's jars, for tools.
    #[must_use]
    pub fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }

    /// Directory with each broker's log, kept when a test fails.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Cuts a broker's link: nobody reaches it, nobody is told.
    ///
    /// # Errors
    /// The cluster is on loopback, or there is no such node.
    pub fn cut(&self, node_id: i32) -> Result<()> {
        let (world, link) = self.link(node_id)?;
        world.cut(link)
    }

    /// Undoes [`Self::cut`].
    ///
    /// # Errors
    /// As for [`Self::cut`].
    pub fn restore(&self, node_id: i32) -> Result<()> {
        let (world, link) = self.link(node_id)?;
        world.restore(link)
    }

    /// Undoes what a test did to brokers: those that are frozen go on, those that are gone are started.
    ///
    /// # Errors
    /// As [`Self::wait_ready`], or a broker can't be started.
    pub fn mend(&self) -> Result<()> {
        for broker in self.brokers() {
            if broker.is_running() {
                broker.thaw()?;
            } else {
                broker.launch()?;
            }
        }
        self.wait_ready()
    }

    /// Waits until every running broker knows every running broker and hands out producer ids.
    ///
    /// # Errors
    /// It doesn't happen in time; the error carries the last refusal and the ends of the logs.
    pub fn wait_ready(&self) -> Result<()> {
        let running: Vec<_> = self.brokers.values().filter(|broker| broker.is_running()).collect();
        if running.is_empty() {
            bail!("no broker of the cluster runs");
        }
        ready::wait(&running, READY_PATIENCE)
    }

    /// Creates a topic by a client and waits until every running broker knows it, so that whoever uses it next, on
    /// whatever connection, does not meet UNKNOWN_TOPIC_OR_PARTITION.
    ///
    /// # Errors
    /// The client's error, as [`crate::clients::ClientError`]; or a broker does not learn of it in time.
    pub fn create_topic(&self, client: &mut Client, topic: &str, partitions: u32) -> Result<()> {
        client.create_topic(topic, partitions)?;
        self.wait_topic(topic, partitions)
    }

    /// Waits until every running broker knows a topic's partitions.
    ///
    /// # Errors
    /// It doesn't happen in time.
    pub fn wait_topic(&self, topic: &str, partitions: u32) -> Result<()> {
        let running: Vec<_> = self.brokers.values().filter(|broker| broker.is_running()).collect();
        ready::wait_topic(&running, topic, partitions, READY_PATIENCE)
    }

    fn link(&self, node_id: i32) -> Result<(&World, Link)> {
        let place = self.broker(node_id)?.place.as_ref();
        let (world, index) = place.context("a loopback cluster has no links to cut; start it in a World")?;
        anyhow::ensure!(
            !world.is_adopted(),
            "the brokers of this cluster share a host; start it in a World of its own"
        );
        Ok((world, Link::Broker(*index)))
    }
}

/// A cluster of three brokers in the racks az1, az2 and az3 (node ids 1, 2, 3) that all tests of this binary share.
///
/// Only for tests that don't hurt brokers; use topics of unique names ([`unique`]). It has a SASL listener with the
/// users `alice` and `bob`, a TLS listener, and an authorizer in which ANONYMOUS and `alice` may do everything.
///
/// # Errors
/// It can't be started; every later call returns the same error.
pub fn shared() -> Result<&'static Cluster> {
    static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
    let cluster = SHARED.get_or_init(|| {
        Cluster::builder()
            .brokers(3)
            .racks(&["az1", "az2", "az3"])
            .listeners(&[Listener::Sasl, Listener::Tls])
            .users(&["alice", "bob"])
            .authorizer(&["alice"])
            .name("shared")
            .start()
            .map_err(|error| format!("{error:#}"))
    });
    cluster.as_ref().map_err(|error| anyhow::anyhow!("the shared cluster could not be started: {error}"))
}

/// One heavy cluster at a time, over all test processes of this host: hold the guard for the life of the cluster.
///
/// Two clusters of three brokers are the most that two cores carry, and the shared one counts.
///
/// # Errors
/// The lock file can't be made.
pub fn heavy() -> Result<crate::paths::FileLock> {
    crate::paths::FileLock::acquire(&std::env::temp_dir().join("turnout-heavy-cluster.lock"))
}

/// A name that no other test uses: `base`, the process id and a counter.
#[must_use]
pub fn unique(base: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    format!("{base}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Where a broker's listeners are.
type Addresses = BTreeMap<Listener, SocketAddr>;
