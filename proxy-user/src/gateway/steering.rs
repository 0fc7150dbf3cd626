//! One listening socket for every port, where the kernel can do that; the tables that it and accepting go by, always.
//!
//! ```text
//!  Keeper ── claims ─► Board ─► PortTable ─► Edge (sk_lookup)         steered: the shared sockets
//!                        └────► Routes ◄──── door::accept ◄────────── bound:   a socket for each port
//! ```
//!
//! A route is there before the kernel lets connections come by it, and goes after.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use super::door::{self, Door, Route};
use super::edge::{Edge, EdgeCounters, PortTable, Slot};
use super::gate::Gate;
use super::listeners;
use super::routes::{Board, Claim, Owner, Routes};
use super::shared::{Phase, Shared};
use super::slots::SlotBook;
use super::splicing::Access;

/// Shared sockets of each family at most: what the kernel's table has room for.
const MAX_SOCKETS: usize = 64;

/// Shared sockets of each family at least, however few workers there are. Each has a queue of `net.core.somaxconn`
/// connections that nobody has accepted yet; one bind per port has as many queues as ports, and a burst that finds its
/// queue full comes again only after a second.
const MIN_SOCKETS: usize = 16;

/// What a predecessor handed over to this process.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Sockets that are bound to ports.
    pub(crate) ports: HashMap<SocketAddr, StdListener>,
    /// Sockets that the kernel steers to.
    pub(crate) shared: Vec<StdListener>,
    /// Places in the kernel's tables.
    pub(crate) slots: BTreeMap<String, Slot>,
}

/// See the module.
pub(crate) struct Steering {
    door: Arc<Door>,
    routes: ArcSwap<Routes<Route>>,
    inner: Mutex<Inner>,
    next_owner: AtomicU64,
}

struct Inner {
    board: Board<Route>,
    /// What the kernel has; `None`: nothing, or not known.
    pushed: Option<PortTable>,
    /// A reload is under way: what is given up stays until it has ended.
    held: bool,
    /// Another process has the kernel's tables.
    frozen: bool,
    /// Gates to be closed once no route leads to them.
    closing: Vec<(Arc<Gate>, Phase)>,
    slots: SlotBook,
    /// What the kernel had counted for a slot before its virtual cluster got it.
    baseline: BTreeMap<Slot, EdgeCounters>,
    edge: Option<Arc<dyn Edge>>,
    /// The kernel steers; else why not.
    steers: Result<(), String>,
    sockets: Vec<(Arc<TcpListener>, JoinHandle<()>)>,
    inherited: HashMap<SocketAddr, StdListener>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (_, task) in &self.sockets {
            task.abort();
        }
    }
}

impl Steering {
    /// Nothing is steered yet. With `inherited`, nothing is told to the kernel before [`Self::thaw`].
    pub(crate) fn new(door: Arc<Door>, inherited: Option<Inherited>) -> io::Result<Arc<Self>> {
        let frozen = inherited.is_some();
        let Inherited { ports, shared, slots } = inherited.unwrap_or_default();
        let steering = Arc::new(Self {
            door,
            routes: ArcSwap::default(),
            inner: Mutex::new(Inner {
                board: Board::default(),
                pushed: None,
                held: false,
                frozen,
                closing: Vec::new(),
                slots: SlotBook::new(slots),
                baseline: BTreeMap::new(),
                edge: None,
                steers: Err("the kernel's programs are not loaded".to_owned()),
                sockets: Vec::new(),
                inherited: ports,
            }),
            next_owner: AtomicU64::new(0),
        });
        for socket in shared {
            let socket = Arc::new(TcpListener::from_std(socket)?);
            let task = steering.serve(Arc::clone(&socket));
            steering.inner().sockets.push((socket, task));
        }
        Ok(steering)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The route of a connection with this local address.
    pub(crate) fn route(&self, local: SocketAddr) -> Option<Route> {
        self.routes.load().find(local).cloned()
    }

    /// The virtual clusters that connections are led to.
    pub(crate) fn virtual_clusters(&self) -> Vec<Arc<Shared>> {
        let mut all: Vec<Arc<Shared>> = Vec::new();
        for route in self.routes.load().all() {
            if !all.iter().any(|known| Arc::ptr_eq(known, &route.shared)) {
                all.push(Arc::clone(&route.shared));
            }
        }
        all
    }

    /// A name to claim ports by.
    pub(crate) fn owner(&self) -> Owner {
        Owner(self.next_owner.fetch_add(1, Relaxed))
    }

    /// Takes connections from a socket.
    pub(crate) fn serve(self: &Arc<Self>, socket: Arc<TcpListener>) -> JoinHandle<()> {
        tokio::spawn(door::accept(socket, Arc::clone(&self.door), Arc::clone(self)))
    }

    /// The place in the kernel's tables under which a virtual cluster's ports are steered, or why they must be bound.
    pub(crate) fn slot(&self, name: &str) -> Result<Slot, String> {
        let mut inner = self.inner();
        inner.steers.clone()?;
        let (slot, is_new) = inner.slots.take(name).ok_or_else(|| {
            format!("the kernel's tables have no room for more than {} virtual clusters", super::edge::SLOTS)
        })?;
        if is_new {
            let before = inner.edge.as_ref().and_then(|edge| edge.counters().remove(&slot)).unwrap_or_default();
            inner.baseline.insert(slot, before);
        }
        Ok(slot)
    }

    /// What a virtual cluster's connections are spliced with, or why they aren't.
    pub(crate) fn splice(&self, name: &str) -> Result<Access, String> {
        let policy = self.slot(name)?.0;
        let edge = self.edge().ok_or("the kernel's programs are not loaded")?;
        Ok(Access { splicer: edge.splicer()?, policy })
    }

    /// Takes back the slots of all virtual clusters but these.
    pub(crate) fn retain_slots(&self, keep: impl Fn(&str) -> bool) {
        self.inner().slots.retain(keep);
    }

    /// A socket that a predecessor had bound.
    pub(crate) fn inherited(&self, address: SocketAddr) -> Option<StdListener> {
        self.inner().inherited.remove(&address)
    }

    /// Whether a predecessor had bound it, and nobody has asked for it yet.
    pub(crate) fn has_inherited(&self, address: SocketAddr) -> bool {
        self.inner().inherited.contains_key(&address)
    }

    /// Closes what a predecessor had bound and nobody has asked for.
    pub(crate) fn close_inherited(&self) {
        let left = std::mem::take(&mut self.inner().inherited);
        if !left.is_empty() {
            info!("{} ports of the predecessor are not in the config any more and are closed", left.len());
        }
    }

    /// Whether one of the shared sockets is in the way of who wants to bind the port.
    pub(crate) fn is_shared_port(&self, port: u16) -> bool {
        self.inner().sockets.iter().any(|(socket, _)| socket.local_addr().is_ok_and(|local| local.port() == port))
    }

    /// Replaces all that an owner claims, and closes these gates once nothing leads to them.
    ///
    /// # Errors
    /// The kernel's table can't hold the ports that are to be steered; nothing has changed then.
    pub(crate) fn publish(
        &self,
        owner: Owner,
        claims: BTreeMap<SocketAddr, Claim<Route>>,
        closing: Vec<(Arc<Gate>, Phase)>,
    ) -> Result<(), String> {
        let mut inner = self.inner();
        let before = inner.board.clone();
        let wants_kernel = claims.values().any(|claim| claim.slot.is_some());
        let hold = inner.held;
        inner.board.publish(owner, claims, hold);
        let old = self.routes.load_full();
        let new = inner.board.routes();
        self.routes.store(Arc::new(new.over(&old)));
        if let Err(error) = inner.push() {
            if wants_kernel {
                inner.board = before;
                self.routes.store(old);
                if let Err(error) = inner.push() {
                    error!("the kernel's table of ports could not be put back, trying again: {error:#}");
                }
                return Err(format!("the kernel took no more ports: {error:#}"));
            }
            error!("the kernel did not take a shorter table of ports, trying again: {error:#}");
        }
        self.routes.store(Arc::new(new));
        inner.closing.extend(closing);
        self.close_gates(&mut inner);
        Ok(())
    }

    /// Until the guard is dropped, ports that are given up stay.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.inner().held = true;
        Hold(Arc::clone(self))
    }

    fn release(&self) {
        let mut inner = self.inner();
        inner.held = false;
        inner.board.flush();
        if let Err(error) = inner.push() {
            error!("the kernel did not take a shorter table of ports, trying again: {error:#}");
        }
        self.routes.store(Arc::new(inner.board.routes()));
        self.close_gates(&mut inner);
    }

    fn close_gates(&self, inner: &mut Inner) {
        let routes = self.routes.load();
        let routed = |gate: &Arc<Gate>| routes.all().any(|route| Arc::ptr_eq(&route.gate, gate));
        let (stay, close) = std::mem::take(&mut inner.closing).into_iter().partition(|(gate, _)| routed(gate));
        inner.closing = stay;
        let close: Vec<(Arc<Gate>, Phase)> = close;
        for (gate, phase) in close {
            gate.close(&phase);
        }
    }

    /// Lets the kernel steer, to a socket of each family for each of `count` workers, and never too few. What virtual clusters claim from now on is steered;
    /// what they have bound stays so until they are told.
    ///
    /// # Errors
    /// A socket can't be had, or the kernel refused it.
    pub(crate) fn enable(self: &Arc<Self>, edge: &Arc<dyn Edge>, count: usize) -> anyhow::Result<()> {
        self.inner().edge = Some(Arc::clone(edge));
        if let Err(error) = self.grow(count) {
            self.inner().edge = None;
            return Err(error);
        }
        let mut inner = self.inner();
        inner.pushed = None;
        if !inner.frozen
            && let Err(error) = inner.tell_sockets()
        {
            inner.edge = None;
            return Err(error);
        }
        inner.steers = Ok(());
        Ok(())
    }

    /// Sees to it that there are enough sockets of each family for so many workers; never fewer than there were, since those have queues.
    fn grow(self: &Arc<Self>, count: usize) -> anyhow::Result<()> {
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let is_ours = |socket: &TcpListener| socket.local_addr().is_ok_and(|local| local.is_ipv4() == ip.is_ipv4());
            let there = self.inner().sockets.iter().filter(|(socket, _)| is_ours(socket)).count();
            for _ in there..count.clamp(MIN_SOCKETS, MAX_SOCKETS) {
                let socket = match listeners::bind(SocketAddr::new(ip, 0)) {
                    Ok(socket) => socket,
                    Err(error) if ip.is_ipv6() && listeners::is_absent(&error) => break,
                    Err(error) => return Err(error).with_context(|| format!("opening a shared socket on {ip}")),
                };
                let socket = Arc::new(TcpListener::from_std(socket)?);
                let task = self.serve(Arc::clone(&socket));
                self.inner().sockets.push((socket, task));
            }
        }
        self.make_room();
        Ok(())
    }

    /// What is accepted can be spliced.
    fn make_room(&self) {
        let inner = self.inner();
        let Some(Ok(splicer)) = inner.edge.as_ref().map(|edge| edge.splicer()) else { return };
        for (socket, _) in &inner.sockets {
            if let Err(error) = splicer.opening().prepare_listener(socket.as_fd()) {
                warn!("what a shared socket accepts may be slow to splice: {error}");
            }
        }
    }

    /// More workers want more sockets.
    pub(crate) fn resize(self: &Arc<Self>, count: usize) {
        let steers = self.inner().steers.is_ok();
        let before = self.inner().sockets.len();
        if !steers {
            return;
        }
        let grown = self.grow(count);
        let inner = self.inner();
        if inner.sockets.len() > before
            && !inner.frozen
            && let Err(error) = grown.and_then(|()| inner.tell_sockets())
        {
            warn!("connections are not spread over all workers: {error:#}");
        }
    }

    /// Ends steering for what is claimed from now on: `reason` is shown to operators. The shared sockets stay for
    /// connections under way.
    pub(crate) fn disable(&self, reason: &str) {
        self.inner().steers = Err(reason.to_owned());
    }

    /// Lets go of the kernel, when nothing is steered any more.
    pub(crate) fn take_edge(&self) -> Option<Arc<dyn Edge>> {
        let mut inner = self.inner();
        inner.pushed = None;
        inner.edge.take()
    }

    /// The kernel's side, if there is one.
    pub(crate) fn edge(&self) -> Option<Arc<dyn Edge>> {
        self.inner().edge.clone()
    }

    /// Whether the kernel steers, or why not.
    pub(crate) fn steers(&self) -> Result<(), String> {
        self.inner().steers.clone()
    }

    /// Tells the kernel again what it did not take.
    pub(crate) fn upkeep(&self) {
        let mut inner = self.inner();
        if let Err(error) = inner.push() {
            tracing::debug!("the kernel still does not take the table of ports: {error:#}");
        }
    }

    /// Tells the kernel nothing from now on: a successor does.
    pub(crate) fn freeze(&self) {
        self.inner().frozen = true;
    }

    /// The kernel's tables are ours: tells it everything.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn thaw(&self) -> anyhow::Result<()> {
        let mut inner = self.inner();
        inner.frozen = false;
        inner.pushed = None;
        if inner.edge.is_some() && inner.steers.is_ok() {
            inner.tell_sockets()?;
        }
        inner.push()
    }

    /// Another process has the kernel's tables.
    pub(crate) fn is_frozen(&self) -> bool {
        self.inner().frozen
    }

    /// The shared sockets, to be handed on.
    pub(crate) fn sockets(&self) -> Vec<Arc<TcpListener>> {
        self.inner().sockets.iter().map(|(socket, _)| Arc::clone(socket)).collect()
    }

    /// Stops taking connections from the shared sockets, at once.
    pub(crate) fn abort(&self) {
        let sockets = std::mem::take(&mut self.inner().sockets);
        sockets.iter().for_each(|(_, task)| task.abort());
    }

    /// Stops taking connections from the shared sockets, and closes our handles of them.
    pub(crate) async fn close_sockets(&self) {
        let sockets = std::mem::take(&mut self.inner().sockets);
        for (socket, task) in sockets {
            task.abort();
            let _ = task.await;
            drop(socket);
        }
    }

    /// The places in the kernel's tables.
    pub(crate) fn slots(&self) -> BTreeMap<String, Slot> {
        self.inner().slots.taken().clone()
    }

    /// Whose place it is.
    pub(crate) fn name_of(&self, slot: Slot) -> Option<String> {
        self.inner().slots.name(slot).map(str::to_owned)
    }

    /// How many ports are steered for a virtual cluster.
    pub(crate) fn steered(&self, name: &str) -> usize {
        let inner = self.inner();
        inner.slots.taken().get(name).map_or(0, |slot| inner.board.steered(*slot))
    }

    /// What the kernel counted for each virtual cluster since it has its slot.
    pub(crate) fn counters(&self) -> BTreeMap<String, EdgeCounters> {
        let inner = self.inner();
        let Some(edge) = &inner.edge else { return BTreeMap::new() };
        let all = edge.counters();
        let since = |(name, slot): (&String, &Slot)| {
            let mut counters = all.get(slot).cloned().unwrap_or_default();
            if let Some(before) = inner.baseline.get(slot) {
                subtract(&mut counters, before);
            }
            (name.clone(), counters)
        };
        inner.slots.taken().iter().map(since).collect()
    }
}

/// Counters that were reset meanwhile start from zero.
fn subtract(counters: &mut EdgeCounters, before: &EdgeCounters) {
    counters.admitted = counters.admitted.saturating_sub(before.admitted);
    counters.steered = counters.steered.saturating_sub(before.steered);
    for (reason, n) in &mut counters.refused {
        *n = n.saturating_sub(before.refused.get(reason).copied().unwrap_or(0));
    }
}

impl Inner {
    /// Tells the kernel the table of ports, if it has another.
    fn push(&mut self) -> anyhow::Result<()> {
        let Some(edge) = self.edge.as_ref().filter(|_| !self.frozen) else { return Ok(()) };
        let table = self.board.ports();
        if self.pushed.as_ref() == Some(&table) {
            return Ok(());
        }
        self.pushed = None;
        edge.set_ports(&table)?;
        self.pushed = Some(table);
        Ok(())
    }

    fn tell_sockets(&self) -> anyhow::Result<()> {
        let Some(edge) = &self.edge else { return Ok(()) };
        let sockets: Vec<_> = self.sockets.iter().map(|(socket, _)| socket.as_fd()).collect();
        edge.set_sockets(&sockets).context("the kernel refused the shared sockets")
    }
}

/// See [`Steering::hold`].
pub(crate) struct Hold(Arc<Steering>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.release();
    }
}
