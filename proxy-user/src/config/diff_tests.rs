use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::config::pattern::Pattern;
use crate::config::prefix::{Cidr, PrefixLength};
use crate::config::units::{PerSecond, Size, Span};
use crate::config::{Environment, FastPathMode, LogFormat, Mechanism, RacksMode, Tls, Versions, load_str};

/// Two clusters and two virtual clusters with every key set.
fn full() -> Config {
    let text = "
clusters:
  east:
    bootstrap: ['a:1', 'b:2']
    address_map: {'k:1': 'c:1'}
    racks: {1: az1}
    tls: {ca: /ca, cert: /cert, key: /key, bootstrap: ['a:3']}
    sasl: {mechanism: PLAIN, username: u, password: hunter2}
  west: {bootstrap: ['w:1']}
virtual_clusters:
  orders:
    cluster: east
    bootstrap_port: 9092
    broker_ports: {first: 9200, count: 10}
    advertise: kafka
    cluster_id: id
    limits: {connections_per_source: 7}
    racks: {weights: {1: 2}, price_per_gb: 0.01 USD}
  payments:
    cluster: west
    bootstrap_port: 9093
    broker_ports: {first: 9300, count: 10}
admission: {deny: [192.0.2.0/24], allow: ['::/0'], new_connections: {rate: 100/s, burst: 7}}
workers: 2
";
    load_str(text, "t.yaml", &Environment::empty()).unwrap_or_else(|e| panic!("{e}"))
}

type Edit = (&'static str, fn(&mut Config, u8));

/// A change of each key of the model, with the key that the difference must name. The number varies the value and
/// never gives that of `full`.
fn edits() -> Vec<Edit> {
    fn span(n: u8) -> Span {
        Span(Duration::from_millis(123_457 + u64::from(n)))
    }
    macro_rules! edits {
        ($($key:literal: |$c:ident, $n:ident| $edit:expr;)*) => { vec![$(($key, |$c: &mut Config, $n: u8| { $edit; })),*] };
    }
    macro_rules! east {
        ($c:ident) => {
            $c.clusters.get_mut("east").expect("east")
        };
    }
    macro_rules! orders {
        ($c:ident) => {
            $c.virtual_clusters.get_mut("orders").expect("orders")
        };
    }
    macro_rules! racks {
        ($c:ident) => {
            orders!($c).racks.as_mut().expect("racks")
        };
    }
    macro_rules! new {
        ($c:ident) => {
            $c.admission.new_connections.as_mut().expect("new_connections")
        };
    }
    macro_rules! tls {
        ($c:ident) => {
            east!($c).tls.as_mut().expect("tls")
        };
    }
    macro_rules! sasl {
        ($c:ident) => {
            east!($c).sasl.as_mut().expect("sasl")
        };
    }
    edits! {
        "clusters.east.bootstrap": |c, n| east!(c).bootstrap.push(format!("x:{n}"));
        "clusters.east.address_map.\"k:1\"": |c, n| east!(c).address_map.insert("k:1".into(), format!("y:{n}"));
        "clusters.east.racks.1": |c, n| east!(c).racks.insert(1, format!("rack{n}"));
        "clusters.east.racks.2": |c, n| east!(c).racks.insert(2, format!("rack{n}"));
        "clusters.east.connect_timeout": |c, n| east!(c).connect_timeout = span(n);
        "clusters.east.refresh": |c, n| east!(c).refresh = span(n);
        "clusters.east.partition_refresh": |c, n| east!(c).partition_refresh = span(n);
        "clusters.east.forget_after": |c, n| east!(c).forget_after = span(n);
        "clusters.east.tls.ca": |c, n| tls!(c).ca = Some(format!("/{n}").into());
        "clusters.east.tls.cert": |c, n| tls!(c).cert = (n > 9).then(|| format!("/{n}").into());
        "clusters.east.tls.key": |c, n| tls!(c).key = Some(format!("/{n}").into());
        "clusters.east.tls.bootstrap": |c, n| tls!(c).bootstrap.push(format!("x:{n}"));
        "clusters.east.sasl.mechanism": |c, n| sasl!(c).mechanism = if n > 9 { Mechanism::ScramSha256 } else { Mechanism::ScramSha512 };
        "clusters.east.sasl.username": |c, n| sasl!(c).username = format!("user{n}");
        "clusters.east.sasl.password": |c, n| sasl!(c).password = format!("secret{n}");
        "virtual_clusters.orders.cluster": |c, n| orders!(c).cluster = format!("c{n}");
        "virtual_clusters.orders.listen": |c, n| orders!(c).listen = vec![[127, 0, 0, n].into()];
        "virtual_clusters.orders.bootstrap_port": |c, n| orders!(c).bootstrap_port = 100 + u16::from(n);
        "virtual_clusters.orders.broker_ports.first": |c, n| orders!(c).broker_ports.first = 100 + u16::from(n);
        "virtual_clusters.orders.broker_ports.count": |c, n| orders!(c).broker_ports.count = 100 + u16::from(n);
        "virtual_clusters.orders.broker_ports.first_node_id": |c, n| orders!(c).broker_ports.first_node_id = 1 + i32::from(n);
        "virtual_clusters.orders.advertise": |c, n| orders!(c).advertise = (n > 9).then(|| format!("host{n}"));
        "virtual_clusters.orders.versions": |c, n| orders!(c).versions = if n > 9 { Versions::Full } else { Versions::Conservative };
        "virtual_clusters.orders.cluster_id": |c, n| orders!(c).cluster_id = (n > 9).then(|| format!("id{n}"));
        "virtual_clusters.orders.limits.connections": |c, n| orders!(c).limits.connections = u32::from(n);
        "virtual_clusters.orders.limits.connections_per_source": |c, n| orders!(c).limits.connections_per_source = (n > 9).then_some(n.into());
        "virtual_clusters.orders.limits.frame": |c, n| orders!(c).limits.frame = Size(1_000_001 + u64::from(n));
        "virtual_clusters.orders.limits.rewrite_frame": |c, n| orders!(c).limits.rewrite_frame = Size(1_000_001 + u64::from(n));
        "virtual_clusters.orders.limits.in_flight": |c, n| orders!(c).limits.in_flight = u32::from(n);
        "virtual_clusters.orders.limits.first_byte": |c, n| orders!(c).limits.first_byte = span(n);
        "virtual_clusters.orders.limits.incomplete_frame": |c, n| orders!(c).limits.incomplete_frame = span(n);
        "virtual_clusters.orders.limits.idle": |c, n| orders!(c).limits.idle = span(n);
        "virtual_clusters.orders.limits.drain": |c, n| orders!(c).limits.drain = span(n);
        "virtual_clusters.orders.racks.mode": |c, n| racks!(c).mode = if n > 9 { RacksMode::Off } else { RacksMode::Patch };
        "virtual_clusters.orders.racks.clients": |c, n| {
            let rule = crate::config::ClientRack { cidr: None, client_id: Some(Pattern::exact("x")), listener: None, rack: format!("r{n}") };
            racks!(c).clients.push(rule);
        };
        "virtual_clusters.orders.racks.respect_client_rack": |c, _n| racks!(c).respect_client_rack = false;
        "virtual_clusters.orders.racks.exclude_clients": |c, n| racks!(c).exclude_clients.push(Pattern::exact(&format!("c{n}")));
        "virtual_clusters.orders.racks.exclude_brokers": |c, n| racks!(c).exclude_brokers.push(n.into());
        "virtual_clusters.orders.racks.weights.1": |c, n| racks!(c).weights.insert(1, 3 + u16::from(n));
        "virtual_clusters.orders.racks.patch_buffer": |c, n| racks!(c).patch_buffer = Size(1_000_001 + u64::from(n));
        "virtual_clusters.orders.racks.redirects_per_minute": |c, n| racks!(c).redirects_per_minute = 100 + u32::from(n);
        "virtual_clusters.orders.racks.hold_down": |c, n| racks!(c).hold_down = span(n);
        "virtual_clusters.orders.racks.hold_down_max": |c, n| racks!(c).hold_down_max = span(n);
        "virtual_clusters.orders.racks.silence": |c, n| racks!(c).silence = span(n);
        "virtual_clusters.orders.racks.price_per_gb": |c, n| racks!(c).price_per_gb = format!("{n}.5 USD").parse().ok();
        "fast_path.interfaces": |c, n| c.fast_path.interfaces = crate::config::Interfaces::Named(vec![format!("eth{n}")]);
        "fast_path.pin": |c, n| c.fast_path.pin = format!("/pin{n}").into();
        "fast_path.mirror_buffer": |c, n| c.fast_path.mirror_buffer = Size(1_000_001 + u64::from(n));
        "admission.deny": |c, n| c.admission.deny.push(Cidr::new([10, n, 0, 0].into(), 16).expect("a prefix"));
        "admission.allow": |c, n| c.admission.allow.push(Cidr::new([10, n, 0, 0].into(), 16).expect("a prefix"));
        "admission.new_connections.per": |c, n| new!(c).per = PrefixLength(1 + n % 24);
        "admission.new_connections.per_v6": |c, n| new!(c).per_v6 = PrefixLength(1 + n % 48);
        "admission.new_connections.rate": |c, n| new!(c).rate = PerSecond(1000 + u32::from(n));
        "admission.new_connections.burst": |c, n| new!(c).burst = (n > 9).then_some(1000 + u32::from(n));
        "fast_path.mode": |c, _n| c.fast_path.mode = FastPathMode::Off;
        "admin.http": |c, n| c.admin.http = (n > 9).then(|| ([127, 0, 0, 1], u16::from(n)).into());
        "admin.socket": |c, n| c.admin.socket = format!("/{n}").into();
        "log.format": |c, _n| c.log.format = LogFormat::Json;
        "log.level": |c, n| c.log.level = format!("level{n}");
        "workers": |c, n| c.workers = (n > 9).then_some(n.into());
        "watch": |c, _n| c.watch = true;
    }
}

fn named(diff: &ConfigDiff) -> BTreeSet<String> {
    diff.keys().map(|change| change.key.to_string()).collect()
}

#[test]
fn the_edits_of_these_tests_cover_every_key_of_the_model() {
    let edited: BTreeSet<String> = edits().into_iter().map(|(key, _)| key.to_owned()).collect();
    let all: BTreeSet<String> = leaves(&full())
        .into_keys()
        .filter(|key| !key.matches("clusters.west.*") && !key.to_string().starts_with("virtual_clusters.payments."))
        .map(|key| key.to_string())
        .chain(["clusters.east.racks.2".to_owned()])
        .collect();
    assert_eq!(edited, all);
}

#[test]
fn changes_read_as_sentences() {
    let (old, mut new) = (full(), full());
    let orders = new.virtual_clusters.get_mut("orders").expect("orders");
    orders.limits.frame = Size::mib(50);
    orders.advertise = None;
    let east = new.clusters.get_mut("east").expect("east");
    east.racks.insert(2, "az2".into());
    east.sasl.as_mut().expect("sasl").password = "correct horse".into();
    let west = new.clusters.remove("west").expect("west");
    new.clusters.insert("north".into(), west);
    new.virtual_clusters.remove("payments");
    new.log.level = "debug".into();
    new.workers = None;
    new.admin.http = None;
    new.admission.new_connections = None;
    new.admission.deny.clear();
    new.fast_path.pin = "/sys/fs/bpf/other".into();
    let diff = diff(&old, &new);
    assert_eq!(
        diff.live(),
        [
            "clusters.east.racks.2: not set → az2",
            "clusters.east.sasl.password: changed",
            "clusters.north: added",
            "clusters.west: removed",
            "virtual_clusters.orders.advertise: kafka → not set",
            "virtual_clusters.orders.limits.frame: 100MiB → 50MiB",
            "virtual_clusters.payments: removed",
            "admin.http: 127.0.0.1:9090 → off",
            "admission.deny: [192.0.2.0/24] → []",
            "admission.new_connections.burst: 7 → not set",
            "admission.new_connections.per: /32 → not set",
            "admission.new_connections.per_v6: /64 → not set",
            "admission.new_connections.rate: 100/s → not set",
            "log.level: info → debug",
            "workers: 2 → not set",
        ]
    );
    assert_eq!(diff.after_restart(), ["fast_path.pin: /sys/fs/bpf/turnout → /sys/fs/bpf/other"]);
    let shown = format!("{diff:?}{}", serde_json::to_string(&diff).expect("serialised"));
    assert!(!shown.contains("hunter2") && !shown.contains("horse"), "{shown}");
}

#[test]
fn an_empty_tls_is_a_change_and_filling_it_is_one_too() {
    let mut without = full();
    without.clusters.get_mut("west").expect("west").tls = None;
    let mut empty = without.clone();
    empty.clusters.get_mut("west").expect("west").tls = Some(Tls::default());
    let mut filled = without.clone();
    filled.clusters.get_mut("west").expect("west").tls = Some(Tls { ca: Some("/ca".into()), ..Tls::default() });
    assert_eq!(diff(&without, &empty).live(), ["clusters.west.tls: not set → {}"]);
    assert_eq!(diff(&empty, &filled).live(), ["clusters.west.tls.ca: not set → /ca"]);
    assert_eq!(diff(&filled, &empty).live(), ["clusters.west.tls.ca: /ca → not set"]);
}

#[test]
fn every_key_is_live_but_the_restart_keys() {
    for (key, edit) in edits() {
        let mut new = full();
        edit(&mut new, 10);
        let diff = diff(&full(), &new);
        let restart = RESTART_KEYS.contains(&key);
        assert_eq!((diff.live().is_empty(), diff.after_restart().is_empty()), (restart, !restart), "{key}");
    }
}

proptest! {
    #[test]
    fn equal_configs_differ_in_nothing(picked in prop::collection::vec((any::<Index>(), any::<u8>()), 0..20)) {
        let mut config = full();
        for (index, n) in picked {
            index.get(&edits()).1(&mut config, n);
        }
        let diff = diff(&config, &config.clone());
        prop_assert!(diff.is_empty() && diff.live().is_empty() && diff.after_restart().is_empty());
    }

    #[test]
    fn a_changed_key_is_named_once_and_nothing_else(index: Index, n: u8, backwards: bool) {
        let (key, edit) = *index.get(&edits());
        let (old, mut new) = (full(), full());
        edit(&mut new, n);
        let diff = if backwards { diff(&new, &old) } else { diff(&old, &new) };
        let keys: Vec<_> = diff.keys().map(|change| change.key.to_string()).collect();
        prop_assert_eq!(keys, [key]);
        prop_assert_eq!(diff.live().len() + diff.after_restart().len(), 1);
    }

    #[test]
    fn changed_keys_are_named_whatever_the_order_they_changed_in(
        picked in prop::collection::vec((any::<Index>(), any::<u8>()), 0..20),
    ) {
        // One value for each key, so that the order of the edits can't matter to the config.
        let picked: BTreeMap<usize, u8> = picked.into_iter().map(|(i, n)| (i.index(edits().len()), n)).collect();
        let (mut there, mut back) = (full(), full());
        picked.iter().for_each(|(i, n)| edits()[*i].1(&mut there, *n));
        picked.iter().rev().for_each(|(i, n)| edits()[*i].1(&mut back, *n));
        let expected: BTreeSet<String> = picked.keys().map(|i| edits()[*i].0.to_owned()).collect();
        prop_assert_eq!(named(&diff(&full(), &there)), expected);
        prop_assert_eq!(diff(&full(), &there), diff(&full(), &back));
    }

    #[test]
    fn the_way_back_names_the_same_keys_with_values_exchanged(
        picked in prop::collection::vec((any::<Index>(), any::<u8>()), 0..20),
    ) {
        let mut new = full();
        for (index, n) in picked {
            index.get(&edits()).1(&mut new, n);
        }
        let (forth, back) = (diff(&full(), &new), diff(&new, &full()));
        let exchanged: Vec<_> = back.keys().map(|c| (c.key.clone(), c.new.clone(), c.old.clone())).collect();
        let forth: Vec<_> = forth.keys().map(|c| (c.key.clone(), c.old.clone(), c.new.clone())).collect();
        prop_assert_eq!(forth, exchanged);
    }
}
