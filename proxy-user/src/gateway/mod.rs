//! The mainline: listeners, one client connection's life, response order, drain, reload.
//!
//! ```text
//!  Gateway ── per virtual cluster ── Keeper (ports in step with config and brokers)
//!     │                                └── Steering (routes, shared sockets, Edge) ─► Door ─► Workers ─► connection::serve
//!     ├────── EdgeControl (the kernel's programs, admission)                                    │ Session (pure), two Lanes
//!     └────── per cluster ── upstream::Cluster (topology)
//! ```

mod admission;
mod clock;
mod close;
mod connection;
#[cfg(test)]
mod connection_tests;
mod door;
pub mod edge;
mod edge_control;
#[cfg(test)]
mod edge_tests;
#[cfg(test)]
mod fake_edge;
mod gate;
mod gauges;
mod keeper;
mod lane;
mod listeners;
mod mapping;
mod mirroring;
pub mod parcel;
#[cfg(test)]
mod parcel_tests;
mod pool;
mod ports;
pub mod racks_report;
mod read_models;
mod reads;
mod recent;
mod registry;
#[cfg(test)]
mod reload_tests;
mod routes;
mod session;
#[cfg(test)]
mod session_mirror_tests;
#[cfg(test)]
mod session_splice_tests;
#[cfg(test)]
mod session_tests;
mod shared;
mod slots;
mod splicing;
#[cfg(test)]
mod splicing_tests;
pub mod status;
mod steering;
mod virtual_cluster;
mod workers;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use arc_swap::ArcSwap;
use futures_util::future::join_all;
use tracing::{error, info};

pub use close::CloseReason;

use self::admission::Admission;
use self::door::Door;
use self::edge::EdgeSource;
use self::edge_control::EdgeControl;
use self::mirroring::Mirrors;
use self::parcel::KnownCluster;
use self::shared::{Phase, Shared};
use self::steering::{Inherited, Steering};
use self::virtual_cluster::VirtualCluster;
use self::workers::Workers;
use crate::config::{Config, FastPathMode};
use crate::metrics::Metrics;
use crate::splice::mirror::Consumers;
use crate::upstream;

/// A drain's patience ends this long after the connections' own, so that they can end by themselves.
const DRAIN_MARGIN: Duration = Duration::from_secs(2);

/// How often the kernel's side is looked after.
const UPKEEP: Duration = Duration::from_secs(1);

/// The running gateway.
pub struct Gateway {
    metrics: Metrics,
    workers: Arc<Workers>,
    edge: Arc<EdgeControl>,
    /// Copies of frames; `None`: nobody wants any.
    mirrors: Option<Mirrors>,
    upkeep: tokio::task::JoinHandle<()>,
    /// What runs now; replaced whole by a reload.
    running: ArcSwap<Running>,
    /// One reload at a time.
    reload: tokio::sync::Mutex<()>,
    started: Instant,
    config_path: String,
    generation: AtomicU64,
    last_reload_error: Mutex<Option<String>>,
    draining: AtomicBool,
    /// A successor has the sockets and the kernel's tables.
    given: AtomicBool,
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
    /// Opens every port of the config and begins to serve. Clusters that can't be reached heal by themselves. `edges`:
    /// where the kernel's programs come from, if this process may have them.
    ///
    /// # Errors
    /// A port can't be opened, or the config requires kernel programs that this host can't run.
    pub async fn start(
        config: Config,
        config_path: String,
        metrics: Metrics,
        edges: Option<Arc<dyn EdgeSource>>,
    ) -> anyhow::Result<Self> {
        Self::start_mirroring(config, config_path, metrics, edges, None).await
    }

    /// The same with copies of frames for somebody, if anybody wants them.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_mirroring(
        config: Config,
        config_path: String,
        metrics: Metrics,
        edges: Option<Arc<dyn EdgeSource>>,
        consumers: Option<Arc<dyn Consumers>>,
    ) -> anyhow::Result<Self> {
        Self::start_with(config, config_path, metrics, edges, consumers, None, BTreeMap::new()).await
    }

    async fn start_with(
        config: Config,
        config_path: String,
        metrics: Metrics,
        edges: Option<Arc<dyn EdgeSource>>,
        consumers: Option<Arc<dyn Consumers>>,
        inherited: Option<(Inherited, Option<OwnedFd>)>,
        clusters: BTreeMap<String, KnownCluster>,
    ) -> anyhow::Result<Self> {
        let workers = Arc::new(Workers::start(worker_count(&config))?);
        let admission = Arc::new(Admission::default());
        let door = Arc::new(Door::new(Arc::clone(&workers), Arc::clone(&admission), metrics.gateway().clone()));
        let (inherited, lock) = inherited.map_or((None, None), |(inherited, lock)| (Some(inherited), lock));
        let steering = Steering::new(door, inherited)?;
        let edge = Arc::new(EdgeControl::new(edges, steering, admission, lock, consumers.is_some()));
        let mirrors = consumers.map(|consumers| Mirrors::new(config.fast_path.mirror_buffer.0, consumers));
        let upkeep = tokio::spawn(look_after(Arc::clone(&edge)));
        let gateway = Self {
            metrics,
            workers,
            edge,
            mirrors,
            upkeep,
            running: ArcSwap::default(),
            reload: tokio::sync::Mutex::default(),
            started: Instant::now(),
            config_path,
            generation: AtomicU64::new(0),
            last_reload_error: Mutex::default(),
            draining: AtomicBool::new(false),
            given: AtomicBool::new(false),
        };
        gateway.apply_knowing(config, clusters).await?;
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
        self.apply_knowing(config, BTreeMap::new()).await
    }

    async fn apply_knowing(&self, config: Config, known: BTreeMap<String, KnownCluster>) -> anyhow::Result<()> {
        let _one_at_a_time = self.reload.lock().await;
        if self.draining.load(Relaxed) {
            bail!("a drain is under way");
        }
        if self.given.load(Relaxed) {
            bail!("a successor has taken over; ask it");
        }
        for (name, wanted) in &config.virtual_clusters {
            if !config.clusters.contains_key(&wanted.cluster) {
                bail!("virtual_clusters.{name}.cluster: there is no cluster {:?}", wanted.cluster);
            }
        }
        self.survive_loss().await;
        self.switch(config, known).await
    }

    /// Waits until somebody else has taken the kernel's programs off this host.
    pub async fn edge_lost(&self) {
        self.edge.lost().await;
    }

    /// Goes on without the kernel's programs where somebody else took them off: every port is bound, whatever the
    /// config says. The next reload loads them again.
    pub async fn go_on_without_edge(&self) {
        let _one_at_a_time = self.reload.lock().await;
        if !self.draining.load(Relaxed) && !self.given.load(Relaxed) {
            self.survive_loss().await;
        }
    }

    /// As [`Self::go_on_without_edge`], by who has the reload lock.
    async fn survive_loss(&self) {
        let (Some(why), Some(config)) = (self.edge.loss(), self.config()) else { return };
        for shared in self.running.load().all() {
            let ended = shared.registry.end_spliced();
            if ended > 0 {
                error!(virtual_cluster = shared.name, "{ended} connections were spliced and end: {why}");
            }
        }
        match self.switch((*config).clone(), BTreeMap::new()).await {
            Ok(()) => error!("{why}; the daemon does their part, and `turnout reload` loads them again"),
            Err(error) => {
                let trouble = format!("{why}, and ports can't be bound without them, trying again: {error:#}");
                // It is tried every second, and said once.
                if self.edge.is_news(&trouble) {
                    error!("{trouble}");
                }
            }
        }
    }

    /// Whether the config asks for kernel programs that don't run.
    #[must_use]
    pub fn lacks_edge(&self) -> bool {
        let wanted = self.config().is_some_and(|config| config.fast_path.mode != FastPathMode::Off);
        wanted && self.edge.steering.edge().is_none()
    }

    /// A reload, by who has its lock.
    async fn switch(&self, config: Config, mut known: BTreeMap<String, KnownCluster>) -> anyhow::Result<()> {
        let old = self.running.load_full();
        let was_steering = self.edge.steering.steers().is_ok();
        let (prepared, mut bound) = self.prepare(&old, &config)?;
        let reroute = was_steering != prepared.steers();
        let hold = self.edge.steering.hold();

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
            if let Some(known) = known.remove(name) {
                known.tell(&cluster);
            }
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
                    if reroute || **running.shared.config() != *wanted {
                        running.reconfigure(wanted.clone(), mine).await;
                    }
                    Arc::clone(running)
                }
                _ => {
                    let metrics = self.metrics.virtual_cluster(name);
                    let mirror = self.mirrors.as_ref().and_then(|mirrors| mirrors.of(name, &metrics.mirror));
                    let shared = Shared::new(name, wanted.clone(), cluster.clone(), metrics).mirrored(mirror);
                    let steering = Arc::clone(&self.edge.steering);
                    Arc::new(VirtualCluster::start(Arc::new(shared), steering, mine).await)
                }
            };
            virtual_clusters.insert(name.clone(), running);
        }

        for (name, cluster) in &clusters {
            let users = virtual_clusters.values().filter(|running| running.shared.config().cluster == *name);
            cluster.set_routes_reads(users.into_iter().any(|running| running.shared.racks.is_on()));
        }
        drop(hold);
        for running in virtual_clusters.values() {
            self.edge.allow_splice(&running.shared);
        }
        self.edge.finish(&prepared);
        self.edge.steering.retain_slots(|name| virtual_clusters.contains_key(name));

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
        self.end_denied();
        Ok(())
    }

    /// All of a config that may fail, done before anything changes.
    fn prepare(
        &self,
        old: &Running,
        config: &Config,
    ) -> anyhow::Result<(edge_control::Prepared, BTreeMap<String, keeper::Bound>)> {
        let workers = worker_count(config);
        let mut prepared = self.edge.prepare(old.config.as_deref(), config)?;
        loop {
            let done = ports::bind_ahead(old, config, prepared.steers(), &self.edge.steering)
                .and_then(|bound| self.workers.resize(workers).map(|()| bound));
            let bound = match done {
                Ok(bound) => bound,
                Err(error) => {
                    self.edge.undo(prepared, old.config.as_deref());
                    return Err(error);
                }
            };
            match self.edge.commit(&prepared, workers) {
                Ok(()) => return Ok((prepared, bound)),
                Err(error) if config.fast_path.mode == FastPathMode::Required => {
                    self.edge.undo(prepared, old.config.as_deref());
                    return Err(error.context("fast_path.mode is required"));
                }
                // Without an edge nothing is left to fail, so this comes round once.
                Err(error) => prepared = self.edge.go_without(prepared, &error),
            }
        }
    }

    /// Ends the connections that are open from denied sources.
    fn end_denied(&self) {
        for shared in self.running.load().all() {
            let ended = shared.registry.end_denied(|address| self.edge.admission.denies(address));
            if ended > 0 {
                info!(virtual_cluster = shared.name, "{ended} connections are from denied addresses and end");
            }
        }
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
        let drains = running.virtual_clusters.values().map(|running| {
            let patience = running.shared.config().limits.drain.0;
            running.close(Phase::Drain { until: Instant::now() + patience })
        });
        join_all(drains).await;
        let patience = running.virtual_clusters.values().map(|running| running.shared.config().limits.drain.0);
        let longest = patience.max().unwrap_or_default();
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
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.upkeep.abort();
        self.edge.steering.abort();
    }
}

/// Keeps the kernel's side up to date.
async fn look_after(edge: Arc<EdgeControl>) {
    let mut tick = tokio::time::interval(UPKEEP);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        edge.upkeep();
    }
}

fn worker_count(config: &Config) -> usize {
    config.workers.map_or_else(
        || std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        |workers| workers as usize,
    )
}

/// Whether a virtual cluster goes on as it is, perhaps reconfigured: one that leads to another cluster is another one.
fn is_kept(old: &Running, new: &Config, name: &str) -> bool {
    let cluster = |config: &Config| config.virtual_clusters.get(name).map(|v| v.cluster.clone());
    let before = old.config.as_deref().and_then(cluster);
    before.is_some() && before == cluster(new)
}
