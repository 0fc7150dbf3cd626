//! The three version policies against real brokers: clients negotiate and their transactions work under each, and the
//! leader hints of KIP-951 name the gateway.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use harness::clients::{Client, Consume, Family, Produce, Transaction};
use harness::kafka::{self, Cluster};
use harness::need_kafka;
use harness::raw::blocking::Connection;
use harness::raw::{self, AnswerFrame, Batch, RequestFrame};
use harness::turnout::Gateway;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, BrokerId, FetchRequest, MetadataRequest, ProduceRequest, RequestHeader,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const UNSUPPORTED_VERSION: i16 = 35;
const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const API_VERSIONS: i16 = 18;
/// The newest versions of Kafka 4.3 that the gateway serves, and those that a policy caps to.
const PRODUCE_NEWEST: i16 = 13;
const FETCH_NEWEST: i16 = 18;
const FETCH_AUTO: i16 = 15;
const PRODUCE_CONSERVATIVE: i16 = 9;

fn gateway(cluster: &Cluster, policy: &str) -> Result<Gateway> {
    Gateway::before(cluster).virtual_line(&format!("versions: {policy}")).start()
}

fn offered(address: std::net::SocketAddr) -> Result<ApiVersionsResponse> {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("e2e"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    Connection::open(address, None, PATIENCE)?.call(4, &request)
}

fn max_version(offered: &ApiVersionsResponse, key: i16) -> Option<i16> {
    offered.api_keys.iter().find(|api| api.api_key == key).map(|api| api.max_version)
}

fn transaction_version(offered: &ApiVersionsResponse) -> Option<i16> {
    let is_it = |name: &StrBytes| name.as_str() == "transaction.version";
    offered.finalized_features.iter().find(|feature| is_it(&feature.name)).map(|feature| feature.max_version_level)
}

/// Two committed transactions around an aborted one, by each family that speaks Produce v12, and a plain round trip.
fn transactions_work(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    for family in [Family::Java, Family::Librdkafka, Family::Franz] {
        if let Err(error) = harness::clients::prepare(family) {
            harness::skip::record(&format!("transactions of {family}"), &format!("{error:#}"));
            continue;
        }
        let topic = kafka::unique(&format!("versions-{family}"));
        let mut client = Client::start(family)?;
        client.connect(&gateway.bootstrap())?;
        cluster.create_topic(&mut client, &topic, 2)?;
        let produce = Produce::to(&topic).partitions(2).count(40);
        client
            .transactions(&Transaction::new(&topic, &["commit", "abort", "commit"], produce))
            .with_context(|| format!("transactions of {family}"))?;
        let read = client.consume(&Consume::from(&topic).group(&topic).count(80).read_committed())?;
        read.check_complete(80).with_context(|| format!("{family} reads its committed records"))?;
        client.produce(&Produce::to(&topic).partitions(2).first(120).count(40).idempotent(true))?;
        let all = client.consume(&Consume::from(&topic).count(160))?;
        all.check_complete(160).with_context(|| format!("{family} reads everything"))?;
        client.close()?;
    }
    Ok(())
}

#[test]
fn auto_caps_fetch_alone_and_transactions_work() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = gateway(cluster, "auto")?;
    let offered = offered(gateway.bootstrap_addr())?;
    assert_eq!(max_version(&offered, FETCH), Some(FETCH_AUTO));
    assert_eq!(max_version(&offered, PRODUCE), Some(PRODUCE_NEWEST));
    assert_eq!(transaction_version(&offered), Some(2));
    transactions_work(cluster, &gateway)?;
    gateway.check_quiet(&[])
}

#[test]
fn conservative_lowers_produce_with_the_transaction_version_and_transactions_work() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = gateway(cluster, "conservative")?;
    let offered = offered(gateway.bootstrap_addr())?;
    assert_eq!(max_version(&offered, FETCH), Some(FETCH_AUTO));
    assert_eq!(max_version(&offered, PRODUCE), Some(PRODUCE_CONSERVATIVE));
    assert!(transaction_version(&offered).is_none_or(|level| level == 1), "{:?}", transaction_version(&offered));
    transactions_work(cluster, &gateway)?;
    gateway.check_quiet(&[])
}

#[test]
fn full_caps_nothing_and_transactions_work() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = gateway(cluster, "full")?;
    let offered = offered(gateway.bootstrap_addr())?;
    assert_eq!(max_version(&offered, FETCH), Some(FETCH_NEWEST));
    assert_eq!(max_version(&offered, PRODUCE), Some(PRODUCE_NEWEST));
    assert_eq!(transaction_version(&offered), Some(2));
    transactions_work(cluster, &gateway)?;
    gateway.check_quiet(&[])
}

/// Transactions of the first kind because the cluster has no others: nothing is lowered, nothing breaks.
#[test]
fn transactions_work_on_a_cluster_with_transaction_version_1() -> Result<()> {
    need_kafka!();
    harness::full_tier!();
    let _heavy = kafka::heavy()?;
    let cluster = Cluster::builder().feature("transaction.version", 1).name("transactions-v1").start()?;
    for policy in ["auto", "conservative", "full"] {
        let gateway = gateway(&cluster, policy)?;
        assert_eq!(transaction_version(&offered(gateway.bootstrap_addr())?), Some(1));
        transactions_work(&cluster, &gateway).context(policy)?;
    }
    Ok(())
}

/// A whole answer, undecoded, to an ApiVersions request of any version.
fn api_versions_answer(address: std::net::SocketAddr, version: i16) -> Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = raw::Client::connect(address).await?;
        // The body is that of the newest version known here; a broker that doesn't know the version never reads it.
        let known = raw::request(4, 77, &ApiVersionsRequest::default())?;
        let mut bytes = known.to_vec();
        bytes[6..8].copy_from_slice(&version.to_be_bytes());
        client.send(&bytes).await?;
        Ok(client.read_answer().await?.bytes)
    })
}

#[test]
fn api_versions_from_the_future_are_answered_as_by_the_broker() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = gateway(cluster, "auto")?;
    for version in [5, 99] {
        let direct = api_versions_answer(cluster.broker(1)?.plaintext(), version)?;
        let through = api_versions_answer(gateway.bootstrap_addr(), version)?;
        for (way, bytes) in [("direct", direct), ("gateway", through)] {
            let answer: ApiVersionsResponse = AnswerFrame::new(bytes)?.decode::<ApiVersionsRequest>(0)?;
            let keys: Vec<_> = answer.api_keys.iter().map(|api| api.api_key).collect();
            assert_eq!((answer.error_code, keys), (UNSUPPORTED_VERSION, vec![API_VERSIONS]), "v{version}, {way}");
        }
    }
    // The connection goes on, as clients expect who ask again with v0.
    let mut connection = Connection::open(gateway.bootstrap_addr(), None, PATIENCE)?;
    assert_eq!(connection.call(0, &ApiVersionsRequest::default())?.error_code, 0);
    Ok(())
}

/// A topic of one partition and one replica; newer requests name it by its id.
struct Lonely {
    topic: MetadataResponseTopic,
    leader: i32,
}

impl Lonely {
    fn create(cluster: &Cluster) -> Result<Self> {
        let name = kafka::unique("lonely");
        let arguments = ["--create", "--topic", &name, "--partitions", "1", "--replication-factor", "1"];
        let server = ["--bootstrap-server", &cluster.bootstrap()];
        cluster.artifacts().tool("org.apache.kafka.tools.TopicCommand", &[&server[..], &arguments].concat())?;
        let wanted = MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string(name.clone()))));
        let request = MetadataRequest::default().with_topics(Some(vec![wanted]));
        harness::wait::until("every broker to know the topic", PATIENCE, || {
            let mut found = None;
            for broker in cluster.brokers() {
                let answer = broker.connect()?.call(12, &request)?;
                let topic = answer.topics.into_iter().next().context("no topic yet")?;
                let leader = topic.partitions.first().context("no partition yet")?.leader_id.0;
                ensure!(leader > 0, "no leader yet");
                found = Some(Self { topic, leader });
            }
            found.context("no broker")
        })
    }

    fn produce(&self) -> Result<ProduceRequest> {
        let partition = PartitionProduceData::default().with_records(Some(Batch::numbered(0, 1).encode()?));
        let topic = TopicProduceData::default().with_topic_id(self.topic.topic_id).with_partition_data(vec![partition]);
        Ok(ProduceRequest::default().with_acks(-1).with_timeout_ms(5000).with_topic_data(vec![topic]))
    }

    fn fetch(&self) -> FetchRequest {
        let partition = FetchPartition::default().with_current_leader_epoch(-1).with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default().with_topic_id(self.topic.topic_id).with_partitions(vec![partition]);
        FetchRequest::default()
            .with_max_wait_ms(100)
            .with_min_bytes(0)
            .with_max_bytes(1 << 20)
            .with_session_epoch(-1)
            .with_topics(vec![topic])
    }
}

/// The leader and the endpoints that an answer hints at.
type Hints = (i32, BTreeMap<i32, String>);

fn endpoint(id: BrokerId, host: &StrBytes, port: i32) -> (i32, String) {
    (id.0, format!("{host}:{port}"))
}

/// What a broker that doesn't lead the partition answers to Produce v13 and Fetch v18.
fn hints(address: std::net::SocketAddr, lonely: &Lonely) -> Result<[Hints; 2]> {
    let mut connection = Connection::open(address, None, PATIENCE)?;
    let produced = connection.call(PRODUCE_NEWEST, &lonely.produce()?)?;
    let partition = &produced.responses[0].partition_responses[0];
    ensure!(partition.error_code == NOT_LEADER_OR_FOLLOWER, "Produce answers error {}", partition.error_code);
    let leader = partition.current_leader.leader_id.0;
    let of_produce =
        (leader, produced.node_endpoints.iter().map(|node| endpoint(node.node_id, &node.host, node.port)).collect());
    let fetched = connection.call(FETCH_NEWEST, &lonely.fetch())?;
    let partition = &fetched.responses[0].partitions[0];
    ensure!(partition.error_code == NOT_LEADER_OR_FOLLOWER, "Fetch answers error {}", partition.error_code);
    let leader = partition.current_leader.leader_id.0;
    let of_fetch =
        (leader, fetched.node_endpoints.iter().map(|node| endpoint(node.node_id, &node.host, node.port)).collect());
    Ok([of_produce, of_fetch])
}

#[test]
fn leader_hints_name_the_gateway() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let lonely = Lonely::create(cluster)?;
    let stranger = cluster.brokers().find(|broker| broker.node_id() != lonely.leader).context("a second broker")?;
    // What is undone when the gateway is not in the way: real hints with the leader's own address.
    let real =
        (lonely.leader, BTreeMap::from([(lonely.leader, cluster.broker(lonely.leader)?.plaintext().to_string())]));
    assert_eq!(hints(stranger.plaintext(), &lonely)?, [real.clone(), real]);

    let full = gateway(cluster, "full")?;
    let rewritten = (lonely.leader, BTreeMap::from([(lonely.leader, full.broker_addr(lonely.leader)?.to_string())]));
    assert_eq!(hints(full.broker_addr(stranger.node_id())?, &lonely)?, [rewritten.clone(), rewritten]);

    // Under auto no client is offered Fetch v16; one that sends it all the same is told no broker's address either.
    let auto = gateway(cluster, "auto")?;
    let rewritten = (lonely.leader, BTreeMap::from([(lonely.leader, auto.broker_addr(lonely.leader)?.to_string())]));
    let [of_produce, (leader, endpoints)] = hints(auto.broker_addr(stranger.node_id())?, &lonely)?;
    assert_eq!(of_produce, rewritten);
    assert_eq!((leader, endpoints), (-1, BTreeMap::new()), "neither a leader nor an endpoint is left");
    Ok(())
}

/// Fetch v11 and above may be served by a follower, and a header with a null client id is legal everywhere.
#[test]
fn a_null_client_id_negotiates_like_any_other() -> Result<()> {
    need_kafka!();
    let cluster = kafka::shared()?;
    let gateway = gateway(cluster, "auto")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = [cluster.broker(1)?.plaintext(), gateway.broker_addr(1)?].map(|address| {
        runtime.block_on(async {
            let mut client = raw::Client::connect(address).await?;
            let header = RequestHeader::default()
                .with_request_api_key(3)
                .with_request_api_version(12)
                .with_correlation_id(-5)
                .with_client_id(None);
            let request = MetadataRequest::default().with_topics(Some(Vec::new()));
            let bytes = raw::request_with_header(&header, &request)?;
            ensure!(RequestFrame::new(bytes.slice(4..))?.correlation_id == -5);
            client.send(&bytes).await?;
            let answer = client.read_answer().await?;
            ensure!(answer.correlation_id == -5, "answer {}", answer.correlation_id);
            let answer = answer.decode::<MetadataRequest>(12)?;
            Ok(answer.brokers.iter().map(|broker| (broker.node_id.0, broker.rack.clone())).collect::<Vec<_>>())
        })
    });
    let [direct, through] = answers;
    assert_eq!(through?, direct?);
    Ok(())
}
