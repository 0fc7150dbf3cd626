//! The harness proves itself against real Kafka, without a gateway.

use anyhow::Result;
use harness::kafka::{self, Cluster, Listener};

#[test]
fn a_shared_cluster_of_three_racks_is_ready() -> Result<()> {
    let cluster = kafka::shared()?;
    let racks: Vec<_> = cluster.brokers().map(|broker| broker.rack().unwrap_or_default()).collect();
    assert_eq!(racks, ["az1", "az2", "az3"]);
    assert_eq!(cluster.bootstrap_of(Listener::Sasl)?.split(',').count(), 3);
    cluster.wait_ready()
}

#[test]
fn a_broker_can_be_frozen_killed_and_restarted() -> Result<()> {
    let cluster = Cluster::builder().node_ids(&[5]).start()?;
    let broker = cluster.broker(5)?;
    broker.freeze()?;
    assert!(broker.connect().and_then(|mut c| Ok(c.call(0, &kafka_protocol::messages::ApiVersionsRequest::default())?)).is_err());
    broker.thaw()?;
    cluster.wait_ready()?;
    broker.kill();
    assert!(broker.connect().is_err());
    broker.start()?;
    broker.restart()
}

use harness::clients::{Client, Consume, Family, Produce, Transaction};

fn writes_and_reads(family: Family) -> Result<()> {
    let cluster = kafka::shared()?;
    let mut client = Client::start(family)?;
    client.connect(&cluster.bootstrap())?;
    let topic = kafka::unique(family.name());
    client.create_topic(&topic, 3)?;
    let metadata = client.metadata(&[&topic])?;
    let own: Vec<_> = cluster.brokers().map(|broker| broker.plaintext().to_string()).collect();
    assert!(metadata.addresses.iter().all(|address| own.contains(address)), "{metadata:?}");
    assert_eq!(metadata.brokers.len(), 3);
    let written = client.produce(&Produce::to(&topic).partitions(3).count(1000).header("h", "v"))?;
    assert_eq!(written.delivered, 1000);
    let assigned = client.consume(&Consume::from(&topic).count(1000))?;
    assigned.check_complete(1000)?;
    let grouped = client.consume(&Consume::from(&topic).count(1000).group(&topic).commit())?;
    grouped.check_complete(1000)?;
    assert_eq!(assigned, grouped);
    let ends = client.list_offsets(&topic, "latest")?;
    assert_eq!(ends.values().sum::<i64>(), 1000);
    assert_eq!(client.committed(&topic, &topic)?, ends);
    if family.has_transactions() {
        let id = kafka::unique("tx");
        let produce = Produce::to(&topic).partitions(3).first(1000).count(30);
        client.transactions(&Transaction::new(&id, &["commit", "abort", "commit"], produce))?;
        let read = client.consume(&Consume::from(&topic).count(2000).read_committed().timeout_ms(4000))?;
        read.check_complete(1060)?;
    }
    client.close()
}

#[test]
fn java_writes_and_reads() -> Result<()> {
    writes_and_reads(Family::Java)
}

#[test]
fn the_admin_sweep_is_repeatable() -> Result<()> {
    let cluster = kafka::shared()?;
    let mut client = Client::start(Family::Java)?;
    client.connect(&cluster.bootstrap())?;
    let first = client.admin_sweep(&kafka::unique("sweep"))?;
    let second = client.admin_sweep(&kafka::unique("sweep"))?;
    assert_eq!(first.missing, Vec::<String>::new());
    for (method, result) in &first.methods {
        if std::env::var("SHOW").is_ok() { println!("{method}: {result}"); }
        assert_eq!(result, &second.methods[method], "{method}");
    }
    client.close()
}

#[test]
fn librdkafka_writes_and_reads() -> Result<()> {
    writes_and_reads(Family::Librdkafka)
}

#[test]
fn kafka_python_writes_and_reads() -> Result<()> {
    writes_and_reads(Family::KafkaPython)
}

#[test]
fn franz_writes_and_reads() -> Result<()> {
    writes_and_reads(Family::Franz)
}

#[test]
fn sarama_writes_and_reads() -> Result<()> {
    writes_and_reads(Family::Sarama)
}

#[test]
fn kafkajs_writes_and_reads() -> Result<()> {
    writes_and_reads(Family::Kafkajs)
}
