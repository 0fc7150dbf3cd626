//! One cluster and one gateway for all tests of this binary, and streams that run while something happens to them.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Consumed, Family, Produce, Produced};
use harness::kafka::{self, Cluster};
use harness::raw::blocking::Connection;
use harness::turnout::{CLUSTER, Gateway};
use harness::{paths, wait};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponsePartition;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use serde_json::json;
use turnout::gateway::status::Status;

/// What must happen "within seconds" happens within this, on a busy host.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// How long clients and brokers may take to get over a fault.
pub(crate) const RECOVERY: Duration = Duration::from_secs(60);

/// Node ids with gaps.
pub(crate) const NODES: [i32; 3] = [1, 7, 9];
/// The one that joins when the others already serve.
pub(crate) const LATE: i32 = 9;

/// The families that most others are built on or copied from.
pub(crate) const FAMILIES: [Family; 2] = [Family::Java, Family::Librdkafka];

const PARTITIONS: u32 = 3;
/// How long an idle host takes to start the clients of a test and make their topics.
const PREPARED_IN: Duration = Duration::from_secs(3);
/// Records a second of one stream.
const RATE: u64 = 300;

pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) cluster: Cluster,
    pub(crate) arrival: Arrival,
    _heavy: paths::FileLock,
}

/// What was seen while the cluster came up, broker by broker, behind a gateway that ran before it.
pub(crate) struct Arrival {
    /// While no broker ran, until the gateway had tried them: what `/readyz` and `/status` said.
    pub(crate) down: Vec<(String, Status)>,
    pub(crate) port_was_open: bool,
    /// From the moment that two brokers were ready to the gateway's saying so.
    pub(crate) healed_after: Result<Duration, String>,
    /// Brokers in the Metadata answer then.
    pub(crate) first_brokers: Vec<i32>,
    /// From the moment that Metadata listed the third broker to an answer from its virtual port.
    pub(crate) joined_after: Result<Duration, String>,
}

/// Starts them once; they end with the process. What a test that failed left behind is mended first.
pub(crate) fn stage() -> Result<&'static Stage> {
    static STAGE: OnceLock<Result<Stage, String>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| arrive().map_err(|error| format!("{error:#}")));
    let stage = stage.as_ref().map_err(|error| anyhow::anyhow!("the cluster could not be started: {error}"))?;
    stage.cluster.mend()?;
    Ok(stage)
}

fn arrive() -> Result<Stage> {
    let heavy = kafka::heavy()?;
    let cluster = Cluster::builder()
        .name("faults")
        .node_ids(&NODES)
        .heap_mb(768)
        // A broker that is gone is noticed in seconds.
        .property("broker.heartbeat.interval.ms", "500")
        .property("broker.session.timeout.ms", "4000")
        .property("replica.lag.time.max.ms", "4000")
        .property("replica.fetch.max.bytes", "60000000")
        .build()?;
    let gateway = Gateway::before(&cluster).without_waiting().start()?;
    let down = watch_down(&gateway)?;
    let port_was_open = std::net::TcpStream::connect_timeout(&gateway.bootstrap_addr(), SOON).is_ok();

    for broker in cluster.brokers().filter(|broker| broker.node_id() != LATE) {
        broker.launch()?;
    }
    cluster.wait_ready()?;
    let healed_after = after("the gateway to reach the cluster", || {
        let state = gateway.status()?.clusters[CLUSTER].state.clone();
        ensure!(state == "reached", "the cluster is {state}");
        gateway.wait_ready()
    });
    let first_brokers = brokers_of(&metadata(&gateway, &[])?);

    cluster.broker(LATE)?.start()?;
    wait::until("the third broker in Metadata", SOON, || {
        let brokers = brokers_of(&metadata(&gateway, &[])?);
        ensure!(brokers == NODES, "{brokers:?}");
        Ok(())
    })?;
    let joined_after = after("the third broker's port", || {
        let mut connection = Connection::open(gateway.broker_addr(LATE)?, None, Duration::from_secs(5))?;
        connection.call(9, &MetadataRequest::default().with_topics(Some(Vec::new()))).map(drop)
    });
    cluster.wait_ready()?;
    let arrival = Arrival { down, port_was_open, healed_after, first_brokers, joined_after };
    Ok(Stage { gateway, cluster, arrival, _heavy: heavy })
}

/// Looks until the gateway has tried the brokers.
fn watch_down(gateway: &Gateway) -> Result<Vec<(String, Status)>> {
    let mut seen = Vec::new();
    wait::until("the reason why no broker is reached", SOON, || {
        let (_, body) = gateway.get("/readyz")?;
        let status = gateway.status()?;
        let reason = status.clusters[CLUSTER].reason.clone();
        seen.push((body, status));
        reason.context("no reason yet").map(drop)
    })?;
    Ok(seen)
}

fn after(what: &str, probe: impl FnMut() -> Result<()>) -> Result<Duration, String> {
    let begin = Instant::now();
    wait::until(what, SOON, probe).map(|()| begin.elapsed()).map_err(|error| format!("{error:#}"))
}

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// Metadata as the gateway's bootstrap port tells it.
pub(crate) fn metadata(gateway: &Gateway, topics: &[&str]) -> Result<MetadataResponse> {
    let topics = topics.iter().map(|topic| MetadataRequestTopic::default().with_name(Some(name(topic)))).collect();
    let mut connection = Connection::open(gateway.bootstrap_addr(), None, Duration::from_secs(5))?;
    connection.call(9, &MetadataRequest::default().with_topics(Some(topics)))
}

pub(crate) fn brokers_of(metadata: &MetadataResponse) -> Vec<i32> {
    let mut ids: Vec<_> = metadata.brokers.iter().map(|broker| broker.node_id.0).collect();
    ids.sort_unstable();
    ids
}

/// A topic's partitions, once every one has a leader.
pub(crate) fn partitions(gateway: &Gateway, topic: &str) -> Result<Vec<MetadataResponsePartition>> {
    let answer = metadata(gateway, &[topic])?;
    let found = answer.topics.first().context("no topic in the answer")?;
    ensure!(found.error_code == 0, "{topic} has error {}", found.error_code);
    let mut partitions = found.partitions.clone();
    partitions.sort_unstable_by_key(|partition| partition.partition_index);
    ensure!(partitions.iter().all(|partition| partition.error_code == 0), "{topic}: {partitions:?}");
    Ok(partitions)
}

pub(crate) fn leaders(gateway: &Gateway, topic: &str) -> Result<Vec<i32>> {
    Ok(partitions(gateway, topic)?.iter().map(|partition| partition.leader_id.0).collect())
}

/// Settings that make a family notice a silent broker in seconds.
pub(crate) fn impatient(family: Family) -> serde_json::Value {
    let properties = match family {
        Family::Java => json!({"request.timeout.ms": "5000", "reconnect.backoff.max.ms": "500"}),
        Family::Librdkafka => json!({"socket.timeout.ms": 5000, "reconnect.backoff.max.ms": 500}),
        _ => json!({}),
    };
    json!({ "properties": properties })
}

/// An idempotent producer and a consumer of one family, both at work on a topic of their own.
pub(crate) struct Stream {
    pub(crate) topic: String,
    producer: Client,
    consumer: Client,
    count: u64,
    ends: Instant,
}

impl Stream {
    /// Streams of these families, all well on their way, that go on for `seconds` at least, longer on a busy host.
    pub(crate) fn start(families: &[Family], cluster: &Cluster, gateway: &Gateway, seconds: u64) -> Result<Vec<Self>> {
        let begin = Instant::now();
        let prepared: Vec<_> = std::thread::scope(|scope| {
            let prepare = |family: &Family| {
                let family = *family;
                scope.spawn(move || Self::prepare(family, cluster, gateway))
            };
            let threads: Vec<_> = families.iter().map(prepare).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let mut streams = Vec::new();
        for stream in prepared {
            streams.push(stream.map_err(|_| anyhow::anyhow!("preparing a stream panicked"))??);
        }
        // Where this took long, what is to happen to the streams will.
        let slowness = (begin.elapsed().as_secs_f64() / PREPARED_IN.as_secs_f64()).clamp(1.0, 4.0);
        println!("streams prepared in {:?}: {slowness:.1} times {seconds} s", begin.elapsed());
        for stream in &mut streams {
            stream.begin((slowness * seconds as f64) as u64)?;
        }
        for stream in &streams {
            stream.wait_flowing(gateway)?;
        }
        Ok(streams)
    }

    fn prepare(family: Family, cluster: &Cluster, gateway: &Gateway) -> Result<Self> {
        let topic = kafka::unique(&format!("faults-{family}"));
        let start = || -> Result<Client> {
            let mut client = Client::start(family)?;
            client.set_patience(Duration::from_secs(150));
            client.connect_with(&gateway.bootstrap(), impatient(family))?;
            Ok(client)
        };
        let (mut producer, consumer) = (start()?, start()?);
        cluster.create_topic(&mut producer, &topic, PARTITIONS)?;
        Ok(Self { topic, producer, consumer, count: 0, ends: Instant::now() })
    }

    fn begin(&mut self, seconds: u64) -> Result<()> {
        self.count = RATE * seconds;
        let produce = Produce::to(&self.topic).partitions(PARTITIONS).count(self.count).size(300);
        // Without a group, so that what is read twice was written twice.
        let consume = Consume::from(&self.topic).count(self.count).timeout_ms(120_000);
        self.consumer.send("consume", serde_json::to_value(consume)?)?;
        self.producer.send("produce", serde_json::to_value(produce.rate(RATE).idempotent(true))?)?;
        self.ends = Instant::now() + Duration::from_secs(seconds);
        Ok(())
    }

    /// Waits until both clients have connections that carry records.
    fn wait_flowing(&self, gateway: &Gateway) -> Result<()> {
        let client_id = format!("test-{}", self.producer.family());
        wait::until("records to flow", RECOVERY, || {
            let open = gateway.connections()?;
            let mine = open.iter().filter(|connection| connection.client_id.as_deref() == Some(client_id.as_str()));
            // Bytes tell the two apart: one sends records, the other gets them.
            let (sends, gets) = mine.fold((0, 0), |(sends, gets), connection| {
                (sends.max(connection.request_bytes), gets.max(connection.answer_bytes))
            });
            ensure!(sends > 30_000 && gets > 30_000, "{client_id}: at most {sends} bytes sent, {gets} got");
            Ok(())
        })
    }

    /// Whether the producer still has records to write.
    pub(crate) fn is_running(&self) -> bool {
        Instant::now() < self.ends
    }

    /// Both come to their end; every record is there once and in order, for the consumer that watched it all and for
    /// a group that reads afterwards.
    pub(crate) fn finish(mut self) -> Result<()> {
        let family = self.producer.family();
        let written: Produced =
            serde_json::from_value(self.producer.receive().with_context(|| format!("{family} producing"))?)?;
        ensure!(written.delivered == self.count, "{family}: {} of {} delivered", written.delivered, self.count);
        let read: Consumed =
            serde_json::from_value(self.consumer.receive().with_context(|| format!("{family} consuming"))?)?;
        read.check_complete(self.count).with_context(|| format!("{family}, reading all along"))?;
        let ends = self.consumer.list_offsets(&self.topic, "latest")?;
        ensure!(ends.values().sum::<i64>() == self.count as i64, "{family}: {ends:?} for {} records", self.count);
        let group = Consume::from(&self.topic).group(&self.topic).count(self.count).commit();
        let read = self.producer.consume(&group).with_context(|| format!("{family}, a group afterwards"))?;
        read.check_complete(self.count).with_context(|| format!("{family}, a group afterwards"))?;
        self.producer.close()?;
        self.consumer.close()
    }
}

pub(crate) fn finish(streams: Vec<Stream>) -> Result<()> {
    streams.into_iter().try_for_each(Stream::finish)
}

/// Leaves the calling test with a registered skip where Kafka or one of the two client families can't be had.
macro_rules! need_all {
    () => {
        harness::need_kafka!();
        harness::need_client!(harness::clients::Family::Java);
        harness::need_client!(harness::clients::Family::Librdkafka);
    };
}
pub(crate) use need_all;
