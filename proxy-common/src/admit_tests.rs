// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use core::cell::{Cell, RefCell};
use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::admission::{Prefix, Rate};
use crate::packet::{ACK, FIN, SYN};

/// Tables in memory.
struct World {
    ports: BTreeMap<PortKey, PortEntry>,
    host: BTreeSet<Address>,
    deny: Vec<Prefix>,
    allow: Vec<Prefix>,
    settings: Option<Settings>,
    buckets: RefCell<BTreeMap<Address, u64>>,
    now: Cell<u64>,
}

impl World {
    /// 0.0.0.0:9092 and [::]:9092 are of slot 1, 10.0.0.1:9093 of slot 2; the host has 10.0.0.1 and 2001:db8::1.
    fn new() -> Self {
        let port = |at: &str, slot| (key(at), PortEntry { slot, open: 1 });
        Self {
            ports: [port("0.0.0.0:9092", 1), port("[::]:9092", 1), port("10.0.0.1:9093", 2)].into(),
            host: ["10.0.0.1", "2001:db8::1"].map(address).into(),
            deny: vec![],
            allow: vec![],
            settings: None,
            buckets: RefCell::default(),
            now: Cell::new(1 << 40),
        }
    }

    fn judge(&self, from: &str, to: &str, flags: u8) -> Verdict {
        admit(packet(from, to, flags).as_slice(), self)
    }
}

impl Rules for World {
    fn denies(&self, address: &Address) -> bool {
        self.deny.iter().any(|p| p.contains(address.to_ip()))
    }
    fn allows(&self, address: &Address) -> bool {
        self.allow.iter().any(|p| p.contains(address.to_ip()))
    }
    fn settings(&self) -> Option<Settings> {
        self.settings
    }
    fn bucket(&self, source: &Address) -> u64 {
        self.buckets.borrow().get(source).copied().unwrap_or(0)
    }
    fn set_bucket(&self, source: &Address, state_ns: u64) {
        self.buckets.borrow_mut().insert(*source, state_ns);
    }
    fn now_ns(&self) -> u64 {
        self.now.get()
    }
}

impl Tables for World {
    fn port(&self, key: &PortKey) -> Option<PortEntry> {
        self.ports.get(key).copied()
    }
    fn is_host(&self, address: &Address) -> bool {
        self.host.contains(address)
    }
}

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn key(at: &str) -> PortKey {
    let at: SocketAddr = at.parse().unwrap();
    PortKey { address: at.ip().into(), port: at.port().into() }
}

fn prefix(text: &str, length: u8) -> Prefix {
    Prefix::new(text.parse().unwrap(), length).unwrap()
}

fn packet(from: &str, to: &str, flags: u8) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut bytes = vec![2; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        _ => panic!("one family"),
    }
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 1, 1, 0, 0, 0, 0]);
    bytes
}

const V4: [&str; 2] = ["192.0.2.7:4000", "10.0.0.1:9092"];
const V6: [&str; 2] = ["[2001:db8::7]:4000", "[2001:db8::1]:9092"];

fn dropped(from: &str, reason: Reason) -> Verdict {
    let from: SocketAddr = from.parse().unwrap();
    Verdict::Drop { slot: 1, source: from.ip().into(), reason }
}

#[test]
fn an_unspecified_address_means_this_host_so_routed_traffic_is_never_touched() {
    let mut world = World::new();
    world.deny = vec![prefix("0.0.0.0", 0), prefix("::", 0)];
    assert_eq!(world.judge("192.0.2.7:4000", "10.0.0.99:9092", SYN), Verdict::NotOurs);
    assert_eq!(world.judge("[2001:db8::7]:4000", "[2001:db8::99]:9092", SYN), Verdict::NotOurs);
    assert_eq!(world.judge("192.0.2.7:4000", "10.0.0.1:22", SYN), Verdict::NotOurs);
    assert_eq!(world.judge(V4[0], V4[1], SYN), dropped(V4[0], Reason::Deny));
}

#[test]
fn an_exact_address_comes_first() {
    let mut world = World::new();
    world.ports.insert(key("10.0.0.1:9092"), PortEntry { slot: 9, open: 1 });
    assert_eq!(world.judge(V4[0], V4[1], SYN), Verdict::Pass { slot: 9, opens: true });
}

#[test]
fn deny_applies_to_every_packet_and_allow_and_rate_to_new_connections() {
    let mut world = World::new();
    world.deny = vec![prefix("192.0.2.0", 24), prefix("2001:db8::", 64)];
    for [from, to] in [V4, V6] {
        for flags in [SYN, ACK, FIN | ACK] {
            assert_eq!(world.judge(from, to, flags), dropped(from, Reason::Deny));
        }
    }
    world.deny.clear();
    world.settings = Some(Settings { allow_listed_only: 1, ..Settings::open() });
    for [from, to] in [V4, V6] {
        assert_eq!(world.judge(from, to, SYN), dropped(from, Reason::NotAllowed));
        assert_eq!(world.judge(from, to, ACK), Verdict::Pass { slot: 1, opens: false });
        assert_eq!(world.judge(from, to, SYN | ACK), Verdict::Pass { slot: 1, opens: false });
    }
    world.allow = vec![prefix("192.0.2.7", 32)];
    assert_eq!(world.judge(V4[0], V4[1], SYN), Verdict::Pass { slot: 1, opens: true });
    assert_eq!(world.judge("192.0.2.8:4000", V4[1], SYN), dropped("192.0.2.8:4000", Reason::NotAllowed));
}

#[test]
fn sources_of_one_prefix_share_a_rate_and_others_keep_theirs() {
    let mut world = World::new();
    world.settings = Some(Settings::open().with_rate(Rate::new(10, 2), 24, 64));
    let pass = Verdict::Pass { slot: 1, opens: true };
    assert_eq!(world.judge("192.0.2.7:1", V4[1], SYN), pass);
    assert_eq!(world.judge("192.0.2.8:1", V4[1], SYN), pass);
    assert_eq!(world.judge("192.0.2.9:1", V4[1], SYN), dropped("192.0.2.9:1", Reason::Rate));
    assert_eq!(world.judge("192.0.3.9:1", V4[1], SYN), pass);
    assert_eq!(world.judge("192.0.2.9:1", V4[1], ACK), Verdict::Pass { slot: 1, opens: false });
    world.now.set(world.now.get() + 100_000_000);
    assert_eq!(world.judge("192.0.2.9:1", V4[1], SYN), pass, "a tenth of a second earns one");
}

#[test]
fn what_is_refused_for_another_reason_costs_its_source_nothing() {
    let mut world = World::new();
    world.settings = Some(Settings { allow_listed_only: 1, ..Settings::open().with_rate(Rate::new(1, 1), 32, 128) });
    assert_eq!(world.judge(V4[0], V4[1], SYN), dropped(V4[0], Reason::NotAllowed));
    assert!(world.buckets.borrow().is_empty());
}

#[test]
fn a_malformed_packet_is_dropped_on_our_ports_only() {
    let world = World::new();
    assert_eq!(world.judge(V4[0], V4[1], SYN | FIN), dropped(V4[0], Reason::Malformed));
    assert_eq!(world.judge("192.0.2.7:0", V4[1], SYN), dropped("192.0.2.7:0", Reason::Malformed));
    assert_eq!(world.judge(V4[0], "10.0.0.1:22", SYN | FIN), Verdict::NotOurs);
}

proptest! {
    /// Only TCP to a port of ours is ever dropped, whatever the bytes and however strict the rules.
    #[test]
    fn nothing_but_our_ports_is_dropped(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), like_ip in 0u8..3) {
        let mut world = World::new();
        world.deny = vec![prefix("0.0.0.0", 0), prefix("::", 0)];
        if bytes.len() > 60 {
            let start = packet(if like_ip == 1 { V4[0] } else { V6[0] }, if like_ip == 1 { V4[1] } else { V6[1] }, SYN);
            if like_ip > 0 {
                bytes[..34].copy_from_slice(&start[..34]);
            }
        }
        let ours = crate::packet::segment(bytes.as_slice()).is_ok_and(|s| {
            let key = PortKey { address: s.destination, port: s.destination_port.into() };
            world.ports.contains_key(&key)
                || world.ports.contains_key(&key.on_unspecified()) && world.host.contains(&s.destination)
        });
        prop_assert_eq!(admit(bytes.as_slice(), &world) != Verdict::NotOurs, ours);
    }

    /// A denied source reaches no port of ours with any flags; one that isn't denied is never dropped for it.
    #[test]
    fn deny_is_exact(last: u8, length in 24u8..=32, denied: u8, flags: u8) {
        let mut world = World::new();
        let deny = Prefix::new(IpAddr::from([192, 0, 2, denied]), length).unwrap();
        world.deny = vec![deny];
        let from = IpAddr::from([192, 0, 2, last]);
        let verdict = world.judge(&std::format!("{from}:4000"), V4[1], flags);
        let for_deny = matches!(verdict, Verdict::Drop { reason: Reason::Deny, .. });
        prop_assert_eq!(for_deny, deny.contains(from));
    }
}
