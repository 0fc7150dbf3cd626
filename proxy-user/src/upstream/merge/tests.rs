use super::*;
use crate::kafka::ids::{ApiKey, ApiVersion};
use crate::upstream::topology::VersionRange;
use proptest::prelude::*;

fn at(host: &str) -> Endpoint {
    Endpoint::new(host, 9092)
}

fn t(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn rules() -> Rules {
    Rules { forget_after: Duration::from_secs(600), ..Rules::default() }
}

fn view(brokers: &[(i32, &str)]) -> Observed {
    let seen = |(id, host): &(i32, &str)| ObservedBroker { id: NodeId(*id), address: at(host), rack: None };
    Observed {
        brokers: brokers.iter().map(seen).collect(),
        cluster_id: None,
        controller: None,
        complete: true,
        detailed: true,
    }
}

fn known(brokers: &[(i32, &str)]) -> Topology {
    merge(&Topology::default(), &view(brokers), Book::Both, &rules(), t(0))
}

fn ids(topology: &Topology) -> Vec<i32> {
    topology.brokers.keys().map(|id| id.0).collect()
}

fn broker(topology: &Topology, id: i32) -> &Broker {
    &topology.brokers[&NodeId(id)]
}

fn versions() -> Option<crate::upstream::topology::VersionTable> {
    Some([(ApiKey(0), VersionRange { min: ApiVersion(0), max: ApiVersion(9) })].into())
}

#[test]
fn ids_may_start_anywhere_have_gaps_and_grow() {
    let first = known(&[(7, "a"), (1001, "b")]);
    let then = merge(&first, &view(&[(7, "a"), (1001, "b"), (3000, "c")]), Book::Both, &rules(), t(1));
    assert_eq!(ids(&then), [7, 1001, 3000]);
    assert_eq!(Changes::between(&first, &then).joined, [NodeId(3000)]);
    assert_eq!(ids(&known(&[(-1, "a"), (2, "b")])), [2], "−1 is nobody");
}

#[test]
fn a_broker_that_leaves_is_remembered_then_forgotten() {
    let both = known(&[(1, "a"), (2, "b")]);
    let left = merge(&both, &view(&[(1, "a")]), Book::Both, &rules(), t(10));
    assert_eq!(broker(&left, 2).absent_since, Some(t(10)));
    assert_eq!(Changes::between(&both, &left).left, [NodeId(2)]);

    let still = merge(&left, &view(&[(1, "a")]), Book::Both, &rules(), t(609));
    assert_eq!(broker(&still, 2).absent_since, Some(t(10)), "since the first time it was missed");

    let gone = merge(&still, &view(&[(1, "a")]), Book::Both, &rules(), t(610));
    assert_eq!(ids(&gone), [1]);
    assert_eq!(Changes::between(&still, &gone).forgotten, [NodeId(2)]);
    assert_eq!(ids(&settle(still, &rules(), t(610))), [1], "also without a new view");
}

#[test]
fn a_broker_that_returns_is_what_it_was() {
    let mut both = known(&[(1, "a"), (2, "b")]);
    both.brokers.get_mut(&NodeId(2)).unwrap().versions = versions();
    let left = merge(&both, &view(&[(1, "a")]), Book::Both, &rules(), t(10));
    let back = merge(&left, &view(&[(1, "a"), (2, "b")]), Book::Both, &rules(), t(20));
    assert_eq!(back, both);
    assert_eq!(Changes::between(&left, &back).returned, [NodeId(2)]);
}

#[test]
fn a_clock_set_back_forgets_nobody() {
    let left = merge(&known(&[(1, "a"), (2, "b")]), &view(&[(1, "a")]), Book::Both, &rules(), t(10));
    assert_eq!(ids(&settle(left, &rules(), t(0) - Duration::from_secs(100_000))), [1, 2]);
}

#[test]
fn an_address_change_or_a_reused_id_asks_for_versions_anew() {
    let mut old = known(&[(1, "a"), (2, "b")]);
    for id in [1, 2] {
        old.brokers.get_mut(&NodeId(id)).unwrap().versions = versions();
    }
    let new = merge(&old, &view(&[(1, "elsewhere"), (2, "b")]), Book::Both, &rules(), t(1));
    assert_eq!((broker(&new, 1).address.clone(), &broker(&new, 1).versions), (Some(at("elsewhere")), &None));
    assert_eq!(broker(&new, 2).versions, versions());
    assert_eq!(Changes::between(&old, &new).moved, [NodeId(1)]);
}

#[test]
fn an_incomplete_or_empty_view_makes_nobody_absent() {
    let both = known(&[(1, "a"), (2, "b")]);
    let partial = Observed { complete: false, ..view(&[(3, "c")]) };
    let more = merge(&both, &partial, Book::Both, &rules(), t(1));
    assert_eq!(ids(&more), [1, 2, 3]);
    assert!(more.brokers.values().all(Broker::is_present));
    assert_eq!(merge(&both, &view(&[]), Book::Both, &rules(), t(1)), both, "a broker that has just started");
}

#[test]
fn an_answer_without_racks_and_controller_erases_none() {
    let mut full = view(&[(1, "a")]);
    full.brokers[0].rack = Some("az1".into());
    full.controller = Some(NodeId(1));
    let old = merge(&Topology::default(), &full, Book::Both, &rules(), t(0));
    let v0 = Observed { detailed: false, ..view(&[(1, "a")]) };
    assert_eq!(merge(&old, &v0, Book::Both, &rules(), t(1)), old);
    let none = merge(&old, &view(&[(1, "a")]), Book::Both, &rules(), t(1));
    assert_eq!((broker(&none, 1).rack.as_ref(), none.controller), (None, None), "a detailed answer does");
}

#[test]
fn the_address_map_and_racks_of_the_config_win_and_apply_to_what_is_known() {
    let mut seen = view(&[(1, "Kafka-1.internal"), (2, "b")]);
    seen.brokers[0].rack = Some("told".into());
    seen.brokers[1].rack = Some("told".into());
    let config = Rules {
        address_map: [(at("kafka-1.internal"), at("10.0.4.2"))].into(),
        racks: [(1, "az1".to_owned())].into(),
        ..rules()
    };
    let new = merge(&Topology::default(), &seen, Book::Both, &config, t(0));
    assert_eq!(broker(&new, 1).address, Some(at("10.0.4.2")), "names know no case");
    assert_eq!(broker(&new, 1).rack.as_deref(), Some("az1"));
    assert_eq!((broker(&new, 2).address.clone(), broker(&new, 2).rack.as_deref()), (Some(at("b")), Some("told")));

    let plain = settle(new, &rules(), t(0));
    assert_eq!(broker(&plain, 1).address, Some(at("Kafka-1.internal")));
    assert_eq!(broker(&plain, 1).rack.as_deref(), Some("told"));
}

#[test]
fn addresses_that_mean_this_host_are_not_dialled_unless_the_cluster_is_here() {
    let nodes = [(1, "0.0.0.0"), (2, "127.0.0.1"), (3, "localhost"), (4, "::1"), (5, "far")];
    let far = known(&nodes);
    let dialled: Vec<_> = far.brokers.values().map(|b| b.address.is_some()).collect();
    assert_eq!(dialled, [false, false, false, false, true]);
    let warned = Changes::between(&Topology::default(), &far).unreachable;
    assert_eq!(warned.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let again = merge(&far, &view(&nodes), Book::Both, &rules(), t(1));
    assert!(Changes::between(&far, &again).unreachable.is_empty(), "said once");

    let here = Rules { local: true, ..rules() };
    let near = merge(&Topology::default(), &view(&nodes), Book::Both, &here, t(0));
    assert!(near.brokers.values().all(|b| b.address.is_some()));

    let mapped = Rules { address_map: [(at("0.0.0.0"), at("10.0.0.1"))].into(), ..rules() };
    let new = merge(&Topology::default(), &view(&nodes), Book::Both, &mapped, t(0));
    assert_eq!(broker(&new, 1).address, Some(at("10.0.0.1")));
}

#[test]
fn the_two_address_books_stay_apart() {
    let own = merge(&Topology::default(), &view(&[(1, "tls"), (2, "tls2")]), Book::Own, &rules(), t(0));
    assert_eq!((broker(&own, 1).address.clone(), broker(&own, 1).own_address.clone()), (None, Some(at("tls"))));
    let both = merge(&own, &view(&[(1, "plain")]), Book::Mainline, &rules(), t(1));
    assert_eq!(broker(&both, 1).address, Some(at("plain")));
    assert_eq!(broker(&both, 1).own_address, Some(at("tls")));
    assert!(!broker(&both, 2).is_present(), "who is there is the same in both books");
}

#[test]
fn another_cluster_under_the_same_address_is_noticed() {
    let named = |id: &str, brokers| Observed { cluster_id: Some(id.into()), ..view(brokers) };
    let one = merge(&Topology::default(), &named("one", &[(1, "a"), (2, "b")]), Book::Both, &rules(), t(0));
    let two = merge(&one, &named("two", &[(1, "a")]), Book::Own, &rules(), t(1));
    assert_eq!(broker(&two, 1).address, None, "what the mainline dialled is the other cluster's");
    assert_eq!((broker(&two, 2).address.clone(), broker(&two, 2).is_present()), (None, false));
    assert_eq!(Changes::between(&one, &two).renamed, Some(("one".into(), "two".into())));
    assert_eq!(Changes::between(&Topology::default(), &one).renamed, None);
}

#[test]
fn changes_read_as_one_line() {
    let old = known(&[(1, "a"), (2, "b")]);
    let new = merge(&old, &view(&[(1, "z"), (3, "c"), (4, "d")]), Book::Both, &rules(), t(1));
    assert_eq!(Changes::between(&old, &new).to_string(), "joined: 3, 4; left: 2; changed address: 1");
    assert!(!Changes::between(&old, &old).any_broker());
}

prop_compose! {
    fn any_view()(
        brokers in prop::collection::vec((-1..6i32, 0..3usize, prop::option::of("az[12]")), 0..6),
        complete: bool,
        detailed: bool,
        controller in prop::option::of(-1..6i32),
        cluster_id in prop::option::of("[ab]"),
    ) -> Observed {
        let hosts = ["a", "b", "0.0.0.0"];
        let brokers = brokers
            .into_iter()
            .map(|(id, host, rack)| ObservedBroker { id: NodeId(id), address: at(hosts[host]), rack })
            .collect();
        Observed { brokers, cluster_id, controller: controller.map(NodeId), complete, detailed }
    }
}

fn any_book() -> impl Strategy<Value = Book> {
    prop_oneof![Just(Book::Mainline), Just(Book::Own), Just(Book::Both)]
}

fn any_history() -> impl Strategy<Value = Vec<(Observed, Book, u64)>> {
    prop::collection::vec((any_view(), any_book(), 0..400u64), 0..12)
}

proptest! {
    #[test]
    fn whatever_is_seen_the_invariants_hold(history in any_history()) {
        let config = Rules { racks: [(3, "config".to_owned())].into(), ..rules() };
        let (mut topology, mut now) = (Topology::default(), t(0));
        for (view, book, later) in history {
            now += Duration::from_secs(later);
            let before = topology.clone();
            topology = merge(&before, &view, book, &config, now);
            let listed: Vec<_> = view.brokers.iter().map(|b| b.id).filter(|id| id.0 >= 0).collect();

            prop_assert!(topology.brokers.keys().all(|id| id.0 >= 0));
            for id in &listed {
                prop_assert!(topology.brokers[id].is_present(), "listed is present");
            }
            for (id, broker) in &topology.brokers {
                if let Some(since) = broker.absent_since {
                    let absent = now.duration_since(since).unwrap();
                    prop_assert!(absent < config.forget_after, "forgotten in time");
                    let known = before.brokers.get(id).and_then(|b| b.absent_since);
                    prop_assert_eq!(since, known.unwrap_or(now), "since the first time");
                } else if !listed.contains(id) {
                    prop_assert!(!view.complete || listed.is_empty(), "only these views absolve");
                }
                prop_assert_eq!(&broker.address, &broker.advertised.address.as_ref().and_then(|a| config.dialled(a)));
                let rack = if id.0 == 3 { Some("config".to_owned()) } else { broker.advertised.rack.clone() };
                prop_assert_eq!(&broker.rack, &rack);
            }
            for (id, was) in &before.brokers {
                let long_absent = was.absent_since.is_some() || view.complete;
                prop_assert!(topology.brokers.contains_key(id) || long_absent, "nobody vanishes at once");
            }
            prop_assert_ne!(topology.controller, Some(NodeId(-1)));
        }
    }

    #[test]
    fn the_same_view_again_changes_nothing(history in any_history(), view in any_view(), book in any_book()) {
        let start = history.iter().fold(Topology::default(), |t0, (v, b, _)| merge(&t0, v, *b, &rules(), t(0)));
        let once = merge(&start, &view, book, &rules(), t(1));
        let twice = merge(&once, &view, book, &rules(), t(1));
        prop_assert_eq!(&once, &twice);
        prop_assert_eq!(Changes::between(&once, &twice), Changes::default());
    }
}
