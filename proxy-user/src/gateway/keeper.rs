//! Keeps the open ports of one virtual cluster in step with the config, the brokers, and the way that the host allows:
//! steered to the shared sockets, or bound one by one.
//!
//! ```text
//!            sockets for what is to be bound ─► claims published ─► accepting begins
//!  reconcile                                        │
//!            what was bound and is steered now keeps its socket for RETIRE: connections wait in its queue
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::door::Route;
use super::edge::Slot;
use super::gate::Gate;
use super::listeners::{self, Accepting, Listener};
use super::registry::role_name;
use super::routes::{Claim, Owner};
use super::shared::{Phase, Shared};
use super::steering::Steering;
use crate::config;
use crate::kafka::ids::NodeId;
use crate::upstream::topology::Topology;
use crate::upstream::{Endpoint, Target};

/// A port that could not be opened is tried again after this long.
const RETRY: Duration = Duration::from_secs(5);

/// How long a port's own socket stays after its connections come in by another way: those that were on their way to
/// it are in its queue by then.
const RETIRE: Duration = Duration::from_secs(2);

/// How long connections have for their first request before a drain behind a successor begins.
const NEWBORN: Duration = Duration::from_millis(500);

/// Why `::` is not open on a host without the family; such a port is left out, not degraded.
const NO_IPV6: &str = "this host has no IPv6";

/// What a start or reload prepared, so that one that can't have its ports changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    /// Sockets bound ahead.
    pub(crate) sockets: HashMap<SocketAddr, std::net::TcpListener>,
    /// Ports (and whether of IPv4) that the gateway itself has bound anywhere: no stranger has them.
    pub(crate) ours: Arc<HashSet<(bool, u16)>>,
}

pub(super) enum Command {
    /// Config and sockets to go on with.
    Reconfigure(Box<config::VirtualCluster>, Bound, oneshot::Sender<()>),
    /// Close the ports for good; connections end by this phase.
    Close(Phase, oneshot::Sender<()>),
}

/// How connections come in by a port.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// By a socket of its own.
    Bound(Arc<TcpListener>),
    /// By the shared ones.
    Steered,
}

/// A port that is or should be open.
#[derive(Clone, Debug)]
pub(super) struct PortState {
    pub(super) target: Target,
    /// How it is open, or why it isn't.
    pub(super) way: Result<Way, String>,
}

/// What others see of it.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) ports: BTreeMap<SocketAddr, PortState>,
    /// Sockets that are about to be closed, and still are in the way of who binds their port.
    pub(super) retiring: BTreeMap<SocketAddr, Arc<TcpListener>>,
    /// Why ports are bound and not steered; `None`: they are steered.
    pub(super) why_bound: Option<String>,
    /// Ports of the range that another service of this host has.
    pub(super) strangers: BTreeSet<SocketAddr>,
}

/// A socket whose port is steered now.
struct Retiring {
    address: SocketAddr,
    accepting: Accepting,
    until: Instant,
}

/// Owns the listeners.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    steering: Arc<Steering>,
    owner: Owner,
    open: BTreeMap<SocketAddr, Listener>,
    retiring: Vec<Retiring>,
    /// Ports of the range that are steered.
    claimed: BTreeSet<SocketAddr>,
    /// The kernel had no room for our ports; not tried again before the next reload.
    no_room: Option<String>,
    /// Where each broker was dialled last, to notice that it moved.
    addresses: HashMap<NodeId, Vec<Endpoint>>,
    /// Which cluster it was last, to notice another in its place.
    cluster_id: Option<String>,
    /// Brokers without a port, as last reported.
    outside: BTreeSet<NodeId>,
    view: Arc<Mutex<View>>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, steering: Arc<Steering>, view: Arc<Mutex<View>>) -> Self {
        Self {
            shared,
            owner: steering.owner(),
            steering,
            open: BTreeMap::new(),
            retiring: Vec::new(),
            claimed: BTreeSet::new(),
            no_room: None,
            addresses: HashMap::new(),
            cluster_id: None,
            outside: BTreeSet::new(),
            view,
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut topology = self.shared.cluster().watch();
        let mut retry = tokio::time::interval(RETRY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let retired = self.retiring.iter().map(|retiring| retiring.until).min();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Reconfigure(config, bound, done)) => {
                        self.shared.set_config(*config);
                        self.no_room = None;
                        self.reconcile(bound).await;
                        self.open.values().for_each(|listener| listener.gate.nudge());
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
                    self.reconcile(Bound::default()).await;
                }
                _ = retry.tick(), if self.has_errors() => self.reconcile(Bound::default()).await,
                () = sleep_until(retired), if retired.is_some() => self.retire().await,
            }
        }
    }

    fn view(&self) -> std::sync::MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_errors(&self) -> bool {
        self.view().ports.values().any(|state| state.way.is_err())
    }

    async fn close_all(&mut self, phase: &Phase) {
        // Nothing is taken from a queue any more before nothing leads anywhere: who waits in one may be another
        // process's, or another virtual cluster's.
        let retiring = std::mem::take(&mut self.retiring).into_iter().map(|retiring| retiring.accepting);
        let mut closing = Vec::new();
        let mut sockets: Vec<_> = retiring.collect();
        for listener in std::mem::take(&mut self.open).into_values() {
            closing.push((listener.gate, phase.clone()));
            sockets.extend(listener.socket);
        }
        for accepting in sockets {
            accepting.close().await;
        }
        if self.steering.is_frozen() && !closing.is_empty() {
            // A successor takes the connections that come. Those that came to us just now are to get an answer to
            // their first request, not an end before it.
            tokio::time::sleep(NEWBORN).await;
        }
        // The view holds the sockets as well. Who is ended must not be able to come back.
        *self.view() = View::default();
        self.publish(BTreeMap::new(), closing);
    }

    /// A publish that takes nothing from the kernel's table can't fail.
    fn publish(&self, claims: BTreeMap<SocketAddr, Claim<Route>>, closing: Vec<(Arc<Gate>, Phase)>) {
        if let Err(error) = self.steering.publish(self.owner, claims, closing) {
            warn!(virtual_cluster = self.shared.name, "{error}");
        }
    }

    /// Closes the sockets whose time is over.
    async fn retire(&mut self) {
        let now = Instant::now();
        let (over, stay): (Vec<_>, Vec<_>) = self.retiring.drain(..).partition(|retiring| retiring.until <= now);
        self.retiring = stay;
        for retiring in over {
            self.view().retiring.remove(&retiring.address);
            retiring.accepting.close().await;
        }
    }

    /// Closes what must not be open, opens what must be, turns over what leads elsewhere now.
    pub(super) async fn reconcile(&mut self, mut bound: Bound) {
        let shared = Arc::clone(&self.shared);
        let topology = shared.cluster().topology();
        let config = shared.config().clone();
        let until = Instant::now() + config.limits.drain.0;

        let mut plan = listeners::plan(&config, &topology);
        let mut way = match &self.no_room {
            Some(why) => Err(why.clone()),
            None => self.steering.slot(&shared.name),
        };
        let mut step = self.prepare(&config, &plan, way.clone().ok(), &mut bound);
        if let Err(why) = self.steering.publish(self.owner, step.claims(&self.shared), step.closing(self, until)) {
            warn!(virtual_cluster = shared.name, "ports are bound one by one: {why}");
            self.no_room = Some(why.clone());
            way = Err(why);
            self.claimed.clear();
            step = self.prepare(&config, &plan, None, &mut bound);
            self.publish(step.claims(&self.shared), step.closing(self, until));
        }
        plan.retain(|address, _| step.listeners.contains_key(address) || step.errors.contains_key(address));
        self.carry_out(step, plan, way.err()).await;
        shared.saw_to(&topology);
        self.note_brokers(&config, &topology, until);
    }

    /// What is to be, sockets opened, nothing changed yet.
    fn prepare(
        &mut self,
        config: &config::VirtualCluster,
        plan: &BTreeMap<SocketAddr, Target>,
        slot: Option<Slot>,
        bound: &mut Bound,
    ) -> Step {
        let mut step = Step { slot, ..Step::default() };
        for (&address, &target) in plan {
            let gate = match self.open.get(&address) {
                Some(listener) if listener.target == target => Arc::clone(&listener.gate),
                _ => Arc::new(Gate::new()),
            };
            let socket = match slot {
                None => self.socket(address, bound).map(Some),
                Some(_) => self.may_claim(address, bound).map(|()| None),
            };
            match socket {
                Ok(socket) => {
                    step.listeners.insert(address, (target, gate, socket));
                }
                Err(error) if error == NO_IPV6 => {} // `::` of the default list: nothing is wrong with an IPv4 host.
                Err(error) => {
                    step.errors.insert(address, error);
                }
            }
        }
        if slot.is_some() {
            for address in listeners::range(config).filter(|address| !plan.contains_key(address)) {
                match self.may_claim(address, bound) {
                    Ok(()) => {
                        step.closed.insert(address);
                    }
                    Err(error) if error == NO_IPV6 => {}
                    Err(_) => {
                        step.strangers.insert(address);
                    }
                }
            }
        }
        step
    }

    /// The socket of a port that is to be bound: its own, one that was bound ahead or handed over, or a new one.
    fn socket(&mut self, address: SocketAddr, bound: &mut Bound) -> Result<NewSocket, String> {
        if self.open.get(&address).is_some_and(|listener| listener.socket.is_some()) {
            return Ok(NewSocket::Kept);
        }
        if let Some(at) = self.retiring.iter().position(|retiring| retiring.address == address) {
            return Ok(NewSocket::Accepting(self.retiring.swap_remove(at).accepting));
        }
        let ready = bound.sockets.remove(&address).or_else(|| self.steering.inherited(address));
        let socket = ready.map_or_else(|| listeners::bind(address), Ok).and_then(TcpListener::from_std);
        socket.map(|socket| NewSocket::Bound(Arc::new(socket))).map_err(|error| explain(address, &error))
    }

    /// Whether the kernel may steer a port: it does already, we have it bound, or nobody has.
    fn may_claim(&mut self, address: SocketAddr, bound: &Bound) -> Result<(), String> {
        let is_ours = self.claimed.contains(&address)
            || bound.ours.contains(&(address.is_ipv4(), address.port()))
            || self.open.get(&address).is_some_and(|listener| listener.socket.is_some())
            || self.retiring.iter().any(|retiring| retiring.address.port() == address.port())
            || self.steering.is_shared_port(address.port());
        if is_ours {
            return Ok(());
        }
        if let Some(socket) = self.steering.inherited(address) {
            // The predecessor had it bound: what waits in its queue is served.
            let socket = TcpListener::from_std(socket).map_err(|error| error.to_string())?;
            let accepting = Accepting::start(Arc::new(socket), &self.steering);
            self.retiring.push(Retiring { address, accepting, until: Instant::now() + RETIRE });
            return Ok(());
        }
        listeners::probe(address).map_err(|error| explain(address, &error))
    }

    /// The claims are published: sockets begin to be accepted from, or end.
    async fn carry_out(&mut self, step: Step, plan: BTreeMap<SocketAddr, Target>, why_bound: Option<String>) {
        let Step { slot, listeners, errors, closed, strangers } = step;
        self.claimed = match slot {
            Some(_) => listeners.keys().copied().chain(closed).collect(),
            None => BTreeSet::new(),
        };
        let mut before = std::mem::take(&mut self.open);
        let mut gone = Vec::new();
        for (address, (target, gate, socket)) in listeners {
            let role = role_name(target);
            let was = before.remove(&address);
            match &was {
                None => self.shared.say(&format!("{address} ({role}) opened")),
                Some(was) if was.target != target => self.shared.say(&format!("{address} is now {role}")),
                Some(_) => {}
            }
            let old = was.and_then(|was| was.socket);
            let socket = match socket {
                Some(NewSocket::Kept) => old,
                Some(NewSocket::Accepting(accepting)) => Some(accepting),
                Some(NewSocket::Bound(socket)) => Some(Accepting::start(socket, &self.steering)),
                None => {
                    let until = Instant::now() + RETIRE;
                    self.retiring.extend(old.map(|accepting| Retiring { address, accepting, until }));
                    None
                }
            };
            self.open.insert(address, Listener { target, gate, socket });
        }
        for (address, listener) in before {
            self.shared.say(&format!("{address} ({}) closed", role_name(listener.target)));
            gone.extend(listener.socket);
        }
        for accepting in gone {
            accepting.close().await;
        }
        self.show(plan, errors, why_bound, strangers);
    }

    /// Tells what is open and what isn't, and says what is new of it.
    fn show(
        &self,
        plan: BTreeMap<SocketAddr, Target>,
        mut errors: BTreeMap<SocketAddr, String>,
        why_bound: Option<String>,
        strangers: BTreeSet<SocketAddr>,
    ) {
        let mut view = self.view();
        let mut ports = BTreeMap::new();
        for (address, target) in plan {
            let way = match (errors.remove(&address), self.open.get(&address).map(|listener| &listener.socket)) {
                (Some(error), _) => Err(error),
                (None, Some(Some(accepting))) => Ok(Way::Bound(Arc::clone(accepting.socket()))),
                (None, Some(None)) => Ok(Way::Steered),
                (None, None) => continue,
            };
            let known = view.ports.get(&address).and_then(|state| state.way.as_ref().err());
            if let Err(error) = &way
                && known != Some(error)
            {
                warn!(virtual_cluster = self.shared.name, "{address} ({}) can't be opened: {error}", role_name(target));
            }
            ports.insert(address, PortState { target, way });
        }
        if !strangers.is_empty() && strangers != view.strangers {
            let few: Vec<_> = strangers.iter().take(3).map(ToString::to_string).collect();
            info!(
                virtual_cluster = self.shared.name,
                "{} ports of broker_ports belong to other services of this host and stay theirs: {} …",
                strangers.len(),
                few.join(", ")
            );
        }
        let retiring = self.retiring.iter().map(|r| (r.address, Arc::clone(r.accepting.socket()))).collect();
        *view = View { ports, retiring, why_bound, strangers };
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
            self.open.values().for_each(|listener| listener.gate.turn_over(until));
        }
        for &node in topology.brokers.keys() {
            let now = self.shared.cluster().candidates(Target::Node(node));
            let before = self.addresses.insert(node, now.clone()).unwrap_or_default();
            if !before.is_empty() && before != now {
                self.shared.say(&format!("broker {node} moved: its connections are drained"));
                let its = self.open.values().filter(|listener| listener.target == Target::Node(node));
                its.for_each(|listener| listener.gate.turn_over(until));
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
}

/// Where a bound port's socket comes from.
enum NewSocket {
    /// It has it already.
    Kept,
    /// It had it until lately.
    Accepting(Accepting),
    /// A new one.
    Bound(Arc<TcpListener>),
}

/// What a reconcile is about to do.
#[derive(Default)]
struct Step {
    slot: Option<Slot>,
    /// Ports that are to be open; without a socket they are steered.
    listeners: BTreeMap<SocketAddr, (Target, Arc<Gate>, Option<NewSocket>)>,
    /// Ports that should be and can't.
    errors: BTreeMap<SocketAddr, String>,
    /// Steered ports without a broker.
    closed: BTreeSet<SocketAddr>,
    strangers: BTreeSet<SocketAddr>,
}

impl Step {
    fn claims(&self, shared: &Arc<Shared>) -> BTreeMap<SocketAddr, Claim<Route>> {
        let open = self.listeners.iter().map(|(&address, (target, gate, _))| {
            let route = Route { shared: Arc::clone(shared), target: *target, gate: Arc::clone(gate) };
            (address, Claim { slot: self.slot, route: Some(route) })
        });
        let closed = self.closed.iter().map(|&address| (address, Claim { slot: self.slot, route: None }));
        open.chain(closed).collect()
    }

    /// The gates of ports that are closed or lead elsewhere.
    fn closing(&self, keeper: &Keeper, until: Instant) -> Vec<(Arc<Gate>, Phase)> {
        let is_kept = |address: &SocketAddr, gate: &Arc<Gate>| {
            self.listeners.get(address).is_some_and(|(_, kept, _)| Arc::ptr_eq(kept, gate))
        };
        let ends = keeper.open.iter().filter(|(address, listener)| !is_kept(address, &listener.gate));
        ends.map(|(_, listener)| (Arc::clone(&listener.gate), Phase::Drain { until })).collect()
    }
}

fn explain(address: SocketAddr, error: &std::io::Error) -> String {
    if listeners::family_is_absent(address, error) { NO_IPV6.to_owned() } else { error.to_string() }
}

/// Never, where there is no time.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
