//! What the connections of one virtual cluster share. Replaced piecewise by a reload, read without a lock.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use super::close::CloseReason;
use super::mirroring::Mirroring;
use super::registry::{Registry, role_name};
use super::splicing::Access;
use crate::config;
use crate::kafka::ids::NodeId;
use crate::kafka::versions::{self, Offered};
use crate::log_gate::LogGate;
use crate::metrics::VirtualClusterMetrics;
use crate::racks;
use crate::splice::session::Opening;
use crate::upstream::topology::Topology;
use crate::upstream::{Cluster, Endpoint, Target};

/// One line of a kind each interval; the next says how many were held back.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How long an answer may wait for the ports that it names. Opening them takes less than a millisecond; where it takes
/// longer, a client that must dial again is better off than one that waits.
const PORTS_PATIENCE: Duration = Duration::from_secs(2);

/// What connections are to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Pass traffic.
    Serve,
    /// Begin nothing new, close when the last answer is out, at the latest then.
    Drain {
        /// When patience ends.
        until: Instant,
    },
    /// Close at once.
    Stop,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) metrics: VirtualClusterMetrics,
    pub(crate) registry: Arc<Registry>,
    log: LogGate<&'static str>,
    config: ArcSwap<config::VirtualCluster>,
    cluster: Cluster,
    /// Replica routing.
    pub(crate) racks: racks::Runtime,
    offered: ArcSwapOption<Offered>,
    /// What its connections are spliced with, or why they aren't.
    splice: ArcSwap<Result<Access, String>>,
    /// Where copies of its frames go; `None`: nobody wants any.
    mirror: Option<Mirroring>,
    /// Brokers whose ports are open, or can't be.
    seen_to: watch::Sender<BTreeSet<NodeId>>,
}

impl Shared {
    pub(crate) fn new(
        name: &str,
        config: config::VirtualCluster,
        cluster: Cluster,
        metrics: VirtualClusterMetrics,
    ) -> Self {
        let shared = Self {
            name: name.to_owned(),
            metrics,
            registry: Arc::default(),
            log: LogGate::new(LOG_INTERVAL),
            racks: racks::Runtime::new(config.racks.as_ref()),
            config: ArcSwap::from_pointee(config),
            cluster,
            offered: ArcSwapOption::empty(),
            mirror: None,
            splice: ArcSwap::from_pointee(Err("the kernel's programs are not loaded".to_owned())),
            seen_to: watch::Sender::default(),
        };
        shared.on_topology(&shared.cluster.topology());
        shared
    }

    /// The same with copies of its frames for somebody.
    pub(crate) fn mirrored(mut self, mirror: Option<Mirroring>) -> Self {
        self.mirror = mirror;
        self
    }

    /// Where copies of its frames go.
    pub(crate) fn mirror(&self) -> Option<&Mirroring> {
        self.mirror.as_ref()
    }

    pub(crate) fn config(&self) -> Guard<Arc<config::VirtualCluster>> {
        self.config.load()
    }

    pub(crate) fn set_config(&self, config: config::VirtualCluster) {
        self.racks.configure(config.racks.as_ref());
        self.config.store(Arc::new(config));
        self.on_topology(&self.cluster.topology());
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What connections are spliced with, or why they aren't.
    pub(crate) fn splice(&self) -> Guard<Arc<Result<Access, String>>> {
        self.splice.load()
    }

    /// How sockets to brokers are opened so that connections can be spliced; `None`: they can't be.
    pub(crate) fn opening(&self) -> Option<Opening> {
        let splice = self.splice.load();
        (**splice).as_ref().ok().map(|access| access.splicer.opening())
    }

    /// Connections are spliced with this from now on, or not any more.
    pub(crate) fn set_splice(&self, access: Result<Access, String>) {
        self.splice.store(Arc::new(access));
    }

    /// What every virtual broker offers: the same for all, since clients cache the first they see.
    pub(crate) fn offered(&self) -> Option<Arc<Offered>> {
        self.offered.load_full()
    }

    /// Brokers came, went or were upgraded.
    pub(crate) fn on_topology(&self, topology: &Topology) {
        let known: Vec<_> = topology.brokers.values().filter_map(|broker| broker.versions.as_ref()).collect();
        let offered = (!known.is_empty()).then(|| versions::offered(self.config.load().versions, known.into_iter()));
        self.offered.store(offered.map(Arc::new));
    }

    /// The ports of all brokers of `topology` were opened, as far as they can be.
    pub(crate) fn saw_to(&self, topology: &Topology) {
        let brokers: BTreeSet<_> = topology.brokers.keys().copied().collect();
        self.seen_to.send_if_modified(|seen_to| {
            let is_new = *seen_to != brokers;
            *seen_to = brokers;
            is_new
        });
    }

    /// Ready when the ports of all brokers known now were seen to, or patience ends; `None` when they are already.
    pub(crate) fn missing_ports(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let known: BTreeSet<_> = self.cluster.topology().brokers.keys().copied().collect();
        if known.is_subset(&self.seen_to.borrow()) {
            return None;
        }
        let mut seen_to = self.seen_to.subscribe();
        Some(async move {
            // Late or never, the client is told all the same: it dials again.
            let _ = timeout(PORTS_PATIENCE, seen_to.wait_for(|seen_to| known.is_subset(seen_to))).await;
        })
    }

    /// Whether a line about `key` may be written now; how many like it were held back.
    pub(crate) fn may_log(&self, key: &'static str) -> Option<u64> {
        self.log.pass(key, Instant::now())
    }

    /// Counts and logs the end of a connection.
    pub(crate) fn closed(
        &self,
        reason: &CloseReason,
        peer: SocketAddr,
        target: Target,
        broker: Option<&Endpoint>,
        oldest: Option<&'static str>,
    ) {
        self.metrics.closed.count(reason.label());
        if let Some(limit) = reason.limit() {
            self.metrics.limit_hits.hit(limit);
        }
        let broker = broker.map(tracing::field::display);
        let role = role_name(target);
        if !reason.is_notable() {
            tracing::debug!(virtual_cluster = self.name, %peer, role, broker, oldest, "connection ended: {reason}");
        } else if let Some(suppressed) = self.may_log(reason.label()) {
            warn!(virtual_cluster = self.name, %peer, role, broker, oldest, suppressed, "connection ended: {reason}");
        }
    }

    /// Logs what changed for the virtual cluster as a whole.
    pub(crate) fn say(&self, sentence: &str) {
        info!(virtual_cluster = self.name, "{sentence}");
    }
}
