//! Which port is whose: what every virtual cluster claims, put together into the table that the kernel gets and the
//! one that accepting goes by. Pure.
//!
//! A claim that its owner gives up while a reload is under way stays until the reload has ended or another owner
//! claims the port, so that a port that moves between virtual clusters is never without one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::edge::{Port, PortTable, Slot};

/// Who claims ports: one run of one virtual cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner(pub(crate) u64);

/// What an owner says of a port.
#[derive(Clone, Debug)]
pub(crate) struct Claim<R> {
    /// The kernel steers it, under this virtual cluster's slot; `None`: a socket of its own is bound to it.
    pub(crate) slot: Option<Slot>,
    /// Where its connections lead; `None`: nowhere, they are refused.
    pub(crate) route: Option<R>,
}

#[derive(Clone, Debug)]
struct Held<R> {
    owner: Owner,
    claim: Claim<R>,
    /// Given up, but not taken off the table yet.
    leaving: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Board<R>(BTreeMap<SocketAddr, Held<R>>);

impl<R> Default for Board<R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<R: Clone> Board<R> {
    /// Replaces all that the owner claims. What it gives up stays for now if `hold`. A port that another owner has is
    /// taken over: within a config ports don't overlap, so the other one is about to give it up.
    pub(crate) fn publish(&mut self, owner: Owner, claims: BTreeMap<SocketAddr, Claim<R>>, hold: bool) {
        self.0.retain(|address, held| {
            let given_up = held.owner == owner && !claims.contains_key(address);
            held.leaving |= given_up;
            !given_up || hold
        });
        for (address, claim) in claims {
            self.0.insert(address, Held { owner, claim, leaving: false });
        }
    }

    /// Takes off what was given up.
    pub(crate) fn flush(&mut self) {
        self.0.retain(|_, held| !held.leaving);
    }

    /// For the kernel: what it steers.
    pub(crate) fn ports(&self) -> PortTable {
        let port = |(address, held): (&SocketAddr, &Held<R>)| {
            Some((*address, Port { slot: held.claim.slot?, open: held.claim.route.is_some() }))
        };
        self.0.iter().filter_map(port).collect()
    }

    /// For accepting: where connections lead, steered or not.
    pub(crate) fn routes(&self) -> Routes<R> {
        let route = |(address, held): (&SocketAddr, &Held<R>)| Some((*address, held.claim.route.clone()?));
        Routes(self.0.iter().filter_map(route).collect())
    }

    /// How many ports the kernel is to steer under this slot.
    pub(crate) fn steered(&self, slot: Slot) -> usize {
        self.0.values().filter(|held| held.claim.slot == Some(slot)).count()
    }
}

/// Where connections lead, by the address they came in by.
#[derive(Clone, Debug)]
pub(crate) struct Routes<R>(HashMap<SocketAddr, R>);

impl<R> Default for Routes<R> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<R> Routes<R> {
    /// The route of a connection with this local address: of the address itself, else of all addresses of its family.
    pub(crate) fn find(&self, local: SocketAddr) -> Option<&R> {
        let any: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Built anew, so that a scope (`fe80::1%eth0`) doesn't count.
        let exact = SocketAddr::new(local.ip(), local.port());
        self.0.get(&exact).or_else(|| self.0.get(&SocketAddr::new(any, local.port())))
    }

    /// Every route.
    pub(crate) fn all(&self) -> impl Iterator<Item = &R> {
        self.0.values()
    }
}

impl<R: Clone> Routes<R> {
    /// These, and those of `other` where these have none.
    pub(crate) fn over(&self, other: &Self) -> Self {
        let mut both = other.0.clone();
        both.extend(self.0.iter().map(|(address, route)| (*address, route.clone())));
        Self(both)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap_or_else(|_| panic!("{address}"))
    }

    fn steered(route: Option<u32>) -> Claim<u32> {
        Claim { slot: Some(Slot(1)), route }
    }

    #[test]
    fn an_address_goes_before_the_wildcard_of_its_family() {
        let mut board = Board::default();
        let claims = [("0.0.0.0:9092", 1), ("127.0.0.1:9092", 2), ("[::]:9092", 3)];
        board.publish(Owner(1), claims.map(|(a, route)| (at(a), steered(Some(route)))).into(), false);
        let routes = board.routes();
        for (local, route) in [
            ("127.0.0.1:9092", Some(2)),
            ("127.0.0.2:9092", Some(1)),
            ("[::1]:9092", Some(3)),
            ("[fe80::1%7]:9092", Some(3)),
            ("127.0.0.1:9093", None),
            // Never taken for IPv4: sockets of ours are IPv6 only.
            ("[::ffff:127.0.0.1]:9092", Some(3)),
        ] {
            assert_eq!(routes.find(at(local)).copied(), route, "{local}");
        }
    }

    #[test]
    fn a_port_without_a_broker_is_in_the_kernels_table_and_leads_nowhere() {
        let mut board = Board::default();
        board.publish(
            Owner(1),
            [(at("0.0.0.0:9200"), steered(None)), (at("0.0.0.0:9201"), steered(Some(5)))].into(),
            false,
        );
        let ports = board.ports();
        assert_eq!(ports[&at("0.0.0.0:9200")], Port { slot: Slot(1), open: false });
        assert_eq!(ports[&at("0.0.0.0:9201")], Port { slot: Slot(1), open: true });
        assert_eq!(board.routes().find(at("127.0.0.1:9200")), None);
    }

    #[test]
    fn two_owners_exchange_ports_in_a_reload_without_a_gap() {
        let (a, b) = (at("0.0.0.0:1"), at("0.0.0.0:2"));
        let mut board = Board::default();
        board.publish(Owner(1), [(a, steered(Some(1)))].into(), false);
        board.publish(Owner(2), [(b, steered(Some(2)))].into(), false);
        board.publish(Owner(1), [(b, steered(Some(1)))].into(), true);
        assert_eq!((board.routes().find(a), board.routes().find(b)), (Some(&1), Some(&1)));
        board.publish(Owner(2), [(a, steered(Some(2)))].into(), true);
        board.flush();
        assert_eq!((board.routes().find(a), board.routes().find(b)), (Some(&2), Some(&1)));
    }

    /// One owner's new claims: port to (steered, route).
    type Step = (u64, BTreeMap<u16, (bool, Option<u32>)>);

    proptest! {
        /// After any reload, the tables are what the last word of each owner says, and while it runs no port that is
        /// claimed before and after it is missing.
        #[test]
        fn a_reload_ends_with_what_was_published_and_never_leaves_a_gap(
            before in prop::collection::vec((0u64..4, prop::collection::btree_map(0u16..12, (any::<bool>(), any::<Option<u32>>()), 0..6)), 0..6),
            reload in prop::collection::vec((0u64..4, prop::collection::btree_map(0u16..12, (any::<bool>(), any::<Option<u32>>()), 0..6)), 0..6),
        ) {
            let address = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
            let claims = |step: &Step| -> BTreeMap<SocketAddr, Claim<u32>> {
                let claim = |(port, (steer, route)): (&u16, &(bool, Option<u32>))| {
                    (address(*port), Claim { slot: steer.then_some(Slot(step.0 as u16)), route: *route })
                };
                step.1.iter().map(claim).collect()
            };
            let mut board = Board::default();
            for step in &before {
                board.publish(Owner(step.0), claims(step), false);
            }
            let old = board.routes();
            // What is claimed at the end: the last word on each port by an owner that still claims it.
            let mut last: BTreeMap<SocketAddr, (u64, Claim<u32>)> = board.0.iter().map(|(a, h)| (*a, (h.owner.0, h.claim.clone()))).collect();
            for step in &reload {
                let claims = claims(step);
                last.retain(|a, (owner, _)| *owner != step.0 || claims.contains_key(a));
                last.extend(claims.into_iter().map(|(a, c)| (a, (step.0, c))));
            }
            for step in &reload {
                board.publish(Owner(step.0), claims(step), true);
                let now = board.routes();
                for port in 0..12 {
                    let stays = old.find(address(port)).is_some()
                        && !reload.iter().any(|s| s.1.get(&port).is_some_and(|(_, route)| route.is_none()));
                    prop_assert!(!stays || now.find(address(port)).is_some(), "port {} has a gap", port);
                }
            }
            board.flush();
            let routes = board.routes();
            let ports = board.ports();
            for port in 0..12 {
                let claim = last.get(&address(port)).map(|(_, claim)| claim);
                prop_assert_eq!(routes.find(address(port)).copied(), claim.and_then(|c| c.route));
                let expected = claim.and_then(|c| Some(Port { slot: c.slot?, open: c.route.is_some() }));
                prop_assert_eq!(ports.get(&address(port)).copied(), expected);
            }
        }
    }
}
