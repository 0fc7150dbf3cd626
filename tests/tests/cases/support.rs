//! What the cases share: a gateway before scripted brokers, frames, and what operators see.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use harness::mock::{Mock, MockBuilder, Received, Reply};
use harness::raw::batch::Batch;
use harness::raw::{Client, RequestFrame, answer, request};
use harness::turnout::{Gateway, GatewayBuilder};
use harness::{ports, wait};
use kafka_protocol::messages::metadata_response::MetadataResponseBroker;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, MetadataRequest, MetadataResponse, ProduceRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub(crate) use kafka_protocol::messages as m;

/// Key of Heartbeat, the cases' example of a request that needs no decision.
pub(crate) const HEARTBEAT: i16 = 12;
pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const METADATA: i16 = 3;
pub(crate) const API_VERSIONS: i16 = 18;

/// What must happen soon happens within this, on a busy host.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// "Promptly": what a client must not wait for longer.
pub(crate) const PROMPT: Duration = Duration::from_secs(1);

/// A gateway before scripted brokers.
pub(crate) struct Bench {
    // First, so that it ends before its brokers.
    pub(crate) gateway: Gateway,
    pub(crate) mock: Mock,
}

/// Starts both, with whatever the test adds to the config.
pub(crate) async fn bench(
    mock: MockBuilder,
    configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
) -> Result<Bench> {
    let mock = mock.start().await?;
    let gateway = configure(Gateway::before_addresses(&mock.bootstrap(), 1)).start()?;
    Ok(Bench { gateway, mock })
}

/// The same as configured by default.
pub(crate) async fn plain_bench(mock: MockBuilder) -> Result<Bench> {
    bench(mock, |gateway| gateway).await
}

/// A mock that answers Heartbeat; the rest is the mock's default.
pub(crate) fn heartbeats() -> MockBuilder {
    Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    })
}

impl Bench {
    /// A client of the bootstrap port.
    pub(crate) async fn client(&self) -> Result<Client> {
        Client::connect(self.gateway.bootstrap_addr()).await
    }

    /// A client of a virtual broker, once its port is open.
    pub(crate) async fn broker_client(&self, node_id: i32) -> Result<Client> {
        dial(self.gateway.broker_addr(node_id)?).await
    }

    /// The mock's requests that clients sent, not the gateway itself.
    pub(crate) fn received(&self, api_key: i16) -> Vec<Received> {
        let own = |r: &Received| is_own(&r.frame.bytes);
        self.mock.received().into_iter().filter(|r| r.frame.api_key == api_key && !own(r)).collect()
    }

    /// Waits until so many requests of clients arrived.
    pub(crate) fn wait_received(&self, api_key: i16, count: usize) -> Result<Vec<Received>> {
        wait::until("requests at the broker", SOON, || {
            let received = self.received(api_key);
            ensure!(received.len() >= count, "{} of {count}", received.len());
            Ok(received)
        })
    }
}

/// Connects once the port accepts: ports of brokers open when the topology is known.
pub(crate) async fn dial(address: SocketAddr) -> Result<Client> {
    let begin = Instant::now();
    loop {
        match Client::connect(address).await {
            Err(error) if begin.elapsed() > SOON => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            client => return client,
        }
    }
}

/// Waits until so many connections were closed for this reason.
pub(crate) fn wait_closed(gateway: &Gateway, reason: &str, count: u32) -> Result<()> {
    wait::until(&format!("{count} connections closed as {reason}"), SOON, || {
        let closed = gateway.metrics()?.sum("turnout_connections_closed_total", &[("reason", reason)]);
        ensure!(closed == f64::from(count), "{closed} are, of all: {:?}", gateway.status()?.virtual_clusters);
        Ok(())
    })
}

/// Waits until a limit was hit so often.
pub(crate) fn wait_limit(gateway: &Gateway, limit: &str, count: u32) -> Result<()> {
    wait::until(&format!("limit {limit} hit"), SOON, || {
        let hits = gateway.metrics()?.sum("turnout_limit_hits_total", &[("limit", limit)]);
        ensure!(hits >= f64::from(count), "{hits} hits of {count}");
        Ok(())
    })
}

/// A heartbeat works on a new connection: the gateway serves others undisturbed.
pub(crate) async fn check_serves(address: SocketAddr) -> Result<()> {
    let mut client = Client::connect(address).await?;
    client.set_patience(SOON);
    let answer = client.call(0, &heartbeat()).await?;
    ensure!(answer.error_code == 0, "heartbeat answered {}", answer.error_code);
    Ok(())
}

/// The connection ends within `limit`, whether by FIN or by RST; what came before is returned.
pub(crate) async fn ends_within(client: &mut Client, limit: Duration) -> Result<Bytes> {
    client.set_patience(limit);
    Ok(client
        .read_to_end()
        .await
        .with_context(|| format!("the connection is still open after {limit:?}"))?
        .unwrap_or_default())
}

pub(crate) fn heartbeat() -> HeartbeatRequest {
    HeartbeatRequest::default().with_group_id(StrBytes::from_static_str("g").into())
}

/// A whole Heartbeat v0 frame.
pub(crate) fn heartbeat_frame(correlation_id: i32) -> Bytes {
    request(0, correlation_id, &heartbeat()).unwrap_or_default()
}

pub(crate) fn heartbeat_answer(request: &RequestFrame) -> Bytes {
    answer::<HeartbeatRequest>(request.api_version, request.correlation_id, &HeartbeatResponse::default())
        .unwrap_or_default()
}

/// A Produce v3–v12 request of one batch for partition 0 of topic `t`.
pub(crate) fn produce(acks: i16, records: Bytes) -> ProduceRequest {
    let partition = PartitionProduceData::default().with_index(0).with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partition_data(vec![partition]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(1000).with_topic_data(vec![topic])
}

/// Whole Produce v7 frames, each with a batch of about `size` bytes.
pub(crate) fn produce_frames(acks: i16, count: i32, size: usize) -> Result<Vec<Bytes>> {
    let batch = Batch::of_size(size).encode()?;
    (0..count).map(|id| request(7, id, &produce(acks, batch.clone()))).collect()
}

/// Several frames as one run of bytes.
pub(crate) fn joined(frames: &[Bytes]) -> Bytes {
    let mut all = BytesMut::new();
    frames.iter().for_each(|frame| all.extend_from_slice(frame));
    all.freeze()
}

/// Reads so many answers and returns their correlation ids.
pub(crate) async fn correlation_ids(client: &mut Client, count: usize) -> Result<Vec<i32>> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(client.read_answer().await?.correlation_id);
    }
    Ok(ids)
}

/// Where brokers say they are, told to a script after the mock has its ports.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<(i32, String, i32)>>>);

impl Told {
    /// Replaces the list.
    pub(crate) fn set(&self, brokers: &[(i32, &str, u16)]) {
        let brokers = brokers.iter().map(|(id, host, port)| (*id, (*host).to_owned(), i32::from(*port)));
        *self.lock() = brokers.collect();
    }

    /// A Metadata answer that lists them.
    pub(crate) fn answer(&self, request: &RequestFrame) -> Bytes {
        let brokers = self.lock().clone();
        metadata(request, &brokers)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(i32, String, i32)>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A Metadata answer that lists these brokers, in any version.
pub(crate) fn metadata(request: &RequestFrame, brokers: &[(i32, String, i32)]) -> Bytes {
    let version = request.api_version;
    let listed = brokers.iter().map(|(id, host, port)| {
        MetadataResponseBroker::default()
            .with_node_id((*id).into())
            .with_host(StrBytes::from_string(host.clone()))
            .with_port(*port)
    });
    let mut body = MetadataResponse::default().with_brokers(listed.collect());
    if version >= 1 {
        body.controller_id = brokers.first().map_or(-1, |b| b.0).into();
    }
    if version >= 2 {
        body.cluster_id = Some(StrBytes::from_static_str("mock-cluster"));
    }
    answer::<MetadataRequest>(version, request.correlation_id, &body).unwrap_or_default()
}

/// Whether a request (without its size field) is of the gateway's own client, which reads the topology.
pub(crate) fn is_own(frame: &[u8]) -> bool {
    frame.get(8..17) == Some(b"\x00\x07turnout")
}

/// A broker that gets the bare streams of clients: for what the mock does not do (no Kafka header, no accept, RST).
///
/// The gateway's own client is served apart, and told that node 1 is this very broker.
pub(crate) struct RawBroker {
    pub(crate) address: SocketAddr,
    _tasks: JoinSet<()>,
}

/// One client connection at a [`RawBroker`].
pub(crate) type Handled = std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl RawBroker {
    pub(crate) async fn start(handle: impl Fn(TcpStream) -> Handled + Send + Sync + 'static) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::one()?));
        let listener = TcpListener::bind(address).await?;
        let mut tasks = JoinSet::new();
        let handle = Arc::new(handle);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let handle = Arc::clone(&handle);
                connections.spawn(async move {
                    // What the peer of a broken connection sees is the test's to look at.
                    let _ = match own_client(&stream).await {
                        true => serve_own(stream, address).await,
                        false => handle(stream).await,
                    };
                });
            }
        });
        Ok(Self { address, _tasks: tasks })
    }

    /// A gateway before it, reached through its node 1 as well as through its bootstrap port.
    pub(crate) fn gateway(&self) -> GatewayBuilder {
        Gateway::before_addresses(&self.address.to_string(), 1)
    }
}

/// Whether the gateway's own client is at the other end, from the first bytes it sends.
async fn own_client(stream: &TcpStream) -> bool {
    let begin = Instant::now();
    let mut start = [0; 21];
    while begin.elapsed() < Duration::from_millis(100) {
        match stream.peek(&mut start).await {
            Ok(n) if n >= start.len() => return is_own(&start[4..]),
            Ok(0) | Err(_) => return false,
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    false
}

async fn serve_own(mut stream: TcpStream, address: SocketAddr) -> Result<()> {
    loop {
        let frame = RequestFrame::new(read_frame(&mut stream).await?)?;
        let bytes = match frame.api_key {
            API_VERSIONS => api_versions_of_all(&frame),
            _ => metadata(&frame, &[(1, address.ip().to_string(), address.port().into())]),
        };
        stream.write_all(&bytes).await?;
    }
}

/// An ApiVersions answer with every API and version that the schemas know.
pub(crate) fn api_versions_of_all(request: &RequestFrame) -> Bytes {
    use m::api_versions_response::ApiVersion;
    let keys = m::ApiKey::iter().map(|key| {
        let versions = key.valid_versions();
        ApiVersion::default().with_api_key(key as i16).with_min_version(versions.min).with_max_version(versions.max)
    });
    let body = m::ApiVersionsResponse::default().with_api_keys(keys.collect());
    answer::<m::ApiVersionsRequest>(request.api_version, request.correlation_id, &body).unwrap_or_default()
}

/// Reads one frame; returns it without its size field.
pub(crate) async fn read_frame(stream: &mut TcpStream) -> Result<Bytes> {
    let size = stream.read_i32().await?;
    let mut bytes = vec![0; usize::try_from(size)?];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes.into())
}

/// A listening socket that accepts nobody: its queue is full, so the kernel leaves every SYN unanswered, as a host
/// behind a dropping firewall does.
pub(crate) struct BlackHole {
    pub(crate) address: SocketAddr,
    listener: socket2::Socket,
    fillers: Vec<TcpStream>,
}

impl BlackHole {
    pub(crate) async fn open() -> Result<Self> {
        use socket2::{Domain, Socket, Type};
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::one()?));
        let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
        listener.set_reuse_address(true)?;
        listener.bind(&address.into())?;
        listener.listen(0)?;
        let mut fillers = Vec::new();
        // A queue of 0 takes one or two connections; the next connect gets no answer.
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            fillers.push(stream?);
            ensure!(fillers.len() < 16, "the queue of {address} never fills");
        }
        Ok(Self { address, listener, fillers })
    }

    /// Becomes an ordinary listener: those who fill the queue go, and SYNs sent again are answered.
    pub(crate) fn clear(self) -> Result<TcpListener> {
        let Self { listener, fillers, .. } = self;
        for _ in 0..fillers.len() {
            let _ = listener.accept();
        }
        drop(fillers);
        listener.listen(128)?;
        Ok(TcpListener::from_std(listener.into())?)
    }
}
