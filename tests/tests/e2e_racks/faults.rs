//! The replica that everybody reads from is killed, stopped, frozen, falls behind; leaders move.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::clients::Family;
use harness::raw::blocking::Connection;
use harness::turnout::Gateway;
use harness::wait;
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, ElectLeadersRequest, MetadataRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::support::*;

const READERS: [(Family, Way); 4] = [
    (Family::Java, Way::Assigned),
    (Family::Librdkafka, Way::Assigned),
    (Family::Franz, Way::Classic),
    (Family::Sarama, Way::Classic),
];

/// A consumer at a leader does not notice that a replica is gone, and this is how much later ours may read on.
const MOST_GAP: Duration = Duration::from_secs(2);
/// What a busy host adds to any of it.
const SLACK: Duration = Duration::from_millis(1500);
/// A frozen broker says nothing: `max.wait` (500 ms, kafkajs 5 s), `silence` and the way back.
const MOST_SILENCE: Duration = Duration::from_millis(500 + 2000 + 1500);

/// The longest gaps of all streams from now on.
fn gaps(gateway: &Gateway, streams: &[Stream], seconds: u64) -> Result<()> {
    watch(gateway, streams, seconds, MOST_GAP + SLACK)
}

fn watch(gateway: &Gateway, streams: &[Stream], seconds: u64, most: Duration) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let flows: Vec<_> = streams.iter().map(Stream::flow).collect();
    let gaps: Vec<_> = std::thread::scope(|scope| {
        let watch = |flow: Flow| scope.spawn(move || (flow.family, flow.longest_gap(gateway, until)));
        let threads: Vec<_> = flows.into_iter().map(watch).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for watched in gaps {
        let (family, gap) = watched.map_err(|_| anyhow::anyhow!("watching panicked"))?;
        let gap = gap?;
        println!("{family}: no records for {gap:?}");
        ensure!(gap <= most, "{family}: no records for {gap:?}");
    }
    ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
    Ok(())
}

#[test]
fn readers_go_on_when_their_replica_is_killed_and_come_back_when_it_is() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start_all(gateway, cluster, &READERS, 45)?;
    cluster.broker(NEAR)?.kill();
    gaps(gateway, &streams, 8)?;
    let stood_in = report(gateway)?.stood_in;
    ensure!(stood_in > 0, "nobody was told anything in the dead broker's place");
    cluster.broker(NEAR)?.launch()?;
    cluster.wait_ready()?;
    let before: Vec<_> = streams.iter().map(|s| read(gateway, &s.topic)).collect::<Result<_>>()?;
    for (stream, before) in streams.iter().zip(before) {
        wait::until(&format!("{} to come back", stream.family), SOON, || {
            let now = read(gateway, &stream.topic)?;
            ensure!(now.saved_bytes > before.saved_bytes && now.redirects > before.redirects, "{before:?}, {now:?}");
            Ok(())
        })?;
    }
    finish(streams)
}

#[test]
fn readers_go_on_when_their_replica_is_stopped_in_good_order() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start_all(gateway, cluster, &READERS, 25)?;
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| cluster.broker(NEAR)?.stop());
        let watched = gaps(gateway, &streams, 8);
        stopping.join().map_err(|_| anyhow::anyhow!("stopping panicked"))??;
        watched
    })?;
    cluster.broker(NEAR)?.launch()?;
    finish(streams)?;
    cluster.wait_ready()
}

/// Frozen for longer than it stays in sync, so that it has really fallen behind when it thaws.
#[test]
fn readers_go_on_when_their_replica_freezes_and_nobody_is_sent_there_while_it_is_behind() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start_all(gateway, cluster, &READERS, 40)?;
    cluster.broker(NEAR)?.freeze()?;
    let watched = watch(gateway, &streams, 9, MOST_SILENCE + SLACK);
    let report = report(gateway)?;
    cluster.broker(NEAR)?.thaw()?;
    watched?;
    ensure!(report.stood_in > 0 && report.total.bounces > 0, "{report:?}");
    ensure!(report.stays.get("not_in_sync").is_some_and(|n| *n > 0), "it was taken for in sync: {:?}", report.stays);
    finish(streams)?;
    cluster.wait_ready()
}

#[test]
fn readers_go_on_when_leaders_move() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start_all(gateway, cluster, &READERS, 24)?;
    for round in 0..3 {
        for stream in &streams {
            move_leaders(gateway, &stream.topic, round)?;
        }
        std::thread::sleep(Duration::from_millis(1500));
    }
    // Also the one that led the replica's own partitions, for a while: the near broker itself.
    ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
    finish(streams)
}

/// The next replica of each partition becomes its leader: by a reassignment that only changes their order, and an
/// election.
fn move_leaders(gateway: &Gateway, topic: &str, round: usize) -> Result<()> {
    let name = TopicName(StrBytes::from_string(topic.to_owned()));
    let mut connection = Connection::open(gateway.bootstrap_addr(), None, SOON)?;
    let asked = MetadataRequestTopic::default().with_name(Some(name.clone()));
    let answer = connection.call(9, &MetadataRequest::default().with_topics(Some(vec![asked])))?;
    let partitions = &answer.topics.first().context("no topic in the answer")?.partitions;
    let before: Vec<_> = partitions.iter().map(|p| (p.partition_index, p.leader_id)).collect();
    let wanted = partitions.iter().map(|partition| {
        let mut replicas: Vec<BrokerId> = partition.replica_nodes.clone();
        let at = replicas.iter().position(|replica| *replica == partition.leader_id).unwrap_or(0);
        replicas.rotate_left(at + 1);
        ReassignablePartition::default().with_partition_index(partition.partition_index).with_replicas(Some(replicas))
    });
    let topics = vec![ReassignableTopic::default().with_name(name.clone()).with_partitions(wanted.collect())];
    let request = AlterPartitionReassignmentsRequest::default().with_timeout_ms(10_000).with_topics(topics);
    let answer = connection.call(0, &request)?;
    ensure!(answer.error_code == 0, "round {round}: {answer:?}");
    wait::until("other leaders", SOON, || {
        // All partitions; those that stand right already answer ELECTION_NOT_NEEDED (84).
        let elect = ElectLeadersRequest::default().with_topic_partitions(None).with_timeout_ms(10_000);
        connection.call(2, &elect)?;
        let asked = MetadataRequestTopic::default().with_name(Some(name.clone()));
        let answer = connection.call(9, &MetadataRequest::default().with_topics(Some(vec![asked])))?;
        let now = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let moved =
            now.filter(|p| before.iter().any(|(index, was)| *index == p.partition_index && *was != p.leader_id));
        ensure!(moved.count() == before.len(), "round {round}: {answer:?}");
        Ok(())
    })
}

/// Every broker once, the near one among them.
#[test]
fn readers_go_on_through_a_rolling_restart() -> Result<()> {
    harness::full_tier!();
    need_families!(Java, Librdkafka, Franz, Sarama);
    let Stage { gateway, cluster, .. } = stage()?;
    let streams = Stream::start_all(gateway, cluster, &READERS, 90)?;
    for broker in cluster.brokers() {
        broker.restart()?;
        cluster.wait_ready()?;
    }
    finish(streams)
}
