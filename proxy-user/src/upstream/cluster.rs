//! One real cluster: the task that keeps its topology fresh, and the handle that everyone else holds.
//!
//! ```text
//!             ┌────────────── config changed ───────────────┐
//!             ▼                                             │
//!   read ──► Reached  ── refresh, or poke (≥ 1 s apart) ──► read …, after a poke some more, 3 s apart
//!     ├────► Passive  ── likewise ────────────────────────► read …
//!     └────► Degraded ── backoff ≤ 5 s, or poke ──────────► read …
//! ```
//!
//! There is one log line for each change of state and of the brokers, none for a refresh that found nothing new.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::candidates::{self, Health, Target};
use super::endpoint::Endpoint;
use super::error::ReadError;
use super::merge::{Book, Changes, Observed, Rules, is_another, merge, settle};
use super::partitions::PartitionTable;
use super::reader::{self, Reader};
use super::settings::Settings;
use super::topology::{Reach, Topology};
use super::watcher::{self, Interest};
use crate::config;
use crate::kafka::fetch::Topic;
use crate::kafka::topics::SeenTopic;

/// Refreshes begin at least this far apart, however often they are asked for.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// After a poke the topology is looked at this often, this many times: a controller fences a dead broker only when its
/// session has timed out (`broker.session.timeout.ms`, 9 s), long after the first client noticed.
const CLOSER_LOOK: Duration = Duration::from_secs(3);
const CLOSER_LOOKS: u32 = 5;

/// The longest wait between attempts to reach a cluster that can't be reached.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// A real cluster. Cloning shares it; when the last clone is dropped, its task ends.
#[derive(Clone)]
pub struct Cluster(Arc<Owner>);

struct Owner {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Runs while replicas are routed to.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        for task in [&self.task, &self.watcher] {
            if let Some(task) = lock(task).take() {
                task.abort();
            }
        }
    }
}

/// What the handle and the task share.
pub(super) struct Shared {
    pub(super) name: String,
    settings: watch::Sender<Arc<Settings>>,
    rules: ArcSwap<Rules>,
    topology: watch::Sender<Arc<Topology>>,
    health: Mutex<Health>,
    /// The known brokers were read from the present bootstrap addresses, so they may stand in for them.
    known_belong: AtomicBool,
    wake: Notify,
    partitions: ArcSwap<PartitionTable>,
    interest: Mutex<Interest>,
    doubt: Notify,
    /// Replicas are routed to.
    routes_reads: AtomicBool,
}

/// A poisoned lock only means that another thread panicked between two plain assignments.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Starts the topology task on the current tokio runtime. `name` is the config's, for the log.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn spawn(name: &str, config: config::Cluster) -> Self {
        let settings = Settings::of(config);
        warn_of(name, &settings);
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            rules: ArcSwap::from_pointee(settings.rules.clone()),
            settings: watch::Sender::new(Arc::new(settings)),
            topology: watch::Sender::default(),
            health: Mutex::default(),
            known_belong: AtomicBool::new(true),
            wake: Notify::new(),
            partitions: ArcSwap::default(),
            interest: Mutex::default(),
            doubt: Notify::new(),
            routes_reads: AtomicBool::new(false),
        });
        let task = tokio::spawn(keep_fresh(shared.clone()));
        Self(Arc::new(Owner { shared, task: Mutex::new(Some(task)), watcher: Mutex::default() }))
    }

    /// A reload: applies at once, and the topology is read again. Known brokers are kept while they are still there.
    pub fn update(&self, config: config::Cluster) {
        let shared = &self.0.shared;
        let old = shared.settings.borrow().clone();
        if old.config == config {
            return;
        }
        let mut settings = Settings::of(config);
        warn_of(&shared.name, &settings);
        if old.bootstrap != settings.bootstrap || old.own_bootstrap != settings.own_bootstrap {
            shared.known_belong.store(false, Ordering::Relaxed);
            *lock(&shared.health) = Health::default();
        } else {
            settings.rules.local = shared.rules.load().local;
        }
        shared.rules.store(Arc::new(settings.rules.clone()));
        shared.change(|topology| settle(topology.clone(), &settings.rules, SystemTime::now()));
        shared.settings.send_replace(Arc::new(settings));
    }

    /// What is known now.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        self.0.shared.topology.borrow().clone()
    }

    /// Follows what is known; wakes only when something changed.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Topology>> {
        self.0.shared.topology.subscribe()
    }

    /// Takes note of what a Metadata or DescribeCluster answer said that passed on a mainline connection. Cheap when it
    /// says nothing new.
    pub fn observe(&self, seen: Observed) {
        let shared = &self.0.shared;
        let book = if shared.settings.borrow().config.tls.is_some() { Book::Mainline } else { Book::Both };
        let rules = shared.rules.load();
        let changes = shared.change(|topology| {
            // An old connection may still lead to the cluster that was here before a reload.
            if topology.reach == Reach::Reached && is_another(topology, &seen) {
                return topology.clone();
            }
            merge(topology, &seen, book, &rules, SystemTime::now())
        });
        if changes.any_broker() {
            // Their versions are to be asked.
            shared.wake.notify_one();
        }
    }

    /// Something failed that a fresh topology may mend: refreshes soon. May be called as often as one likes.
    pub fn poke(&self) {
        self.0.shared.wake.notify_one();
    }

    /// Whether consumers are led to replicas: then partitions are watched and brokers asked for their selector.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn set_routes_reads(&self, on: bool) {
        let shared = &self.0.shared;
        let mut task = lock(&self.0.watcher);
        match (on, task.is_some()) {
            (true, false) => *task = Some(tokio::spawn(watcher::watch(Arc::clone(shared)))),
            (false, true) => task.take().iter().for_each(JoinHandle::abort),
            _ => {}
        }
        if on && !shared.routes_reads.swap(on, Ordering::Relaxed) {
            self.poke();
        }
        shared.routes_reads.store(on, Ordering::Relaxed);
    }

    /// Whether its brokers want clients to authenticate, as far as is known: the config has credentials, or they were
    /// asked for.
    #[must_use]
    pub fn wants_authentication(&self) -> bool {
        let shared = &self.0.shared;
        shared.settings.borrow().config.sasl.is_some() || matches!(shared.topology.borrow().reach, Reach::Passive(_))
    }

    /// Leaders and in-sync replicas, as far as they are known.
    #[must_use]
    pub fn partitions(&self) -> Arc<PartitionTable> {
        self.0.shared.partitions.load_full()
    }

    /// Takes note of topics in a Metadata answer that passed.
    pub fn learn(&self, seen: Vec<SeenTopic>) {
        self.0.shared.learn(seen);
    }

    /// A topic is read: what is known of it is kept fresh for some minutes.
    pub fn watch_topic(&self, topic: Topic<'_>) {
        let table = self.partitions();
        let topic = table.topic(topic).map_or(topic, |known| Topic::Name(&known.name));
        if lock(&self.0.shared.interest).note(topic, Instant::now()) {
            self.doubt_partitions();
        }
    }

    /// What is known of some partition seems wrong: it is asked for again soon. May be called as often as one likes.
    pub fn doubt_partitions(&self) {
        self.0.shared.doubt.notify_one();
    }

    /// Takes note of how a connection to `endpoint` went, so that addresses that work are tried first.
    pub fn report(&self, endpoint: &Endpoint, worked: bool) {
        self.0.shared.note(endpoint, worked);
    }

    /// Addresses to dial for `target`, best first. For a node: its mainline address, none when it is not known. For
    /// bootstrap: the configured addresses, shuffled, then known live brokers; recent failures last.
    #[must_use]
    pub fn candidates(&self, target: Target) -> Vec<Endpoint> {
        let shared = &self.0.shared;
        let settings = shared.settings.borrow().clone();
        let topology = self.topology();
        let known_too = shared.known_belong.load(Ordering::Relaxed);
        let health = lock(&shared.health);
        candidates::mainline(target, &settings.bootstrap, &topology, known_too, &health, std::time::Instant::now())
    }

    /// The config, with its addresses parsed.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.0.shared.settings.borrow().clone()
    }

    /// Addresses for the gateway's own client, best first.
    pub(super) fn own_candidates(&self, settings: &Settings) -> Vec<Endpoint> {
        self.0.shared.own_candidates(settings)
    }

    /// How long one attempt to connect to a broker may take.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.0.shared.settings.borrow().config.connect_timeout.0
    }

    /// Ends the topology task; what is known stays readable.
    pub async fn stop(&self) {
        let tasks = [lock(&self.0.task).take(), lock(&self.0.watcher).take()];
        for task in tasks.into_iter().flatten() {
            task.abort();
            // An aborted task ends with an error that says just that.
            let _ = task.await;
        }
    }
}

impl Shared {
    /// Replaces the topology by `f` of it, and logs what changed.
    pub(super) fn change(&self, f: impl FnOnce(&Topology) -> Topology) -> Changes {
        let mut changes = Changes::default();
        let mut line = None;
        self.topology.send_if_modified(|current| {
            let new = f(current);
            if new == **current {
                return false;
            }
            changes = Changes::between(current, &new);
            line = Some((new.present().count(), new.brokers.len()));
            *current = Arc::new(new);
            true
        });
        if let Some((present, known)) = line {
            self.log(&changes, present, known);
        }
        changes
    }

    fn log(&self, changes: &Changes, present: usize, known: usize) {
        let cluster = self.name.as_str();
        if changes.any_broker() {
            info!(cluster, present, known, "brokers of cluster {cluster} changed: {changes}");
        }
        if let Some((was, is)) = &changes.renamed {
            warn!(
                cluster,
                "the id of cluster {cluster} was {was} and is {is}: do all bootstrap addresses belong to one cluster?"
            );
        }
        for (id, advertised) in &changes.unreachable {
            warn!(
                cluster,
                broker = id.0,
                "broker {id} is advertised as {advertised}, which can't be dialled from here: correct \
                 advertised.listeners of the broker, or give clusters.{cluster}.address_map an entry for \"{advertised}\""
            );
        }
    }

    pub(super) fn note(&self, endpoint: &Endpoint, worked: bool) {
        lock(&self.health).note(endpoint, worked, std::time::Instant::now());
    }

    pub(super) fn topology(&self) -> Arc<Topology> {
        self.topology.borrow().clone()
    }

    pub(super) fn settings_feed(&self) -> watch::Receiver<Arc<Settings>> {
        self.settings.subscribe()
    }

    pub(super) fn interest(&self) -> std::sync::MutexGuard<'_, Interest> {
        lock(&self.interest)
    }

    pub(super) async fn partitions_doubted(&self) {
        self.doubt.notified().await;
    }

    pub(super) fn routes_reads(&self) -> bool {
        self.routes_reads.load(Ordering::Relaxed)
    }

    pub(super) fn learn(&self, seen: Vec<SeenTopic>) {
        self.partitions.rcu(|table| table.learn(seen.clone()).map_or_else(|| Arc::clone(table), Arc::new));
    }

    pub(super) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Addresses for the gateway's own client.
    pub(super) fn own_candidates(&self, settings: &Settings) -> Vec<Endpoint> {
        let known: Vec<_> = match self.known_belong.load(Ordering::Relaxed) {
            true => self.topology().present().filter_map(|(_, b)| b.own_address.clone()).collect(),
            false => Vec::new(),
        };
        candidates::order(&settings.own_bootstrap, &known, &lock(&self.health), std::time::Instant::now())
    }

    /// A bootstrap address turned out to be this very host's, so loopback addresses of brokers are right.
    pub(super) fn is_local(&self) {
        if !self.rules.load().local {
            self.rules.rcu(|rules| Rules { local: true, ..(**rules).clone() });
        }
    }
}

fn warn_of(name: &str, settings: &Settings) {
    for problem in &settings.problems {
        warn!(cluster = name, "{problem}");
    }
    if let (Some(sasl), None) = (&settings.config.sasl, &settings.config.tls)
        && sasl.mechanism == config::Mechanism::Plain
    {
        warn!(cluster = name, "sasl PLAIN without tls sends the password in the clear: set tls, or a SCRAM mechanism");
    }
}

/// The task.
async fn keep_fresh(shared: Arc<Shared>) {
    let mut settings = shared.settings.subscribe();
    let reader = Reader::default();
    let mut state = State::default();
    let mut closer_looks = 0;
    loop {
        let now = settings.borrow_and_update().clone();
        let began = Instant::now();
        let delay = tokio::select! {
            outcome = reader.read(&shared, &now) => state.after(&shared, &now, outcome),
            // The sender is in `shared`, so this can't fail.
            _ = settings.changed() => {
                state.failures = 0;
                continue;
            }
        };
        let delay = if closer_looks > 0 { delay.min(CLOSER_LOOK) } else { delay };
        closer_looks = u32::saturating_sub(closer_looks, 1);
        let due = async {
            sleep_until(began + MIN_INTERVAL).await;
            tokio::select! {
                () = sleep_until(began + delay) => false,
                () = shared.wake.notified() => true,
            }
        };
        tokio::select! {
            poked = due => {
                if poked {
                    closer_looks = CLOSER_LOOKS;
                }
            }
            _ = settings.changed() => state.failures = 0,
        }
    }
}

/// What the task remembers from one attempt to the next.
#[derive(Default)]
struct State {
    failures: u32,
    /// Kind of the last failure, so that another kind is news.
    kind: Option<&'static str>,
}

impl State {
    /// Takes note of an attempt; how long after its beginning the next one is due.
    fn after(&mut self, shared: &Shared, settings: &Settings, outcome: Result<(), reader::Failure>) -> Duration {
        let cluster = shared.name.as_str();
        let refresh = settings.config.refresh.0;
        let was = shared.topology().reach.clone();
        let Err(failure) = outcome else {
            shared.known_belong.store(true, Ordering::Relaxed);
            *self = Self::default();
            return jitter(refresh);
        };
        let is = judge(&was, &failure);
        let news = std::mem::discriminant(&was) != std::mem::discriminant(&is) || self.kind != Some(failure.kind());
        match &is {
            Reach::Passive(why) if news => info!(cluster, "cluster {cluster} is passive: {why}"),
            Reach::Degraded(why) if news => warn!(cluster, "cluster {cluster} is degraded: {why}"),
            _ => debug!(cluster, "cluster {cluster} is still not reached: {failure}"),
        }
        self.kind = Some(failure.kind());
        self.failures = self.failures.saturating_add(1);
        let passive = matches!(is, Reach::Passive(_));
        shared.change(|t| settle(Topology { reach: is, ..t.clone() }, &shared.rules.load(), SystemTime::now()));
        if passive || failure.errors.iter().any(ReadError::is_final) {
            jitter(refresh)
        } else {
            jitter(backoff(self.failures))
        }
    }
}

/// What a failed attempt says of the cluster. A broker that shuts down closes connections too: a cluster that was
/// reached without credentials is called passive only when it happens again.
fn judge(was: &Reach, failure: &reader::Failure) -> Reach {
    if failure.errors.iter().any(ReadError::needs_authentication) && *was != Reach::Reached {
        Reach::Passive(failure.to_string())
    } else {
        Reach::Degraded(failure.to_string())
    }
}

/// 1 s, 2 s, 4 s, then [`MAX_BACKOFF`].
fn backoff(failures: u32) -> Duration {
    MIN_INTERVAL.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(MAX_BACKOFF)
}

/// Between three quarters and all of `span`, so that gateways started together don't ask together.
fn jitter(span: Duration) -> Duration {
    span.mul_f64(rand::random_range(0.75..=1.0))
}

#[cfg(test)]
mod tests;
