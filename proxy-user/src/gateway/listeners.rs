//! The ports of a virtual cluster: which must be open, and the sockets behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::gate::Gate;
use super::mapping::port_of;
use super::steering::Steering;
use crate::config::VirtualCluster;
use crate::kafka::ids::NodeId;
use crate::upstream::Target;
use crate::upstream::topology::Topology;

/// Connections the kernel may hold for us before we accept them.
const BACKLOG: i32 = 4096;

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

/// Every port of the range, on every listen address: those without a broker are refused, never a stranger's.
pub(crate) fn range(config: &VirtualCluster) -> impl Iterator<Item = SocketAddr> + '_ {
    let first = u32::from(config.broker_ports.first);
    let ports = first..first + u32::from(config.broker_ports.count);
    let ports = ports.filter_map(|port| u16::try_from(port).ok());
    ports.flat_map(|port| config.listen.iter().map(move |&ip| SocketAddr::new(ip, port)))
}

/// Brokers that have no port: their node id is outside the range.
#[must_use]
pub(crate) fn unreachable(config: &VirtualCluster, topology: &Topology) -> BTreeSet<NodeId> {
    let outside = |node: &&NodeId| port_of(&config.broker_ports, node.to_virtual()).is_none();
    topology.brokers.keys().filter(outside).copied().collect()
}

/// Opens a port. IPv6 sockets take IPv6 only, so that both families can be listed.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = bound(address, false)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Whether a port could be opened: nobody else listens there. The kernel asks its steering program before it looks for
/// sockets, so a port that another service has must never come into its table.
pub(crate) fn probe(address: SocketAddr) -> io::Result<()> {
    bound(address, false).map(drop)
}

fn bound(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The same while sockets of our own hold the port on addresses that collide (`0.0.0.0` and one of the host's), so
/// that a reload opens the new before it closes the old. SO_REUSEPORT is on for that moment alone: another process
/// that takes our port must go on failing.
pub(crate) fn bind_beside(address: SocketAddr, ours: &[Arc<TcpListener>]) -> io::Result<std::net::TcpListener> {
    let share = |yes| ours.iter().try_for_each(|socket| SockRef::from(&**socket).set_reuse_port(yes));
    share(true)?;
    let opened = bound(address, true).and_then(|socket| {
        socket.listen(BACKLOG)?;
        socket.set_reuse_port(false)?;
        Ok(socket.into())
    });
    share(false)?;
    opened
}

/// This host has no such address family: `::` in the default list must not keep an IPv4 host from starting.
pub(crate) fn family_is_absent(address: SocketAddr, error: &io::Error) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unspecified()) && is_absent(error)
}

/// The error of a host without IPv6.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    let absent = [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL, libc::EPROTONOSUPPORT];
    error.raw_os_error().is_some_and(|code| absent.contains(&code))
}

/// Another handle of an open port: both take from one queue, and it stays open until both are closed.
pub(crate) fn duplicate(socket: &TcpListener) -> io::Result<std::net::TcpListener> {
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

/// A socket that connections are taken from. Dropping it ends that, and closes this handle of it.
pub(crate) struct Accepting {
    socket: Arc<TcpListener>,
    task: JoinHandle<()>,
}

impl Accepting {
    /// Starts accepting.
    pub(crate) fn start(socket: Arc<TcpListener>, steering: &Arc<Steering>) -> Self {
        let task = steering.serve(Arc::clone(&socket));
        Self { socket, task }
    }

    /// The socket, to be handed on while the port stays open.
    pub(crate) fn socket(&self) -> &Arc<TcpListener> {
        &self.socket
    }

    /// Closes it. It is closed when this returns, unless others have a handle of it.
    pub(crate) async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An open port, however connections come in by it.
pub(crate) struct Listener {
    /// Where connections of this port lead.
    pub(crate) target: Target,
    pub(crate) gate: Arc<Gate>,
    /// Its own socket; `None`: the kernel steers it to the shared ones.
    pub(crate) socket: Option<Accepting>,
}
