//! Who may open a connection, decided where it is accepted: the same meaning as in the kernel, for hosts without its
//! programs and for ways in that they don't see (loopback, other interfaces).
//!
//! With the programs attached both decide, so the daemon's buckets are a second's worth deeper: what the kernel let
//! through within the rate must never be refused here because it was accepted in a bunch.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use proxy_common::admission::{Prefix, Rate};
use proxy_common::admit::{self, Rules};
use proxy_common::tables::{Address, Settings};

use super::edge::{AdmissionRules, NewConnections, Reason};
use super::recent::Recent;
use crate::config;

/// Sources whose rate is remembered: 4 MiB at most. One that is forgotten starts anew.
const SOURCES: usize = 65_536;

/// Refused sources that are remembered for operators.
const REFUSED: usize = 4096;

/// A second's worth of connections, in the buckets' unit.
const SECOND_NS: u64 = 1_000_000_000;

/// The rules of a config.
pub(crate) fn rules(config: &config::Admission) -> AdmissionRules {
    let prefixes = |list: &[config::prefix::Cidr]| list.iter().filter_map(config::prefix::Cidr::prefix).collect();
    AdmissionRules {
        deny: prefixes(&config.deny),
        allow: prefixes(&config.allow),
        new_connections: config.new_connections.map(|new| NewConnections {
            bits_v4: new.per.0,
            bits_v6: new.per_v6.0,
            rate: Rate::new(new.rate.0, new.burst()),
        }),
    }
}

/// A set of prefixes: a look for each length that occurs.
#[derive(Debug, Default)]
struct PrefixSet {
    by_length: BTreeMap<u8, HashSet<Prefix>>,
}

impl PrefixSet {
    fn new(prefixes: &[Prefix]) -> Self {
        let mut by_length: BTreeMap<u8, HashSet<Prefix>> = BTreeMap::new();
        for &prefix in prefixes {
            by_length.entry(prefix.length()).or_default().insert(prefix);
        }
        Self { by_length }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.by_length
            .iter()
            .any(|(&length, prefixes)| Prefix::new(address, length).is_some_and(|prefix| prefixes.contains(&prefix)))
    }
}

#[derive(Debug)]
struct Tables {
    deny: PrefixSet,
    allow: PrefixSet,
    settings: Settings,
    /// The kernel's programs keep to the same rules before us.
    covered: bool,
}

impl Tables {
    fn new(rules: &AdmissionRules, covered: bool) -> Self {
        let mut settings = rules.settings();
        if covered {
            settings.tolerance_ns = settings.tolerance_ns.saturating_add(SECOND_NS);
        }
        Self { deny: PrefixSet::new(&rules.deny), allow: PrefixSet::new(&rules.allow), settings, covered }
    }
}

/// A look at all of it at one moment, as the judgement takes it that the kernel makes too.
struct Moment<'a> {
    tables: &'a Tables,
    buckets: RefCell<MutexGuard<'a, Recent<Address, u64>>>,
    now_ns: u64,
}

impl Rules for Moment<'_> {
    fn denies(&self, address: &Address) -> bool {
        self.tables.deny.contains(address.to_ip())
    }

    fn allows(&self, address: &Address) -> bool {
        self.tables.allow.contains(address.to_ip())
    }

    fn settings(&self) -> Option<Settings> {
        Some(self.tables.settings)
    }

    fn bucket(&self, source: &Address) -> u64 {
        *self.buckets.borrow_mut().entry(*source)
    }

    fn set_bucket(&self, source: &Address, state_ns: u64) {
        *self.buckets.borrow_mut().entry(*source) = state_ns;
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

/// How often a source was refused, and when last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    pub(crate) times: u64,
    pub(crate) last: Option<Instant>,
}

/// Who was refused: address, virtual cluster, reason.
pub(crate) type Refused = (IpAddr, String, Reason);

/// See the module.
pub(crate) struct Admission {
    tables: ArcSwap<Tables>,
    /// The last rules as they were given, to compare and to show.
    given: ArcSwap<AdmissionRules>,
    buckets: Mutex<Recent<Address, u64>>,
    refused: Mutex<Recent<Refused, Refusals>>,
    started: Instant,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            tables: ArcSwap::from_pointee(Tables::new(&AdmissionRules::default(), false)),
            given: ArcSwap::default(),
            buckets: Mutex::new(Recent::new(SOURCES)),
            refused: Mutex::new(Recent::new(REFUSED)),
            started: Instant::now(),
        }
    }
}

impl Admission {
    /// Goes by these rules from now on. Sources keep what they used up, unless they are counted otherwise now.
    pub(crate) fn set(&self, rules: &AdmissionRules) {
        let bits = |rules: &AdmissionRules| rules.new_connections.map(|new| (new.bits_v4, new.bits_v6));
        if bits(&self.given.load()) != bits(rules) {
            self.buckets.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        self.tables.store(Arc::new(Tables::new(rules, self.tables.load().covered)));
        self.given.store(Arc::new(rules.clone()));
    }

    /// The rules in force.
    pub(crate) fn given(&self) -> Arc<AdmissionRules> {
        self.given.load_full()
    }

    /// Whether the kernel's programs keep to the same rules before us.
    pub(crate) fn set_covered(&self, covered: bool) {
        if self.tables.load().covered != covered {
            self.tables.store(Arc::new(Tables::new(&self.given.load(), covered)));
        }
    }

    /// Whether connections from here must end.
    pub(crate) fn denies(&self, address: IpAddr) -> bool {
        self.tables.load().deny.contains(address)
    }

    /// Whether a new connection may come in, judged as the kernel does ([`admit::refuse`]); it is counted against its source's rate.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, address: IpAddr, now: Instant) -> Result<(), Reason> {
        let moment = Moment {
            tables: &self.tables.load(),
            buckets: RefCell::new(self.buckets.lock().unwrap_or_else(PoisonError::into_inner)),
            now_ns: u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX),
        };
        admit::refuse(&address.into(), &moment).map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Remembers who was refused, for operators.
    pub(crate) fn remember(&self, address: IpAddr, virtual_cluster: &str, reason: Reason, now: Instant) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = refused.entry((address, virtual_cluster.to_owned(), reason));
        entry.times = entry.times.saturating_add(1);
        entry.last = Some(now);
    }

    /// Who was refused lately, in no order.
    pub(crate) fn refused(&self) -> Vec<(Refused, Refusals)> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().map(|(who, times)| (who.clone(), *times)).collect()
    }
}

/// The label of a reason.
pub(crate) const fn label(reason: Reason) -> &'static str {
    match reason {
        Reason::Deny => "deny",
        Reason::NotAllowed => "not_allowed",
        Reason::Rate => "rate",
        Reason::Malformed => "malformed",
        Reason::NoBroker => "no_broker",
        Reason::NoSocket => "no_socket",
    }
}

/// What an operator may want to turn.
pub(crate) const fn knob(reason: Reason) -> &'static str {
    match reason {
        Reason::Deny => "admission.deny has it",
        Reason::NotAllowed => "admission.allow does not have it",
        Reason::Rate => "above admission.new_connections",
        Reason::Malformed => "its packets contradict themselves",
        Reason::NoBroker => "no broker is behind this port",
        Reason::NoSocket => "no socket takes this address family",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::config::prefix::Cidr;

    fn prefix(text: &str) -> Prefix {
        text.parse::<Cidr>().ok().and_then(|cidr| cidr.prefix()).unwrap_or_else(|| panic!("{text}"))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|_| panic!("{text}"))
    }

    fn admission(deny: &[&str], allow: &[&str], rate: Option<(u32, u32)>) -> Admission {
        let admission = Admission::default();
        admission.set(&AdmissionRules {
            deny: deny.iter().map(|text| prefix(text)).collect(),
            allow: allow.iter().map(|text| prefix(text)).collect(),
            new_connections: rate.map(|(per_second, burst)| NewConnections {
                bits_v4: 24,
                bits_v6: 64,
                rate: Rate::new(per_second, burst),
            }),
        });
        admission
    }

    #[test]
    fn without_rules_everyone_comes_in() {
        let admission = Admission::default();
        let now = Instant::now();
        for _ in 0..10_000 {
            assert_eq!(admission.check(ip("203.0.113.9"), now), Ok(()));
        }
    }

    #[test]
    fn deny_goes_before_allow_and_families_are_apart() {
        let admission = admission(&["10.1.0.0/16", "2001:db8:bad::/48"], &["10.0.0.0/8", "2001:db8::/32"], None);
        let now = Instant::now();
        for (address, verdict) in [
            ("10.1.2.3", Err(Reason::Deny)),
            ("10.2.2.3", Ok(())),
            ("11.2.2.3", Err(Reason::NotAllowed)),
            ("2001:db8:bad::1", Err(Reason::Deny)),
            ("2001:db8:1::1", Ok(())),
            ("2001:db9::1", Err(Reason::NotAllowed)),
        ] {
            assert_eq!(admission.check(ip(address), now), verdict, "{address}");
        }
    }

    #[test]
    fn a_source_is_its_prefix_and_one_does_not_cost_another() {
        let admission = admission(&[], &[], Some((10, 3)));
        let now = Instant::now();
        for host in 1..=3 {
            assert_eq!(admission.check(ip(&format!("192.0.2.{host}")), now), Ok(()));
        }
        assert_eq!(admission.check(ip("192.0.2.4"), now), Err(Reason::Rate), "the prefix is used up");
        assert_eq!(admission.check(ip("192.0.3.4"), now), Ok(()), "another prefix is not");
        assert_eq!(admission.check(ip("192.0.2.4"), now + Duration::from_millis(100)), Ok(()), "one is earned");
        assert_eq!(admission.check(ip("192.0.2.4"), now + Duration::from_millis(100)), Err(Reason::Rate));
        for _ in 0..3 {
            assert_eq!(admission.check(ip("2001:db8::1"), now), Ok(()));
        }
        assert_eq!(admission.check(ip("2001:db8::ffff"), now), Err(Reason::Rate));
    }

    #[test]
    fn what_the_kernel_admits_is_not_refused_again_though_it_comes_in_a_bunch() {
        let admission = admission(&[], &[], Some((10, 3)));
        admission.set_covered(true);
        let now = Instant::now();
        // The burst and a second's worth, accepted at once.
        for _ in 0..13 {
            assert_eq!(admission.check(ip("192.0.2.1"), now), Ok(()));
        }
        assert_eq!(admission.check(ip("192.0.2.1"), now), Err(Reason::Rate));
        admission.set_covered(false);
        assert_eq!(admission.check(ip("192.0.2.1"), now + Duration::from_secs(1)), Err(Reason::Rate), "exact again");
    }

    #[test]
    fn a_reload_of_other_rules_forgives_nobody_and_of_other_prefixes_everybody() {
        let admission = admission(&[], &[], Some((1, 1)));
        let now = Instant::now();
        assert_eq!(admission.check(ip("192.0.2.1"), now), Ok(()));
        let mut rules = (*admission.given()).clone();
        rules.deny.push(prefix("10.0.0.0/8"));
        admission.set(&rules);
        assert_eq!(admission.check(ip("192.0.2.1"), now), Err(Reason::Rate));
        rules.new_connections.as_mut().unwrap().bits_v4 = 32;
        admission.set(&rules);
        assert_eq!(admission.check(ip("192.0.2.1"), now), Ok(()));
    }

    #[test]
    fn a_million_sources_take_no_more_room_than_the_table_has() {
        let admission = admission(&[], &[], Some((1, 1)));
        let now = Instant::now();
        for n in 0..1_000_000u32 {
            let _ = admission.check(IpAddr::V4((n << 8).into()), now);
        }
        assert!(admission.buckets.lock().unwrap().iter().count() <= SOURCES);
        for n in 0..10_000u32 {
            admission.remember(IpAddr::V4(n.into()), "orders", Reason::Rate, now);
        }
        assert!(admission.refused().len() <= REFUSED);
    }

    #[test]
    fn who_was_refused_is_remembered_with_why_and_how_often() {
        let admission = Admission::default();
        let now = Instant::now();
        for _ in 0..3 {
            admission.remember(ip("10.0.0.1"), "orders", Reason::Deny, now);
        }
        admission.remember(ip("10.0.0.1"), "orders", Reason::Rate, now);
        let mut refused = admission.refused();
        refused.sort_by_key(|(_, refusals)| refusals.times);
        assert_eq!(refused.len(), 2);
        assert_eq!(refused[1].0, (ip("10.0.0.1"), "orders".to_owned(), Reason::Deny));
        assert_eq!(refused[1].1.times, 3);
    }

    proptest! {
        #[test]
        fn a_set_contains_what_one_of_its_prefixes_does(
            prefixes in prop::collection::vec((any::<IpAddr>(), 0u8..=128), 0..20), address: IpAddr, near: prop::sample::Index
        ) {
            let prefixes: Vec<_> = prefixes.into_iter().filter_map(|(a, l)| Prefix::new(a, l)).collect();
            let set = PrefixSet::new(&prefixes);
            let close = (!prefixes.is_empty()).then(|| near.get(&prefixes).address());
            for address in close.into_iter().chain([address]) {
                prop_assert_eq!(set.contains(address), prefixes.iter().any(|p| p.contains(address)));
            }
        }
    }
}
