//! One gateway hands over to the next, in one process and against a kernel that only remembers.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;

use super::Gateway;
use super::edge::EdgeSource;
use super::fake_edge::FakeSource;
use super::parcel::Parcel;
use super::reload_tests::{SOON, ask, cluster, config, free_ports, open, served, tell_brokers, until};
use crate::config::Config;
use crate::metrics::Metrics;

/// Long enough for what must not happen to happen.
const WHILE: Duration = Duration::from_millis(200);

async fn started(source: &Arc<FakeSource>, config: Config) -> Gateway {
    let edges = Arc::clone(source) as Arc<dyn EdgeSource>;
    Gateway::start(config, "test.yaml".to_owned(), Metrics::default(), Some(edges)).await.unwrap()
}

async fn successor(source: &Arc<FakeSource>, config: Config, parcel: Parcel) -> anyhow::Result<Gateway> {
    let edges = Arc::clone(source) as Arc<dyn EdgeSource>;
    Gateway::start_from(config, "test.yaml".to_owned(), Metrics::default(), Some(edges), None, parcel).await
}

#[tokio::test]
async fn steered_ports_change_hands_without_a_change_of_the_kernels_table() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = config(&cluster("x", "east", "127.0.0.1", port, first, 0));
    let source = Arc::<FakeSource>::default();
    let old = started(&source, x.clone()).await;
    tell_brokers(&old, "east", &[1]);
    let edge = source.edge();
    let both = [format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", first + 1)];
    until(|| edge.open().len() == 2).await;
    let tables = edge.state().tables.len();
    let sockets = edge.state().sockets.clone();

    let mut given = old.give().await.unwrap();
    let parcel = std::mem::take(&mut given.parcel);
    assert_eq!((parcel.ports.len(), parcel.shared.len()), (0, sockets.len()));
    assert!(parcel.lock.is_some());
    // Neither says a word to the kernel before the other is done: not about news, nor at its start.
    tell_brokers(&old, "east", &[1, 2]);
    let new = successor(&source, x, parcel).await.unwrap();
    tokio::time::sleep(WHILE).await;
    assert_eq!(edge.state().tables.len(), tables);
    assert_eq!(open(&new).len(), 2, "it knows the brokers that the old one knew");

    new.take_over(SOON).await.unwrap();
    assert_eq!(edge.open(), both);
    assert_eq!(edge.state().sockets, sockets, "the same sockets");
    given.keep_given();
    let error = old.apply(old.config().unwrap().as_ref().clone()).await.unwrap_err().to_string();
    assert!(error.contains("a successor has taken over"), "{error}");
    timeout(SOON, old.drain_behind_successor()).await.unwrap();
    assert_eq!(edge.open(), both, "the table is not the old one's any more");
    assert!(!edge.state().detached);
}

#[tokio::test]
async fn bound_ports_change_hands_with_their_queues() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = config(&cluster("x", "east", "127.0.0.1", port, first, 0));
    let source = Arc::<FakeSource>::default();
    source.refuse(Some("not here"));
    let old = started(&source, x.clone()).await;
    tell_brokers(&old, "east", &[1]);
    until(|| open(&old).len() == 2).await;
    let mut client = served(port).await;
    let mut given = old.give().await.unwrap();
    let parcel = std::mem::take(&mut given.parcel);
    assert_eq!(parcel.ports.len(), 2);
    let new = successor(&source, x, parcel).await.unwrap();
    new.take_over(SOON).await.unwrap();
    given.keep_given();
    ask(&mut client).await;
    timeout(SOON, old.drain_behind_successor()).await.unwrap();
    served(port).await;
    served(first + 1).await;
    assert_eq!(new.status().virtual_clusters["x"].accepted, 2);
}

#[tokio::test]
async fn a_successor_that_fails_leaves_programs_tables_and_ports_as_they_were() {
    let [port, taken, first, ..] = free_ports::<6>().await;
    let x = config(&cluster("x", "east", "127.0.0.1", port, first, 0));
    let source = Arc::<FakeSource>::default();
    let old = started(&source, x.clone()).await;
    let edge = source.edge();
    let _stranger = TcpListener::bind(("127.0.0.1", taken)).await.unwrap();
    let mut given = old.give().await.unwrap();
    let parcel = std::mem::take(&mut given.parcel);
    let elsewhere = config(&cluster("x", "east", "127.0.0.1", taken, first, 0));
    let error = format!("{:#}", successor(&source, elsewhere, parcel).await.err().expect("it fails"));
    assert!(error.contains("can't be opened"), "{error}");
    assert!(!edge.state().detached, "the programs are the old one's");
    drop(given);
    assert_eq!(edge.open(), [format!("127.0.0.1:{port}")]);
    // It goes on: news reaches the kernel again, and reloads are taken.
    tell_brokers(&old, "east", &[1]);
    until(|| edge.open().len() == 2).await;
    old.apply(x).await.unwrap();
    assert!(old.give().await.is_ok(), "and it may try again");
}

#[tokio::test]
async fn a_successor_may_bind_what_was_steered_and_takes_the_programs_off() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = cluster("x", "east", "127.0.0.1", port, first, 0);
    let source = Arc::<FakeSource>::default();
    let old = started(&source, config(&x)).await;
    let edge = source.edge();
    let mut given = old.give().await.unwrap();
    let parcel = std::mem::take(&mut given.parcel);
    let off = super::reload_tests::config_with("fast_path: {mode: 'off'}", &x);
    let new = successor(&source, off, parcel).await.unwrap();
    assert!(!edge.state().detached, "not before it has taken over");
    served(port).await;
    new.take_over(SOON).await.unwrap();
    given.keep_given();
    assert!(edge.state().detached);
    timeout(SOON, old.drain_behind_successor()).await.unwrap();
    served(port).await;
}

#[tokio::test]
async fn a_successor_may_steer_what_was_bound_and_serves_what_waits_in_the_old_queue() {
    let [port, first, ..] = free_ports::<4>().await;
    let x = cluster("x", "east", "127.0.0.1", port, first, 0);
    let source = Arc::<FakeSource>::default();
    let old = started(&source, super::reload_tests::config_with("fast_path: {mode: 'off'}", &x)).await;
    let mut given = old.give().await.unwrap();
    let parcel = std::mem::take(&mut given.parcel);
    let new = successor(&source, config(&x), parcel).await.unwrap();
    given.keep_given();
    old.drain_behind_successor().await;
    served(port).await;
    new.take_over(SOON).await.unwrap();
    assert_eq!(source.edge().open(), [format!("127.0.0.1:{port}")]);
    assert_eq!(new.status().virtual_clusters["x"].ports, "steered");
}
