//! The sockets of a new config, opened before anything changes, so that a reload that can't have its ports changes
//! nothing.
//!
//! A port that stays open is never closed in between, also where another virtual cluster takes it over: it gets a
//! second handle of the same socket, and connections that wait in its queue are served by whoever accepts them. A port
//! that is to be steered gets no socket, but must be one that we could have bound.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;

use super::keeper::Bound;
use super::registry::role_name;
use super::steering::Steering;
use super::{Running, is_kept, listeners};
use crate::config::Config;
use crate::upstream::Cluster;

/// Opens what the virtual clusters of `new` need and don't have yet, by name; `steer`: the kernel will steer them.
///
/// # Errors
/// A port can't be opened. One that couldn't before is no reason: it is tried again while the gateway runs.
pub(super) fn bind_ahead(
    old: &Running,
    new: &Config,
    steer: bool,
    steering: &Steering,
) -> anyhow::Result<BTreeMap<String, Bound>> {
    let plans: BTreeMap<_, _> = new
        .virtual_clusters
        .iter()
        .map(|(name, wanted)| {
            let known = old.clusters.get(&wanted.cluster).map(Cluster::topology).unwrap_or_default();
            (name, listeners::plan(wanted, &known))
        })
        .collect();
    let wanted: BTreeSet<SocketAddr> = plans.values().flat_map(BTreeMap::keys).copied().collect();
    let open: BTreeMap<SocketAddr, Arc<TcpListener>> =
        old.virtual_clusters.values().flat_map(|running| running.bound_ports()).collect();
    let steered: BTreeSet<SocketAddr> =
        old.virtual_clusters.values().flat_map(|running| running.steered_ports()).collect();
    let failing: BTreeSet<SocketAddr> =
        old.virtual_clusters.values().flat_map(|running| running.failing_ports()).collect();
    let ours: HashSet<_> = open.keys().map(|address| (address.is_ipv4(), address.port())).collect();
    let ours = Arc::new(ours);

    let mut all = BTreeMap::new();
    for (name, plan) in plans {
        let kept = old.virtual_clusters.get(name).filter(|_| is_kept(old, new, name));
        let own = kept.map(|running| running.bound_ports()).unwrap_or_default();
        let mut bound = Bound { ours: Arc::clone(&ours), ..Bound::default() };
        for (address, target) in plan.into_iter().filter(|(address, _)| !own.contains_key(address)) {
            let is_ours = ours.contains(&(address.is_ipv4(), address.port()))
                || steered.contains(&address)
                || steering.is_shared_port(address.port());
            let result = if steer {
                // What a predecessor has bound is ours too; the keeper sees to what waits in its queue.
                let is_ours = is_ours || steering.has_inherited(address);
                if is_ours { Ok(None) } else { listeners::probe(address).map(|()| None) }
            } else if let Some(socket) = steering.inherited(address) {
                Ok(Some(socket))
            } else {
                match open.get(&address) {
                    Some(socket) => listeners::duplicate(socket).map(Some),
                    None => bind_among(address, &open, &wanted).map(Some),
                }
            };
            match result {
                Ok(socket) => bound.sockets.extend(socket.map(|socket| (address, socket))),
                Err(error) if listeners::family_is_absent(address, &error) => {}
                Err(_) if failing.contains(&address) => {}
                Err(error) => {
                    let role = role_name(target);
                    return Err(error).with_context(|| {
                        format!(
                            "virtual_clusters.{name}: {address} ({role}) can't be opened; free it or choose another"
                        )
                    });
                }
            }
        }
        all.insert(name.clone(), bound);
    }
    Ok(all)
}

/// Opens a port, also where only ports of ours stand in its way that the new config closes.
fn bind_among(
    address: SocketAddr,
    open: &BTreeMap<SocketAddr, Arc<TcpListener>>,
    wanted: &BTreeSet<SocketAddr>,
) -> io::Result<std::net::TcpListener> {
    let result = listeners::bind(address);
    let in_use = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    let leaving: Vec<_> = open
        .iter()
        .filter(|(ours, _)| ours.port() == address.port() && ours.is_ipv4() == address.is_ipv4())
        .filter(|(ours, _)| !wanted.contains(ours))
        .map(|(_, socket)| Arc::clone(socket))
        .collect();
    if in_use && !leaving.is_empty() { listeners::bind_beside(address, &leaving) } else { result }
}
