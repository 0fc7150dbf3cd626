//! A scriptable broker: it plays a whole cluster by default and misbehaves on demand.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use harness::mock::{Mock, Reply};
//! let mock = Mock::builder().brokers(&[1, 2]).script(|request| match request.frame.api_key {
//!     0 => Reply::Silence,
//!     _ => Reply::Default,
//! }).start().await?;
//! println!("{}", mock.bootstrap());
//! # Ok(()) }
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::metadata_response::MetadataResponseBroker;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse};
use kafka_protocol::protocol::{Message, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::raw::{RequestFrame, answer};
use crate::{ports, wait};

/// Largest request the mock reads.
const MAX_REQUEST: usize = 256 << 20;

/// A request, as a script sees it.
#[derive(Clone, Debug)]
pub struct Received {
    /// Node id of the broker that got it.
    pub node_id: i32,
    /// Number of the connection over all brokers, from 0.
    pub connection: u64,
    /// Number of the request on its connection, from 0.
    pub index: u64,
    /// The request.
    pub frame: RequestFrame,
}

/// What to do with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// ApiVersions and Metadata are answered; any other request closes the connection, as a broker does for an API it
    /// does not know.
    Default,
    /// These bytes, size field included (see [`crate::raw::answer`]); they may be cut short, wrong or many frames.
    Bytes(Bytes),
    /// The same after a delay; later requests of the connection wait behind it, as in a broker.
    Delayed(Duration, Bytes),
    /// The default answer with another correlation id.
    WrongCorrelation,
    /// Nothing, ever; the connection goes on.
    Silence,
    /// These bytes, then FIN and the end.
    CloseAfter(Bytes),
    /// FIN, while requests are still read and recorded.
    HalfClose,
    /// RST.
    Reset,
    /// The size of a huge answer, then bytes until the reader goes.
    Endless,
    /// Stops reading for this long.
    Stall(Duration),
}

type Script = dyn Fn(&Received) -> Reply + Send + Sync;

/// Describes a mock.
pub struct MockBuilder {
    node_ids: Vec<i32>,
    cluster_id: String,
    racks: Vec<String>,
    ranges: Vec<(i16, i16, i16)>,
    read_chunk: Option<(usize, Duration)>,
    script: Box<Script>,
}

impl MockBuilder {
    /// Brokers with these node ids, each on a port of its own (default: one, id 1).
    #[must_use]
    pub fn brokers(mut self, node_ids: &[i32]) -> Self {
        self.node_ids = node_ids.to_vec();
        self
    }

    /// Racks in the order of the node ids.
    #[must_use]
    pub fn racks(mut self, racks: &[&str]) -> Self {
        self.racks = racks.iter().map(|&rack| rack.to_owned()).collect();
        self
    }

    /// Advertises this version range for an API, in place of all that the schemas know; min above max removes it.
    /// Keys nobody knows may be added.
    #[must_use]
    pub fn api(mut self, key: i16, min: i16, max: i16) -> Self {
        self.ranges.retain(|range| range.0 != key);
        if min <= max {
            self.ranges.push((key, min, max));
        }
        self
    }

    /// Reads at most `bytes` at a time with a pause between.
    #[must_use]
    pub fn slow_reading(mut self, bytes: usize, pause: Duration) -> Self {
        self.read_chunk = Some((bytes, pause));
        self
    }

    /// Decides about each request.
    #[must_use]
    pub fn script(mut self, script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        self.script = Box::new(script);
        self
    }

    /// Binds the ports and serves until the mock is dropped.
    ///
    /// # Errors
    /// No free ports.
    pub async fn start(self) -> Result<Mock> {
        let mut listeners = Vec::new();
        for node_id in &self.node_ids {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::one()?));
            listeners.push((*node_id, TcpListener::bind(address).await.with_context(|| address.to_string())?));
        }
        let brokers = listeners.iter().map(|(id, listener)| Ok((*id, listener.local_addr()?)));
        let shared = Arc::new(Shared {
            brokers: brokers.collect::<Result<_>>()?,
            cluster_id: self.cluster_id,
            racks: self.racks,
            ranges: self.ranges,
            read_chunk: self.read_chunk,
            script: self.script,
            received: Mutex::default(),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        for (node_id, listener) in listeners {
            tasks.spawn(accept(Arc::clone(&shared), node_id, listener));
        }
        Ok(Mock { shared, _tasks: tasks })
    }
}

/// Brokers that play a cluster; they end when this is dropped.
pub struct Mock {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    brokers: Vec<(i32, SocketAddr)>,
    cluster_id: String,
    racks: Vec<String>,
    ranges: Vec<(i16, i16, i16)>,
    read_chunk: Option<(usize, Duration)>,
    script: Box<Script>,
    received: Mutex<Vec<Received>>,
    connections: AtomicU64,
    open: AtomicU64,
}

impl Mock {
    /// Starts describing one.
    #[must_use]
    pub fn builder() -> MockBuilder {
        let ranges = ApiKey::iter().map(|key| (key, key.valid_versions()));
        MockBuilder {
            node_ids: vec![1],
            cluster_id: "mock-cluster".into(),
            racks: Vec::new(),
            ranges: ranges.map(|(key, versions)| (key as i16, versions.min, versions.max)).collect(),
            read_chunk: None,
            script: Box::new(|_| Reply::Default),
        }
    }

    /// `host:port,…` of all brokers.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.shared.brokers.iter().map(|(_, address)| address.to_string()).collect();
        addresses.join(",")
    }

    /// Address of one broker.
    ///
    /// # Errors
    /// There is none with this node id.
    pub fn address(&self, node_id: i32) -> Result<SocketAddr> {
        let found = self.shared.brokers.iter().find(|(id, _)| *id == node_id);
        Ok(found.with_context(|| format!("the mock has no node {node_id}"))?.1)
    }

    /// Everything received so far, in order of arrival.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.shared.received().clone()
    }

    /// Waits until `count` requests of this API were received, and returns them.
    ///
    /// # Errors
    /// Fewer came in time.
    pub async fn wait_received(&self, api_key: i16, count: usize, patience: Duration) -> Result<Vec<Received>> {
        let begin = tokio::time::Instant::now();
        loop {
            let found: Vec<_> = self.received().into_iter().filter(|r| r.frame.api_key == api_key).collect();
            if found.len() >= count {
                return Ok(found);
            }
            ensure!(begin.elapsed() < patience, "{} of {count} requests {api_key} in {patience:?}", found.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Connections open now.
    #[must_use]
    pub fn open_connections(&self) -> u64 {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Waits, blocking, until no connection is open.
    ///
    /// # Errors
    /// Some still are after `patience`.
    pub fn wait_all_closed(&self, patience: Duration) -> Result<()> {
        wait::until_true("the mock's connections to close", patience, || self.open_connections() == 0)
    }

    /// The default answer to a request: for scripts that change a detail of it.
    ///
    /// # Errors
    /// It is neither ApiVersions nor Metadata.
    pub fn default_answer(&self, request: &RequestFrame) -> Result<Bytes> {
        self.shared.default_answer(request)
    }
}

impl Shared {
    fn received(&self) -> std::sync::MutexGuard<'_, Vec<Received>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn default_answer(&self, request: &RequestFrame) -> Result<Bytes> {
        let (version, id) = (request.api_version, request.correlation_id);
        match request.api_key {
            18 => {
                let supported = version <= ApiVersionsRequest::VERSIONS.max;
                let keys = self.ranges.iter().map(|&(key, min, max)| {
                    ApiVersion::default().with_api_key(key).with_min_version(min).with_max_version(max)
                });
                let body = ApiVersionsResponse::default().with_api_keys(keys.collect());
                // KIP-511: a version not known is answered in the shape of v0.
                let body = if supported { body } else { body.with_error_code(35) };
                answer::<ApiVersionsRequest>(if supported { version } else { 0 }, id, &body)
            }
            3 => answer::<MetadataRequest>(version, id, &self.metadata(version)),
            key => anyhow::bail!("the mock has no default answer to request {key}"),
        }
    }

    fn metadata(&self, version: i16) -> MetadataResponse {
        let brokers = self.brokers.iter().enumerate().map(|(index, (id, address))| {
            let rack = self.racks.get(index).cloned().map(StrBytes::from_string);
            MetadataResponseBroker::default()
                .with_node_id((*id).into())
                .with_host(StrBytes::from_string(address.ip().to_string()))
                .with_port(address.port().into())
                .with_rack(rack.filter(|_| version >= 1))
        });
        let mut metadata = MetadataResponse::default().with_brokers(brokers.collect());
        if version >= 1 {
            metadata.controller_id = self.brokers[0].0.into();
        }
        if version >= 2 {
            metadata.cluster_id = Some(StrBytes::from_string(self.cluster_id.clone()));
        }
        metadata
    }
}

async fn accept(shared: Arc<Shared>, node_id: i32, listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        shared.open.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // A connection's end, however it comes, is what the peer's test looks at.
            let _ = serve(&shared, node_id, number, stream).await;
            shared.open.fetch_sub(1, Ordering::Relaxed);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(shared: &Shared, node_id: i32, connection: u64, mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    for index in 0.. {
        let Some(bytes) = read_request(shared, &mut stream).await? else { return Ok(()) };
        let received = Received { node_id, connection, index, frame: RequestFrame::new(bytes)? };
        shared.received().push(received.clone());
        match (shared.script)(&received) {
            Reply::Default => stream.write_all(&shared.default_answer(&received.frame)?).await?,
            Reply::Bytes(bytes) => stream.write_all(&bytes).await?,
            Reply::Delayed(delay, bytes) => {
                tokio::time::sleep(delay).await;
                stream.write_all(&bytes).await?;
            }
            Reply::WrongCorrelation => {
                let mut bytes = BytesMut::from(&shared.default_answer(&received.frame)?[..]);
                bytes[4..8].copy_from_slice(&received.frame.correlation_id.wrapping_add(1).to_be_bytes());
                stream.write_all(&bytes).await?;
            }
            Reply::Silence => {}
            Reply::CloseAfter(bytes) => {
                stream.write_all(&bytes).await?;
                return Ok(stream.shutdown().await?);
            }
            Reply::HalfClose => stream.shutdown().await?,
            Reply::Reset => return Ok(socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?),
            Reply::Endless => {
                let id = received.frame.correlation_id.to_be_bytes();
                stream.write_all(&[&i32::MAX.to_be_bytes()[..], &id].concat()).await?;
                let block = [0; 16 * 1024];
                loop {
                    stream.write_all(&block).await?;
                }
            }
            Reply::Stall(pause) => tokio::time::sleep(pause).await,
        }
    }
    Ok(())
}

/// The next request without its size field; `None` at the end of the connection.
async fn read_request(shared: &Shared, stream: &mut TcpStream) -> Result<Option<Bytes>> {
    let mut size = [0; 4];
    match stream.read_exact(&mut size).await {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    let size = usize::try_from(i32::from_be_bytes(size)).context("a negative size")?;
    ensure!(size <= MAX_REQUEST, "a request of {size} bytes");
    // Grows with what arrives, not with what the size field claims.
    let mut bytes = BytesMut::new();
    while bytes.len() < size {
        let want = shared.read_chunk.map_or(64 * 1024, |(chunk, _)| chunk).min(size - bytes.len());
        let read = (&mut *stream).take(want as u64).read_buf(&mut bytes).await?;
        ensure!(read > 0, "the connection ended inside a request");
        if let Some((_, pause)) = shared.read_chunk {
            tokio::time::sleep(pause).await;
        }
    }
    Ok(Some(bytes.freeze()))
}
