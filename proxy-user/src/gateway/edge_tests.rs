//! Steering and admission as the gateway does them, against a kernel that only remembers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Gateway;
use super::edge::{EdgeCounters, EdgeSource, Reason, RefusedSource, SLOTS, Slot};
use super::fake_edge::{FakeEdge, FakeSource};
use super::reload_tests::{SOON, ask, cluster, config, config_with, free_ports, open, served, tell_brokers, until};
use crate::config::Config;
use crate::metrics::Metrics;

async fn started(source: &Arc<FakeSource>, config: Config) -> anyhow::Result<Gateway> {
    let edges = Arc::clone(source) as Arc<dyn EdgeSource>;
    Gateway::start(config, "test.yaml".to_owned(), Metrics::default(), Some(edges)).await
}

/// A gateway whose virtual cluster `x` has the port of a shared socket, so that connections come in as if steered.
async fn steered(source: &Arc<FakeSource>, top: &str) -> (Gateway, Arc<FakeEdge>, u16) {
    let [port, first, ..] = free_ports::<4>().await;
    let gateway = started(source, config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await.unwrap();
    let edge = source.edge();
    let shared = edge.shared_port();
    gateway.apply(config_with(top, &cluster("x", "east", "127.0.0.1", shared, first, 0))).await.unwrap();
    (gateway, edge, shared)
}

/// Connects and is reset before a byte came.
async fn is_reset(port: u16) -> bool {
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    match timeout(SOON, client.read(&mut [0; 1])).await.expect("an end") {
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        Ok(_) => false,
    }
}

fn refused(gateway: &Gateway, reason: &str) -> u64 {
    gateway.status().virtual_clusters["x"].refused.get(reason).copied().unwrap_or(0)
}

#[tokio::test]
async fn the_kernel_gets_every_port_of_every_range_and_nothing_is_bound() {
    let [a, b, first, ..] = free_ports::<9>().await;
    let source = Arc::<FakeSource>::default();
    let both = cluster("x", "east", "0.0.0.0", a, first, 0) + &cluster("y", "west", "127.0.0.1", b, first + 3, 0);
    let gateway = started(&source, config(&both)).await.unwrap();
    let edge = source.edge();
    assert_eq!(edge.open(), [format!("0.0.0.0:{a}"), format!("127.0.0.1:{b}")]);
    assert_eq!(edge.closed(), 6, "broker ports without a broker");
    for port in [a, b, first, first + 5] {
        assert!(TcpListener::bind(("127.0.0.1", port)).await.is_ok(), "{port} is bound");
    }
    tell_brokers(&gateway, "east", &[1]);
    until(|| edge.open().contains(&format!("0.0.0.0:{}", first + 1))).await;
    assert_eq!(edge.closed(), 5);
    let status = gateway.status();
    assert_eq!(status.virtual_clusters["x"].ports, "steered");
    assert!(status.virtual_clusters["x"].listeners.iter().all(|listener| listener.steered));
    assert!(status.fast_path.starts_with("on: "), "{}", status.fast_path);
    assert_eq!(source.pins.lock().unwrap()[..], [std::path::PathBuf::from("/sys/fs/bpf/turnout")]);
}

#[tokio::test]
async fn an_edge_that_somebody_took_off_is_done_without_until_the_next_reload() {
    let [port, first, ..] = free_ports::<4>().await;
    let source = Arc::<FakeSource>::default();
    let config = config(&cluster("x", "east", "127.0.0.1", port, first, 0));
    let gateway = started(&source, config.clone()).await.unwrap();
    let stranger = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    source.edge().state().lost = Some("somebody took it off".to_owned());

    timeout(SOON, gateway.edge_lost()).await.expect("it is noticed");
    gateway.go_on_without_edge().await;
    assert!(!gateway.lacks_edge(), "the port is somebody's: it is tried again");
    assert_eq!(gateway.status().fast_path, "off: somebody took it off");

    drop(stranger);
    timeout(SOON, gateway.edge_lost()).await.expect("it is noticed again");
    gateway.go_on_without_edge().await;
    assert!(gateway.lacks_edge());
    TcpStream::connect(("127.0.0.1", port)).await.expect("the port is bound");

    gateway.apply(config).await.unwrap();
    assert!(!gateway.lacks_edge());
    let said = gateway.status().fast_path;
    assert!(said.starts_with("on: "), "{said}");
}

#[tokio::test]
async fn a_steered_connection_is_served_counted_and_drained_as_any_other() {
    let source = Arc::<FakeSource>::default();
    let (gateway, edge, port) = steered(&source, "").await;
    let mut client = served(port).await;
    let status = gateway.status();
    assert_eq!((status.virtual_clusters["x"].accepted, status.virtual_clusters["x"].connections), (1, 1));
    assert_eq!(open(&gateway), [format!("x 127.0.0.1:{port} bootstrap")]);
    assert_eq!(gateway.connections()[0].role, "bootstrap");
    timeout(SOON, gateway.drain()).await.unwrap();
    assert_eq!(timeout(SOON, client.read(&mut [0; 1])).await.unwrap().unwrap(), 0, "drained");
    assert!(edge.state().ports.is_empty(), "a gateway that is gone claims no port");
}

#[tokio::test]
async fn a_connection_to_a_shared_socket_that_was_not_steered_is_ended() {
    let [port, first, ..] = free_ports::<4>().await;
    let source = Arc::<FakeSource>::default();
    let gateway = started(&source, config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await.unwrap();
    assert!(is_reset(source.edge().shared_port()).await);
    assert_eq!(gateway.status().virtual_clusters["x"].accepted, 0);
    assert!(gateway.metrics().contains("turnout_unrouted_connections_total 1"));
}

#[tokio::test]
async fn ports_that_move_between_virtual_clusters_are_never_missing() {
    let [a, b, c, ..] = free_ports::<8>().await;
    let of =
        |one, other| cluster("x", "east", "127.0.0.1", one, c, 0) + &cluster("y", "west", "127.0.0.1", other, c + 3, 0);
    let source = Arc::<FakeSource>::default();
    let gateway = started(&source, config(&of(a, b))).await.unwrap();
    let edge = source.edge();
    edge.state().tables.clear();
    gateway.apply(config(&of(b, a))).await.unwrap();
    let moved =
        |table: &super::edge::PortTable, port| table.get(&SocketAddr::from(([127, 0, 0, 1], port))).map(|p| p.open);
    let tables = std::mem::take(&mut edge.state().tables);
    assert!(!tables.is_empty());
    for table in &tables {
        assert_eq!((moved(table, a), moved(table, b)), (Some(true), Some(true)), "{table:?}");
    }
    let slots: Vec<_> = gateway.edge.steering.slots().into_iter().collect();
    assert_eq!(slots, [("x".to_owned(), Slot(0)), ("y".to_owned(), Slot(1))], "names keep their slots");
}

#[tokio::test]
async fn a_virtual_cluster_that_the_table_has_no_room_for_binds_its_ports() {
    let [a, b, first, ..] = free_ports::<9>().await;
    let source = Arc::<FakeSource>::default();
    source.edge().state().room = Some(6);
    let both = cluster("x", "east", "127.0.0.1", a, first, 0) + &cluster("y", "west", "127.0.0.1", b, first + 3, 0);
    let gateway = started(&source, config(&both)).await.unwrap();
    let status = gateway.status();
    assert_eq!(status.virtual_clusters["x"].ports, "steered");
    let why = &status.virtual_clusters["y"].ports;
    assert!(why.starts_with("bound one by one: ") && why.contains("the map of ports is full"), "{why}");
    served(b).await;
    assert!(source.edge().state().ports.keys().all(|address| address.port() != b));
    // Room enough: the next reload steers it.
    source.edge().state().room = None;
    let mut other = config(&both);
    other.virtual_clusters.get_mut("y").unwrap().limits.connections = 7;
    gateway.apply(other).await.unwrap();
    assert_eq!(gateway.status().virtual_clusters["y"].ports, "steered");
    served(b).await;
}

#[tokio::test]
async fn virtual_clusters_beyond_the_slots_bind_their_ports() {
    let source = Arc::<FakeSource>::default();
    let [first, ..] = free_ports::<600>().await;
    let all: String = (0..=SLOTS)
        .map(|n| {
            format!(
                "  v{n:03}: {{cluster: east, listen: ['127.0.0.1'], bootstrap_port: {}, broker_ports: {{first: {}, \
                 count: 1}}}}\n",
                first + 2 * n,
                first + 2 * n + 1
            )
        })
        .collect();
    let gateway = started(&source, config(&all)).await.unwrap();
    let status = gateway.status();
    let bound: Vec<_> = status.virtual_clusters.iter().filter(|(_, v)| v.ports != "steered").collect();
    assert_eq!(bound.len(), 1);
    assert!(bound[0].1.ports.contains("no room for more than 256 virtual clusters"), "{}", bound[0].1.ports);
    served(first + 2 * SLOTS).await;
}

#[tokio::test]
async fn other_services_keep_their_ports() {
    let [port, first, ..] = free_ports::<5>().await;
    let stranger = TcpListener::bind(("127.0.0.1", first + 1)).await.unwrap();
    let source = Arc::<FakeSource>::default();
    let gateway = started(&source, config(&cluster("x", "east", "0.0.0.0", port, first, 0))).await.unwrap();
    let edge = source.edge();
    let is_ours = |edge: &FakeEdge| edge.state().ports.keys().any(|address| address.port() == first + 1);
    assert!(!is_ours(&edge));
    assert_eq!(gateway.status().virtual_clusters["x"].strangers, [format!("0.0.0.0:{}", first + 1)]);
    assert_eq!(edge.closed(), 2);
    // A broker that needs it is in the same place as without steering.
    tell_brokers(&gateway, "east", &[1]);
    until(|| !gateway.status().virtual_clusters["x"].degraded.is_empty()).await;
    assert!(gateway.status().virtual_clusters["x"].degraded[0].contains("in use"));
    assert!(!is_ours(&edge));
    drop(stranger);
    until(|| is_ours(&edge)).await;
}

#[tokio::test]
async fn a_bootstrap_port_that_another_service_has_refuses_the_reload_as_a_bind_would() {
    let [a, b, first, ..] = free_ports::<6>().await;
    let source = Arc::<FakeSource>::default();
    let gateway = started(&source, config(&cluster("x", "east", "127.0.0.1", a, first, 0))).await.unwrap();
    let _stranger = TcpListener::bind(("127.0.0.1", b)).await.unwrap();
    let error = gateway.apply(config(&cluster("x", "east", "0.0.0.0", b, first, 0))).await.unwrap_err();
    assert!(format!("{error:#}").contains(&format!("0.0.0.0:{b} (bootstrap) can't be opened")), "{error:#}");
    assert_eq!(source.edge().open(), [format!("127.0.0.1:{a}")]);
    assert!(!source.edge().state().detached);
}

#[tokio::test]
async fn the_mode_moves_both_ways_by_reload_and_ports_stay_open() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = cluster("x", "east", "127.0.0.1", port, first, 0);
    let off = config_with("fast_path: {mode: 'off'}", &x);
    let source = Arc::<FakeSource>::default();
    let gateway = started(&source, off.clone()).await.unwrap();
    assert!(source.pins.lock().unwrap().is_empty(), "off loads nothing");
    assert_eq!(gateway.status().fast_path, "off: fast_path.mode is off");
    let mut client = served(port).await;

    gateway.apply(config(&x)).await.unwrap();
    let edge = source.edge();
    assert_eq!(edge.open(), [format!("127.0.0.1:{port}")]);
    // Connections that were on their way to the port's own socket are served.
    served(port).await;
    ask(&mut client).await;

    for _ in 0..3 {
        gateway.apply(off.clone()).await.unwrap();
        served(port).await;
        gateway.apply(config(&x)).await.unwrap();
        served(port).await;
    }
    gateway.apply(off).await.unwrap();
    assert!(edge.state().detached, "off leaves no program");
    assert_eq!(edge.state().gaps, []);
    assert_eq!(source.edge().state().gaps, []);
    assert!(gateway.status().virtual_clusters["x"].ports.contains("fast_path.mode is off"));
    served(port).await;
    ask(&mut client).await;
}

#[tokio::test]
async fn a_ports_own_socket_is_closed_once_connections_come_in_otherwise() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = cluster("x", "east", "127.0.0.1", port, first, 0);
    let source = Arc::<FakeSource>::default();
    let gateway = started(&source, config_with("fast_path: {mode: 'off'}", &x)).await.unwrap();
    gateway.apply(config(&x)).await.unwrap();
    let closed = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, closed).await.expect("the old socket is closed");
    assert_eq!(open(&gateway), [format!("x 127.0.0.1:{port} bootstrap")]);
}

#[tokio::test]
async fn auto_goes_without_what_the_host_lacks_and_says_so() {
    let [port, first, ..] = free_ports::<4>().await;
    let source = Arc::<FakeSource>::default();
    source.refuse(Some("this process lacks CAP_BPF"));
    let x = cluster("x", "east", "127.0.0.1", port, first, 0);
    let gateway = started(&source, config(&x)).await.unwrap();
    let status = gateway.status();
    assert_eq!(status.fast_path, "off: this process lacks CAP_BPF");
    assert_eq!(status.virtual_clusters["x"].ports, "bound one by one: this process lacks CAP_BPF");
    served(port).await;
    // What is had later is used from the next reload on.
    source.refuse(None);
    let mut other = config(&x);
    other.virtual_clusters.get_mut("x").unwrap().limits.connections = 7;
    gateway.apply(other).await.unwrap();
    assert_eq!(gateway.status().virtual_clusters["x"].ports, "steered");
}

#[tokio::test]
async fn auto_goes_without_sockets_that_the_kernel_refuses() {
    let [port, first, ..] = free_ports::<4>().await;
    let source = Arc::<FakeSource>::default();
    source.edge().state().refuses_sockets = true;
    let gateway = started(&source, config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await.unwrap();
    assert!(source.edge().state().detached);
    assert!(
        gateway.status().fast_path.contains("the kernel refused the shared sockets"),
        "{}",
        gateway.status().fast_path
    );
    served(port).await;
}

#[tokio::test]
async fn required_is_a_start_and_a_reload_that_fail_with_the_reason() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = cluster("x", "east", "127.0.0.1", port, first, 0);
    let required = config_with("fast_path: {mode: required}", &x);
    let source = Arc::<FakeSource>::default();
    source.refuse(Some("this kernel is 5.4; 6.6 is needed"));
    let error = format!("{:#}", started(&source, required.clone()).await.err().expect("refused"));
    assert!(error.contains("fast_path.mode is required") && error.contains("5.4; 6.6 is needed"), "{error}");
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "nothing is left open");

    let gateway = started(&source, config_with("fast_path: {mode: 'off'}", &x)).await.unwrap();
    let error = format!("{:#}", gateway.apply(required.clone()).await.unwrap_err());
    assert!(error.contains("5.4; 6.6 is needed"), "{error}");
    served(port).await;

    source.refuse(None);
    source.edge().interface("wg0", None);
    let error = format!("{:#}", gateway.apply(required.clone()).await.unwrap_err());
    assert!(error.contains("wg0 can't have the admission program: its driver has no XDP"), "{error}");
    assert!(source.edge().state().detached);
    assert_eq!(gateway.status().fast_path, "off: fast_path.mode is off");
    served(port).await;

    *source.edge.lock().unwrap() = Arc::default();
    source.edge().interface("eth0", Some("native"));
    source.edge().state().lacks_splice = Some("built without the splice");
    let error = format!("{:#}", gateway.apply(required.clone()).await.unwrap_err());
    assert!(error.contains("the splice's programs can't run: built without the splice"), "{error}");
    assert!(source.edge().state().detached);

    *source.edge.lock().unwrap() = Arc::default();
    source.edge().interface("eth0", Some("native"));
    gateway.apply(required).await.unwrap();
    let splice = gateway.status().edge.and_then(|edge| edge.splice).expect("a splice");
    assert_eq!((splice.sessions, splice.interfaces["wg0"].as_deref()), (3, Some("it has LRO")));
    assert!(gateway.status().fast_path.contains("admission on eth0 (native)"), "{}", gateway.status().fast_path);
}

#[tokio::test]
async fn rules_that_the_kernel_does_not_take_refuse_the_reload_and_the_old_ones_stay() {
    let source = Arc::<FakeSource>::default();
    let (gateway, edge, port) = steered(&source, "admission: {allow: [127.0.0.0/8]}").await;
    let before = edge.state().admission.clone();
    assert_eq!(before.allow.len(), 1);
    edge.state().refuses_admission = true;
    let mut other = (*gateway.config().unwrap()).clone();
    other.admission.deny = vec!["127.0.0.1".parse().unwrap()];
    let error = format!("{:#}", gateway.apply(other).await.unwrap_err());
    assert!(error.contains("admission") && error.contains("the map of prefixes is full"), "{error}");
    assert_eq!(edge.state().admission, before);
    served(port).await;
}

#[tokio::test]
async fn interfaces_follow_the_config() {
    let source = Arc::<FakeSource>::default();
    let (gateway, edge, _) = steered(&source, "fast_path: {interfaces: [eth0, eth1]}").await;
    assert_eq!(edge.state().wanted, Some(vec!["eth0".to_owned(), "eth1".to_owned()]));
    let mut other = (*gateway.config().unwrap()).clone();
    other.fast_path.interfaces = crate::config::Interfaces::Auto;
    gateway.apply(other).await.unwrap();
    assert_eq!(edge.state().wanted, None);
    until(|| edge.state().upkeeps > 0).await;
}

#[tokio::test]
async fn a_reload_that_denies_a_source_ends_its_connections_and_resets_new_ones() {
    for steer in [true, false] {
        let source = Arc::<FakeSource>::default();
        if !steer {
            source.refuse(Some("not here"));
        }
        let (gateway, port) = if steer {
            let (gateway, _, port) = steered(&source, "").await;
            (gateway, port)
        } else {
            let [port, first, ..] = free_ports::<4>().await;
            (started(&source, config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await.unwrap(), port)
        };
        let mut client = served(port).await;
        let mut denied = (*gateway.config().unwrap()).clone();
        denied.admission.deny = vec!["127.0.0.0/8".parse().unwrap()];
        gateway.apply(denied.clone()).await.unwrap();
        let error = timeout(SOON, client.read(&mut [0; 1])).await.expect("an end").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        until(|| gateway.open_connections() == 0).await;
        assert_eq!(gateway.status().virtual_clusters["x"].closed["denied"], 1);
        assert!(is_reset(port).await);
        assert_eq!(refused(&gateway, "deny"), 1);

        denied.admission.deny.clear();
        gateway.apply(denied).await.unwrap();
        served(port).await;
    }
}

#[tokio::test]
async fn a_reload_that_denies_others_leaves_connections_alone() {
    let source = Arc::<FakeSource>::default();
    let (gateway, _, port) = steered(&source, "").await;
    let mut client = served(port).await;
    let mut other = (*gateway.config().unwrap()).clone();
    other.admission.deny = vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()];
    // Who isn't allowed any more may finish: only deny ends connections.
    other.admission.allow = vec!["192.0.2.0/24".parse().unwrap()];
    gateway.apply(other).await.unwrap();
    ask(&mut client).await;
    assert!(is_reset(port).await);
    assert_eq!(refused(&gateway, "not_allowed"), 1);
}

#[tokio::test]
async fn a_source_above_its_rate_is_reset_and_told_of() {
    let source = Arc::<FakeSource>::default();
    let (gateway, edge, port) = steered(&source, "admission: {new_connections: {rate: 1/s, burst: 3}}").await;
    for _ in 0..3 {
        served(port).await;
    }
    assert!(is_reset(port).await, "exact where the kernel doesn't decide");
    assert_eq!(refused(&gateway, "rate"), 1);
    let refused = gateway.refused_sources(10);
    assert_eq!((refused.len(), refused[0].reason.as_str(), refused[0].by.as_str()), (1, "rate", "daemon"));
    assert_eq!((refused[0].virtual_cluster.as_deref(), refused[0].times), (Some("x"), 1));

    // With the program on an interface, what comes in a bunch is let in: a second's worth more.
    edge.interface("eth0", Some("native"));
    until(|| edge.state().upkeeps > 1).await;
    served(port).await;
}

#[tokio::test]
async fn what_the_kernel_counted_is_told_since_the_virtual_cluster_has_its_slot() {
    let [port, first, ..] = free_ports::<4>().await;
    let source = Arc::<FakeSource>::default();
    let edge = source.edge();
    let counted = |admitted, deny| EdgeCounters { admitted, steered: admitted, refused: [(Reason::Deny, deny)].into() };
    // Of whoever had the slot before.
    edge.state().counters.insert(Slot(0), counted(100, 7));
    let gateway = started(&source, config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await.unwrap();
    edge.state().counters.insert(Slot(0), counted(105, 9));
    edge.state().refused.push(RefusedSource {
        address: [192, 0, 2, 1].into(),
        slot: Slot(0),
        reason: Reason::Deny,
        packets: 2,
        last_ms_ago: 0,
    });
    let counts = &gateway.admission().virtual_clusters["x"];
    assert_eq!((counts.admitted_by_kernel, counts.refused_by_kernel["deny"]), (5, 2));
    let metrics = gateway.metrics();
    for line in [
        "turnout_edge_admitted_total{virtual_cluster=\"x\"} 5",
        "turnout_edge_refused_total{virtual_cluster=\"x\",reason=\"deny\"} 2",
        "turnout_edge_steered_ports{virtual_cluster=\"x\"} 4",
        "turnout_edge_steering 1",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    let refused = &gateway.refused_sources(10)[0];
    assert_eq!((refused.by.as_str(), refused.times, refused.virtual_cluster.as_deref()), ("kernel", 2, Some("x")));
}
