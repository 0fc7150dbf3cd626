//! One virtual cluster at run time: keeps its open ports in step with the config and the brokers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::listeners::{self, Listener};
use super::registry::role_name;
use super::shared::{Phase, Shared};
use super::status::{ListenerStatus, VirtualClusterStatus};
use super::workers::Workers;
use crate::config;
use crate::kafka::ids::NodeId;
use crate::upstream::topology::Topology;
use crate::upstream::{Endpoint, Target};

/// A port that could not be opened is tried again after this long.
const RETRY: Duration = Duration::from_secs(5);

/// Why `::` is not open on a host without the family; such a port is left out, not degraded.
const NO_IPV6: &str = "this host has no IPv6";

/// Sockets bound ahead, so that a start or reload that can't have its ports changes nothing.
pub(crate) type Bound = HashMap<SocketAddr, std::net::TcpListener>;

enum Command {
    /// Config and sockets to go on with.
    Reconfigure(Box<config::VirtualCluster>, Bound, oneshot::Sender<()>),
    /// Close the ports for good; connections end by this phase.
    Close(Phase, oneshot::Sender<()>),
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
    /// The open socket, or why there is none.
    socket: Result<Arc<TcpListener>, String>,
}

impl VirtualCluster {
    /// Opens the ports and keeps them right from then on.
    pub(crate) async fn start(shared: Arc<Shared>, workers: Arc<Workers>, bound: Bound) -> Self {
        let (commands, incoming) = mpsc::channel(8);
        let ports = Arc::default();
        let mut keeper = Keeper {
            shared: Arc::clone(&shared),
            workers,
            open: BTreeMap::new(),
            addresses: HashMap::new(),
            cluster_id: None,
            outside: BTreeSet::new(),
            ports: Arc::clone(&ports),
        };
        keeper.reconcile(bound).await;
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

    /// Closes the ports for good; connections end by `phase`. They are closed when this returns.
    pub(crate) async fn close(&self, phase: Phase) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(phase, done)).await.is_ok() {
            let _ = closed.await;
        }
    }

    /// The ports that are open now.
    pub(crate) fn open_ports(&self) -> BTreeMap<SocketAddr, Arc<TcpListener>> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.iter().filter_map(|(address, state)| Some((*address, Arc::clone(state.socket.as_ref().ok()?)))).collect()
    }

    /// The ports that should be open and aren't.
    pub(crate) fn failing_ports(&self) -> BTreeSet<SocketAddr> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.iter().filter(|(_, state)| state.socket.is_err()).map(|(address, _)| *address).collect()
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
            if let Err(error) = &state.socket {
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
                    error: state.socket.err(),
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
    /// Which cluster it was last, to notice another in its place.
    cluster_id: Option<String>,
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
                        self.reconcile(bound).await;
                        self.open.values().for_each(Listener::nudge);
                        let _ = done.send(());
                    }
                    Some(Command::Close(phase, done)) => {
                        self.close_all(&phase).await;
                        let _ = done.send(());
                        return;
                    }
                    None => return self.close_all(&Phase::Stop).await,
                },
                Ok(()) = topology.changed() => {
                    topology.borrow_and_update();
                    self.shared.on_topology(&self.shared.cluster().topology());
                    self.reconcile(Bound::new()).await;
                }
                _ = retry.tick(), if self.has_errors() => self.reconcile(Bound::new()).await,
            }
        }
    }

    fn has_errors(&self) -> bool {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).values().any(|state| state.socket.is_err())
    }

    async fn close_all(&mut self, phase: &Phase) {
        for (_, listener) in std::mem::take(&mut self.open) {
            listener.close(phase.clone()).await;
        }
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Closes what must not be open, opens what must be, turns over what leads elsewhere now.
    async fn reconcile(&mut self, bound: Bound) {
        let shared = Arc::clone(&self.shared);
        let topology = shared.cluster().topology();
        let config = shared.config().clone();
        let plan = listeners::plan(&config, &topology);
        let until = Instant::now() + config.limits.drain.0;

        let stale: Vec<_> = self.open.keys().filter(|address| !plan.contains_key(address)).copied().collect();
        for address in stale {
            if let Some(listener) = self.open.remove(&address) {
                shared.say(&format!("{address} ({}) closed", role_name(listener.target())));
                listener.close(Phase::Drain { until }).await;
            }
        }
        self.open_all(plan, bound, until).await;
        shared.saw_to(&topology);
        self.note_brokers(&config, &topology, until);
    }

    /// Opens what must be open, and turns what is open to where it must lead.
    async fn open_all(&mut self, plan: BTreeMap<SocketAddr, Target>, mut bound: Bound, until: Instant) {
        let before = std::mem::take(&mut *self.ports.lock().unwrap_or_else(PoisonError::into_inner));
        let mut states = BTreeMap::new();
        for (address, target) in plan {
            let role = role_name(target);
            let socket = match self.open.get_mut(&address) {
                Some(listener) => {
                    if listener.target() != target {
                        let (shared, workers) = (Arc::clone(&self.shared), Arc::clone(&self.workers));
                        listener.lead_to(target, until, shared, workers).await;
                        self.shared.say(&format!("{address} is now {role}"));
                    }
                    Ok(Arc::clone(listener.socket()))
                }
                None => self.open(address, target, &mut bound),
            };
            if socket.as_ref().is_err_and(|error| error == NO_IPV6) {
                continue; // `::` of the default list: nothing is wrong with an IPv4 host.
            }
            if let Err(error) = &socket
                && before.get(&address).is_none_or(|state| state.socket.as_ref().err() != Some(error))
            {
                warn!(virtual_cluster = self.shared.name, "{address} ({role}) can't be opened: {error}");
            }
            states.insert(address, PortState { target, socket });
        }
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Drains connections to brokers that moved, and says which brokers have no port.
    fn note_brokers(&mut self, config: &config::VirtualCluster, topology: &Topology, until: Instant) {
        if let Some(is) = &topology.cluster_id
            && let Some(was) = self.cluster_id.replace(is.clone())
            && was != *is
        {
            // Also those to bootstrap, which no broker's move would end: offsets and ids of one cluster mean nothing to
            // another.
            self.shared.say(&format!("the cluster was {was} and is {is}: all connections are drained"));
            self.open.values().for_each(|listener| listener.turn_over(until));
        }
        for &node in topology.brokers.keys() {
            let now = self.shared.cluster().candidates(Target::Node(node));
            let before = self.addresses.insert(node, now.clone()).unwrap_or_default();
            if !before.is_empty() && before != now {
                self.shared.say(&format!("broker {node} moved: its connections are drained"));
                self.open.values().filter(|l| l.target() == Target::Node(node)).for_each(|l| l.turn_over(until));
            }
        }
        let outside = listeners::unreachable(config, topology);
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

    /// Opens one port, or says why it can't be.
    fn open(&mut self, address: SocketAddr, target: Target, bound: &mut Bound) -> Result<Arc<TcpListener>, String> {
        let socket = match bound.remove(&address).map_or_else(|| listeners::bind(address), Ok) {
            Ok(socket) => socket,
            Err(error) if listeners::family_is_absent(address, &error) => {
                return Err(NO_IPV6.to_owned());
            }
            Err(error) => return Err(error.to_string()),
        };
        let listener = Listener::start(socket, target, Arc::clone(&self.shared), Arc::clone(&self.workers))
            .map_err(|error| error.to_string())?;
        self.shared.say(&format!("{address} ({}) opened", role_name(target)));
        let socket = Arc::clone(listener.socket());
        self.open.insert(address, listener);
        Ok(socket)
    }
}
