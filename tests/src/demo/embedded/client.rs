//! The client of the embedded demo: it writes numbered records through the gateway, reads them back through it, checks
//! them, and measures latency on both ways; the same job as the Java client's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{FetchRequest, MetadataRequest, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::RecordBatchDecoder;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::LATENCY_TOPIC;
use crate::bench::percentile;
use crate::demo::traffic::{Latency, Outcome, Plan, Report};
use crate::raw::{Batch, Client};

const PRODUCE: i16 = 9;
const FETCH: i16 = 12;
/// Each partition's records of this long make a batch.
const BATCH: Duration = Duration::from_millis(20);
/// Between two records that measure latency.
const PROBE: Duration = Duration::from_millis(10);
/// How long the reader may lag behind when the writer has ended.
const CATCH_UP: Duration = Duration::from_secs(30);

/// Sends a report a second, then one with the outcome, or an error.
pub(super) async fn run(plan: Plan, reports: Sender<Result<Report>>) {
    let outcome = traffic(&plan, &reports).await;
    // The one who watches may have given up.
    let _ = reports.send(outcome);
}

async fn traffic(plan: &Plan, reports: &Sender<Result<Report>>) -> Result<Report> {
    let direct = Leaders::find(&plan.direct, LATENCY_TOPIC).await?;
    let probes = Leaders::find(&plan.gateway, LATENCY_TOPIC).await?;
    let leaders = Leaders::find(&plan.gateway, plan.topic).await?;
    ensure!(leaders.of.len() == plan.partitions as usize, "the topic has {} partitions", leaders.of.len());

    let tally = Arc::new(Mutex::new(Tally::new(plan.partitions)));
    let until = Instant::now() + Duration::from_secs(plan.seconds.into());
    let mut readers = JoinSet::new();
    let mut writers = JoinSet::new();
    for (&partition, &leader) in &leaders.of {
        let work = Work { tally: Arc::clone(&tally), topic: plan.topic, partition, leader };
        let rate = plan.rate / plan.partitions.unsigned_abs();
        readers.spawn(work.clone().observe(Work::read));
        let size = plan.size;
        writers.spawn(async move { work.clone().observe(move |work| work.write(rate, size, until)).await });
    }
    for (way, leaders) in [(Way::Direct, &direct), (Way::Gateway, &probes)] {
        let leader = *leaders.of.get(&0).context("the topic for latency has no partition")?;
        let work = Work { tally: Arc::clone(&tally), topic: LATENCY_TOPIC, partition: 0, leader };
        writers.spawn(async move { work.clone().observe(move |work| work.probe(way, until)).await });
    }

    let begin = until - Duration::from_secs(plan.seconds.into());
    for second in 1..=plan.seconds {
        sleep_until(begin + Duration::from_secs(second.into())).await;
        let report = lock(&tally).report(second, true);
        if reports.send(Ok(report)).is_err() {
            break;
        }
    }
    while writers.join_next().await.is_some() {}
    let patience = Instant::now() + CATCH_UP;
    while !lock(&tally).is_complete() && Instant::now() < patience {
        sleep(Duration::from_millis(20)).await;
    }
    // Long enough for a record that came twice to show.
    sleep(Duration::from_millis(500)).await;
    readers.shutdown().await;
    let tally = lock(&tally);
    let addresses = leaders.told.iter().chain(&probes.told).cloned().collect();
    let outcome = Outcome { addresses, ..tally.outcome() };
    let mut report = tally.clone().report(plan.seconds, false);
    report.outcome = Some(outcome);
    Ok(report)
}

/// Where a topic's partitions are led, as told at a bootstrap address.
struct Leaders {
    of: BTreeMap<i32, SocketAddr>,
    /// Every `host:port` told.
    told: Vec<String>,
}

impl Leaders {
    async fn find(bootstrap: &str, topic: &str) -> Result<Self> {
        let first = bootstrap.split(',').next().unwrap_or_default();
        let mut client = Client::connect(first.parse().with_context(|| format!("the address {first}"))?).await?;
        let wanted = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let metadata = client.call(9, &MetadataRequest::default().with_topics(Some(vec![wanted]))).await?;
        let address = |host: &str, port: i32| format!("{host}:{port}");
        let told = metadata.brokers.iter().map(|broker| address(&broker.host, broker.port)).collect();
        let partitions = metadata.topics.first().context("no topic in the answer")?.partitions.iter();
        let of = partitions.map(|partition| {
            let broker = metadata.brokers.iter().find(|broker| broker.node_id == partition.leader_id);
            let broker = broker.context("a leader that is not listed")?;
            Ok((partition.partition_index, address(&broker.host, broker.port).parse()?))
        });
        Ok(Self { of: of.collect::<Result<_>>()?, told })
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Direct,
    Gateway,
}

/// What all tasks count.
#[derive(Clone, Debug, Default)]
struct Tally {
    written: Vec<u64>,
    /// The number that comes next in each partition.
    next: Vec<u64>,
    read: u64,
    bytes: u64,
    duplicates: u64,
    out_of_order: u64,
    errors: u64,
    last_error: Option<String>,
    direct: Samples,
    gateway: Samples,
}

#[derive(Clone, Debug, Default)]
struct Samples {
    micros: Vec<u64>,
    told: usize,
}

impl Samples {
    fn latency(&mut self, only_recent: bool) -> Latency {
        let mut sorted = self.micros[if only_recent { self.told } else { 0 }..].to_vec();
        self.told = self.micros.len();
        sorted.sort_unstable();
        Latency { p50: percentile(&sorted, 0.5), p99: percentile(&sorted, 0.99) }
    }
}

impl Tally {
    fn new(partitions: i32) -> Self {
        let zeros = vec![0; partitions.unsigned_abs() as usize];
        Self { written: zeros.clone(), next: zeros, ..Self::default() }
    }

    /// A record of `partition` that holds this text was read.
    fn saw(&mut self, partition: i32, value: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(value)?;
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let (told, sequence) = number().zip(number()).with_context(|| format!("a record holds {text:.40}"))?;
        ensure!(told == u64::from(partition.unsigned_abs()), "partition {partition} holds a record of {told}");
        let expected = contents(partition, sequence, value.len());
        ensure!(value == expected, "the record {sequence} of partition {partition} was changed");
        self.bytes += value.len() as u64;
        let next = self.next.get_mut(partition.unsigned_abs() as usize).context("no such partition")?;
        if sequence < *next {
            self.duplicates += 1;
            return Ok(());
        }
        self.out_of_order += u64::from(sequence > *next);
        *next = sequence + 1;
        self.read += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.read >= self.written.iter().sum()
    }

    fn outcome(&self) -> Outcome {
        let written: u64 = self.written.iter().sum();
        let missing = written as i64 - self.read as i64;
        let Self { duplicates, out_of_order, .. } = *self;
        Outcome { missing, duplicates, out_of_order, addresses: Vec::new() }
    }

    fn report(&mut self, seconds: u32, only_recent: bool) -> Report {
        Report {
            seconds,
            sent: self.written.iter().sum(),
            read: self.read,
            bytes: self.bytes,
            errors: self.errors,
            last_error: self.last_error.clone(),
            direct: self.direct.latency(only_recent),
            gateway: self.gateway.latency(only_recent),
            outcome: None,
        }
    }
}

/// One task's job, on one partition.
#[derive(Clone, Debug)]
struct Work {
    tally: Arc<Mutex<Tally>>,
    topic: &'static str,
    partition: i32,
    leader: SocketAddr,
}

impl Work {
    /// Does it; a failure is counted.
    async fn observe<F: Future<Output = Result<()>>>(self, job: impl FnOnce(Self) -> F) {
        let tally = Arc::clone(&self.tally);
        if let Err(error) = job(self).await {
            let mut tally = lock(&tally);
            tally.errors += 1;
            tally.last_error = Some(format!("{error:#}"));
        }
    }

    async fn write(self, rate: u32, size: usize, until: Instant) -> Result<()> {
        let mut client = Client::connect(self.leader).await?;
        let mut ticks = interval(BATCH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begin = Instant::now();
        let mut next = 0;
        while Instant::now() < until {
            ticks.tick().await;
            let due = (begin.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            // After a stall the backlog is written in batches of a size that any broker takes.
            let end = due.min(next + 500);
            if end == next {
                continue;
            }
            let values = (next..end).map(|n| (None, Some(Bytes::from(contents(self.partition, n, size)))));
            produce(&mut client, self.topic, self.partition, Batch::new(values.collect()).encode()?).await?;
            next = end;
            lock(&self.tally).written[self.partition.unsigned_abs() as usize] = next;
        }
        Ok(())
    }

    async fn read(self) -> Result<()> {
        let mut client = Client::connect(self.leader).await?;
        let mut offset = 0;
        loop {
            let partition = FetchPartition::default()
                .with_partition(self.partition)
                .with_fetch_offset(offset)
                .with_partition_max_bytes(1 << 20);
            let topic = FetchTopic::default().with_topic(name(self.topic)).with_partitions(vec![partition]);
            let request = FetchRequest::default()
                .with_replica_id((-1).into())
                .with_max_wait_ms(500)
                .with_min_bytes(1)
                .with_max_bytes(1 << 20)
                .with_session_epoch(-1)
                .with_topics(vec![topic]);
            let answer = client.call(FETCH, &request).await?;
            let topic = answer.responses.first().context("an answer without the topic")?;
            let partition = topic.partitions.first().context("an answer without the partition")?;
            ensure!(partition.error_code == 0, "Fetch: Kafka error {}", partition.error_code);
            let mut records = partition.records.clone().unwrap_or_default();
            for set in RecordBatchDecoder::decode_all(&mut records)? {
                // A batch may begin before the offset that was asked for.
                for record in set.records.iter().filter(|record| record.offset >= offset) {
                    lock(&self.tally).saw(self.partition, record.value.as_deref().unwrap_or_default())?;
                }
                offset = set.records.last().map_or(offset, |record| record.offset + 1);
            }
        }
    }

    async fn probe(self, way: Way, until: Instant) -> Result<()> {
        let mut client = Client::connect(self.leader).await?;
        let batch = Batch::of_size(100).encode()?;
        // The first one makes the gateway dial: no latency of a record.
        produce(&mut client, self.topic, self.partition, batch.clone()).await?;
        while Instant::now() < until {
            sleep(PROBE).await;
            let begin = Instant::now();
            produce(&mut client, self.topic, self.partition, batch.clone()).await?;
            let micros = begin.elapsed().as_micros() as u64;
            let mut tally = lock(&self.tally);
            match way {
                Way::Direct => tally.direct.micros.push(micros),
                Way::Gateway => tally.gateway.micros.push(micros),
            }
        }
        Ok(())
    }
}

async fn produce(client: &mut Client, topic: &str, partition: i32, batch: Bytes) -> Result<()> {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
    let topic = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![data]);
    let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(30_000).with_topic_data(vec![topic]);
    let answer = client.call(PRODUCE, &request).await?;
    let topic = answer.responses.first().context("an answer without the topic")?;
    let code = topic.partition_responses.first().map_or(-1, |partition| partition.error_code);
    ensure!(code == 0, "Produce: Kafka error {code}");
    Ok(())
}

/// `partition:sequence:` and dots up to the size.
fn contents(partition: i32, sequence: u64, size: usize) -> Vec<u8> {
    let mut text = format!("{partition}:{sequence}:").into_bytes();
    text.resize(size.max(text.len()), b'.');
    text
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_a_doubled_and_a_late_record_show() {
        let mut tally = Tally::new(2);
        tally.written = vec![0, 4];
        for sequence in [0, 2, 1, 2] {
            tally.saw(1, &contents(1, sequence, 100)).unwrap();
        }
        let outcome = tally.outcome();
        assert_eq!((outcome.missing, outcome.duplicates, outcome.out_of_order), (2, 2, 1));
        assert!(!tally.is_complete());
    }

    #[test]
    fn a_foreign_or_changed_record_is_an_error() {
        let mut tally = Tally::new(2);
        assert!(tally.saw(0, &contents(1, 0, 100)).is_err());
        let mut changed = contents(0, 0, 100);
        changed[50] = b'x';
        assert!(tally.saw(0, &changed).is_err());
        assert!(tally.saw(0, b"what").is_err());
        assert_eq!((tally.read, tally.bytes), (0, 0));
    }
}
