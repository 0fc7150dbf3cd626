//! A branch's writer against a real broker: what it stamps is taken, what it retries is recognised, and what a restart
//! of the broker makes it forget is counted.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use harness::kafka::Cluster;
use harness::need_kafka;
use harness::raw::{Batch, Client};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{Compression, RecordBatchDecoder};
use turnout::branch::account::{Ledger, Outcome};
use turnout::branch::identity::{Bounds, FIRST_DERIVED, Mode, Seed};
use turnout::branch::ids::PartitionId;
use turnout::branch::place::Policy;
use turnout::branch::produce::batch::Batch as BranchBatch;
use turnout::branch::writer::{Clusters, Creation, Item, Settings, Writer};
use turnout::upstream::Door;

const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "orders";
const COPY: &str = "shadow.orders";

/// What a gateway's process has of a branch: each call is another gateway.
fn gateway(cluster: &Cluster, mode: Mode) -> Result<Writer> {
    let bootstrap: Vec<_> = cluster.bootstrap().split(',').map(str::to_owned).collect();
    let config = serde_json::from_value(serde_json::json!({ "bootstrap": bootstrap }))?;
    let door = Door::new(turnout::upstream::Cluster::spawn("real", config));
    let settings = Settings {
        mode,
        seed: Seed { cluster: "mainline".into(), branch: "staging".into() },
        rename: "shadow.{topic}".parse()?,
        partitions: Policy::Same,
        creation: Creation::Require,
        in_flight: 5,
        age: SOON,
        streams: Bounds { streams: 1000, idle: Duration::from_secs(3600) },
    };
    let clusters = Clusters { target: door.clone(), mainline: door };
    Ok(Writer::spawn("staging", settings, clusters, 64 << 20, Duration::from_secs(30), Ledger::default()))
}

/// `count` records from `sequence` on, by a client's producer, written now: a broker forgets a producer by the time of its
/// newest record (`ProducerStateManager.isProducerExpired`), and with old records at its next start.
fn batch(producer: i64, sequence: i32, count: u64, codec: Compression) -> Result<Bytes> {
    /// Base and newest timestamp, behind which the other fields lie; the first byte that the checksum covers.
    const TIMESTAMPS: [usize; 2] = [27, 35];
    const COVERED: usize = 21;
    let batch = Batch::numbered(sequence as u64, count).producer(producer, 0, sequence).compression(codec);
    let mut bytes = batch.encode()?.to_vec();
    let span = newest(&bytes) - i64::from_be_bytes(bytes[TIMESTAMPS[0]..][..8].try_into()?);
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    for (at, time) in TIMESTAMPS.into_iter().zip([now, now + span]) {
        bytes[at..at + 8].copy_from_slice(&time.to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[COVERED..]);
    bytes[COVERED - 4..COVERED].copy_from_slice(&crc.to_be_bytes());
    Ok(bytes.into())
}

fn newest(batch: &[u8]) -> i64 {
    BranchBatch::first(&Bytes::copy_from_slice(batch)).map_or(0, |batch| batch.max_timestamp())
}

async fn write(writer: &Writer, partition: i32, batches: impl IntoIterator<Item = Result<Bytes>>) -> Result<()> {
    for bytes in batches {
        let batch = BranchBatch::first(&bytes?).context("a whole batch")?;
        writer.offer(Item::new(TOPIC.into(), PartitionId(partition), batch, None, Instant::now()));
    }
    ensure!(writer.settle(SOON).await, "not done after {SOON:?}: {:?}", writer.ledger().snapshot());
    Ok(())
}

/// Producer, sequence and value of each record of the copy.
async fn copy(cluster: &Cluster, partition: i32) -> Result<Vec<(i64, i32, Bytes)>> {
    let broker = cluster.brokers().next().context("a broker")?;
    let mut client = Client::connect(broker.plaintext()).await?;
    let wanted = FetchPartition::default().with_partition(partition).with_partition_max_bytes(16 << 20);
    let topic =
        FetchTopic::default().with_topic(TopicName(StrBytes::from_static_str(COPY))).with_partitions(vec![wanted]);
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(16 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    let answer = client.call(11, &request).await?;
    let partition = &answer.responses.first().context("a topic")?.partitions[0];
    ensure!(partition.error_code == 0, "error {}", partition.error_code);
    let mut records = Vec::new();
    for set in RecordBatchDecoder::decode_all(&mut partition.records.clone().unwrap_or_default())? {
        records.extend(set.records.into_iter().map(|r| (r.producer_id, r.sequence, r.value.unwrap_or_default())));
    }
    Ok(records)
}

fn count(writer: &Writer, outcome: Outcome) -> u64 {
    writer.ledger().total(outcome).batches
}

#[test]
fn a_real_broker_takes_what_is_stamped_once_and_what_it_forgot_is_counted() -> Result<()> {
    need_kafka!();
    let cluster = Cluster::builder().brokers(1).name("branch-writer").start()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        create(&cluster).await?;

        // Every codec, and sequences across the wrap-around.
        let codecs = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
        let one = gateway(&cluster, Mode::Derived)?;
        write(&one, 0, codecs.iter().zip(0..).map(|(codec, n)| batch(1000, n * 3, 3, *codec))).await?;
        let wrapping = [(i32::MAX - 1, 3), (1, 2)];
        write(&one, 1, wrapping.map(|(sequence, n)| batch(1000, sequence, n, Compression::None))).await?;
        let seen = copy(&cluster, 0).await?;
        let expected: Vec<_> = (0..15).map(|n| Bytes::from(format!("v{n}"))).collect();
        assert_eq!(seen.iter().map(|(.., value)| value.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(seen.iter().map(|(_, sequence, _)| *sequence).collect::<Vec<_>>(), (0..15).collect::<Vec<_>>());
        assert!(seen.iter().all(|(producer, ..)| *producer >= FIRST_DERIVED.0 && *producer == seen[0].0));
        assert_eq!(copy(&cluster, 1).await?.len(), 5);
        assert_eq!(count(&one, Outcome::Written), 7, "{:?}", one.ledger().snapshot());

        // The client's retries over another gateway: recognised by the broker.
        let two = gateway(&cluster, Mode::Derived)?;
        write(&two, 0, (2..5).map(|n| batch(1000, n * 3, 3, Compression::None))).await?;
        write(&two, 0, [batch(1000, 15, 3, Compression::None)]).await?;
        assert_eq!(copy(&cluster, 0).await?.len(), 18);
        assert_eq!(count(&two, Outcome::PossibleDuplicate), 0, "{:?}", two.ledger().snapshot());

        // A batch that the branch missed: the next one starts a generation, which is counted.
        write(&two, 0, [batch(1000, 21, 3, Compression::None)]).await?;
        assert_eq!(copy(&cluster, 0).await?.len(), 21);
        assert_eq!(count(&two, Outcome::PossibleDuplicate), 1);

        // A restarted broker recognises the last batch only. Of an older one nobody can know.
        cluster.brokers().next().context("a broker")?.restart()?;
        cluster.wait_ready()?;
        let three = gateway(&cluster, Mode::Derived)?;
        write(&three, 1, [batch(1000, 1, 2, Compression::None)]).await?;
        assert_eq!((copy(&cluster, 1).await?.len(), count(&three, Outcome::PossibleDuplicate)), (5, 0));
        write(&three, 1, [batch(1000, i32::MAX - 1, 3, Compression::None)]).await?;
        assert_eq!((copy(&cluster, 1).await?.len(), count(&three, Outcome::PossibleDuplicate)), (8, 1));

        // An owned producer, given out by the broker, writes beside them.
        let owned = gateway(&cluster, Mode::Owned)?;
        write(&owned, 2, (0..4).map(|n| batch(1000, 7 + n * 2, 2, Compression::None))).await?;
        let seen = copy(&cluster, 2).await?;
        assert_eq!(seen.iter().map(|(_, sequence, _)| *sequence).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(seen.iter().all(|(producer, ..)| (0..FIRST_DERIVED.0).contains(producer)));
        Ok(())
    })
}

/// The topic of the copies, with three partitions.
async fn create(cluster: &Cluster) -> Result<()> {
    use kafka_protocol::messages::CreateTopicsRequest;
    use kafka_protocol::messages::create_topics_request::CreatableTopic;
    let broker = cluster.brokers().next().context("a broker")?;
    let mut client = Client::connect(broker.plaintext()).await?;
    let topic = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_static_str(COPY)))
        .with_num_partitions(3)
        .with_replication_factor(1);
    let answer =
        client.call(5, &CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000)).await?;
    ensure!(answer.topics.iter().all(|topic| topic.error_code == 0), "{answer:?}");
    cluster.wait_topic(COPY, 3)
}
