//! Which ports a config listens on, and where two of its listeners would collide.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::model::{Config, VirtualCluster};
use super::path::KeyPath;
use super::read::Finding;

/// How many ports a virtual cluster has on each of its addresses.
pub(super) fn count(virtual_cluster: &VirtualCluster) -> usize {
    1 + usize::from(virtual_cluster.broker_ports.count)
}

/// A key that makes us listen.
#[derive(Clone, Debug)]
struct Claim {
    key: KeyPath,
    address: IpAddr,
    /// Wider than a port, since a range that runs over 65535 is refused elsewhere and must not wrap here.
    ports: RangeInclusive<u32>,
}

/// Every listener that a config asks for, by first port.
#[derive(Clone, Debug)]
pub(super) struct Listeners(Vec<Claim>);

impl Listeners {
    /// The listeners of the virtual clusters and of the admin server.
    pub(super) fn of(config: &Config) -> Self {
        let mut claims = Vec::new();
        for (name, virtual_cluster) in &config.virtual_clusters {
            let path = KeyPath::of(&["virtual_clusters", name.as_str()]);
            let bootstrap = u32::from(virtual_cluster.bootstrap_port);
            let first = u32::from(virtual_cluster.broker_ports.first);
            let end = first + u32::from(virtual_cluster.broker_ports.count);
            for address in &virtual_cluster.listen {
                claims.push(Claim { key: path.key("bootstrap_port"), address: *address, ports: bootstrap..=bootstrap });
                if end > first {
                    claims.push(Claim { key: path.key("broker_ports"), address: *address, ports: first..=end - 1 });
                }
            }
        }
        if let Some(http) = config.admin.http {
            let port = u32::from(http.port());
            claims.push(Claim { key: KeyPath::of(&["admin", "http"]), address: http.ip(), ports: port..=port });
        }
        claims.sort_by_key(|claim| *claim.ports.start());
        Self(claims)
    }

    /// A finding for each pair of keys whose listeners collide, at the one whose path comes later.
    pub(super) fn overlaps(&self) -> Vec<Finding> {
        let mut pairs = BTreeSet::new();
        for (i, a) in self.0.iter().enumerate() {
            // Sorted by first port: beyond the end of `a` none can reach it.
            for b in self.0[i + 1..].iter().take_while(|b| b.ports.start() <= a.ports.end()) {
                if a.key != b.key && meet(a.address, b.address) {
                    let (first, second) = if a.key < b.key { (a, b) } else { (b, a) };
                    let end = *a.ports.end().min(b.ports.end());
                    pairs.insert((&second.key, &first.key, *b.ports.start(), end));
                }
                if pairs.len() > super::MAX_PROBLEMS {
                    break;
                }
            }
        }
        let finding = |(key, other, from, to)| {
            let shared = if from == to { format!("port {from} is") } else { format!("ports {from} to {to} are") };
            let remedy = "move one of them, or listen on other addresses";
            Finding::at(key, format!("{shared} also used by {other}; {remedy}"))
        };
        pairs.into_iter().map(finding).collect()
    }

    /// The key of the listener that a connection from this host to the address and port would reach.
    pub(super) fn reached_by(&self, address: IpAddr, port: u16) -> Option<&KeyPath> {
        let local = address.is_loopback() || address.is_unspecified();
        self.0
            .iter()
            .take_while(|claim| *claim.ports.start() <= u32::from(port))
            .filter(|claim| claim.ports.contains(&u32::from(port)) && claim.address.is_ipv4() == address.is_ipv4())
            .find(|claim| claim.address == address || (local && claim.address.is_unspecified()))
            .map(|claim| &claim.key)
    }
}

/// Whether sockets on both addresses can't have the same port. A wildcard meets every address of its family; the
/// families never meet, since IPv6 sockets are opened with `IPV6_V6ONLY`.
fn meet(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4() && (a == b || a.is_unspecified() || b.is_unspecified())
}
