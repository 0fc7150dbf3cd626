//! Reloads on real ports: what stays open, what moves, and what a refused one leaves alone.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Gateway;
use crate::config::{self, Config, Environment};
use crate::kafka::ids::NodeId;
use crate::metrics::Metrics;
use crate::upstream::{Endpoint, Observed, ObservedBroker};

pub(super) const SOON: Duration = Duration::from_secs(5);

/// Ports nobody has at the moment, in a row.
pub(super) async fn free_ports<const N: usize>() -> [u16; N] {
    for _ in 0..100 {
        let first = rand::random_range(12_000..31_000u16);
        let mut held = Vec::new();
        for n in 0..N as u16 {
            held.extend(TcpListener::bind(("0.0.0.0", first + n)).await);
        }
        if held.len() == N {
            return std::array::from_fn(|n| first + n as u16);
        }
    }
    panic!("no {N} free ports in a row");
}

/// Two clusters that can't be reached (port 9, discard) and the virtual clusters given.
pub(super) fn config(virtual_clusters: &str) -> Config {
    config_with("", virtual_clusters)
}

/// The same with more at its top.
pub(super) fn config_with(top: &str, virtual_clusters: &str) -> Config {
    let text = format!(
        "clusters: {{east: {{bootstrap: ['127.0.0.1:9']}}, west: {{bootstrap: ['127.0.0.1:9']}}}}\n\
         workers: 1\n{top}\nvirtual_clusters:\n{virtual_clusters}"
    );
    config::load_str(&text, "test.yaml", &Environment::empty()).unwrap_or_else(|e| panic!("{e}"))
}

pub(super) fn cluster(
    name: &str,
    cluster: &str,
    listen: &str,
    bootstrap: u16,
    first: u16,
    first_node_id: i32,
) -> String {
    format!(
        "  {name}: {{cluster: {cluster}, listen: ['{listen}'], bootstrap_port: {bootstrap}, \
         broker_ports: {{first: {first}, count: 3, first_node_id: {first_node_id}}}}}\n"
    )
}

async fn started(config: Config) -> Gateway {
    Gateway::start(config, "test.yaml".to_owned(), Metrics::default(), None).await.unwrap()
}

/// `virtual cluster address role` of all open ports.
pub(super) fn open(gateway: &Gateway) -> Vec<String> {
    let mut open = Vec::new();
    for (name, status) in gateway.status().virtual_clusters {
        for listener in status.listeners {
            assert_eq!(listener.error, None, "{}", listener.address);
            open.push(format!("{name} {} {}", listener.address, listener.role));
        }
    }
    open
}

pub(super) fn tell_brokers(gateway: &Gateway, cluster: &str, nodes: &[i32]) {
    let broker = |&id| ObservedBroker { id: NodeId(id), address: Endpoint::new("127.0.0.1", 9), rack: None };
    let brokers = nodes.iter().map(broker).collect();
    gateway.running.load().clusters[cluster].observe(Observed { brokers, complete: true, ..Observed::default() });
}

pub(super) async fn until(what: impl Fn() -> bool) {
    timeout(SOON, async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("it comes about");
}

/// A client that asks the gateway what it answers by itself (ApiVersions v99), and gets the answer.
pub(super) async fn served(port: u16) -> TcpStream {
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    ask(&mut client).await;
    client
}

pub(super) async fn ask(client: &mut TcpStream) {
    client.write_all(&[0, 0, 0, 11, 0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 0]).await.unwrap();
    let size = timeout(SOON, client.read_u32()).await.expect("an answer").unwrap();
    let mut answer = vec![0; size as usize];
    timeout(SOON, client.read_exact(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(answer[..6], [0, 0, 0, 1, 0, 35]);
}

#[tokio::test]
async fn ports_that_two_virtual_clusters_exchange_stay_open() {
    let [a, b, c, ..] = free_ports::<8>().await;
    let config_of = |one, other| {
        let (x, y) = (cluster("x", "east", "127.0.0.1", one, c, 0), cluster("y", "west", "127.0.0.1", other, c + 3, 0));
        config(&(x + &y))
    };
    let gateway = started(config_of(a, b)).await;
    gateway.apply(config_of(b, a)).await.unwrap();
    assert_eq!(open(&gateway), [format!("x 127.0.0.1:{b} bootstrap"), format!("y 127.0.0.1:{a} bootstrap")]);
    served(a).await;
    served(b).await;
    assert_eq!(gateway.status().virtual_clusters["x"].accepted, 1);
    assert_eq!(gateway.status().virtual_clusters["y"].accepted, 1);
}

#[tokio::test]
async fn a_virtual_cluster_that_leads_to_another_cluster_keeps_its_port_and_drains_its_connections() {
    let [port, first, ..] = free_ports::<4>().await;
    let gateway = started(config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await;
    let mut client = served(port).await;
    gateway.apply(config(&cluster("x", "west", "127.0.0.1", port, first, 0))).await.unwrap();
    assert_eq!(open(&gateway), [format!("x 127.0.0.1:{port} bootstrap")]);
    served(port).await;
    assert_eq!(timeout(SOON, client.read(&mut [0; 1])).await.unwrap().unwrap(), 0, "drained");
}

#[tokio::test]
async fn a_removed_virtual_cluster_is_waited_for_by_a_drain() {
    let [a, b, first, ..] = free_ports::<8>().await;
    let kept = cluster("x", "east", "127.0.0.1", a, first, 0);
    let gateway = started(config(&(kept.clone() + &cluster("y", "west", "127.0.0.1", b, first + 3, 0)))).await;
    // In the middle of a frame, so that it can't be drained at once.
    let mut client = served(b).await;
    client.write_all(&[0, 0, 0, 11, 0, 18, 0, 99, 0, 0, 0, 2, 0xff, 0xff]).await.unwrap();
    until(|| gateway.connections().iter().any(|c| c.requests == 2)).await;
    gateway.apply(config(&kept)).await.unwrap();
    assert!(TcpStream::connect(("127.0.0.1", b)).await.is_err(), "its port is closed");
    assert_eq!(gateway.open_connections(), 1);
    client.write_all(&[0]).await.unwrap();
    let mut answer = Vec::new();
    timeout(SOON, client.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer[4..10], [0, 0, 0, 2, 0, 35]);
    drop(client);
    timeout(SOON, gateway.drain()).await.unwrap();
    assert_eq!(gateway.open_connections(), 0);
}

#[tokio::test]
async fn listen_may_narrow_and_widen() {
    let [port, first, ..] = free_ports::<4>().await;
    let wide = config(&cluster("x", "east", "0.0.0.0", port, first, 0));
    let narrow = config(&cluster("x", "east", "127.0.0.1", port, first, 0));
    let gateway = started(wide.clone()).await;
    let mut client = served(port).await;
    for (config, address) in [(narrow, "127.0.0.1"), (wide, "0.0.0.0")] {
        gateway.apply(config).await.unwrap();
        assert_eq!(open(&gateway), [format!("x {address}:{port} bootstrap")]);
        served(port).await;
        let refused = TcpListener::bind(("127.0.0.1", port)).await;
        assert!(refused.is_err(), "nobody else may have it");
    }
    assert_eq!(timeout(SOON, client.read(&mut [0; 1])).await.unwrap().unwrap(), 0, "the old port's are drained");
}

#[tokio::test]
async fn broker_ports_follow_the_first_node_id_without_closing() {
    let [port, first, ..] = free_ports::<4>().await;
    let gateway = started(config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await;
    tell_brokers(&gateway, "east", &[1, 2]);
    until(|| open(&gateway).len() == 3).await;
    let mut to_broker_1 = served(first + 1).await;
    let mut bootstrap = served(port).await;
    gateway.apply(config(&cluster("x", "east", "127.0.0.1", port, first, 1))).await.unwrap();
    assert_eq!(
        open(&gateway),
        [
            format!("x 127.0.0.1:{port} bootstrap"),
            format!("x 127.0.0.1:{first} broker 1"),
            format!("x 127.0.0.1:{} broker 2", first + 1)
        ]
    );
    served(first + 1).await;
    assert_eq!(timeout(SOON, to_broker_1.read(&mut [0; 1])).await.unwrap().unwrap(), 0, "drained");
    ask(&mut bootstrap).await;
}

#[tokio::test]
async fn a_refused_reload_changes_nothing() {
    let [a, b, first, ..] = free_ports::<8>().await;
    let before = config(&cluster("x", "east", "127.0.0.1", a, first, 0));
    let gateway = started(before.clone()).await;
    let mut client = served(a).await;
    let taken = TcpListener::bind(("127.0.0.1", b)).await.unwrap();
    let after = cluster("w", "west", "127.0.0.1", a, first + 3, 0) + &cluster("x", "east", "127.0.0.1", b, first, 0);
    let error = gateway.apply(config(&after)).await.unwrap_err();
    assert!(format!("{error:#}").contains(&format!("virtual_clusters.x: 127.0.0.1:{b} (bootstrap)")), "{error:#}");
    assert_eq!(open(&gateway), [format!("x 127.0.0.1:{a} bootstrap")]);
    assert_eq!(*gateway.config().unwrap(), before);
    ask(&mut client).await;
    served(a).await;
    drop(taken);
    gateway.apply(config(&after)).await.unwrap();
    served(b).await;
}

#[tokio::test]
async fn a_port_that_could_not_be_opened_before_is_no_reason_to_refuse_a_reload() {
    let [port, first, ..] = free_ports::<4>().await;
    let text = cluster("x", "east", "127.0.0.1", port, first, 0);
    let gateway = started(config(&text)).await;
    let taken: SocketAddr = ([127, 0, 0, 1], first).into();
    let _taken = TcpListener::bind(taken).await.unwrap();
    tell_brokers(&gateway, "east", &[0]);
    until(|| !gateway.status().virtual_clusters["x"].degraded.is_empty()).await;
    let mut other = config(&text);
    other.virtual_clusters.get_mut("x").unwrap().limits.connections = 7;
    gateway.apply(other).await.unwrap();
    assert_eq!(gateway.config().unwrap().virtual_clusters["x"].limits.connections, 7);
}

#[tokio::test]
async fn a_drain_opens_no_port_again_when_brokers_change() {
    let [port, first, ..] = free_ports::<4>().await;
    let gateway = started(config(&cluster("x", "east", "127.0.0.1", port, first, 0))).await;
    gateway.drain().await;
    tell_brokers(&gateway, "east", &[0, 1]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    for port in [port, first, first + 1] {
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }
    assert!(open(&gateway).is_empty());
}

#[tokio::test]
async fn a_shorter_timeout_holds_for_those_connected_too() {
    let [port, first, ..] = free_ports::<4>().await;
    let text = cluster("x", "east", "127.0.0.1", port, first, 0);
    let gateway = started(config(&text)).await;
    let mut client = served(port).await;
    let mut other = config(&text);
    other.virtual_clusters.get_mut("x").unwrap().limits.idle = config::units::Span(Duration::from_millis(100));
    gateway.apply(other).await.unwrap();
    assert_eq!(timeout(SOON, client.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    drop(client);
    until(|| gateway.open_connections() == 0).await;
    assert_eq!(gateway.status().virtual_clusters["x"].closed["idle"], 1);
}

#[tokio::test]
async fn workers_may_become_fewer_and_more() {
    let [port, first, ..] = free_ports::<4>().await;
    let text = cluster("x", "east", "127.0.0.1", port, first, 0);
    let gateway = started(config(&text)).await;
    let mut clients = vec![served(port).await, served(port).await];
    for workers in [3, 1, 2] {
        let mut other = config(&text);
        other.workers = Some(workers);
        gateway.apply(other).await.unwrap();
        clients.push(served(port).await);
        for client in &mut clients {
            ask(client).await;
        }
    }
}
