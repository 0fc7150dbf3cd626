//! A small honest cluster: three brokers in one process that keep records in memory and speak ApiVersions, Metadata,
//! Produce, Fetch and ListOffsets. No groups, no idempotence, no copies; what it does not speak it does not advertise.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, BrokerId, FetchRequest, FetchResponse, ListOffsetsRequest,
    ListOffsetsResponse, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::log::{Log, Refused};
use crate::ports;
use crate::raw::{RequestFrame, answer};

/// Largest request it reads: ample for the demo.
const MAX_REQUEST: usize = 8 << 20;
/// Memory for records; beyond it writes are refused.
const MAX_BYTES: usize = 1 << 30;
/// Longest a Fetch is held, whatever it asks for.
const MAX_WAIT: Duration = Duration::from_secs(10);

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const OFFSET_OUT_OF_RANGE: i16 = 1;
const NOT_LEADER: i16 = 6;

/// What it speaks: topic names, no topic ids.
const VERSIONS: [(ApiKey, i16, i16); 5] = [
    (ApiKey::Produce, 3, 11),
    (ApiKey::Fetch, 4, 12),
    (ApiKey::ListOffsets, 1, 7),
    (ApiKey::Metadata, 1, 9),
    (ApiKey::ApiVersions, 0, 4),
];

/// The running cluster; its brokers end when this is dropped.
#[derive(Debug)]
pub(super) struct Embedded {
    cluster: Arc<Cluster>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Cluster {
    brokers: Vec<(i32, SocketAddr, String)>,
    store: Mutex<Store>,
    /// Told at each append.
    appended: Notify,
}

#[derive(Debug, Default)]
struct Store {
    topics: BTreeMap<String, Vec<Log>>,
    bytes: usize,
}

impl Embedded {
    /// A broker for each rack, with node ids from 1, and these topics (name, partitions), led in turn.
    ///
    /// # Errors
    /// No free ports.
    pub(super) async fn start(racks: &[&str], topics: &[(&str, i32)]) -> Result<Self> {
        let mut listeners = Vec::new();
        let mut brokers = Vec::new();
        for (node, rack) in (1..).zip(racks) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ports::one()?)).await?;
            brokers.push((node, listener.local_addr()?, (*rack).to_owned()));
            listeners.push((node, listener));
        }
        let logs = |count: i32| (0..count).map(|_| Log::default()).collect();
        let topics = topics.iter().map(|(name, count)| ((*name).to_owned(), logs(*count))).collect();
        let store = Mutex::new(Store { topics, bytes: 0 });
        let cluster = Arc::new(Cluster { brokers, store, appended: Notify::new() });
        let mut tasks = JoinSet::new();
        for (node, listener) in listeners {
            tasks.spawn(accept(Arc::clone(&cluster), node, listener));
        }
        Ok(Self { cluster, _tasks: tasks })
    }

    /// `host:port,…` of all brokers.
    pub(super) fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.cluster.brokers.iter().map(|(_, address, _)| address.to_string()).collect();
        addresses.join(",")
    }
}

async fn accept(cluster: Arc<Cluster>, node: i32, listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let cluster = Arc::clone(&cluster);
        connections.spawn(async move {
            if let Err(error) = serve(&cluster, node, stream).await {
                eprintln!("embedded broker {node} closed a connection: {error:#}");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// One request at a time, as a broker does.
async fn serve(cluster: &Cluster, node: i32, mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let size = match stream.read_i32().await {
            Ok(size) => usize::try_from(size).context("a negative size")?,
            // The client went away between requests, in whichever way.
            Err(_) => return Ok(()),
        };
        ensure!(size <= MAX_REQUEST, "a request of {size} bytes");
        let mut bytes = BytesMut::zeroed(size);
        stream.read_exact(&mut bytes).await.context("inside a request")?;
        if let Some(answer) = cluster.answer(node, &RequestFrame::new(bytes.freeze())?).await? {
            stream.write_all(&answer).await?;
        }
    }
}

impl Cluster {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leader(&self, partition: i32) -> i32 {
        self.brokers[partition.unsigned_abs() as usize % self.brokers.len()].0
    }

    /// The answer's frame; none to a Produce with acks 0.
    async fn answer(&self, node: i32, request: &RequestFrame) -> Result<Option<Bytes>> {
        let &RequestFrame { api_key, api_version: version, correlation_id: id, .. } = request;
        let key = ApiKey::try_from(api_key).ok();
        let spoken = VERSIONS.iter().find(|(other, _, _)| Some(*other) == key);
        let fits = spoken.is_some_and(|(_, min, max)| (*min..=*max).contains(&version));
        if key == Some(ApiKey::ApiVersions) {
            // KIP-511: a version not known is answered in the shape of v0.
            let body = api_versions().with_error_code(if fits { 0 } else { 35 });
            return answer::<ApiVersionsRequest>(if fits { version } else { 0 }, id, &body).map(Some);
        }
        ensure!(fits, "request {api_key} v{version}, which this broker does not speak");
        match key {
            Some(ApiKey::Metadata) => {
                let (_, body) = request.decode::<MetadataRequest>()?;
                answer::<MetadataRequest>(version, id, &self.metadata(version, &body)).map(Some)
            }
            Some(ApiKey::Produce) => {
                let (_, body) = request.decode::<ProduceRequest>()?;
                let produced = self.produce(node, &body);
                Ok(if body.acks == 0 { None } else { Some(answer::<ProduceRequest>(version, id, &produced)?) })
            }
            Some(ApiKey::Fetch) => {
                let (_, body) = request.decode::<FetchRequest>()?;
                answer::<FetchRequest>(version, id, &self.fetch(node, version, &body).await).map(Some)
            }
            Some(ApiKey::ListOffsets) => {
                let (_, body) = request.decode::<ListOffsetsRequest>()?;
                answer::<ListOffsetsRequest>(version, id, &self.list_offsets(node, &body)).map(Some)
            }
            _ => bail!("request {api_key}, which this broker does not speak"),
        }
    }

    fn metadata(&self, version: i16, request: &MetadataRequest) -> MetadataResponse {
        let brokers = self.brokers.iter().map(|(node, address, rack)| {
            MetadataResponseBroker::default()
                .with_node_id((*node).into())
                .with_host(text(&address.ip().to_string()))
                .with_port(address.port().into())
                .with_rack(Some(text(rack)))
        });
        let store = self.store();
        let asked = request.topics.as_ref().map(|topics| {
            topics.iter().filter_map(|topic| topic.name.as_ref()).map(|name| name.to_string()).collect::<Vec<_>>()
        });
        let names = asked.unwrap_or_else(|| store.topics.keys().cloned().collect());
        let topics = names.into_iter().map(|name| {
            let partitions = store.topics.get(&name).map(Vec::len);
            let partitions_of = |count: usize| {
                (0..count as i32).map(|index| {
                    let leader = BrokerId(self.leader(index));
                    MetadataResponsePartition::default()
                        .with_partition_index(index)
                        .with_leader_id(leader)
                        .with_replica_nodes(vec![leader])
                        .with_isr_nodes(vec![leader])
                })
            };
            MetadataResponseTopic::default()
                .with_error_code(if partitions.is_some() { 0 } else { UNKNOWN_TOPIC_OR_PARTITION })
                .with_name(Some(topic_name(&name)))
                .with_partitions(partitions_of(partitions.unwrap_or(0)).collect())
        });
        let mut metadata = MetadataResponse::default()
            .with_brokers(brokers.collect())
            .with_controller_id(self.brokers[0].0.into())
            .with_topics(topics.collect());
        if version >= 2 {
            metadata.cluster_id = Some(StrBytes::from_static_str("embedded"));
        }
        metadata
    }

    fn produce(&self, node: i32, request: &ProduceRequest) -> ProduceResponse {
        let mut store = self.store();
        let responses = request.topic_data.iter().map(|topic| {
            let partitions = topic.partition_data.iter().map(|partition| {
                let records = partition.records.as_deref().unwrap_or_default();
                let done = if self.leader(partition.index) == node {
                    store.append(&topic.name.0, partition.index, records)
                } else {
                    Err(NOT_LEADER)
                };
                let response = PartitionProduceResponse::default().with_index(partition.index);
                match done {
                    Ok(offset) => response.with_base_offset(offset),
                    Err(code) => response.with_error_code(code).with_base_offset(-1),
                }
            });
            TopicProduceResponse::default().with_name(topic.name.clone()).with_partition_responses(partitions.collect())
        });
        let response = ProduceResponse::default().with_responses(responses.collect());
        drop(store);
        self.appended.notify_waiters();
        response
    }

    /// Waits until `min_bytes` are there or `max_wait` has passed.
    async fn fetch(&self, node: i32, version: i16, request: &FetchRequest) -> FetchResponse {
        let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(MAX_WAIT);
        let until = Instant::now() + wait;
        loop {
            // Registered before looking, so that no append between the look and the wait is missed.
            let appended = self.appended.notified();
            let (response, bytes, is_final) = self.fetch_now(node, version, request);
            let enough = bytes >= usize::try_from(request.min_bytes).unwrap_or(0);
            if is_final || enough || timeout_at(until, appended).await.is_err() {
                return response;
            }
        }
    }

    /// What is there: the answer, how many bytes of records it has, and whether an error makes waiting pointless.
    fn fetch_now(&self, node: i32, version: i16, request: &FetchRequest) -> (FetchResponse, usize, bool) {
        let store = self.store();
        let (mut bytes, mut is_final) = (0, false);
        let most = usize::try_from(request.max_bytes).unwrap_or(0);
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition;
                let log = match store.log(&topic.topic.0, index) {
                    _ if self.leader(index) != node => Err(NOT_LEADER),
                    None => Err(UNKNOWN_TOPIC_OR_PARTITION),
                    Some(log) if !(0..=log.end()).contains(&partition.fetch_offset) => Err(OFFSET_OUT_OF_RANGE),
                    Some(log) => Ok(log),
                };
                let data = PartitionData::default().with_partition_index(index);
                match log {
                    Err(code) => {
                        is_final = true;
                        data.with_error_code(code).with_high_watermark(-1).with_records(Some(Bytes::new()))
                    }
                    Ok(log) => {
                        let room = most.saturating_sub(bytes);
                        let limit = usize::try_from(partition.partition_max_bytes).unwrap_or(0).min(room);
                        let records = if room == 0 { Bytes::new() } else { log.read(partition.fetch_offset, limit) };
                        bytes += records.len();
                        let data = data.with_high_watermark(log.end()).with_last_stable_offset(log.end());
                        if version >= 5 { data.with_log_start_offset(0) } else { data }.with_records(Some(records))
                    }
                }
            });
            FetchableTopicResponse::default().with_topic(topic.topic.clone()).with_partitions(partitions.collect())
        });
        (FetchResponse::default().with_responses(topics.collect()), bytes, is_final)
    }

    fn list_offsets(&self, node: i32, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        /// "The start of the log", as a timestamp.
        const EARLIEST: i64 = -2;
        let store = self.store();
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition_index;
                let response = ListOffsetsPartitionResponse::default().with_partition_index(index);
                match store.log(&topic.name.0, index) {
                    _ if self.leader(index) != node => response.with_error_code(NOT_LEADER),
                    None => response.with_error_code(UNKNOWN_TOPIC_OR_PARTITION),
                    // Timestamps aren't indexed: any other question is about the end.
                    Some(log) => response.with_offset(if partition.timestamp == EARLIEST { 0 } else { log.end() }),
                }
            });
            ListOffsetsTopicResponse::default().with_name(topic.name.clone()).with_partitions(partitions.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }
}

impl Store {
    fn log(&self, topic: &str, partition: i32) -> Option<&Log> {
        self.topics.get(topic)?.get(usize::try_from(partition).ok()?)
    }

    /// The first offset, or an error code.
    fn append(&mut self, topic: &str, partition: i32, records: &[u8]) -> Result<i64, i16> {
        if self.bytes + records.len() > MAX_BYTES {
            return Err(Refused::Full as i16);
        }
        let log = usize::try_from(partition).ok().and_then(|index| self.topics.get_mut(topic)?.get_mut(index));
        let offset = log.ok_or(UNKNOWN_TOPIC_OR_PARTITION)?.append(records).map_err(|refused| refused as i16)?;
        self.bytes += records.len();
        Ok(offset)
    }
}

fn api_versions() -> ApiVersionsResponse {
    let keys = VERSIONS.iter().map(|&(key, min, max)| {
        ApiVersion::default().with_api_key(key as i16).with_min_version(min).with_max_version(max)
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

    use super::*;
    use crate::raw::{Batch, Client};

    fn produce(partition: i32, batch: Bytes) -> ProduceRequest {
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
        let topic = TopicProduceData::default().with_name(topic_name("t")).with_partition_data(vec![data]);
        ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic])
    }

    fn fetch(partition: i32, offset: i64, max_wait_ms: i32) -> FetchRequest {
        let data = FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default().with_topic(topic_name("t")).with_partitions(vec![data]);
        FetchRequest::default()
            .with_max_wait_ms(max_wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_topics(vec![topic])
    }

    #[tokio::test]
    async fn what_is_written_is_read_at_the_leader_only() {
        let cluster = Embedded::start(&["a", "b"], &[("t", 2)]).await.unwrap();
        let address = |node: usize| cluster.cluster.brokers[node - 1].1;
        let mut leader = Client::connect(address(1)).await.unwrap();
        let batch = Batch::numbered(0, 3).encode().unwrap();
        let written = leader.call(9, &produce(0, batch.clone())).await.unwrap();
        assert_eq!(written.responses[0].partition_responses[0].base_offset, 0);
        let read = leader.call(12, &fetch(0, 0, 0)).await.unwrap();
        let partition = &read.responses[0].partitions[0];
        assert_eq!((partition.error_code, partition.high_watermark), (0, 3));
        assert_eq!(partition.records.as_deref(), Some(&batch[..]));

        let mut other = Client::connect(address(2)).await.unwrap();
        let refused = other.call(9, &produce(0, batch)).await.unwrap();
        assert_eq!(refused.responses[0].partition_responses[0].error_code, NOT_LEADER);
    }

    #[tokio::test]
    async fn a_fetch_waits_for_a_record() {
        let cluster = Embedded::start(&["a"], &[("t", 1)]).await.unwrap();
        let address = cluster.cluster.brokers[0].1;
        let mut reader = Client::connect(address).await.unwrap();
        let waiting = tokio::spawn(async move { reader.call(12, &fetch(0, 0, 9000)).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished());
        let mut writer = Client::connect(address).await.unwrap();
        writer.call(9, &produce(0, Batch::numbered(0, 1).encode().unwrap())).await.unwrap();
        let read = waiting.await.unwrap().unwrap();
        assert_eq!(read.responses[0].partitions[0].high_watermark, 1);
    }

    #[tokio::test]
    async fn a_newer_api_versions_is_answered_in_the_shape_of_v0() {
        let cluster = Embedded::start(&["a"], &[]).await.unwrap();
        let mut client = Client::connect(cluster.cluster.brokers[0].1).await.unwrap();
        let header = kafka_protocol::messages::RequestHeader::default()
            .with_request_api_key(18)
            .with_request_api_version(4)
            .with_correlation_id(7);
        let mut bytes = crate::raw::request_with_header(&header, &ApiVersionsRequest::default()).unwrap().to_vec();
        bytes[7] = 99;
        client.send(&bytes).await.unwrap();
        let answer = client.read_answer().await.unwrap().decode::<ApiVersionsRequest>(0).unwrap();
        assert_eq!(answer.error_code, 35);
        assert_eq!(answer.api_keys.len(), VERSIONS.len());
    }
}
