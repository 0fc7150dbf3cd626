//! When a cluster is ready.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{InitProducerIdRequest, MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::Broker;
use crate::wait;

/// Waits until each of `brokers` lists all of them, knows a controller, and hands out producer ids (just after a start
/// it answers COORDINATOR_LOAD_IN_PROGRESS, 14, for some seconds).
pub(super) fn wait(brokers: &[&Broker], patience: Duration) -> Result<()> {
    let expected: BTreeSet<i32> = brokers.iter().map(|broker| broker.node_id()).collect();
    for broker in brokers {
        let what = format!("node {} to be ready", broker.node_id());
        // A broker that ended won't become ready; no need to wait out the patience.
        let ready = wait::until(&what, patience, || match probe(broker, &expected) {
            Err(error) if broker.is_running() => Err(error),
            other => Ok(other),
        });
        ready.and_then(|inner| inner).map_err(|error| {
            let log = broker.log();
            error.context(format!("{}:\n{}", log.display(), crate::process::tail(&log, 15)))
        })?;
    }
    Ok(())
}

/// Waits until each of `brokers` knows all partitions of a topic and a leader for each. The broker that created it
/// answers before the others have heard of it.
pub(super) fn wait_topic(brokers: &[&Broker], topic: &str, partitions: u32, patience: Duration) -> Result<()> {
    for broker in brokers {
        wait::until(&format!("{topic} on node {}", broker.node_id()), patience, || {
            let name = TopicName(StrBytes::from_string(topic.to_owned()));
            let wanted = vec![MetadataRequestTopic::default().with_name(Some(name))];
            let answer = broker.connect()?.call(9, &MetadataRequest::default().with_topics(Some(wanted)))?;
            let found = answer.topics.iter().flat_map(|topic| &topic.partitions);
            let known = found.filter(|partition| partition.error_code == 0).count();
            ensure!(known == partitions as usize, "it knows {known} of {partitions} partitions");
            Ok(())
        })?;
    }
    Ok(())
}

fn probe(broker: &Broker, expected: &BTreeSet<i32>) -> Result<()> {
    let mut connection = broker.connect()?;
    let metadata = connection.call(9, &MetadataRequest::default().with_topics(Some(Vec::new())))?;
    let listed: BTreeSet<i32> = metadata.brokers.iter().map(|broker| broker.node_id.0).collect();
    ensure!(expected.is_subset(&listed), "node {} lists {listed:?} of {expected:?}", broker.node_id());
    ensure!(metadata.controller_id.0 >= 0, "node {} knows no controller", broker.node_id());
    let request = InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
    let answer = connection.call(4, &request)?;
    ensure!(
        answer.error_code == 0,
        "node {} answers InitProducerId with error {}",
        broker.node_id(),
        answer.error_code
    );
    Ok(())
}
