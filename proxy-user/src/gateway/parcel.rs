//! What one process hands to the one that takes its place: sockets as they are, queues included, and what it would
//! take the successor time to learn.
//!
//! ```text
//!  old:  serving ── give ──► frozen (tells the kernel nothing) ── successor is ready ──► drain
//!                               └──────────── successor failed ─────► take_back: serving
//!  new:            start_from ──► serving beside the old ── take_over (tells the kernel) ──► ready
//! ```

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::Gateway;
use super::edge::{EdgeSource, Slot};
use super::steering::Inherited;
use crate::config::Config;
use crate::kafka::ids::NodeId;
use crate::metrics::Metrics;
use crate::splice::mirror::Consumers;
use crate::upstream::topology::Topology;
use crate::upstream::{Cluster, Endpoint, Observed, ObservedBroker};

/// Between two looks whether a successor's clusters were reached.
const LOOK: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub struct Parcel {
    /// Sockets that are bound to ports.
    pub ports: Vec<(SocketAddr, OwnedFd)>,
    /// Sockets that the kernel steers to.
    pub shared: Vec<OwnedFd>,
    /// The lock of the kernel's pins.
    pub lock: Option<OwnedFd>,
    /// What has no descriptor.
    pub knowledge: Knowledge,
}

/// What a process knows that its successor would have to learn anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knowledge {
    /// Places of virtual clusters in the kernel's tables.
    pub slots: BTreeMap<String, u16>,
    /// Brokers of each cluster: without them their ports would be closed until the cluster is reached.
    pub clusters: BTreeMap<String, KnownCluster>,
}

/// A cluster as it was seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownCluster {
    /// Its own id.
    pub cluster_id: Option<String>,
    /// Brokers: node id, advertised host and port, rack.
    pub brokers: Vec<(i32, String, u16, Option<String>)>,
}

impl KnownCluster {
    fn of(topology: &Topology) -> Self {
        let broker = |(id, broker): (&NodeId, &crate::upstream::topology::Broker)| {
            let Endpoint { host, port } = broker.advertised.address.clone()?;
            Some((id.0, host, port, broker.advertised.rack.clone()))
        };
        Self { cluster_id: topology.cluster_id.clone(), brokers: topology.brokers.iter().filter_map(broker).collect() }
    }

    pub(super) fn tell(self, cluster: &Cluster) {
        let Self { cluster_id, brokers } = self;
        let broker = |(id, host, port, rack): (i32, String, u16, Option<String>)| ObservedBroker {
            id: NodeId(id),
            address: Endpoint::new(host, port),
            rack,
        };
        let brokers = brokers.into_iter().map(broker).collect();
        cluster.observe(Observed { brokers, cluster_id, detailed: true, ..Observed::default() });
    }
}

impl Gateway {
    /// As [`Gateway::start`], with what a predecessor handed over. Connections are served from now on; the kernel's
    /// tables stay the predecessor's until [`Gateway::take_over`].
    ///
    /// # Errors
    /// As for [`Gateway::start`].
    pub async fn start_from(
        config: Config,
        config_path: String,
        metrics: Metrics,
        edges: Option<Arc<dyn EdgeSource>>,
        consumers: Option<Arc<dyn Consumers>>,
        parcel: Parcel,
    ) -> anyhow::Result<Self> {
        let Parcel { ports, shared, lock, knowledge: Knowledge { slots, clusters } } = parcel;
        let inherited = Inherited {
            ports: ports.into_iter().map(|(address, socket)| (address, StdListener::from(socket))).collect(),
            shared: shared.into_iter().map(StdListener::from).collect(),
            slots: slots.into_iter().map(|(name, slot)| (name, Slot(slot))).collect(),
        };
        Self::start_with(config, config_path, metrics, edges, consumers, Some((inherited, lock)), clusters).await
    }

    /// Waits until the clusters were reached, or are known to be out of reach, or `patience` ends; then the kernel goes
    /// by this process's tables.
    ///
    /// # Errors
    /// The kernel refused.
    pub async fn take_over(&self, patience: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + patience;
        while !self.ready().ready && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
        self.edge.steering.thaw().context("taking over the kernel's tables")?;
        self.edge.steering.close_inherited();
        if let Some(config) = self.config()
            && self.edge.steering.edge().is_none()
        {
            self.edge.end_inherited(&config);
        }
        Ok(())
    }

    /// Everything for a successor. From now on the kernel is told nothing, and no reload is taken, until
    /// `take_back` or the end.
    ///
    /// # Errors
    /// A descriptor can't be had (nothing has changed then), or a drain is under way.
    pub async fn give(&self) -> anyhow::Result<Given<'_>> {
        let guard = self.reload.lock().await;
        if self.draining.load(Relaxed) {
            bail!("a drain is under way");
        }
        self.edge.steering.freeze();
        match self.parcel() {
            Ok(parcel) => Ok(Given { gateway: self, parcel, _no_reload: guard }),
            Err(error) => {
                self.take_back();
                Err(error)
            }
        }
    }

    fn parcel(&self) -> anyhow::Result<Parcel> {
        let running = self.running.load_full();
        let mut ports = Vec::new();
        for virtual_cluster in running.virtual_clusters.values() {
            for (address, socket) in virtual_cluster.bound_ports() {
                let socket =
                    socket.as_fd().try_clone_to_owned().with_context(|| format!("a descriptor of {address}"))?;
                ports.push((address, socket));
            }
        }
        let shared = self.edge.steering.sockets();
        let shared = shared.iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect::<Result<_, _>>();
        let known = |(name, cluster): (&String, &Cluster)| (name.clone(), KnownCluster::of(&cluster.topology()));
        Ok(Parcel {
            ports,
            shared: shared.context("a descriptor of a shared socket")?,
            lock: self.edge.steering.edge().and_then(|edge| edge.lock()),
            knowledge: Knowledge {
                slots: self.edge.steering.slots().into_iter().map(|(name, slot)| (name, slot.0)).collect(),
                clusters: running.clusters.iter().map(known).collect(),
            },
        })
    }

    fn take_back(&self) {
        if let Err(error) = self.edge.thaw(self.config().as_deref()) {
            tracing::error!("the kernel does not take the tables back, trying again: {error:#}");
        }
    }

    /// Drains, while a successor takes the connections that come: no port is closed, and none is taken from the
    /// kernel's tables.
    pub async fn drain_behind_successor(&self) {
        if let Some(edge) = self.edge.steering.edge() {
            edge.release();
        }
        self.edge.steering.close_sockets().await;
        self.drain().await;
    }
}

/// A gateway that has given everything away. Dropped without [`Given::keep_given`], it takes it back.
pub struct Given<'a> {
    gateway: &'a Gateway,
    /// What is to be handed over.
    pub parcel: Parcel,
    _no_reload: tokio::sync::MutexGuard<'a, ()>,
}

impl Given<'_> {
    /// The successor has it: it is not taken back.
    pub fn keep_given(self) {
        self.gateway.given.store(true, Relaxed);
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        if !self.gateway.given.load(Relaxed) {
            self.gateway.take_back();
        }
    }
}
