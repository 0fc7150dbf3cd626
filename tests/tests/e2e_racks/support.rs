//! One cluster for all tests of this binary, whose clients are all in the rack of broker 3; topics that broker 3 copies and
//! others lead; and streams that run while something happens.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Consumed, Family, Produce, Produced};
use harness::kafka::{self, Cluster};
use harness::raw::blocking::Connection;
use harness::turnout::{Gateway, GatewayBuilder, VIRTUAL_CLUSTER};
use harness::{paths, wait};
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use serde_json::json;
use turnout::gateway::status::{ConnectionStatus, RacksReport};
use turnout::racks::tally::Counts;

/// What must happen "within seconds" happens within this, on a busy host.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The broker in the clients' rack.
pub(crate) const NEAR: i32 = 3;
pub(crate) const PARTITIONS: u32 = 2;
/// Records a second of one stream, and bytes of each.
const RATE: u64 = 200;
const SIZE: usize = 500;
/// Bytes between two looks that are more than empty answers.
const FLOWING: u64 = 3000;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct Stage {
    /// Leads consumers by the leader's answers.
    pub(crate) gateway: Gateway,
    /// Passes everything: what reads here reads at the leader, as a direct connection does, and is seen doing so.
    pub(crate) plain: Gateway,
    pub(crate) cluster: Cluster,
    _heavy: paths::FileLock,
}

/// Starts them once; they end with the process. What a test that failed left behind is mended first.
pub(crate) fn stage() -> Result<&'static Stage> {
    static STAGE: OnceLock<Result<Stage, String>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    let stage = stage.as_ref().map_err(|error| anyhow::anyhow!("the cluster could not be started: {error}"))?;
    stage.cluster.mend()?;
    Ok(stage)
}

fn start() -> Result<Stage> {
    let heavy = kafka::heavy()?;
    let cluster = Cluster::builder()
        .name("racks")
        .brokers(3)
        .racks(&["az1", "az2", "az3"])
        // It chooses nothing for clients that name no rack, so one cluster serves both ways of leading them.
        .rack_aware_selector(true)
        .property("broker.heartbeat.interval.ms", "500")
        .property("broker.session.timeout.ms", "4000")
        .property("replica.lag.time.max.ms", "4000")
        .property("auto.leader.rebalance.enable", "false")
        .start()?;
    let gateway = gateway(&cluster, "patch", "").start()?;
    let plain = Gateway::before(&cluster).start()?;
    Ok(Stage { gateway, plain, cluster, _heavy: heavy })
}

/// A gateway that leads all clients to the rack `az3`.
pub(crate) fn gateway(cluster: &Cluster, mode: &str, more: &str) -> GatewayBuilder {
    let racks = format!(
        "racks: {{mode: {mode}, clients: [{{cidr: 127.0.0.0/8, rack: az3}}], hold_down: 3s, hold_down_max: 6s, price_per_gb: 0.02 USD{more}}}"
    );
    // Brokers come and go here, and all are on this host.
    Gateway::before(cluster).virtual_line(&racks).cluster_line("partition_refresh: 1s").cluster_line("refresh: 5s")
}

/// Makes a topic that brokers 1 and 2 lead in turn and broker 3 copies.
pub(crate) fn make_topic(cluster: &Cluster, base: &str) -> Result<String> {
    let topic = kafka::unique(base);
    make_topic_named(cluster, &topic)?;
    Ok(topic)
}

pub(crate) fn make_topic_named(cluster: &Cluster, topic: &str) -> Result<()> {
    let assignments = (0..PARTITIONS as i32).map(|index| {
        let leader = 1 + index % 2;
        let replicas = [leader, NEAR, 3 - leader].map(BrokerId);
        CreatableReplicaAssignment::default().with_partition_index(index).with_broker_ids(replicas.to_vec())
    });
    let request = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_assignments(assignments.collect());
    wait::until("the topic to be made", SOON, || {
        let broker = cluster.brokers().find(|broker| broker.is_running()).context("no broker runs")?;
        let mut connection = Connection::open(broker.plaintext(), None, SOON)?;
        let request = CreateTopicsRequest::default().with_topics(vec![request.clone()]).with_timeout_ms(10_000);
        let answer = connection.call(5, &request)?;
        // 36: it was made by the attempt before.
        ensure!(answer.topics.iter().all(|topic| matches!(topic.error_code, 0 | 36)), "{answer:?}");
        Ok(())
    })?;
    cluster.wait_topic(topic, PARTITIONS)
}

/// How a family reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Assigned,
    Classic,
    Kip848,
}

/// A live producer, and a consumer of one family beside it.
pub(crate) struct Stream {
    pub(crate) family: Family,
    pub(crate) topic: String,
    pub(crate) reader: String,
    producer: Client,
    pub(crate) consumer: Client,
    /// The same family at the leader.
    control: Option<Client>,
    pub(crate) count: u64,
    ends: Instant,
}

/// Settings that make a family notice a silent broker in seconds, and keep to its cluster's word for as long as a test.
fn properties(family: Family) -> serde_json::Value {
    match family {
        Family::Java => json!({"request.timeout.ms": "8000", "default.api.timeout.ms": "20000"}),
        Family::Librdkafka => json!({"socket.timeout.ms": 8000}),
        _ => json!({}),
    }
}

impl Stream {
    /// One that goes on for `seconds`; its producer and consumer are at work when this returns.
    pub(crate) fn start(gateway: &Gateway, cluster: &Cluster, family: Family, way: Way, seconds: u64) -> Result<Self> {
        let topic = make_topic(cluster, &format!("racks-{family}"))?;
        let reader = kafka::unique(&format!("reader-{family}"));
        let connect = |client_id: &str, family: Family| -> Result<Client> {
            let mut client = Client::start(family)?;
            client.set_patience(Duration::from_secs(180));
            let more = json!({"client_id": client_id, "properties": properties(family)});
            client.connect_with(&gateway.bootstrap(), more)?;
            Ok(client)
        };
        // Of one family, so that producers cost little beside many consumers.
        let mut producer = connect("writer", Family::Librdkafka)?;
        let mut consumer = connect(&reader, family)?;
        let count = RATE * seconds;
        let consume = Consume::from(&topic).count(count).timeout_ms(1000 * seconds + 60_000);
        let consume = match way {
            Way::Assigned => consume,
            Way::Classic => consume.group(&topic),
            Way::Kip848 => consume.consumer_group(&topic),
        };
        consumer.send("consume", serde_json::to_value(consume)?)?;
        let produce = Produce::to(&topic).partitions(PARTITIONS).count(count).size(SIZE).rate(RATE).idempotent(true);
        producer.send("produce", serde_json::to_value(produce)?)?;
        let ends = Instant::now() + Duration::from_secs(seconds);
        Ok(Self { family, topic, reader, producer, consumer, control: None, count, ends })
    }

    /// Lets another consumer of the family read the same at the leader, for comparison.
    pub(crate) fn add_control(&mut self, plain: &Gateway) -> Result<()> {
        let mut control = Client::start(self.family)?;
        let more = json!({"client_id": self.reader, "properties": properties(self.family)});
        control.connect_with(&plain.bootstrap(), more)?;
        control.set_patience(Duration::from_secs(180));
        let consume = Consume::from(&self.topic).count(self.count).timeout_ms(150_000);
        control.send("consume", serde_json::to_value(consume)?)?;
        self.control = Some(control);
        wait::until(&format!("the other {} to read", self.family), SOON, || {
            let received: u64 = self.flow().received(plain)?.values().sum();
            ensure!(received > 10 * FLOWING, "{received} bytes");
            Ok(())
        })
    }

    /// Several at once, all reading in their rack.
    pub(crate) fn start_all(
        gateway: &Gateway,
        cluster: &Cluster,
        readers: &[(Family, Way)],
        seconds: u64,
    ) -> Result<Vec<Self>> {
        let streams: Vec<_> = std::thread::scope(|scope| {
            let start = |(family, way): &(Family, Way)| {
                let (family, way) = (*family, *way);
                scope.spawn(move || {
                    Self::start(gateway, cluster, family, way, seconds).with_context(|| family.to_string())
                })
            };
            let threads: Vec<_> = readers.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let started = |stream: std::thread::Result<Result<Self>>| {
            stream.map_err(|_| anyhow::anyhow!("starting a stream panicked"))?
        };
        let streams: Vec<Self> = streams.into_iter().map(started).collect::<Result<_>>()?;
        for stream in &streams {
            stream.wait_near(gateway)?;
        }
        Ok(streams)
    }

    /// Waits until records come from the replica in the clients' rack.
    pub(crate) fn wait_near(&self, gateway: &Gateway) -> Result<()> {
        wait::until(&format!("{} to read in its rack", self.family), SOON, || {
            let counts = read(gateway, &self.topic)?;
            ensure!(counts.saved_bytes > 0, "{counts:?}");
            Ok(())
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        Instant::now() < self.ends
    }

    /// What sees how its records flow.
    pub(crate) fn flow(&self) -> Flow {
        Flow { family: self.family, reader: self.reader.clone(), ends: self.ends }
    }

    /// Both come to their end: every record was read once and in order.
    pub(crate) fn finish(mut self) -> Result<()> {
        let family = self.family;
        let written: Produced =
            serde_json::from_value(self.producer.receive().with_context(|| format!("writing for {family}"))?)?;
        ensure!(written.delivered == self.count, "{family}: {} of {} delivered", written.delivered, self.count);
        let read: Consumed =
            serde_json::from_value(self.consumer.receive().with_context(|| format!("{family} reading"))?)?;
        read.check_complete(self.count)
            .with_context(|| format!("{family}; the end of its log:\n{}", self.consumer.log_tail(30)))?;
        for (partition, written) in &written.partitions {
            let read = &read.partitions[partition];
            let last = written.last_offset.context("no last offset")?;
            ensure!(
                (read.first_offset, read.last_offset) == (0, last),
                "{family}, partition {partition}: read {} to {}, written up to {last}",
                read.first_offset,
                read.last_offset
            );
        }
        if let Some(mut control) = self.control {
            let read: Consumed = serde_json::from_value(control.receive()?)?;
            read.check_complete(self.count).with_context(|| format!("{family} at the leader"))?;
            control.close()?;
        }
        self.producer.close()?;
        self.consumer.close()
    }
}

/// See [`Stream::flow`].
pub(crate) struct Flow {
    pub(crate) family: Family,
    reader: String,
    ends: Instant,
}

impl Flow {
    /// Bytes to its consumer so far, by connection.
    fn received(&self, gateway: &Gateway) -> Result<BTreeMap<u64, u64>> {
        let mine = connections(gateway)?.into_iter().filter(|open| open.client_id.as_deref() == Some(&self.reader));
        Ok(mine.map(|open| (open.id, open.answer_bytes)).collect())
    }

    /// Requests of its consumer so far, by connection: some end meanwhile.
    pub(crate) fn requests(&self, gateway: &Gateway) -> Result<BTreeMap<u64, u64>> {
        let mine = connections(gateway)?.into_iter().filter(|open| open.client_id.as_deref() == Some(&self.reader));
        Ok(mine.map(|open| (open.id, open.requests)).collect())
    }

    /// The longest time without records from now on.
    pub(crate) fn longest_gap(&self, gateway: &Gateway, until: Instant) -> Result<Duration> {
        let mut before = self.received(gateway)?;
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        while Instant::now() < until && Instant::now() < self.ends {
            std::thread::sleep(LOOK);
            let now = self.received(gateway)?;
            let grown: u64 = now.iter().map(|(id, n)| n.saturating_sub(before.get(id).copied().unwrap_or(0))).sum();
            if grown >= FLOWING {
                last = Instant::now();
            }
            longest = longest.max(last.elapsed());
            before = now;
        }
        Ok(longest)
    }
}

pub(crate) fn finish(streams: Vec<Stream>) -> Result<()> {
    streams.into_iter().try_for_each(Stream::finish)
}

/// What the gateway tells of its routing.
pub(crate) fn report(gateway: &Gateway) -> Result<RacksReport> {
    let (code, body) = gateway.get("/racks")?;
    ensure!(code == 200, "/racks answers {code}: {body}");
    let mut all: BTreeMap<String, RacksReport> = serde_json::from_str(&body).with_context(|| body.clone())?;
    all.remove(VIRTUAL_CLUSTER).context("the virtual cluster is not in /racks")
}

/// What was read of a topic.
pub(crate) fn read(gateway: &Gateway, topic: &str) -> Result<Counts> {
    let mut sum = Counts::default();
    report(gateway)?.rows.iter().filter(|row| row.topic == topic).for_each(|row| sum.add(&row.counts));
    Ok(sum)
}

fn connections(gateway: &Gateway) -> Result<Vec<ConnectionStatus>> {
    let (code, body) = gateway.get("/connections?limit=1000")?;
    ensure!(code == 200, "/connections answers {code}: {body}");
    let page: turnout::admin::ConnectionsPage = serde_json::from_str(&body)?;
    Ok(page.connections)
}

/// Leaves the calling test with a registered skip where Kafka or one of these client families can't be had.
macro_rules! need_families {
    ($($family:ident),*) => {
        harness::need_kafka!();
        $(harness::need_client!(harness::clients::Family::$family);)*
    };
}
pub(crate) use need_families;
