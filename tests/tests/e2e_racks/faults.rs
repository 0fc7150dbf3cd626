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

/// Without groups: one whose coordinator dies begins anew where it last committed, and what is read twice must not have come
/// twice.
const READERS: [(Family, Way); 4] = [
    (Family::Java, Way::Assigned),
    (Family::Librdkafka, Way::Assigned),
    (Family::Franz, Way::Assigned),
    (Family::Sarama, Way::Assigned),
];

/// How much later than a consumer at the leader ours may read on.
const MOST_BEHIND: Duration = Duration::from_secs(2);
/// Between two looks, and what a busy host adds.
const SLACK: Duration = Duration::from_millis(500);

/// Watches for some seconds how records flow to each stream, and to the same client at the leader: what that waits for
/// (until the leader does not wait for the dead replica any more, nothing is committed) is nobody's fault here.
fn watch(stage: &Stage, streams: &[Stream], seconds: u64) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let gaps: Vec<_> = std::thread::scope(|scope| {
        let watch = |flow: Flow, gateway| scope.spawn(move || (flow.family, flow.longest_gap(gateway, until)));
        let flows = || streams.iter().map(Stream::flow);
        let ours: Vec<_> = flows().map(|flow| watch(flow, &stage.gateway)).collect();
        let plain: Vec<_> = flows().map(|flow| watch(flow, &stage.plain)).collect();
        ours.into_iter().zip(plain).map(|(ours, plain)| (ours.join(), plain.join())).collect()
    });
    let mut late = Vec::new();
    for (ours, plain) in gaps {
        let panicked = |_| anyhow::anyhow!("watching panicked");
        let ((family, ours), (_, plain)) = (ours.map_err(panicked)?, plain.map_err(panicked)?);
        let (ours, plain) = (ours?, plain?);
        println!("{family}: no records for {ours:?}; {plain:?} at the leader");
        if ours > plain + MOST_BEHIND + SLACK {
            late.push(family);
        }
    }
    ensure!(late.is_empty(), "{late:?} read on too late");
    ensure!(streams.iter().all(Stream::is_running), "the streams ended too early to prove anything");
    Ok(())
}

/// Streams that read in their rack, with another consumer of each family at the leader.
fn streams(stage: &Stage, seconds: u64) -> Result<Vec<Stream>> {
    let mut streams = Stream::start_all(&stage.gateway, &stage.cluster, &READERS, seconds)?;
    streams.iter_mut().try_for_each(|stream| stream.add_control(&stage.plain))?;
    Ok(streams)
}

#[test]
fn readers_go_on_when_their_replica_is_killed_and_come_back_when_it_is() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let stage @ Stage { gateway, cluster, .. } = stage()?;
    let streams = streams(stage, 75)?;
    cluster.broker(NEAR)?.kill();
    watch(stage, &streams, 10)?;
    let stood_in = report(gateway)?.stood_in;
    ensure!(stood_in > 0, "nobody was told anything in the dead broker's place");
    cluster.broker(NEAR)?.launch()?;
    cluster.wait_ready()?;
    let before: Vec<_> = streams.iter().map(|s| read(gateway, &s.topic)).collect::<Result<_>>()?;
    for (stream, before) in streams.iter().zip(before) {
        wait::until(&format!("{} to come back", stream.family), SOON, || {
            let now = read(gateway, &stream.topic)?;
            let is_back = now.saved_bytes > before.saved_bytes && now.redirects >= u64::from(2 * PARTITIONS);
            ensure!(is_back, "{before:?}, {now:?}, running {}, {:?}", stream.is_running(), report(gateway)?.stays);
            Ok(())
        })?;
    }
    finish(streams)
}

#[test]
fn readers_go_on_when_their_replica_is_stopped_in_good_order() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let stage @ Stage { cluster, .. } = stage()?;
    let streams = streams(stage, 35)?;
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| cluster.broker(NEAR)?.stop());
        let watched = watch(stage, &streams, 8);
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
    let stage @ Stage { gateway, cluster, .. } = stage()?;
    let streams = streams(stage, 50)?;
    cluster.broker(NEAR)?.freeze()?;
    let watched = watch(stage, &streams, 12);
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
