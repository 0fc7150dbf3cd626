//! One virtual cluster at run time: keeps its open ports in step with the config and the brokers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::listeners::{self, Listener};
use super::registry::role_name;
use super::shared::{Phase, Shared};
use super::status::{ListenerStatus, VirtualClusterStatus};
use super::workers::Workers;
use crate::config;
use crate::kafka::ids::NodeId;
use crate::upstream::{Endpoint, Target};

/// A port that could not be opened is tried again after this long.
const RETRY: Duration = Duration::from_secs(5);

/// Sockets bound ahead, so that a start or reload that can't have its ports changes nothing.
pub(crate) type Bound = HashMap<SocketAddr, std::net::TcpListener>;

enum Command {
    /// Config and sockets to go on with.
    Reconfigure(Box<config::VirtualCluster>, Bound, oneshot::Sender<()>),
    /// Close the ports; connections end by this phase.
    Close(Phase),
}

/// Handle of a running virtual cluster.
pub(crate) struct VirtualCluster {
    pub(crate) shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    ports: Arc<Mutex<BTreeMap<SocketAddr, PortState>>>,
}

/// A port that is or should be open.
#[derive(Clone, Debug)]
struct PortState {
    target: Target,
    error: Option<String>,
}

impl VirtualCluster {
    /// Opens the ports and keeps them right from then on.
    pub(crate) async fn start(shared: Shared, workers: Arc<Workers>, bound: Bound) -> Self {
        let shared = Arc::new(shared);
        let (commands, incoming) = mpsc::channel(8);
        let ports = Arc::default();
        let mut keeper = Keeper {
            shared: Arc::clone(&shared),
            workers,
            open: BTreeMap::new(),
            addresses: HashMap::new(),
            outside: BTreeSet::new(),
            ports: Arc::clone(&ports),
        };
        keeper.reconcile(bound);
        tokio::spawn(keeper.run(incoming));
        Self { shared, commands, ports }
    }

    /// Goes on with another config. Returns once its ports are open.
    pub(crate) async fn reconfigure(&self, config: config::VirtualCluster, bound: Bound) {
        let (done, applied) = oneshot::channel();
        if self.commands.send(Command::Reconfigure(Box::new(config), bound, done)).await.is_ok() {
            let _ = applied.await;
        }
    }

    /// Closes the ports; connections end by `phase`.
    pub(crate) async fn close(&self, phase: Phase) {
        let _ = self.commands.send(Command::Close(phase)).await;
    }

    /// The addresses that are open now.
    pub(crate) fn open_ports(&self) -> BTreeSet<SocketAddr> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.iter().filter(|(_, state)| state.error.is_none()).map(|(address, _)| *address).collect()
    }

    /// For operators.
    pub(crate) fn status(&self) -> VirtualClusterStatus {
        let config = self.shared.config();
        let topology = self.shared.cluster().topology();
        let metrics = &self.shared.metrics;
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outside: Vec<i32> = listeners::unreachable(&config, &topology).iter().map(|node| node.0).collect();
        let mut degraded = Vec::new();
        if !outside.is_empty() {
            degraded.push(format!(
                "brokers {outside:?} have no port: raise broker_ports.count or move broker_ports.first_node_id"
            ));
        }
        for (address, state) in &ports {
            if let Some(error) = &state.error {
                degraded.push(format!("{address} ({}) is not open: {error}", role_name(state.target)));
            }
        }
        VirtualClusterStatus {
            cluster: config.cluster.clone(),
            listeners: ports
                .into_iter()
                .map(|(address, state)| ListenerStatus {
                    address: address.to_string(),
                    role: role_name(state.target),
                    error: state.error,
                })
                .collect(),
            unreachable_brokers: outside,
            connections: self.shared.registry.len() as u64,
            accepted: metrics.accepted.get(),
            request_bytes: metrics.request_bytes.get(),
            answer_bytes: metrics.answer_bytes.get(),
            requests: metrics.requests.total(),
            closed: metrics.closed.snapshot().into_iter().map(|(reason, n)| (reason.to_owned(), n)).collect(),
            degraded,
        }
    }
}

/// Owns the listeners.
struct Keeper {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    open: BTreeMap<SocketAddr, Listener>,
    /// Where each broker was dialled last, to notice that it moved.
    addresses: HashMap<NodeId, Vec<Endpoint>>,
    /// Brokers without a port, as last reported.
    outside: BTreeSet<NodeId>,
    ports: Arc<Mutex<BTreeMap<SocketAddr, PortState>>>,
}

impl Keeper {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut topology = self.shared.cluster().watch();
        let mut retry = tokio::time::interval(RETRY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Reconfigure(config, bound, done)) => {
                        self.shared.set_config(*config);
                        self.reconcile(bound);
                        let _ = done.send(());
                    }
                    Some(Command::Close(phase)) => {
                        self.close_all(&phase);
                        if phase == Phase::Stop {
                            return;
                        }
                    }
                    None => return self.close_all(&Phase::Stop),
                },
                changed = topology.changed() => {
                    if changed.is_err() {
                        // The cluster's task ended: nothing will change any more, ports stay as they are.
                        let Some(command) = commands.recv().await else { return };
                        if let Command::Close(phase) = command {
                            self.close_all(&phase);
                        }
                        return;
                    }
                    topology.borrow_and_update();
                    self.shared.on_topology(&self.shared.cluster().topology());
                    self.reconcile(Bound::new());
                }
                _ = retry.tick(), if self.has_errors() => self.reconcile(Bound::new()),
            }
        }
    }

    fn has_errors(&self) -> bool {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).values().any(|state| state.error.is_some())
    }

    fn close_all(&mut self, phase: &Phase) {
        for (_, listener) in std::mem::take(&mut self.open) {
            listener.close(phase.clone());
        }
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Closes what must not be open, opens what must be, turns over what leads elsewhere now.
    fn reconcile(&mut self, mut bound: Bound) {
        let shared = Arc::clone(&self.shared);
        let config = shared.config();
        let cluster = shared.cluster();
        let topology = cluster.topology();
        let plan = listeners::plan(&config, &topology);
        let until = Instant::now() + config.limits.drain.0;

        let stale: Vec<_> = self.open.iter().filter(|(a, l)| plan.get(a) != Some(&l.target)).map(|(a, _)| *a).collect();
        for address in stale {
            if let Some(listener) = self.open.remove(&address) {
                self.shared.say(&format!("{address} ({}) closed", role_name(listener.target)));
                listener.close(Phase::Drain { until });
            }
        }

        let mut states = BTreeMap::new();
        let before = std::mem::take(&mut *self.ports.lock().unwrap_or_else(PoisonError::into_inner));
        for (address, target) in plan {
            let error = if self.open.contains_key(&address) { None } else { self.open(address, target, &mut bound) };
            if let Some(error) = &error
                && before.get(&address).is_none_or(|state| state.error.as_ref() != Some(error))
            {
                let role = role_name(target);
                warn!(virtual_cluster = self.shared.name, "{address} ({role}) can't be opened: {error}");
            }
            states.insert(address, PortState { target, error });
        }
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = states;

        for &node in topology.brokers.keys() {
            let now = cluster.candidates(Target::Node(node));
            let before = self.addresses.insert(node, now.clone()).unwrap_or_default();
            if !before.is_empty() && before != now {
                self.shared.say(&format!("broker {node} moved: its connections are drained"));
                self.open.values().filter(|l| l.target == Target::Node(node)).for_each(|l| l.turn_over(until));
            }
        }
        let outside = listeners::unreachable(&config, &topology);
        if outside != self.outside {
            for node in outside.difference(&self.outside) {
                warn!(
                    virtual_cluster = self.shared.name,
                    "broker {node} is outside broker_ports and can't be reached: raise broker_ports.count or move \
                     broker_ports.first_node_id"
                );
            }
            self.outside = outside;
        }
    }

    /// Opens one port. Returns why it isn't open.
    fn open(&mut self, address: SocketAddr, target: Target, bound: &mut Bound) -> Option<String> {
        let socket = match bound.remove(&address).map_or_else(|| listeners::bind(address), Ok) {
            Ok(socket) => socket,
            Err(error) if listeners::family_is_absent(address, &error) => {
                return Some("this host has no IPv6".to_owned());
            }
            Err(error) => return Some(error.to_string()),
        };
        match Listener::start(socket, target, Arc::clone(&self.shared), Arc::clone(&self.workers)) {
            Ok(listener) => {
                self.open.insert(address, listener);
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }
}
