//! Which ports a config listens on, and where two of its listeners would collide.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::model::{Config, VirtualCluster};
use super::path::KeyPath;
use super::read::Finding;

/// A key that makes us listen.
#[derive(Clone, Debug)]
struct Claim {
    key: KeyPath,
    address: IpAddr,
    ports: RangeInclusive<u32>,
}

/// Every listener that a config asks for, in the order of keys. Ports above 65535 are in it as they are; they are
/// refused elsewhere.
fn claims(config: &Config) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (name, virtual_cluster) in &config.virtual_clusters {
        let path = KeyPath::of(&["virtual_clusters", name.as_str()]);
        let bootstrap = u32::from(virtual_cluster.bootstrap_port);
        let ports = virtual_cluster.broker_ports;
        let first = u32::from(ports.first);
        for address in &virtual_cluster.listen {
            claims.push(Claim { key: path.key("bootstrap_port"), address: *address, ports: bootstrap..=bootstrap });
            if let Some(last) = (first + u32::from(ports.count)).checked_sub(1) {
                claims.push(Claim { key: path.key("broker_ports"), address: *address, ports: first..=last });
            }
        }
    }
    if let Some(http) = config.admin.http {
        let port = u32::from(http.port());
        claims.push(Claim { key: KeyPath::of(&["admin", "http"]), address: http.ip(), ports: port..=port });
    }
    claims
}

/// How many ports a virtual cluster has on each of its addresses.
pub(super) fn count(virtual_cluster: &VirtualCluster) -> usize {
    1 + usize::from(virtual_cluster.broker_ports.count)
}

/// Whether sockets on both addresses can't have the same port. A wildcard meets every address of its family; the
/// families never meet, since IPv6 sockets are opened with `IPV6_V6ONLY`.
fn meet(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4() && (a == b || a.is_unspecified() || b.is_unspecified())
}

/// A finding for each pair of keys whose listeners collide, at the later of the two.
pub(super) fn overlaps(config: &Config) -> Vec<Finding> {
    let mut claims = claims(config);
    // Sorted by first port, so that each is compared only with those that can still reach it.
    claims.sort_by_key(|c| *c.ports.start());
    let mut pairs = BTreeSet::new();
    for (i, a) in claims.iter().enumerate() {
        for b in claims[i + 1..].iter().take_while(|b| b.ports.start() <= a.ports.end()) {
            if a.key != b.key && meet(a.address, b.address) {
                let (first, second) = if a.key < b.key { (a, b) } else { (b, a) };
                let shared = *b.ports.start()..=*a.ports.end().min(b.ports.end());
                pairs.insert((second.key.clone(), first.key.clone(), *shared.start(), *shared.end()));
            }
            if pairs.len() > super::MAX_PROBLEMS {
                break;
            }
        }
    }
    pairs
        .into_iter()
        .map(|(key, other, from, to)| {
            let shared = if from == to { format!("port {from}") } else { format!("ports {from} to {to}") };
            Finding::at(&key, format!("{shared}: also used by {other}; move one of them or listen on other addresses"))
        })
        .collect()
}

/// The key of the listener that a connection from this host to the address and port would reach.
pub(super) fn listener_at(config: &Config, address: IpAddr, port: u16) -> Option<KeyPath> {
    let local = address.is_loopback() || address.is_unspecified();
    claims(config)
        .into_iter()
        .filter(|claim| claim.ports.contains(&u32::from(port)) && claim.address.is_ipv4() == address.is_ipv4())
        .find(|claim| claim.address == address || (local && claim.address.is_unspecified()))
        .map(|claim| claim.key)
}
