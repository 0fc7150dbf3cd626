//! The mainline: listeners, one client connection's life, response order, drain, reload.
//!
//! ```text
//!  Gateway ── per virtual cluster ── Keeper (ports in step with config and brokers)
//!     │                                └── Listener ──► Workers ──► connection::serve
//!     └────── per cluster ── upstream::Cluster (topology)              │ Session (pure), two Lanes
//! ```

mod clock;
mod close;
mod connection;
#[cfg(test)]
mod connection_tests;
pub mod edge;
mod gauges;
mod lane;
mod listeners;
mod mapping;
mod pool;
mod ports;
mod registry;
#[cfg(test)]
mod reload_tests;
mod session;
#[cfg(test)]
mod session_tests;
mod shared;
pub mod status;
mod virtual_cluster;
mod workers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use arc_swap::ArcSwap;
use tracing::info;

pub use close::CloseReason;

use self::shared::{Phase, Shared};
use self::status::{BrokerStatus, ClusterStatus, ConnectionStatus, Readiness, Status};
use self::virtual_cluster::VirtualCluster;
use self::workers::Workers;
use crate::config::{self, Config};
use crate::metrics::{ClusterState, Metrics};
use crate::upstream::topology::{Reach, Topology};
use crate::upstream::{self};

/// A drain's patience ends this long after the connections' own, so that they can end by themselves.
const DRAIN_MARGIN: Duration = Duration::from_secs(2);

/// The running gateway.
pub struct Gateway {
    metrics: Metrics,
    workers: Arc<Workers>,
    /// What runs now; replaced whole by a reload.
    running: ArcSwap<Running>,
    /// One reload at a time.
    reload: tokio::sync::Mutex<()>,
    started: Instant,
    config_path: String,
    generation: AtomicU64,
    last_reload_error: Mutex<Option<String>>,
    draining: AtomicBool,
}

#[derive(Clone, Default)]
struct Running {
    config: Option<Arc<Config>>,
    clusters: BTreeMap<String, upstream::Cluster>,
    virtual_clusters: BTreeMap<String, Arc<VirtualCluster>>,
    /// Virtual clusters that a reload removed and whose last connections are being drained.
    leaving: Vec<Arc<Shared>>,
}

impl Running {
    /// Everything that may have connections.
    fn all(&self) -> impl Iterator<Item = &Arc<Shared>> {
        self.virtual_clusters.values().map(|running| &running.shared).chain(&self.leaving)
    }
}

impl Gateway {
    /// Opens every port of the config and begins to serve. Clusters that can't be reached heal by themselves.
    ///
    /// # Errors
    /// A port can't be opened.
    pub async fn start(config: Config, config_path: String, metrics: Metrics) -> anyhow::Result<Self> {
        let gateway = Self {
            metrics,
            workers: Arc::new(Workers::start(worker_count(&config))?),
            running: ArcSwap::default(),
            reload: tokio::sync::Mutex::default(),
            started: Instant::now(),
            config_path,
            generation: AtomicU64::new(0),
            last_reload_error: Mutex::default(),
            draining: AtomicBool::new(false),
        };
        gateway.apply(config).await?;
        Ok(gateway)
    }

    /// The config in force.
    #[must_use]
    pub fn config(&self) -> Option<Arc<Config>> {
        self.running.load().config.clone()
    }

    /// Goes on with another config: whole or not at all. Connections that the difference does not concern are not
    /// touched.
    ///
    /// # Errors
    /// A port that the new config needs can't be opened; nothing has changed then. Refused while draining.
    pub async fn apply(&self, config: Config) -> anyhow::Result<()> {
        let _one_at_a_time = self.reload.lock().await;
        if self.draining.load(Relaxed) {
            bail!("a drain is under way");
        }
        for (name, wanted) in &config.virtual_clusters {
            if !config.clusters.contains_key(&wanted.cluster) {
                bail!("virtual_clusters.{name}.cluster: there is no cluster {:?}", wanted.cluster);
            }
        }
        let old = self.running.load_full();
        let mut bound = ports::bind_ahead(&old, &config)?;

        self.workers.resize(worker_count(&config))?;

        let mut clusters = BTreeMap::new();
        for (name, wanted) in &config.clusters {
            let cluster = match old.clusters.get(name) {
                Some(cluster) => {
                    let before = old.config.as_ref().and_then(|config| config.clusters.get(name));
                    if before != Some(wanted) {
                        cluster.update(wanted.clone());
                    }
                    cluster.clone()
                }
                None => upstream::Cluster::spawn(name, wanted.clone()),
            };
            clusters.insert(name.clone(), cluster);
        }

        let mut leaving: Vec<_> = old.leaving.iter().filter(|shared| shared.registry.len() > 0).cloned().collect();
        for (name, running) in &old.virtual_clusters {
            if !is_kept(&old, &config, name) {
                let patience = running.shared.config().limits.drain.0;
                info!(virtual_cluster = name, "removed: its connections are drained");
                running.close(Phase::Drain { until: Instant::now() + patience }).await;
                leaving.push(Arc::clone(&running.shared));
            }
        }

        let mut virtual_clusters = BTreeMap::new();
        for (name, wanted) in &config.virtual_clusters {
            let Some(cluster) = clusters.get(&wanted.cluster) else { continue };
            let mine = bound.remove(name).unwrap_or_default();
            let running = match old.virtual_clusters.get(name) {
                Some(running) if is_kept(&old, &config, name) => {
                    if **running.shared.config() != *wanted {
                        running.reconfigure(wanted.clone(), mine).await;
                    }
                    Arc::clone(running)
                }
                _ => {
                    let metrics = self.metrics.virtual_cluster(name);
                    let gateway = self.metrics.gateway().clone();
                    let shared = Shared::new(name, wanted.clone(), cluster.clone(), metrics, gateway);
                    Arc::new(VirtualCluster::start(Arc::new(shared), Arc::clone(&self.workers), mine).await)
                }
            };
            virtual_clusters.insert(name.clone(), running);
        }

        for (name, cluster) in &old.clusters {
            if !clusters.contains_key(name) {
                let cluster = cluster.clone();
                tokio::spawn(async move { cluster.stop().await });
            }
        }
        self.metrics.retain(|name| virtual_clusters.contains_key(name), |name| clusters.contains_key(name));
        self.running.store(Arc::new(Running { config: Some(Arc::new(config)), clusters, virtual_clusters, leaving }));
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        self.metrics.gateway().config_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.set_reload_error(None);
        Ok(())
    }

    /// Remembers why a reload was refused, for `status`.
    pub fn set_reload_error(&self, error: Option<String>) {
        *self.last_reload_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Closes all ports, lets every connection finish what is in flight, and returns when all are gone or patience
    /// ends.
    pub async fn drain(&self) {
        self.draining.store(true, Relaxed);
        self.metrics.gateway().draining.set(1);
        let _no_reload = self.reload.lock().await;
        let running = self.running.load_full();
        let mut longest = Duration::ZERO;
        for running in running.virtual_clusters.values() {
            let patience = running.shared.config().limits.drain.0;
            longest = longest.max(patience);
            running.close(Phase::Drain { until: Instant::now() + patience }).await;
        }
        let all_gone = async {
            for shared in running.all() {
                shared.registry.emptied().await;
            }
        };
        let _ = tokio::time::timeout(longest + DRAIN_MARGIN, all_gone).await;
    }

    /// Connections open now.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.running.load().all().map(|shared| shared.registry.len()).sum()
    }

    /// For operators.
    #[must_use]
    pub fn status(&self) -> Status {
        let running = self.running.load_full();
        let fast_path = running.config.as_ref().map_or(config::FastPathMode::Auto, |config| config.fast_path.mode);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.config_path.clone(),
            config_generation: self.generation.load(Relaxed),
            last_reload_error: self.last_reload_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            draining: self.draining.load(Relaxed),
            fast_path: match fast_path {
                config::FastPathMode::Off => "off: set so in the config",
                config::FastPathMode::Auto => "off: this version serves every connection in the daemon",
            }
            .to_owned(),
            clusters: running.clusters.iter().map(|(n, c)| (n.clone(), cluster_status(&c.topology()))).collect(),
            virtual_clusters: running.virtual_clusters.iter().map(|(n, v)| (n.clone(), v.status())).collect(),
        }
    }

    /// Every open connection.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let running = self.running.load_full();
        running.all().flat_map(|shared| shared.registry.status(&shared.name)).collect()
    }

    /// Whether traffic may be sent here: the config is loaded, ports are open, and each cluster was reached or is
    /// known to be degraded.
    #[must_use]
    pub fn ready(&self) -> Readiness {
        let running = self.running.load_full();
        let mut reasons = Vec::new();
        let mut ready = running.config.is_some();
        if self.draining.load(Relaxed) {
            ready = false;
            reasons.push("a drain is under way".to_owned());
        }
        for (name, cluster) in &running.clusters {
            match &cluster.topology().reach {
                Reach::Reached => {}
                Reach::Unknown => {
                    ready = false;
                    reasons.push(format!("cluster {name} has not been reached yet"));
                }
                Reach::Degraded(why) => reasons.push(format!("cluster {name} is degraded: {why}")),
                Reach::Passive(why) => {
                    reasons.push(format!("cluster {name} is known only from answers that pass: {why}"))
                }
            }
        }
        for (name, virtual_cluster) in &running.virtual_clusters {
            let bootstrap = virtual_cluster.shared.config().bootstrap_port;
            let open = virtual_cluster.open_ports();
            if !open.keys().any(|address| address.port() == bootstrap) {
                ready = false;
                reasons.push(format!("virtual cluster {name} has no bootstrap port open"));
            }
            reasons.extend(virtual_cluster.status().degraded.into_iter().map(|why| format!("{name}: {why}")));
        }
        Readiness { ready, reasons }
    }

    /// The numbers, brought up to date.
    #[must_use]
    pub fn metrics(&self) -> String {
        let running = self.running.load_full();
        for (name, cluster) in &running.clusters {
            let topology = cluster.topology();
            let metrics = self.metrics.cluster(name);
            metrics.set_state(match topology.reach {
                Reach::Unknown => ClusterState::Unknown,
                Reach::Reached => ClusterState::Reached,
                Reach::Degraded(_) => ClusterState::Degraded,
                Reach::Passive(_) => ClusterState::Passive,
            });
            let present = topology.brokers.values().filter(|broker| broker.absent_since.is_none()).count();
            metrics.brokers.set(i64::try_from(present).unwrap_or(i64::MAX));
        }
        for virtual_cluster in running.virtual_clusters.values() {
            let shared = &virtual_cluster.shared;
            let outside = listeners::unreachable(&shared.config(), &shared.cluster().topology()).len();
            shared.metrics.unreachable_brokers.set(i64::try_from(outside).unwrap_or(i64::MAX));
        }
        self.metrics.encode()
    }
}

fn worker_count(config: &Config) -> usize {
    config.workers.map_or_else(
        || std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        |workers| workers as usize,
    )
}

fn cluster_status(topology: &Topology) -> ClusterStatus {
    let (state, reason) = match &topology.reach {
        Reach::Unknown => (ClusterState::Unknown, None),
        Reach::Reached => (ClusterState::Reached, None),
        Reach::Degraded(why) => (ClusterState::Degraded, Some(why.clone())),
        Reach::Passive(why) => (ClusterState::Passive, Some(why.clone())),
    };
    ClusterStatus {
        state: state.name().to_owned(),
        reason,
        cluster_id: topology.cluster_id.clone(),
        controller: topology.controller.map(|node| node.0),
        brokers: topology
            .brokers
            .iter()
            .map(|(node, broker)| {
                let status = BrokerStatus {
                    address: broker.address.as_ref().map_or_else(|| "not known yet".to_owned(), ToString::to_string),
                    rack: broker.rack.clone(),
                    present: broker.absent_since.is_none(),
                };
                (node.0, status)
            })
            .collect(),
    }
}

/// Whether a virtual cluster goes on as it is, perhaps reconfigured: one that leads to another cluster is another one.
fn is_kept(old: &Running, new: &Config, name: &str) -> bool {
    let cluster = |config: &Config| config.virtual_clusters.get(name).map(|v| v.cluster.clone());
    let before = old.config.as_deref().and_then(cluster);
    before.is_some() && before == cluster(new)
}
