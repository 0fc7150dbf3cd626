//! The writer against a cluster of sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fake::{Fake, Trouble, cluster_config};
use super::{Clusters, Creation, Item, Settings, Writer};
use crate::branch::account::{Cause, Ledger, Outcome};
use crate::branch::identity::{Bounds, FIRST_DERIVED, Mode, Seed};
use crate::branch::ids::{Offset, PartitionId};
use crate::branch::place::Policy;
use crate::branch::produce::testing::{Draft, batch, by};
use crate::upstream::{Cluster, Door};

const SOON: Duration = Duration::from_secs(20);
const QUEUE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn settings(mode: Mode) -> Settings {
    Settings {
        mode,
        seed: Seed { cluster: "mainline".into(), branch: "staging".into() },
        rename: "shadow.{topic}".parse().unwrap(),
        partitions: Policy::Same,
        creation: Creation::LikeMainline,
        in_flight: 5,
        age: Duration::from_secs(30),
        streams: Bounds { streams: 1000, idle: Duration::from_secs(3600) },
    }
}

fn write_to(target: &Fake, mainline: &Fake, settings: Settings) -> Writer {
    let clusters = Clusters { target: target.door(), mainline: mainline.door() };
    Writer::spawn("staging", settings, clusters, QUEUE, PATIENCE, Ledger::default())
}

fn item(partition: i32, draft: &Draft) -> Item {
    Item::new("orders".into(), PartitionId(partition), batch(draft), None, Instant::now())
}

fn batches(writer: &Writer, outcome: Outcome) -> u64 {
    writer.ledger().total(outcome).batches
}

#[tokio::test]
async fn batches_arrive_in_order_on_every_partition_under_a_derived_producer() {
    let fake = Fake::start(3, &[("shadow.orders", 4)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    for sequence in 0..50 {
        for partition in 0..4 {
            writer.offer(item(partition, &by(1000, 0, sequence * 2, 2)));
        }
    }
    assert!(writer.settle(SOON).await);
    for partition in 0..4 {
        let log = fake.log("shadow.orders", partition);
        assert_eq!(fake.sequences("shadow.orders", partition), (0..50).map(|n| n * 2).collect::<Vec<_>>());
        assert!(log.iter().all(|b| b.stamp().producer >= FIRST_DERIVED));
        assert_eq!(log[7].records(), batch(&by(1, 0, 0, 1)).records());
    }
    assert_eq!((batches(&writer, Outcome::Written), writer.held()), (200, 0));
    assert_eq!(batches(&writer, Outcome::PossibleDuplicate), 0);
}

#[tokio::test]
async fn a_topic_that_the_branch_lacks_is_created_like_the_mainlines() {
    let (target, mainline) = (Fake::start(1, &[]).await, Fake::start(1, &[("orders", 6)]).await);
    let writer = write_to(&target, &mainline, settings(Mode::Derived));
    writer.offer(item(5, &by(1000, 0, 0, 1)));
    assert!(writer.settle(SOON).await);
    assert_eq!(target.sequences("shadow.orders", 5), [0]);
    assert_eq!(target.change(|state| state.topics["shadow.orders"].len()), 6);
}

#[tokio::test]
async fn a_topic_that_may_not_be_created_is_missing_or_left_out_by_policy() {
    for (creation, outcome) in [
        (Creation::LikeMainline, Outcome::Mia(Cause::NoTopic)),
        (Creation::Require, Outcome::Mia(Cause::NoTopic)),
        (Creation::Drop, Outcome::LeftOut),
    ] {
        let (target, mainline) = (Fake::start(1, &[]).await, Fake::start(1, &[("orders", 1)]).await);
        target.change(|state| state.no_creation = true);
        let writer = write_to(&target, &mainline, Settings { creation, ..settings(Mode::Derived) });
        writer.offer(item(0, &by(1000, 0, 0, 1)));
        assert!(writer.settle(SOON).await);
        assert_eq!((batches(&writer, outcome), writer.held()), (1, 0), "{creation:?}");
        assert!(target.change(|state| state.topics.is_empty()));
    }
}

#[tokio::test]
async fn a_partition_that_the_branch_lacks_is_counted() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    writer.offer(item(3, &by(1000, 0, 0, 1)));
    assert!(writer.settle(SOON).await);
    assert_eq!(batches(&writer, Outcome::Mia(Cause::NoPartition)), 1);
}

#[tokio::test]
async fn lost_answers_double_nothing_under_a_derived_producer() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    fake.change(|state| state.troubles = [Trouble::AppendAndClose, Trouble::Close, Trouble::AppendAndClose].into());
    for sequence in 0..20 {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
    }
    assert!(writer.settle(SOON).await);
    assert_eq!(fake.sequences("shadow.orders", 0), (0..20).collect::<Vec<_>>());
    assert_eq!(batches(&writer, Outcome::Written) + batches(&writer, Outcome::Found), 20);
    assert_eq!(batches(&writer, Outcome::PossibleDuplicate), 0);
}

#[tokio::test]
async fn a_partition_whose_leader_moves_is_followed() {
    let fake = Fake::start(2, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    for sequence in 0..10 {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
    }
    assert!(writer.settle(SOON).await);
    fake.change(|state| state.topics.get_mut("shadow.orders").unwrap()[0].leader = 1);
    for sequence in 10..20 {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
    }
    assert!(writer.settle(SOON).await);
    assert_eq!(fake.sequences("shadow.orders", 0), (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_hole_starts_a_generation_that_is_counted() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    for sequence in [0, 1, 5, 6] {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
        assert!(writer.settle(SOON).await);
    }
    assert_eq!(fake.sequences("shadow.orders", 0), [0, 1, 5, 6]);
    let producers: Vec<_> = fake.log("shadow.orders", 0).iter().map(|b| b.stamp().producer).collect();
    assert!(producers[0] == producers[1] && producers[1] != producers[2] && producers[2] == producers[3]);
    assert_eq!(batches(&writer, Outcome::PossibleDuplicate), 1);
}

/// Two gateways share nothing but the config.
#[tokio::test]
async fn a_retry_over_another_gateway_is_written_once() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let (one, two) = (write_to(&fake, &fake, settings(Mode::Derived)), write_to(&fake, &fake, settings(Mode::Derived)));
    for (writer, sequence) in [(&one, 0), (&one, 1), (&two, 1), (&two, 2), (&one, 3), (&two, 3)] {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
        assert!(writer.settle(SOON).await);
    }
    assert_eq!(fake.sequences("shadow.orders", 0), [0, 1, 2, 3]);
    let doubled = batches(&one, Outcome::PossibleDuplicate) + batches(&two, Outcome::PossibleDuplicate);
    assert_eq!(doubled, 0);
}

#[tokio::test]
async fn a_clients_retry_is_recognised_by_its_offset() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Owned));
    let at = |offset| {
        let batch = batch(&by(1000, 0, 0, 1));
        Item::new("orders".into(), PartitionId(0), batch, Some(Offset(offset)), Instant::now())
    };
    for offset in [70, 70, 90] {
        writer.offer(at(offset));
    }
    assert!(writer.settle(SOON).await);
    assert_eq!(fake.sequences("shadow.orders", 0), [0, 1], "numbered by the gateway");
    assert_eq!((batches(&writer, Outcome::Written), batches(&writer, Outcome::Repeat)), (2, 1));
}

#[tokio::test]
async fn an_owned_producer_counts_on_after_a_batch_that_is_refused() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Owned));
    writer.offer(item(0, &by(1000, 0, 0, 3)));
    assert!(writer.settle(SOON).await);
    fake.change(|state| state.troubles.push_back(Trouble::Error(10)));
    for sequence in [3, 6, 9] {
        writer.offer(item(0, &by(1000, 0, sequence, 3)));
    }
    assert!(writer.settle(SOON).await);
    let stamps: Vec<_> =
        fake.log("shadow.orders", 0).iter().map(|b| (b.stamp().epoch.0, b.stamp().sequence.0)).collect();
    assert_eq!(stamps, [(0, 0), (1, 0), (1, 3)]);
    assert_eq!(batches(&writer, Outcome::Mia(Cause::TooLarge)), 1);
}

#[tokio::test]
async fn an_anonymous_branch_has_no_producers_and_a_preserved_one_the_clients() {
    for (mode, producer) in [(Mode::None, -1), (Mode::Preserve, 1000)] {
        let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
        let writer = write_to(&fake, &fake, settings(mode));
        writer.offer(item(0, &by(1000, 0, 0, 1)));
        assert!(writer.settle(SOON).await);
        assert_eq!(fake.log("shadow.orders", 0)[0].stamp().producer.0, producer, "{mode:?}");
    }
}

#[tokio::test]
async fn a_paused_branch_counts_what_it_drops_and_goes_on_afterwards() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    writer.pause(true);
    writer.offer(item(0, &by(1000, 0, 0, 1)));
    writer.pause(false);
    writer.offer(item(0, &by(1000, 0, 1, 1)));
    assert!(writer.settle(SOON).await);
    assert_eq!(batches(&writer, Outcome::Mia(Cause::Paused)), 1);
    assert_eq!(fake.sequences("shadow.orders", 0), [1]);
}

/// One bad day after another: the handle never waits, memory stays in its bound, everything is counted, and the branch
/// heals.
#[tokio::test]
async fn a_broker_that_never_answers_costs_the_queue_and_no_more() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let clusters = Clusters { target: fake.door(), mainline: fake.door() };
    let short = Settings { age: Duration::from_millis(600), ..settings(Mode::Derived) };
    let bytes = 100 * batch(&by(1000, 0, 0, 1)).size();
    let writer = Writer::spawn("b", short, clusters, bytes, Duration::from_millis(300), Ledger::default());
    fake.change(|state| state.troubles = [Trouble::Silence; 2].into());
    let began = Instant::now();
    for sequence in 0..1000 {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
        assert!(writer.held() <= bytes);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "offering waits for nobody");
    assert!(writer.settle(SOON).await);
    assert_eq!(writer.held(), 0);
    let full = batches(&writer, Outcome::Mia(Cause::QueueFull));
    let counted: u64 =
        [Outcome::Written, Outcome::Found, Outcome::Mia(Cause::QueueAge), Outcome::Ambiguous(Cause::ConnectionLost)]
            .map(|outcome| batches(&writer, outcome))
            .iter()
            .sum();
    assert!(full >= 900 - 1, "{full}");
    assert_eq!(full + counted, 1000);

    // On a busy host one batch may outlive its age before the new connection stands.
    for sequence in 1000..1050 {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
        assert!(writer.settle(SOON).await);
        if fake.sequences("shadow.orders", 0).last() == Some(&sequence) {
            return;
        }
    }
    panic!("never healed");
}

#[tokio::test]
async fn a_cluster_that_is_not_there_costs_its_batches_their_age() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let door = Door::new(Cluster::spawn("nobody", cluster_config(vec![nobody])));
    let clusters = Clusters { target: door.clone(), mainline: door };
    let short = Settings { age: Duration::from_millis(200), ..settings(Mode::Derived) };
    let writer = Writer::spawn("b", short, clusters, QUEUE, PATIENCE, Ledger::default());
    writer.offer(item(0, &by(1000, 0, 0, 1)));
    assert!(writer.settle(SOON).await);
    assert_eq!(batches(&writer, Outcome::Mia(Cause::QueueAge)), 1);
}

#[tokio::test]
async fn a_throttled_branch_waits_as_told() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    fake.change(|state| state.throttle_ms = 400);
    writer.offer(item(0, &by(1000, 0, 0, 1)));
    assert!(writer.settle(SOON).await);
    let before = (Instant::now(), fake.produced());
    writer.offer(item(0, &by(1000, 0, 1, 1)));
    assert!(writer.settle(SOON).await);
    assert!(before.0.elapsed() >= Duration::from_millis(300));
    assert_eq!(fake.produced(), before.1 + 1);
}

#[tokio::test]
async fn what_is_left_at_the_end_is_counted() {
    let fake = Fake::start(1, &[("shadow.orders", 1)]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    fake.change(|state| state.troubles = [Trouble::Silence; 9].into());
    for sequence in 0..3 {
        writer.offer(item(0, &by(1000, 0, sequence, 1)));
    }
    while fake.produced() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ledger = writer.ledger().clone();
    writer.end(Cause::Removed).await;
    let count = |outcome| ledger.total(outcome).batches;
    assert_eq!(count(Outcome::Ambiguous(Cause::ConnectionLost)), 1);
    assert_eq!(count(Outcome::Mia(Cause::Removed)), 2);
}

#[tokio::test]
async fn a_name_that_is_none_is_counted() {
    let fake = Fake::start(1, &[]).await;
    let writer = write_to(&fake, &fake, settings(Mode::Derived));
    let name: Arc<str> = "x".repeat(249).into();
    writer.offer(Item::new(name, PartitionId(0), batch(&by(1, 0, 0, 1)), None, Instant::now()));
    assert!(writer.settle(SOON).await);
    assert_eq!(batches(&writer, Outcome::Mia(Cause::TopicName)), 1);
}
