//! A cluster for tests: real sockets, brokers that keep logs by the rules, and misbehave when told to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion as Row;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey as Key, ApiVersionsResponse, BrokerId, CreateTopicsRequest, CreateTopicsResponse, InitProducerIdResponse,
    MetadataRequest, MetadataResponse, ProduceResponse, ProducerId, RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::testing::Broker;
use crate::branch::ids::PartitionId;
use crate::branch::produce::batch::Batch;
use crate::branch::produce::request::{ProduceRequest, TopicRef};
use crate::config;
use crate::config::units::Span;
use crate::kafka::ids::ApiVersion;
use crate::upstream::{Cluster, Door, Endpoint};

/// What a broker does with the next Produce instead of serving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Answers every partition with this error, and appends nothing.
    Error(i16),
    /// Appends, and closes the connection.
    AppendAndClose,
    /// Closes the connection.
    Close,
    /// Reads, and says nothing more on this connection.
    Silence,
}

#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) leader: usize,
    pub(super) log: Broker<Batch>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) topics: BTreeMap<String, Vec<Partition>>,
    /// What happens to the next Produce requests, in order.
    pub(super) troubles: VecDeque<Trouble>,
    /// Throttle time in every answer to Produce.
    pub(super) throttle_ms: i32,
    /// Whether CreateTopics is refused.
    pub(super) no_creation: bool,
    produced: usize,
    next_producer: i64,
    brokers: Vec<Endpoint>,
}

/// The cluster.
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    tasks: Vec<JoinHandle<()>>,
    pub(super) cluster: Cluster,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Fake {
    /// With so many brokers, and these topics, of so many partitions each, led in turn.
    pub(super) async fn start(brokers: usize, topics: &[(&str, usize)]) -> Self {
        let state = Arc::new(Mutex::new(State { next_producer: 4000, ..State::default() }));
        let mut tasks = Vec::new();
        for index in 0..brokers {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let shared = state.clone();
            state.lock().unwrap().brokers.push(Endpoint::new(address.ip().to_string(), address.port()));
            tasks.push(tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, shared.clone(), index));
                }
            }));
        }
        let bootstrap = state.lock().unwrap().brokers.iter().map(ToString::to_string).collect();
        let cluster = Cluster::spawn("fake", cluster_config(bootstrap));
        let fake = Self { state, tasks, cluster };
        for (name, partitions) in topics {
            fake.change(|state| state.create(name, *partitions));
        }
        fake
    }

    pub(super) fn door(&self) -> Door {
        Door::new(self.cluster.clone())
    }

    pub(super) fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap())
    }

    /// The batches of a partition, in order.
    pub(super) fn log(&self, topic: &str, partition: usize) -> Vec<Batch> {
        self.change(|state| match state.topics.get(topic) {
            Some(partitions) => partitions[partition].log.log.iter().map(|(_, batch)| batch.clone()).collect(),
            None => Vec::new(),
        })
    }

    /// First sequences of the batches of a partition, in order.
    pub(super) fn sequences(&self, topic: &str, partition: usize) -> Vec<i32> {
        self.log(topic, partition).iter().map(|batch| batch.stamp().sequence.0).collect()
    }

    /// Produce requests so far.
    pub(super) fn produced(&self) -> usize {
        self.change(|state| state.produced)
    }
}

pub(super) fn cluster_config(bootstrap: Vec<String>) -> config::Cluster {
    config::Cluster {
        bootstrap,
        address_map: BTreeMap::new(),
        racks: BTreeMap::new(),
        connect_timeout: Span::secs(2),
        refresh: Span::mins(5),
        partition_refresh: config::Cluster::partition_refresh(),
        forget_after: Span::mins(10),
        tls: None,
        sasl: None,
    }
}

impl State {
    fn create(&mut self, name: &str, partitions: usize) {
        let brokers = self.brokers.len();
        let partition = |index| Partition { leader: index % brokers, log: Broker::default() };
        self.topics.insert(name.to_owned(), (0..partitions).map(partition).collect());
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, broker: usize) -> Option<()> {
    loop {
        let size = stream.read_i32().await.ok()?;
        let mut frame = vec![0; usize::try_from(size).ok()?];
        stream.read_exact(&mut frame).await.ok()?;
        let frame = Bytes::from(frame);
        let (key, version) = ((&frame[0..]).get_i16(), (&frame[2..]).get_i16());
        let key = Key::try_from(key).ok()?;
        let mut body = frame.clone();
        let header = RequestHeader::decode(&mut body, key.request_header_version(version)).ok()?;
        let mut answer = BytesMut::new();
        answer.put_i32(header.correlation_id);
        if key.response_header_version(version) >= 1 {
            answer.put_u8(0);
        }
        match key {
            Key::Produce => match produce(&state, broker, version, &frame, &mut answer)? {
                Served::Answer => {}
                Served::Close => return None,
                Served::Silence => return std::future::pending().await,
            },
            _ => other(&state, key, version, body, &mut answer)?,
        }
        stream.write_i32(i32::try_from(answer.len()).ok()?).await.ok()?;
        stream.write_all(&answer).await.ok()?;
    }
}

enum Served {
    Answer,
    Close,
    Silence,
}

fn produce(state: &Mutex<State>, broker: usize, version: i16, frame: &Bytes, answer: &mut BytesMut) -> Option<Served> {
    let mut state = state.lock().unwrap();
    state.produced += 1;
    let trouble = state.troubles.pop_front();
    match trouble {
        Some(Trouble::Close) => return Some(Served::Close),
        Some(Trouble::Silence) => return Some(Served::Silence),
        Some(Trouble::AppendAndClose | Trouble::Error(_)) | None => {}
    }
    let request = ProduceRequest::read(ApiVersion(version), frame).ok()?;
    let mut topics: BTreeMap<&str, Vec<PartitionProduceResponse>> = BTreeMap::new();
    for (entry, batch) in request.batches() {
        let TopicRef::Name(name) = entry.topic else { return None };
        let PartitionId(index) = entry.partition;
        let partition = state.topics.get_mut(name).and_then(|partitions| partitions.get_mut(index as usize));
        let error = match (trouble, partition) {
            (Some(Trouble::Error(error)), _) => error,
            (_, None) => 3,
            (_, Some(partition)) if partition.leader != broker => 6,
            (_, Some(partition)) => partition.log.append(batch, batch.clone()),
        };
        let part = PartitionProduceResponse::default().with_index(index).with_error_code(error);
        topics.entry(name).or_default().push(part);
    }
    if trouble == Some(Trouble::AppendAndClose) {
        return Some(Served::Close);
    }
    let responses = topics.into_iter().map(|(name, partitions)| {
        TopicProduceResponse::default().with_name(topic(name)).with_partition_responses(partitions)
    });
    ProduceResponse::default()
        .with_responses(responses.collect())
        .with_throttle_time_ms(state.throttle_ms)
        .encode(answer, version)
        .ok()?;
    Some(Served::Answer)
}

fn other(state: &Mutex<State>, key: Key, version: i16, mut body: Bytes, answer: &mut BytesMut) -> Option<()> {
    let mut state = state.lock().unwrap();
    match key {
        Key::ApiVersions => {
            let rows = [(0, 3, 13), (3, 0, 13), (18, 0, 3), (19, 0, 7), (22, 0, 5)];
            let row = |(key, min, max)| Row::default().with_api_key(key).with_min_version(min).with_max_version(max);
            ApiVersionsResponse::default().with_api_keys(rows.map(row).to_vec()).encode(answer, version).ok()
        }
        Key::Metadata => {
            let request = MetadataRequest::decode(&mut body, version).ok()?;
            let wanted = request.topics.unwrap_or_default().into_iter().filter_map(|t| t.name);
            let topics = wanted.map(|name| metadata_of(&state, &name.0)).collect();
            let brokers = state.brokers.iter().enumerate().map(|(index, at)| {
                MetadataResponseBroker::default()
                    .with_node_id(BrokerId(index as i32))
                    .with_host(text(&at.host))
                    .with_port(i32::from(at.port))
            });
            MetadataResponse::default()
                .with_brokers(brokers.collect())
                .with_cluster_id((version >= 2).then(|| text("fake")))
                .with_controller_id(BrokerId(0))
                .with_topics(topics)
                .encode(answer, version)
                .ok()
        }
        Key::CreateTopics => {
            let request = CreateTopicsRequest::decode(&mut body, version).ok()?;
            let results = request.topics.iter().map(|wanted| {
                let error = match (state.no_creation, state.topics.contains_key(&*wanted.name.0)) {
                    (true, _) => 29,
                    (false, true) => 36,
                    (false, false) => 0,
                };
                if error == 0 {
                    state.create(&wanted.name.0, wanted.num_partitions as usize);
                }
                CreatableTopicResult::default().with_name(wanted.name.clone()).with_error_code(error)
            });
            CreateTopicsResponse::default().with_topics(results.collect()).encode(answer, version).ok()
        }
        Key::InitProducerId => {
            state.next_producer += 1;
            InitProducerIdResponse::default()
                .with_producer_id(ProducerId(state.next_producer))
                .with_producer_epoch(0)
                .encode(answer, version)
                .ok()
        }
        _ => None,
    }
}

fn metadata_of(state: &State, name: &str) -> MetadataResponseTopic {
    let described = MetadataResponseTopic::default().with_name(Some(topic(name)));
    let Some(partitions) = state.topics.get(name) else { return described.with_error_code(3) };
    let partitions = partitions.iter().enumerate().map(|(index, partition)| {
        MetadataResponsePartition::default()
            .with_partition_index(index as i32)
            .with_leader_id(BrokerId(partition.leader as i32))
    });
    described.with_partitions(partitions.collect())
}

fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}
