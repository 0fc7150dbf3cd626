//! In which order addresses are tried: pure, but for the shuffle.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;

use super::endpoint::Endpoint;
use super::topology::Topology;
use crate::kafka::ids::NodeId;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// Any broker will do.
    Bootstrap,
    /// This broker and no other.
    Node(NodeId),
}

/// How long a failure speaks against an address.
const GRUDGE: Duration = Duration::from_secs(30);

/// How many known brokers are tried besides the bootstrap addresses: enough to find a live one in a large cluster.
const KNOWN_BROKERS: usize = 16;

/// Addresses whose last connection failed, and when. Bounded by [`Health::MAX`].
#[derive(Debug, Default)]
pub(super) struct Health {
    failed: HashMap<Endpoint, Instant>,
}

impl Health {
    /// Far above the number of brokers of any cluster; a bound for addresses that change with every restart.
    const MAX: usize = 4096;

    /// Notes how a connection to `endpoint` went.
    pub(super) fn note(&mut self, endpoint: &Endpoint, worked: bool, now: Instant) {
        if worked {
            self.failed.remove(endpoint);
            return;
        }
        if self.failed.len() >= Self::MAX {
            self.failed.retain(|_, at| now.duration_since(*at) < GRUDGE);
        }
        if self.failed.len() < Self::MAX {
            self.failed.insert(endpoint.clone(), now);
        }
    }

    /// It failed a short while ago and has not worked since.
    fn is_bad(&self, endpoint: &Endpoint, now: Instant) -> bool {
        self.failed.get(endpoint).is_some_and(|at| now.saturating_duration_since(*at) < GRUDGE)
    }
}

/// `bootstrap` and some of `known`, each shuffled for spread: bootstrap before known, recent failures last.
pub(super) fn order(bootstrap: &[Endpoint], known: &[Endpoint], health: &Health, now: Instant) -> Vec<Endpoint> {
    let mut rng = rand::rng();
    let mut first = bootstrap.to_vec();
    first.shuffle(&mut rng);
    let mut then: Vec<_> = known.iter().filter(|k| !bootstrap.contains(k)).cloned().collect();
    then.shuffle(&mut rng);
    then.sort_by_key(|e| health.is_bad(e, now));
    then.truncate(KNOWN_BROKERS);
    first.extend(then);
    first.sort_by_key(|e| health.is_bad(e, now));
    first
}

/// Where the mainline reaches `target`; empty when a broker's address is not known.
pub(super) fn mainline(
    target: Target,
    bootstrap: &[Endpoint],
    topology: &Topology,
    known_too: bool,
    health: &Health,
    now: Instant,
) -> Vec<Endpoint> {
    match target {
        Target::Node(id) => topology.brokers.get(&id).and_then(|b| b.address.clone()).into_iter().collect(),
        Target::Bootstrap => {
            let known: Vec<_> =
                topology.present().filter(|_| known_too).filter_map(|(_, b)| b.address.clone()).collect();
            order(bootstrap, &known, health, now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::topology::Broker;
    use std::time::SystemTime;

    fn at(host: &str) -> Endpoint {
        Endpoint::new(host, 9092)
    }

    fn topology() -> Topology {
        let present = |host: &str| Broker { address: Some(at(host)), ..Broker::default() };
        let mut t = Topology::default();
        t.brokers.insert(NodeId(1), present("one"));
        t.brokers.insert(NodeId(2), Broker { absent_since: Some(SystemTime::UNIX_EPOCH), ..present("two") });
        t.brokers.insert(NodeId(3), Broker::default());
        t
    }

    #[test]
    fn a_node_is_dialled_at_its_own_address_only() {
        let of =
            |id| mainline(Target::Node(NodeId(id)), &[at("b")], &topology(), true, &Health::default(), Instant::now());
        assert_eq!(of(1), [at("one")]);
        assert_eq!(of(2), [at("two")], "absent, perhaps back already: worth a try");
        assert!(of(3).is_empty(), "address unknown");
        assert!(of(4).is_empty(), "never seen");
    }

    #[test]
    fn bootstrap_addresses_come_first_and_recent_failures_last() {
        let now = Instant::now();
        let mut health = Health::default();
        health.note(&at("dead"), false, now);
        let of = |known_too, health: &Health, now| {
            mainline(Target::Bootstrap, &[at("dead"), at("good")], &topology(), known_too, health, now)
        };
        assert_eq!(of(true, &health, now), [at("good"), at("one"), at("dead")], "absent brokers are left out");
        assert_eq!(of(false, &health, now), [at("good"), at("dead")]);
        assert_eq!(of(true, &health, now + GRUDGE)[2], at("one"), "a failure is forgiven after a while");
        health.note(&at("dead"), true, now);
        assert_eq!(of(true, &health, now)[2], at("one"), "… or when it works again");
    }

    #[test]
    fn connections_spread_over_the_bootstrap_addresses() {
        let bootstrap = [at("a"), at("b"), at("c")];
        let firsts: std::collections::HashSet<_> =
            (0..200).map(|_| order(&bootstrap, &[], &Health::default(), Instant::now()).remove(0)).collect();
        assert_eq!(firsts.len(), 3);
    }

    #[test]
    fn memory_of_failures_is_bounded() {
        let now = Instant::now();
        let mut health = Health::default();
        for n in 0..2 * Health::MAX {
            health.note(&Endpoint::new(format!("h{n}"), 1), false, now);
        }
        assert_eq!(health.failed.len(), Health::MAX);
        health.note(&at("later"), false, now + GRUDGE);
        assert_eq!(health.failed.len(), 1, "old failures make room");
    }
}
