//! The ports of a virtual cluster: which must be open, the sockets behind them, and who may come in.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::mapping::port_of;
use super::registry::{Refusal, role_name};
use super::shared::{Phase, Shared};
use super::workers::{Handover, Workers};
use crate::config::VirtualCluster;
use crate::kafka::ids::NodeId;
use crate::upstream::Target;
use crate::upstream::topology::Topology;

/// Connections the kernel may hold for us before we accept them.
const BACKLOG: i32 = 4096;

/// How long accepting pauses when the process has no file descriptor left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Between two accepts when one failed, so that an error that stays does not take a whole core.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// The ports that must be open: bootstrap, and one for each broker known, on every listen address.
#[must_use]
pub(crate) fn plan(config: &VirtualCluster, topology: &Topology) -> BTreeMap<SocketAddr, Target> {
    let mut plan = BTreeMap::new();
    for &ip in &config.listen {
        plan.insert(SocketAddr::new(ip, config.bootstrap_port), Target::Bootstrap);
        for &node in topology.brokers.keys() {
            if let Some(port) = port_of(&config.broker_ports, node.to_virtual()) {
                plan.insert(SocketAddr::new(ip, port), Target::Node(node));
            }
        }
    }
    plan
}

/// Brokers that have no port: their node id is outside the range.
#[must_use]
pub(crate) fn unreachable(config: &VirtualCluster, topology: &Topology) -> BTreeSet<NodeId> {
    let outside = |node: &&NodeId| port_of(&config.broker_ports, node.to_virtual()).is_none();
    topology.brokers.keys().filter(outside).copied().collect()
}

/// Opens a port. IPv6 sockets take IPv6 only, so that both families can be listed.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    bind_with(address, false)
}

fn bind_with(address: SocketAddr, reuse_port: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The same while sockets of our own hold the port on addresses that collide (`0.0.0.0` and one of the host's), so
/// that a reload opens the new before it closes the old. SO_REUSEPORT is on for that moment alone: another process
/// that takes our port must go on failing.
pub(crate) fn bind_beside(address: SocketAddr, ours: &[Arc<TcpListener>]) -> io::Result<std::net::TcpListener> {
    let share = |yes| ours.iter().try_for_each(|socket| SockRef::from(&**socket).set_reuse_port(yes));
    share(true)?;
    let bound = bind_with(address, true).and_then(|socket| {
        SockRef::from(&socket).set_reuse_port(false)?;
        Ok(socket)
    });
    share(false)?;
    bound
}

/// This host has no such address family: `::` in the default list must not keep an IPv4 host from starting.
pub(crate) fn family_is_absent(address: SocketAddr, error: &io::Error) -> bool {
    let absent = [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL, libc::EPROTONOSUPPORT];
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unspecified())
        && error.raw_os_error().is_some_and(|code| absent.contains(&code))
}

/// Whom connections of one port listen to. Replaced when the port's broker moves, so that only they are drained.
struct Gate(Mutex<watch::Sender<Phase>>);

impl Gate {
    fn new() -> Self {
        Self(Mutex::new(watch::Sender::new(Phase::Serve)))
    }

    fn subscribe(&self) -> watch::Receiver<Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).subscribe()
    }

    fn tell(&self, phase: Phase) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send_replace(phase);
    }

    /// Drains those connected now; those who come later are served.
    fn turn_over(&self, until: Instant) {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *sender, watch::Sender::new(Phase::Serve));
        old.send_replace(Phase::Drain { until });
        // Connections take a vanished sender for the end of everything: it lives as long as they do.
        tokio::spawn(async move { old.closed().await });
    }
}

/// Another handle of an open port: both take from one queue, and it stays open until both are closed.
pub(crate) fn duplicate(socket: &TcpListener) -> io::Result<std::net::TcpListener> {
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

/// An open port.
pub(crate) struct Listener {
    target: Target,
    socket: Arc<TcpListener>,
    task: JoinHandle<()>,
    gate: Arc<Gate>,
}

impl Listener {
    /// Starts accepting.
    pub(crate) fn start(
        socket: std::net::TcpListener,
        target: Target,
        shared: Arc<Shared>,
        workers: Arc<Workers>,
    ) -> io::Result<Self> {
        let socket = Arc::new(TcpListener::from_std(socket)?);
        let gate = Arc::new(Gate::new());
        let task = tokio::spawn(accept(Arc::clone(&socket), target, shared, workers, Arc::clone(&gate)));
        Ok(Self { target, socket, task, gate })
    }

    /// Where connections of this port lead.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// The socket, to be handed on while the port stays open.
    pub(crate) fn socket(&self) -> &Arc<TcpListener> {
        &self.socket
    }

    /// Leads elsewhere from now on; those connected are drained. The port is not closed in between.
    pub(crate) async fn lead_to(&mut self, target: Target, until: Instant, shared: Arc<Shared>, workers: Arc<Workers>) {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.gate.turn_over(until);
        self.target = target;
        self.task = tokio::spawn(accept(Arc::clone(&self.socket), target, shared, workers, Arc::clone(&self.gate)));
    }

    /// Drains those connected now; the port stays open.
    pub(crate) fn turn_over(&self, until: Instant) {
        self.gate.turn_over(until);
    }

    /// Has those connected look at their timeouts again, which a reload may have changed.
    pub(crate) fn nudge(&self) {
        self.gate.tell(Phase::Serve);
    }

    /// Closes the port and tells those connected. It is closed when this returns.
    pub(crate) async fn close(self, phase: Phase) {
        let Self { task, gate, socket, target: _ } = self;
        task.abort();
        let _ = task.await;
        drop(socket);
        match phase {
            Phase::Drain { until } => gate.turn_over(until),
            Phase::Serve | Phase::Stop => gate.tell(Phase::Stop),
        }
    }
}

async fn accept(socket: Arc<TcpListener>, target: Target, shared: Arc<Shared>, workers: Arc<Workers>, gate: Arc<Gate>) {
    loop {
        match socket.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = admit(stream, peer, target, &shared, &workers, &gate) {
                    debug!(virtual_cluster = shared.name, %peer, "a connection ended before it was served: {error}");
                }
            }
            Err(error) if is_exhausted(&error) => {
                shared.gateway_metrics.accept_pauses.inc();
                if let Some(suppressed) = shared.may_log("exhausted") {
                    warn!(
                        virtual_cluster = shared.name,
                        suppressed,
                        "accepting pauses, open connections go on: {error}; raise the open-file limit (LimitNOFILE= in \
                         the unit, ulimit -n) above twice limits.connections"
                    );
                }
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
            // The client gave up before we came to it (accept(2): treat like EAGAIN).
            Err(error) => {
                debug!(virtual_cluster = shared.name, "accept: {error}");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

fn admit(
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    target: Target,
    shared: &Arc<Shared>,
    workers: &Workers,
    gate: &Gate,
) -> io::Result<()> {
    shared.metrics.accepted.inc();
    let config = shared.config();
    let limits = &config.limits;
    let record = match shared.registry.admit(peer, target, limits.connections, limits.connections_per_source) {
        Ok(record) => record,
        Err(refusal) => {
            shared.metrics.refused.count(refusal.label());
            shared.metrics.limit_hits.hit(refusal.limit());
            if let Some(suppressed) = shared.may_log(refusal.label()) {
                let knob = match refusal {
                    Refusal::Connections => u64::from(limits.connections),
                    Refusal::ConnectionsPerSource => u64::from(limits.connections_per_source.unwrap_or_default()),
                };
                warn!(
                    virtual_cluster = shared.name, %peer, role = role_name(target), suppressed,
                    "connection refused: {knob} are open already (limits.{})", refusal.label()
                );
            }
            return Ok(());
        }
    };
    let local = stream.local_addr()?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(4))?;
    let client = stream.into_std()?;
    workers.serve(Handover {
        client,
        peer,
        local,
        target,
        shared: Arc::clone(shared),
        phase: gate.subscribe(),
        record,
    });
    Ok(())
}

/// Out of file descriptors or socket memory: nothing is wrong with the listener.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
