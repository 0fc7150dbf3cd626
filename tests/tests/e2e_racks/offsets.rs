//! Where the log itself changes under a consumer at a replica: its start moves, the topic is made again, transactions are
//! aborted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Consumed, Family, Produce, Transaction};
use harness::raw::blocking::Connection;
use harness::turnout::Gateway;
use harness::{kafka, wait};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::{DeleteRecordsRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use serde_json::json;

use crate::support::*;

fn connect(gateway: &Gateway, family: Family) -> Result<Client> {
    let mut client = Client::start(family)?;
    client.connect_with(&gateway.bootstrap(), json!({"client_id": kafka::unique(&format!("reader-{family}"))}))?;
    Ok(client)
}

/// Removes the records before `offset` from every partition.
fn delete_records(cluster: &kafka::Cluster, topic: &str, offset: i64) -> Result<()> {
    for index in 0..PARTITIONS as i32 {
        let leader = cluster.broker(1 + index % 2)?;
        let partition = DeleteRecordsPartition::default().with_partition_index(index).with_offset(offset);
        let asked = DeleteRecordsTopic::default()
            .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
            .with_partitions(vec![partition]);
        let request = DeleteRecordsRequest::default().with_topics(vec![asked]).with_timeout_ms(10_000);
        let answer = Connection::open(leader.plaintext(), None, SOON)?.call(2, &request)?;
        let errors: Vec<_> = answer.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code).collect();
        ensure!(errors == [0], "{answer:?}");
    }
    Ok(())
}

/// A group left off at offsets that are deleted by now: the leader says so, and the client starts where the log does.
#[test]
fn a_consumer_whose_offset_was_deleted_is_told_and_resets() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama, Kafkajs);
    let Stage { gateway, cluster, .. } = stage()?;
    for family in [Family::Java, Family::Librdkafka, Family::Franz, Family::Sarama, Family::Kafkajs] {
        let topic = make_topic(cluster, &format!("deleted-{family}"))?;
        let mut client = connect(gateway, family)?;
        let produce = Produce::to(&topic).partitions(PARTITIONS).count(400);
        client.produce(&produce).with_context(|| family.to_string())?;
        let start = (0..PARTITIONS as i32).map(|partition| (partition, 20)).collect();
        client.commit(&topic, &topic, &start)?;
        delete_records(cluster, &topic, 50)?;
        // 150 are left in each of the two.
        let read = client.consume(&Consume::from(&topic).group(&topic).count(300).timeout_ms(40_000))?;
        read.check_complete(300).with_context(|| format!("{family}; its log:\n{}", client.log_tail(20)))?;
        ensure!(read.partitions.values().all(|p| (p.first_offset, p.last_offset) == (50, 199)), "{family}: {read:?}");
        client.close()?;
    }
    Ok(())
}

/// While it reads at the replica.
#[test]
fn the_start_of_the_log_may_move_past_a_consumer_at_a_replica() -> Result<()> {
    need_families!(Java, Franz, Librdkafka);
    let Stage { gateway, cluster, .. } = stage()?;
    for family in [Family::Java, Family::Franz] {
        let topic = make_topic(cluster, &format!("moved-{family}"))?;
        let (mut producer, mut consumer) = (connect(gateway, Family::Librdkafka)?, connect(gateway, family)?);
        producer.produce(&Produce::to(&topic).partitions(PARTITIONS).count(200))?;
        let consume = Consume::from(&topic).group(&topic).count(400).timeout_ms(40_000);
        consumer.send("consume", serde_json::to_value(consume)?)?;
        wait::until("reading in the rack", SOON, || {
            let counts = read(gateway, &topic)?;
            ensure!(counts.redirects >= u64::from(PARTITIONS), "{counts:?}");
            Ok(())
        })?;
        // It has read all there is by now, or will: what is deleted is behind it, and it must not go back to it.
        std::thread::sleep(Duration::from_secs(2));
        delete_records(cluster, &topic, 100)?;
        producer.produce(&Produce::to(&topic).partitions(PARTITIONS).first(200).count(200))?;
        let read: Consumed = serde_json::from_value(consumer.receive().context("reading")?)?;
        read.check_complete(400).with_context(|| format!("{family}; its log:\n{}", consumer.log_tail(20)))?;
        producer.close()?;
        consumer.close()?;
    }
    Ok(())
}

#[test]
fn a_topic_may_be_deleted_and_made_again() -> Result<()> {
    need_families!(Java, Librdkafka);
    let Stage { gateway, cluster, .. } = stage()?;
    let topic = make_topic(cluster, "again")?;
    let (mut producer, mut consumer) = (connect(gateway, Family::Librdkafka)?, connect(gateway, Family::Java)?);
    producer.produce(&Produce::to(&topic).partitions(PARTITIONS).count(200))?;
    let consume = Consume::from(&topic).count(400).timeout_ms(60_000);
    consumer.send("consume", serde_json::to_value(consume)?)?;
    wait::until("reading in the rack", SOON, || {
        let counts = read(gateway, &topic)?;
        ensure!(counts.redirects >= u64::from(PARTITIONS), "{counts:?}");
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(2));
    producer.delete_topics(&[&topic])?;
    std::thread::sleep(Duration::from_secs(1));
    make_topic_named(cluster, &topic)?;
    producer.close()?;
    // A new one, that knows nothing of the old topic.
    let mut producer = connect(gateway, Family::Librdkafka)?;
    producer.produce(&Produce::to(&topic).partitions(PARTITIONS).first(200).count(200))?;
    let read: Consumed = serde_json::from_value(consumer.receive().context("reading")?)?;
    read.check_complete(400).with_context(|| format!("its log:\n{}", consumer.log_tail(20)))?;
    producer.close()?;
    consumer.close()
}

#[test]
fn aborted_transactions_stay_unread_at_a_replica() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama);
    let Stage { gateway, cluster, .. } = stage()?;
    let topic = make_topic(cluster, "aborted")?;
    let mut producer = connect(gateway, Family::Java)?;
    let produce = Produce::to(&topic).partitions(PARTITIONS).count(50);
    producer.transactions(&Transaction::new(&topic, &["commit", "abort", "commit", "abort", "commit"], produce))?;
    for family in [Family::Java, Family::Librdkafka, Family::Franz, Family::Sarama] {
        let mut client = connect(gateway, family)?;
        let before = read(gateway, &topic)?;
        let read_by = client.consume(&Consume::from(&topic).count(150).timeout_ms(40_000).read_committed())?;
        read_by.check_complete(150).with_context(|| family.to_string())?;
        let after = read(gateway, &topic)?;
        ensure!(after.saved_bytes > before.saved_bytes, "{family} did not read in its rack: {before:?}, {after:?}");
        client.close()?;
    }
    producer.close()
}
