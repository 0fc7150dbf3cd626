//! Every family of clients does its work directly and through the gateway: the results are equal, and through the
//! gateway it is never told, and never dials, an address that isn't the gateway's.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use harness::clients::{Client, Consume, Consumed, Family, Metadata, Produce, Produced, Transaction};
use harness::kafka::{self, Cluster};
use harness::procfs::Watch;
use harness::turnout::Gateway;
use harness::{Tier, need_client, need_kafka, tier};

const PARTITIONS: u32 = 3;
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
/// Records of one produce command.
const COUNT: u64 = 300;

/// One gateway for all tests of this binary; it ends with the process.
fn gateway() -> Result<&'static Gateway> {
    static GATEWAY: OnceLock<Result<Gateway, String>> = OnceLock::new();
    let started =
        GATEWAY.get_or_init(|| kafka::shared().and_then(|c| Gateway::before(c).start()).map_err(|e| format!("{e:#}")));
    started.as_ref().map_err(|error| anyhow::anyhow!("the gateway could not be started: {error}"))
}

/// What a family's run shows of the cluster, apart from addresses and what chance decides (the placement of replicas).
#[derive(Debug, PartialEq)]
struct Outcome {
    brokers: Vec<i32>,
    cluster_id: Option<String>,
    produced: BTreeMap<String, Produced>,
    consumed: BTreeMap<&'static str, Consumed>,
    latest: BTreeMap<i32, i64>,
    committed: BTreeMap<i32, i64>,
    transacted: Option<(Produced, Consumed)>,
    /// Errors that the family reports when it asks for what isn't there, as Kafka names them.
    refused: Vec<Option<String>>,
}

/// Which acks with which codecs, idempotent or not. The first is the strictest, so that the others find leaders that
/// every broker knows: a record with acks 0 that comes too early is lost, directly as well.
fn ways_to_produce(family: Family) -> Vec<(&'static str, &'static str, bool)> {
    let mut ways = vec![("all", "none", false)];
    if tier() == Tier::Full {
        let codecs = || CODECS.into_iter().filter(|codec| family.has_codec(codec));
        ways.extend(codecs().flat_map(|codec| [("all", codec, true), ("1", codec, false), ("0", codec, false)]));
    } else {
        let few = [("1", "gzip", false), ("all", "lz4", true), ("all", "zstd", true), ("0", "snappy", false)];
        ways.extend(few.into_iter().filter(|(_, codec, _)| family.has_codec(codec)));
        if !family.has_codec("snappy") {
            ways.extend([("all", "gzip", true), ("0", "none", false)]);
        }
    }
    ways
}

fn work(client: &mut Client, family: Family, topic: &str) -> Result<(Outcome, Vec<Metadata>)> {
    let cluster = kafka::shared()?;
    cluster.create_topic(client, topic, PARTITIONS)?;
    let before = client.metadata(&[topic])?;
    let mut produced = BTreeMap::new();
    let mut total = 0;
    for (acks, codec, idempotent) in ways_to_produce(family) {
        let produce = Produce::to(topic).partitions(PARTITIONS).first(total).count(COUNT).header("h", "v");
        let mut written = client
            .produce(&produce.acks(acks).codec(codec).idempotent(idempotent))
            .with_context(|| format!("acks {acks}, codec {codec}, idempotent {idempotent}"))?;
        if acks == "0" {
            // No answer tells these; kafka-python makes some up.
            written.partitions.values_mut().for_each(|p| (p.first_offset, p.last_offset) = (None, None));
        }
        produced.insert(format!("acks {acks}, codec {codec}, idempotent {idempotent}"), written);
        total += COUNT;
    }

    let mut consumed = BTreeMap::new();
    let all = || Consume::from(topic).count(total);
    consumed.insert("assigned", client.consume(&all())?);
    consumed.insert("classic group", client.consume(&all().group(topic).commit())?);
    let committed = client.committed(topic, topic)?;
    if family.has_consumer_protocol() {
        let group = format!("{topic}-848");
        consumed.insert("KIP-848 group", client.consume(&all().consumer_group(&group).commit())?);
        ensure!(client.committed(&group, topic)? == committed, "both kinds of group commit the same");
    }
    for (how, read) in &consumed {
        read.check_complete(total).with_context(|| format!("{how} of {topic}"))?;
    }
    let latest = client.list_offsets(topic, "latest")?;
    ensure!(latest.values().sum::<i64>() == total as i64 && committed == latest, "{latest:?}, {committed:?}");

    let transacted = family.has_transactions().then(|| transact(client, topic)).transpose()?;
    let refused = vec![
        error_of(client.create_topic(topic, PARTITIONS))?,
        error_of(client.delete_topics(&[&format!("{topic}-none")]))?,
    ];
    let after = client.metadata(&[topic])?;
    client.delete_topics(&[topic])?;
    let outcome = Outcome {
        brokers: before.brokers.iter().map(|broker| broker.id).collect(),
        cluster_id: before.cluster_id.clone(),
        produced,
        consumed,
        latest,
        committed,
        transacted,
        refused,
    };
    Ok((outcome, vec![before, after]))
}

/// Two committed transactions around an aborted one, to a topic of their own.
fn transact(client: &mut Client, topic: &str) -> Result<(Produced, Consumed)> {
    let topic = format!("{topic}-tx");
    kafka::shared()?.create_topic(client, &topic, PARTITIONS)?;
    let produce = Produce::to(&topic).partitions(PARTITIONS).count(30);
    let written = client.transactions(&Transaction::new(&topic, &["commit", "abort", "commit"], produce))?;
    let read = client.consume(&Consume::from(&topic).count(60).read_committed())?;
    read.check_complete(60)?;
    client.delete_topics(&[&topic])?;
    Ok((written, read))
}

fn error_of(result: Result<()>) -> Result<Option<String>> {
    match result {
        Ok(()) => anyhow::bail!("what isn't there, or is there already, was not refused"),
        Err(error) => Ok(error.downcast::<harness::clients::ClientError>()?.kafka),
    }
}

fn run(family: Family, bootstrap: &str, topic: &str) -> Result<(Outcome, Vec<Metadata>, Vec<String>)> {
    let mut client = Client::start(family)?;
    let watch = Watch::start(client.process().pid());
    client.connect(bootstrap)?;
    let (outcome, told) = work(&mut client, family, topic)
        .with_context(|| format!("the end of the client's log:\n{}", client.log_tail(60)))?;
    let dialled = watch.stop()?.iter().map(ToString::to_string).collect();
    client.close()?;
    Ok((outcome, told, dialled))
}

/// The whole proof for one family. Both runs go on at once: they share nothing but the cluster.
fn is_the_same_through_the_gateway(family: Family) -> Result<()> {
    let (cluster, gateway) = (kafka::shared()?, gateway()?);
    let name = |way: &str| kafka::unique(&format!("{family}-{way}"));
    let (direct, through) = std::thread::scope(|scope| {
        let (bootstrap, topic) = (cluster.bootstrap(), name("direct"));
        let direct = scope.spawn(move || run(family, &bootstrap, &topic));
        let through = run(family, &gateway.bootstrap(), &name("gateway"));
        (direct.join(), through)
    });
    let (direct, told, _) = direct.map_err(|_| anyhow::anyhow!("the direct run panicked"))?.context("directly")?;
    ensure!(told.iter().all(|told| told.addresses.len() >= 3), "the direct run was told too little: {told:?}");
    let (outcome, told, dialled) = through.context("through the gateway")?;
    assert_eq!(outcome, direct);
    only_the_gateway(gateway, cluster, &told, &dialled)
}

fn only_the_gateway(gateway: &Gateway, cluster: &Cluster, told: &[Metadata], dialled: &[String]) -> Result<()> {
    for metadata in told {
        for broker in &metadata.brokers {
            let virtual_broker = gateway.broker_addr(broker.id)?.to_string();
            assert_eq!(format!("{}:{}", broker.host, broker.port), virtual_broker, "node {}", broker.id);
        }
        let strange: Vec<_> = metadata.addresses.iter().filter(|address| !gateway.owns(address)).collect();
        assert!(strange.is_empty() && !metadata.addresses.is_empty(), "the client was told {strange:?}");
    }
    let strange: Vec<_> = dialled.iter().filter(|address| !gateway.owns(address)).collect();
    assert!(strange.is_empty(), "the client dialled {strange:?}");
    // The watch sees what it should: every virtual broker was dialled.
    for broker in cluster.brokers() {
        let virtual_broker = gateway.broker_addr(broker.node_id())?.to_string();
        ensure!(dialled.contains(&virtual_broker), "{virtual_broker} is not among {dialled:?}");
    }
    Ok(())
}

fn family(family: Family) -> Result<()> {
    need_kafka!();
    need_client!(family);
    is_the_same_through_the_gateway(family)
}

#[test]
fn java_is_the_same_through_the_gateway() -> Result<()> {
    family(Family::Java)
}

#[test]
fn librdkafka_is_the_same_through_the_gateway() -> Result<()> {
    family(Family::Librdkafka)
}

#[test]
fn kafka_python_is_the_same_through_the_gateway() -> Result<()> {
    family(Family::KafkaPython)
}

#[test]
fn franz_is_the_same_through_the_gateway() -> Result<()> {
    family(Family::Franz)
}

#[test]
fn sarama_is_the_same_through_the_gateway() -> Result<()> {
    family(Family::Sarama)
}

#[test]
fn kafkajs_is_the_same_through_the_gateway() -> Result<()> {
    family(Family::Kafkajs)
}

/// KIP-932. A new share group begins at the end of the topic unless its config says otherwise, so the config tool goes
/// through the gateway as well.
#[test]
fn a_java_share_group_reads_the_same_through_the_gateway() -> Result<()> {
    need_kafka!();
    let (cluster, gateway) = (kafka::shared()?, gateway()?);
    let mut client = Client::start(Family::Java)?;
    client.connect(&cluster.bootstrap())?;
    let topic = kafka::unique("share");
    cluster.create_topic(&mut client, &topic, PARTITIONS)?;
    client.produce(&Produce::to(&topic).partitions(PARTITIONS).count(COUNT))?;
    let mut reads = Vec::new();
    for (way, bootstrap) in [("direct", cluster.bootstrap()), ("gateway", gateway.bootstrap())] {
        let group = kafka::unique(&format!("share-{way}"));
        let arguments =
            ["--bootstrap-server", &bootstrap, "--alter", "--entity-type", "groups", "--entity-name", &group];
        let earliest = ["--add-config", "share.auto.offset.reset=earliest"];
        cluster.artifacts().tool("kafka.admin.ConfigCommand", &[&arguments[..], &earliest].concat())?;
        client.connect(&bootstrap)?;
        let watch = Watch::start(client.process().pid());
        let read = client.share_consume(&topic, &group, COUNT, 60_000)?;
        let dialled: Vec<_> = watch.stop()?.iter().map(ToString::to_string).collect();
        if way == "gateway" {
            only_the_gateway(gateway, cluster, &[client.metadata(&[&topic])?], &dialled)?;
        }
        read.check_complete(COUNT).context(way)?;
        reads.push(read);
    }
    assert_eq!(reads[1], reads[0]);
    client.close()
}

/// The tools that operators type, from Kafka's own jars.
#[test]
fn java_tools_work_through_the_gateway() -> Result<()> {
    need_kafka!();
    let (cluster, gateway) = (kafka::shared()?, gateway()?);
    let (bootstrap, topic) = (gateway.bootstrap(), kafka::unique("tools"));
    let tool = |class: &str, arguments: &[&str]| {
        cluster.artifacts().tool(class, &[&["--bootstrap-server", &bootstrap], arguments].concat())
    };
    tool("org.apache.kafka.tools.TopicCommand", &["--create", "--topic", &topic, "--partitions", "3"])?;
    let server = format!("bootstrap.servers={bootstrap}");
    let load = ["--topic", &topic, "--num-records", "5000", "--record-size", "500", "--throughput", "-1"];
    let produced = cluster.artifacts().tool(
        "org.apache.kafka.tools.ProducerPerformance",
        &[&load[..], &["--producer-props", &server, "linger.ms=5"]].concat(),
    )?;
    ensure!(produced.contains("5000 records sent"), "{produced}");
    let consumed = tool("org.apache.kafka.tools.ConsumerPerformance", &["--topic", &topic, "--messages", "5000"])?;
    ensure!(consumed.contains("5000"), "{consumed}");
    let offsets = tool("org.apache.kafka.tools.GetOffsetShell", &["--topic", &topic])?;
    let sum: u64 = offsets.lines().filter_map(|line| line.rsplit(':').next()?.trim().parse::<u64>().ok()).sum();
    ensure!(sum == 5000, "{offsets}");
    if tier() == Tier::Full {
        let read = tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            &["--topic", &topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000"],
        )?;
        ensure!(read.lines().count() == 100, "{} lines", read.lines().count());
    }
    gateway.check_quiet(&[])
}
