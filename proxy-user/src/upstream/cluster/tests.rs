use std::collections::BTreeMap;

use super::*;
use crate::config::units::Span;
use crate::config::{Mechanism, Sasl, Tls};
use crate::kafka::ids::NodeId;
use crate::upstream::ObservedBroker;
use crate::upstream::error::{ClientError, Problem, Step};
use crate::upstream::fake::{Authority, Fake, Script};

fn config(bootstrap: &[&Endpoint]) -> config::Cluster {
    config::Cluster {
        bootstrap: bootstrap.iter().map(ToString::to_string).collect(),
        address_map: BTreeMap::new(),
        partition_refresh: config::Cluster::partition_refresh(),
        racks: BTreeMap::new(),
        connect_timeout: Span(Duration::from_secs(2)),
        refresh: Span(Duration::from_secs(300)),
        forget_after: Span(Duration::from_secs(600)),
        tls: None,
        sasl: None,
    }
}

/// Waits for a topology that `f` likes.
async fn until(cluster: &Cluster, what: &str, f: impl Fn(&Topology) -> bool) -> Arc<Topology> {
    let mut watch = cluster.watch();
    let wait = tokio::time::timeout(Duration::from_secs(10), watch.wait_for(|t| f(t)));
    match wait.await {
        Ok(found) => found.unwrap().clone(),
        Err(_) => panic!("never came: {what}; at last {:#?}", cluster.topology()),
    }
}

fn ids(topology: &Topology) -> Vec<i32> {
    topology.present().map(|(id, _)| id.0).collect()
}

fn is_passive(t: &Topology) -> bool {
    matches!(t.reach, Reach::Passive(_))
}

fn degraded(t: &Topology) -> bool {
    matches!(t.reach, Reach::Degraded(_))
}

fn seen(brokers: &[(i32, &Endpoint)]) -> Observed {
    let broker = |(id, at): &(i32, &Endpoint)| ObservedBroker { id: NodeId(*id), address: (*at).clone(), rack: None };
    Observed { brokers: brokers.iter().map(broker).collect(), complete: true, detailed: true, ..Observed::default() }
}

#[tokio::test]
async fn brokers_are_read_with_racks_and_versions_and_followed_as_they_come_and_go() {
    let (one, two) = (Fake::start(Script::default()).await, Fake::start(Script::default()).await);
    one.change(|s| s.brokers = vec![(1, one.at.clone(), Some("az1"))]);
    let cluster = Cluster::spawn("east", config(&[&one.at]));
    let first = until(&cluster, "versions", |t| t.common_versions().is_some() && t.reach == Reach::Reached).await;
    assert_eq!(first.brokers[&NodeId(1)].rack.as_deref(), Some("az1"));
    assert_eq!(first.cluster_id.as_deref(), Some("fake"));
    assert_eq!(cluster.candidates(Target::Node(NodeId(1))), std::slice::from_ref(&one.at));
    assert_eq!(cluster.candidates(Target::Bootstrap), std::slice::from_ref(&one.at));

    one.change(|s| s.brokers = vec![(1, one.at.clone(), None), (5, two.at.clone(), None)]);
    cluster.poke();
    until(&cluster, "broker 5", |t| {
        t.brokers.get(&NodeId(5)).is_some_and(|b| b.versions.is_some()) && t.brokers[&NodeId(1)].rack.is_none()
    })
    .await;
    assert_eq!(cluster.candidates(Target::Bootstrap), [one.at.clone(), two.at.clone()]);

    one.change(|s| s.brokers = vec![(1, one.at.clone(), None)]);
    cluster.poke();
    let left = until(&cluster, "broker 5 absent", |t| ids(t) == [1]).await;
    assert!(left.brokers.contains_key(&NodeId(5)), "remembered until forget_after");
    cluster.stop().await;
}

#[tokio::test]
async fn a_cluster_that_is_down_at_start_is_degraded_and_heals_by_itself() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let at = Endpoint::new("127.0.0.1", address.port());
    drop(listener);
    let cluster = Cluster::spawn("east", config(&[&at]));
    let down = until(&cluster, "degraded", degraded).await;
    assert!(matches!(&down.reach, Reach::Degraded(why) if why.contains(&at.to_string())), "{:?}", down.reach);

    let fake = Fake::on(tokio::net::TcpListener::bind(address).await.unwrap(), Script::default());
    fake.change(|s| s.brokers = vec![(1, at.clone(), None)]);
    until(&cluster, "reached", |t| t.reach == Reach::Reached && ids(t) == [1]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_dead_bootstrap_address_is_passed_over() {
    let fake = Fake::single(1, Script::default()).await;
    let dead = Endpoint::new("127.0.0.1", 1);
    let sick = Fake::single(9, Script::default()).await;
    sick.change(|s| s.trouble = [(18, crate::upstream::fake::Trouble::Close)].into());
    for _ in 0..4 {
        let cluster = Cluster::spawn("east", config(&[&dead, &sick.at, &fake.at]));
        until(&cluster, "reached", |t| t.reach == Reach::Reached && ids(t) == [1]).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn without_credentials_brokers_are_learned_from_answers_that_pass() {
    let sasl = Some((vec!["PLAIN"], "u", "p"));
    let fake = Fake::start(Script { sasl, ..Script::default() }).await;
    let cluster = Cluster::spawn("east", config(&[&fake.at]));
    let passive = until(&cluster, "passive", is_passive).await;
    assert!(passive.bootstrap_versions.is_some(), "ApiVersions need no credentials");
    assert!(matches!(&passive.reach, Reach::Passive(why) if why.contains("sasl")));

    cluster.observe(seen(&[(3, &fake.at)]));
    assert_eq!(cluster.candidates(Target::Node(NodeId(3))), std::slice::from_ref(&fake.at), "at once");
    let known = until(&cluster, "versions", |t| t.brokers.get(&NodeId(3)).is_some_and(|b| b.versions.is_some())).await;
    assert!(is_passive(&known));
    assert_eq!(fake.count(17), 0, "no login was tried");
    cluster.stop().await;
}

#[tokio::test]
async fn wrong_credentials_are_named_tried_at_one_broker_and_mended_by_a_reload() {
    let sasl = Some((vec!["SCRAM-SHA-256"], "turnout", "right"));
    let (one, two) = (Fake::start(Script::default()).await, Fake::start(Script::default()).await);
    for fake in [&one, &two] {
        fake.change(|s| (s.sasl, s.brokers) = (sasl.clone(), vec![(1, one.at.clone(), None)]));
    }
    let with = |password: &str| config::Cluster {
        sasl: Some(Sasl { mechanism: Mechanism::ScramSha256, username: "turnout".into(), password: password.into() }),
        ..config(&[&one.at, &two.at])
    };
    let cluster = Cluster::spawn("east", with("wrong"));
    let refused = until(&cluster, "degraded", degraded).await;
    assert!(matches!(&refused.reach, Reach::Degraded(why) if why.contains("sasl.password")), "{:?}", refused.reach);
    assert_eq!(one.count(17) + two.count(17), 1, "one attempt: more may lock the account");

    cluster.update(with("right"));
    until(&cluster, "reached", |t| t.reach == Reach::Reached && ids(t) == [1]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn with_tls_the_mainline_has_an_address_book_of_its_own() {
    let authority = Authority::new();
    let secure = Fake::single(1, Script { tls: Some(authority.server("127.0.0.1", false)), ..Script::default() }).await;
    let plain = Fake::single(1, Script::default()).await;
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), authority.pem()).unwrap();
    let tls = Tls { ca: Some(ca.path().into()), bootstrap: vec![secure.at.to_string()], ..Tls::default() };
    let cluster = Cluster::spawn("east", config::Cluster { tls: Some(tls), ..config(&[&plain.at]) });

    let read = until(&cluster, "versions", |t| t.brokers.get(&NodeId(1)).is_some_and(|b| b.versions.is_some())).await;
    assert_eq!(read.reach, Reach::Reached);
    assert!(cluster.candidates(Target::Node(NodeId(1))).is_empty(), "a TLS listener is no place for plaintext bytes");
    assert_eq!(cluster.candidates(Target::Bootstrap), std::slice::from_ref(&plain.at));

    cluster.observe(seen(&[(1, &plain.at)]));
    assert_eq!(cluster.candidates(Target::Node(NodeId(1))), std::slice::from_ref(&plain.at));
    assert_eq!(cluster.topology().brokers[&NodeId(1)].own_address.as_ref(), Some(&secure.at));
    assert!(plain.seen().is_empty(), "the own client stays on its own listener");
    cluster.stop().await;
}

#[tokio::test]
async fn a_reload_applies_to_what_is_known_and_reads_again() {
    let fake = Fake::start(Script::default()).await;
    let internal = Endpoint::new("kafka-1.internal", 9092);
    fake.change(|s| s.brokers = vec![(1, internal.clone(), None)]);
    let cluster = Cluster::spawn("east", config(&[&fake.at]));
    until(&cluster, "reached", |t| t.reach == Reach::Reached).await;
    assert_eq!(cluster.candidates(Target::Node(NodeId(1))), std::slice::from_ref(&internal));

    let mut mapped = config(&[&fake.at]);
    mapped.address_map.insert(internal.to_string(), fake.at.to_string());
    mapped.racks.insert(1, "az9".into());
    cluster.update(mapped.clone());
    assert_eq!(cluster.candidates(Target::Node(NodeId(1))), std::slice::from_ref(&fake.at), "at once");
    assert_eq!(cluster.topology().brokers[&NodeId(1)].rack.as_deref(), Some("az9"));
    until(&cluster, "versions at the mapped address", |t| t.brokers[&NodeId(1)].versions.is_some()).await;

    let reads = fake.count(3);
    cluster.update(mapped);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fake.count(3), reads, "the same config is no change");
    cluster.stop().await;
}

#[tokio::test]
async fn loopback_brokers_of_a_cluster_whose_bootstrap_name_is_this_host_are_dialled() {
    let fake = Fake::single(1, Script::default()).await;
    let cluster = Cluster::spawn("east", config(&[&fake.at]));
    // As if the bootstrap address were a name: what counts is where the connection went.
    cluster.0.shared.rules.rcu(|rules| Rules { local: false, ..(**rules).clone() });
    until(&cluster, "reached", |t| t.reach == Reach::Reached).await;
    assert_eq!(cluster.candidates(Target::Node(NodeId(1))), std::slice::from_ref(&fake.at));
    cluster.stop().await;
}

#[tokio::test]
async fn another_cluster_in_the_config_does_not_inherit_addresses() {
    let old = Fake::single(1, Script { cluster_id: "old", ..Script::default() }).await;
    let cluster = Cluster::spawn("east", config(&[&old.at]));
    until(&cluster, "reached", |t| t.reach == Reach::Reached && ids(t) == [1]).await;

    let new = Fake::single(2, Script { cluster_id: "new", ..Script::default() }).await;
    cluster.update(config(&[&new.at]));
    assert_eq!(cluster.candidates(Target::Bootstrap), std::slice::from_ref(&new.at), "old brokers don't stand in");
    until(&cluster, "the new cluster", |t| ids(t) == [2]).await;
    assert!(cluster.candidates(Target::Node(NodeId(1))).is_empty());

    cluster.observe(Observed { cluster_id: Some("old".into()), ..seen(&[(1, &old.at)]) });
    assert_eq!(ids(&cluster.topology()), [2], "an old connection's answer is no news");
    cluster.stop().await;
}

#[tokio::test]
async fn any_number_of_pokes_is_one_refresh_a_second() {
    let fake = Fake::single(1, Script::default()).await;
    let cluster = Cluster::spawn("east", config(&[&fake.at]));
    until(&cluster, "versions", |t| t.common_versions().is_some() && t.reach == Reach::Reached).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        cluster.poke();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!((2..=3).contains(&fake.count(3)), "{}", fake.count(3));
    cluster.stop().await;
}

#[tokio::test]
async fn a_poke_is_followed_by_a_closer_look() {
    let one = Fake::single(1, Script::default()).await;
    let two = Fake::single(5, Script::default()).await;
    one.change(|s| s.brokers = vec![(1, one.at.clone(), None), (5, two.at.clone(), None)]);
    let cluster = Cluster::spawn("east", config(&[&one.at]));
    until(&cluster, "both", |t| ids(t) == [1, 5] && t.reach == Reach::Reached).await;
    let before = one.count(3);
    cluster.poke();
    while one.count(3) == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The broker is fenced only now, and nobody pokes again.
    one.change(|s| s.brokers = vec![(1, one.at.clone(), None)]);
    until(&cluster, "broker 5 absent", |t| ids(t) == [1]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn nothing_new_wakes_nobody() {
    let fake = Fake::single(1, Script::default()).await;
    let cluster = Cluster::spawn("east", config(&[&fake.at]));
    until(&cluster, "versions", |t| t.brokers.get(&NodeId(1)).is_some_and(|b| b.versions.is_some())).await;
    cluster.stop().await;
    let mut watch = cluster.watch();
    watch.mark_unchanged();
    let topology = cluster.topology();
    cluster.observe(Observed { controller: topology.controller, ..seen(&[(1, &fake.at)]) });
    assert!(!watch.has_changed().unwrap());
}

#[tokio::test]
async fn the_task_ends_when_stopped_or_when_the_last_handle_goes() {
    for drop_it in [false, true] {
        let fake = Fake::single(1, Script::default()).await;
        let short = config::Cluster { refresh: Span(Duration::from_millis(1)), ..config(&[&fake.at]) };
        let cluster = Cluster::spawn("east", short);
        until(&cluster, "versions", |t| t.common_versions().is_some() && t.reach == Reach::Reached).await;
        let shared = Arc::downgrade(&cluster.0.shared);
        if drop_it {
            drop(cluster);
            tokio::time::timeout(Duration::from_secs(5), async {
                while shared.strong_count() > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await
            .expect("the task let go");
        } else {
            cluster.stop().await;
            assert_eq!(shared.strong_count(), 1, "only the handle is left");
            cluster.stop().await;
        }
    }
}

#[test]
fn a_close_at_metadata_means_passive_only_when_it_happens_twice() {
    let needs =
        ClientError { peer: Endpoint::new("a", 1), step: Step::Metadata, problem: Problem::NeedsAuthentication };
    let failure = reader::Failure { errors: vec![needs.into()] };
    let passive = |was: Reach| matches!(judge(&was, &failure), Reach::Passive(_));
    assert!(passive(Reach::Unknown) && passive(Reach::Degraded("…".into())) && passive(Reach::Passive("…".into())));
    assert!(!passive(Reach::Reached), "it may just be shutting down");
}

#[test]
fn backoff_grows_to_its_bound_and_jitter_only_shortens() {
    let seconds: Vec<_> = [1, 2, 3, 4, 100, u32::MAX].map(|n| backoff(n).as_secs()).into();
    assert_eq!(seconds, [1, 2, 4, 5, 5, 5]);
    assert!((0..100).map(|_| jitter(MAX_BACKOFF)).all(|d| d <= MAX_BACKOFF && d >= MAX_BACKOFF.mul_f64(0.75)));
}
