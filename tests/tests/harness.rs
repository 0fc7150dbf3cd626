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
    assert!(
        broker
            .connect()
            .and_then(|mut c| Ok(c.call(0, &kafka_protocol::messages::ApiVersionsRequest::default())?))
            .is_err()
    );
    broker.thaw()?;
    cluster.wait_ready()?;
    broker.kill();
    assert!(broker.connect().is_err());
    broker.start()?;
    broker.restart()
}
