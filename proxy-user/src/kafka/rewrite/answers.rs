//! One walk per answer, in the order of the fields of its schema (Apache Kafka 4.3.1).

use super::Seen;
use super::walk::{BrokerFields, ENDPOINT_FIELDS, Walk};
use crate::kafka::ids::TopicId;
use crate::kafka::topics::{SeenPartition, SeenTopic};
use crate::kafka::wire::Malformed;

type Answer = Result<Option<Seen>, Malformed>;

/// COORDINATOR_NOT_AVAILABLE: every client looks again after its backoff.
const COORDINATOR_NOT_AVAILABLE: i16 = 15;

/// `endpoint_type` of DescribeCluster that lists controllers.
const CONTROLLERS: i8 = 2;

pub(super) fn metadata(on: &mut Walk<'_>, version: i16) -> Answer {
    if version >= 3 {
        on.r.i32()?;
    }
    on.brokers(BrokerFields { rack: version >= 1, fenced: false, reachable: true })?;
    let cluster_id = if version >= 2 { on.cluster_id()? } else { None };
    let controller = if version >= 1 { on.node_id()? } else { None };
    for _ in 0..on.r.count()? {
        metadata_topic(on, version)?;
    }
    if (8..=10).contains(&version) {
        on.r.i32()?;
    }
    let error = if version >= 13 { on.r.i16()? } else { 0 };
    on.r.skip_tags()?;
    let brokers = std::mem::take(&mut on.seen);
    // A broker that is still starting lists nobody.
    let complete = !brokers.is_empty();
    let topics = on.topics.take().unwrap_or_default();
    Ok((error == 0).then_some(Seen { brokers, cluster_id, controller, complete, topics }))
}

fn metadata_topic(on: &mut Walk<'_>, version: i16) -> Result<(), Malformed> {
    let error = on.r.i16()?;
    let name = on.r.nullable_string()?;
    let id = if version >= 10 { on.r.take(16)?.first_chunk().copied() } else { None };
    if version >= 1 {
        on.r.i8()?;
    }
    let mut partitions = Vec::new();
    for _ in 0..on.r.count()? {
        on.r.i16()?;
        let partition = SeenPartition {
            index: on.r.i32()?,
            leader: on.node_id()?,
            epoch: if version >= 7 { on.r.i32()? } else { -1 },
            replicas: on.node_ids()?,
            in_sync: on.node_ids()?,
            offline: if version >= 5 { on.node_ids()? } else { Vec::new() },
        };
        on.r.skip_tags()?;
        if on.topics.is_some() {
            partitions.push(partition);
        }
    }
    if let Some(topics) = &mut on.topics {
        let name = name.and_then(|name| std::str::from_utf8(name).ok()).map(str::to_owned);
        topics.push(SeenTopic { error, name, id: id.map(TopicId).unwrap_or_default(), partitions });
    }
    if version >= 8 {
        on.r.i32()?;
    }
    on.r.skip_tags()
}

/// FindCoordinator up to v3: one coordinator, its error in front.
pub(super) fn find_coordinator(on: &mut Walk<'_>, version: i16) -> Answer {
    if version >= 1 {
        on.r.i32()?;
    }
    let error_at = on.r.at();
    let error = on.r.i16()?;
    if version >= 1 {
        on.r.nullable_string()?;
    }
    // The error's place lies before the address's: look ahead, then patch in order.
    let reachable = on.coordinator_ahead()?;
    if error == 0 && !reachable {
        on.patch.replace(error_at..error_at + 2, &COORDINATOR_NOT_AVAILABLE.to_be_bytes());
    }
    on.coordinator()?;
    on.r.skip_tags()?;
    Ok(some_brokers(on))
}

/// FindCoordinator from v4 on: an array, the error of each behind its address.
pub(super) fn find_coordinators(on: &mut Walk<'_>, _version: i16) -> Answer {
    on.r.i32()?;
    for _ in 0..on.r.count()? {
        on.r.string()?;
        let reachable = on.coordinator()?;
        let error_at = on.r.at();
        if on.r.i16()? == 0 && !reachable {
            on.patch.replace(error_at..error_at + 2, &COORDINATOR_NOT_AVAILABLE.to_be_bytes());
        }
        on.r.nullable_string()?;
        on.r.skip_tags()?;
    }
    on.r.skip_tags()?;
    Ok(some_brokers(on))
}

pub(super) fn describe_cluster(on: &mut Walk<'_>, version: i16) -> Answer {
    on.r.i32()?;
    let error = on.r.i16()?;
    on.r.nullable_string()?;
    let controllers = version >= 1 && on.r.i8()? == CONTROLLERS;
    let cluster_id = on.cluster_id()?;
    let controller = on.node_id()?;
    on.brokers(BrokerFields { rack: true, fenced: version >= 2, reachable: !controllers })?;
    on.r.i32()?;
    on.r.skip_tags()?;
    let brokers = std::mem::take(&mut on.seen);
    let complete = !brokers.is_empty();
    Ok((error == 0 && !controllers).then_some(Seen { brokers, cluster_id, controller, complete, topics: Vec::new() }))
}

pub(super) fn produce(on: &mut Walk<'_>, version: i16) -> Answer {
    for _ in 0..on.r.count()? {
        if version >= 13 {
            on.r.take(16)?;
        } else {
            on.r.string()?;
        }
        for _ in 0..on.r.count()? {
            on.r.take(4 + 2 + 8 + 8 + 8)?;
            for _ in 0..on.r.count()? {
                on.r.i32()?;
                on.r.nullable_string()?;
                on.r.skip_tags()?;
            }
            on.r.nullable_string()?;
            on.tags_with_leader(0)?;
        }
        on.r.skip_tags()?;
    }
    on.r.i32()?;
    on.tags_with_endpoints(0)?;
    Ok(some_brokers(on))
}

pub(super) fn fetch(on: &mut Walk<'_>, _version: i16) -> Answer {
    on.r.take(4 + 2 + 4)?;
    for _ in 0..on.r.count()? {
        on.r.take(16)?;
        for _ in 0..on.r.count()? {
            on.r.take(4 + 2 + 8 + 8 + 8)?;
            for _ in 0..on.r.count()? {
                on.r.take(8 + 8)?;
                on.r.skip_tags()?;
            }
            on.node_id()?;
            on.r.skip_bytes()?;
            on.tags_with_leader(1)?;
        }
        on.r.skip_tags()?;
    }
    on.tags_with_endpoints(0)?;
    Ok(some_brokers(on))
}

pub(super) fn share_fetch(on: &mut Walk<'_>, _version: i16) -> Answer {
    on.r.take(4 + 2)?;
    on.r.nullable_string()?;
    on.r.i32()?;
    for _ in 0..on.r.count()? {
        on.r.take(16)?;
        for _ in 0..on.r.count()? {
            on.r.i32()?;
            let error = on.r.i16()?;
            on.r.nullable_string()?;
            let acknowledge_error = on.r.i16()?;
            on.r.nullable_string()?;
            on.leader(error != 0 || acknowledge_error != 0)?;
            on.r.skip_bytes()?;
            for _ in 0..on.r.count()? {
                on.r.take(8 + 8 + 2)?;
                on.r.skip_tags()?;
            }
            on.r.skip_tags()?;
        }
        on.r.skip_tags()?;
    }
    on.brokers(ENDPOINT_FIELDS)?;
    on.r.skip_tags()?;
    Ok(some_brokers(on))
}

pub(super) fn share_acknowledge(on: &mut Walk<'_>, version: i16) -> Answer {
    on.r.take(4 + 2)?;
    on.r.nullable_string()?;
    if version >= 2 {
        on.r.i32()?;
    }
    for _ in 0..on.r.count()? {
        on.r.take(16)?;
        for _ in 0..on.r.count()? {
            on.r.i32()?;
            let error = on.r.i16()?;
            on.r.nullable_string()?;
            on.leader(error != 0)?;
            on.r.skip_tags()?;
        }
        on.r.skip_tags()?;
    }
    on.brokers(ENDPOINT_FIELDS)?;
    on.r.skip_tags()?;
    Ok(some_brokers(on))
}

/// DescribeQuorum from v2 on lists listeners of controllers, which can't be reached through the gateway.
pub(super) fn describe_quorum(on: &mut Walk<'_>, _version: i16) -> Answer {
    on.r.i16()?;
    on.r.nullable_string()?;
    for _ in 0..on.r.count()? {
        on.r.string()?;
        for _ in 0..on.r.count()? {
            on.r.take(4 + 2)?;
            on.r.nullable_string()?;
            on.node_id()?;
            on.r.take(4 + 8)?;
            replica_states(on)?;
            replica_states(on)?;
            on.r.skip_tags()?;
        }
        on.r.skip_tags()?;
    }
    for _ in 0..on.r.count()? {
        on.node_id()?;
        on.drop_listeners()?;
        on.r.skip_tags()?;
    }
    on.r.skip_tags()?;
    Ok(None)
}

fn replica_states(on: &mut Walk<'_>) -> Result<(), Malformed> {
    for _ in 0..on.r.count()? {
        on.node_id()?;
        on.r.take(16 + 8 + 8 + 8)?;
        on.r.skip_tags()?;
    }
    Ok(())
}

/// What an answer told that names only some brokers.
fn some_brokers(on: &mut Walk<'_>) -> Option<Seen> {
    let brokers = std::mem::take(&mut on.seen);
    (!brokers.is_empty()).then(|| Seen { brokers, ..Seen::default() })
}
