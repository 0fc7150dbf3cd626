//! A broker that costs next to nothing: it answers each Produce and Fetch with the same bytes.
//!
//! One thread for each connection, blocking: no scheduler of its own stands between the kernel and the proxy under
//! measurement. As in a real broker, requests of a connection are served one after the other.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::metadata_response::MetadataResponseBroker;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, HeartbeatRequest, HeartbeatResponse, MetadataRequest,
    MetadataResponse,
};
use kafka_protocol::protocol::{Message, StrBytes};
use socket2::SockRef;

use super::wire;
use crate::ports;
use crate::raw::answer;

/// Node id of the one broker.
pub(super) const NODE: i32 = 1;
/// Largest frame it reads.
const MAX_FRAME: usize = 16 << 20;
/// Enough for its frames' headers and a loop; a thousand idle connections are a thousand stacks.
const STACK: usize = 128 * 1024;
const BUFFER: usize = 64 * 1024;
/// Longest piece of a frame that is looked at.
const HEAD: usize = 512;

/// A running mock; it stops accepting when this is dropped, and its connections end with their clients.
#[derive(Debug)]
pub(crate) struct FastBroker {
    address: SocketAddr,
    listener: TcpListener,
}

impl FastBroker {
    /// Binds a port of loopback and serves; Fetch is answered for these values of its `max_bytes`.
    ///
    /// # Errors
    /// No free port.
    pub(crate) fn start(fetch_sizes: &[usize]) -> Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, ports::one()?)), fetch_sizes)
    }

    /// The same at an address of the calling thread's namespace, where it serves whoever uses this later.
    ///
    /// # Errors
    /// The address can't be bound.
    pub(crate) fn start_at(address: SocketAddr, fetch_sizes: &[usize]) -> Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("a mock broker at {address}"))?;
        let fetched = fetch_sizes.iter().map(|&size| Ok((size, wire::fetched(size)?)));
        let answers =
            Arc::new(Answers { address, produced: wire::produced()?, fetched: fetched.collect::<Result<_>>()? });
        let accepting = listener.try_clone()?;
        thread::Builder::new().name("mock accept".into()).spawn(move || {
            for stream in accepting.incoming().map_while(Result::ok) {
                let answers = Arc::clone(&answers);
                // A connection's end, however it comes, is the client's to judge.
                let serve = move || drop(serve(stream, &answers));
                let _ = thread::Builder::new().name("mock".into()).stack_size(STACK).spawn(serve);
            }
        })?;
        Ok(Self { address, listener })
    }

    /// Where it listens.
    #[must_use]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FastBroker {
    fn drop(&mut self) {
        // Ends the accepting thread: its accept fails.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
    }
}

struct Answers {
    address: SocketAddr,
    produced: Bytes,
    fetched: HashMap<usize, Bytes>,
}

fn serve(stream: TcpStream, answers: &Answers) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    let mut input = BufReader::with_capacity(BUFFER, stream);
    let mut head = [0; HEAD];
    // The answer sent last, so that a run of equal requests only changes the correlation id in it.
    let mut last: Option<(i16, usize, Vec<u8>)> = None;
    loop {
        let mut size = [0; 4];
        if let Err(error) = input.read_exact(&mut size) {
            return if error.kind() == std::io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error.into()) };
        }
        let size = usize::try_from(i32::from_be_bytes(size)).context("a negative size")?;
        ensure!((8..=MAX_FRAME).contains(&size), "a request of {size} bytes");
        let looked_at = size.min(HEAD);
        let head = &mut head[..looked_at];
        input.read_exact(head)?;
        discard(&mut input, size - looked_at)?;
        let key = i16::from_be_bytes([head[0], head[1]]);
        let version = i16::from_be_bytes([head[2], head[3]]);
        let id = i32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let detail = match ApiKey::try_from(key) {
            Ok(ApiKey::Fetch) => wire::fetch_max_bytes(head).context("a short Fetch")?,
            Ok(ApiKey::Produce) if version == wire::SIZED => wire::wanted_answer(head).context("a short Produce")?,
            _ => 0,
        };
        let is_load = key == ApiKey::Fetch as i16 || key == ApiKey::Produce as i16;
        match &mut last {
            Some((last_key, last_detail, bytes)) if is_load && (*last_key, *last_detail) == (key, detail) => {
                bytes[wire::ANSWER_ID..wire::ANSWER_ID + 4].copy_from_slice(&id.to_be_bytes());
                output.write_all(bytes)?;
            }
            _ => {
                let bytes = answers.to(key, version, id, detail)?;
                output.write_all(&bytes)?;
                last = is_load.then_some((key, detail, bytes));
            }
        }
    }
}

fn discard(input: &mut impl BufRead, mut count: usize) -> std::io::Result<()> {
    while count > 0 {
        let available = input.fill_buf()?.len().min(count);
        if available == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        input.consume(available);
        count -= available;
    }
    Ok(())
}

impl Answers {
    fn to(&self, key: i16, version: i16, id: i32, detail: usize) -> Result<Vec<u8>> {
        Ok(match ApiKey::try_from(key) {
            Ok(ApiKey::Produce) if version == wire::PRODUCE => wire::renumbered(&self.produced, id).to_vec(),
            Ok(ApiKey::Produce) if version == wire::SIZED => wire::renumbered(&wire::sized(detail)?, id).to_vec(),
            Ok(ApiKey::Fetch) if version == wire::FETCH => {
                let fetched = self.fetched.get(&detail).with_context(|| format!("a Fetch of {detail} bytes"))?;
                wire::renumbered(fetched, id).to_vec()
            }
            Ok(ApiKey::ApiVersions) => {
                let known = version <= ApiVersionsRequest::VERSIONS.max;
                let body = ApiVersionsResponse::default()
                    .with_api_keys(versions())
                    // KIP-511: a version not known is answered in the shape of v0.
                    .with_error_code(if known { 0 } else { 35 });
                answer::<ApiVersionsRequest>(if known { version } else { 0 }, id, &body)?.to_vec()
            }
            Ok(ApiKey::Heartbeat) => answer::<HeartbeatRequest>(version, id, &HeartbeatResponse::default())?.to_vec(),
            Ok(ApiKey::Metadata) => answer::<MetadataRequest>(version, id, &self.metadata())?.to_vec(),
            _ => bail!("request {key} v{version}, which this broker does not speak"),
        })
    }

    fn metadata(&self) -> MetadataResponse {
        let broker = MetadataResponseBroker::default()
            .with_node_id(NODE.into())
            .with_host(StrBytes::from_string(self.address.ip().to_string()))
            .with_port(self.address.port().into());
        MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_controller_id(NODE.into())
            .with_cluster_id(Some(StrBytes::from_static_str("bench")))
    }
}

fn versions() -> Vec<ApiVersion> {
    let range = |key: ApiKey, min, max| {
        ApiVersion::default().with_api_key(key as i16).with_min_version(min).with_max_version(max)
    };
    vec![
        range(ApiKey::Produce, 0, wire::PRODUCE),
        range(ApiKey::Fetch, 4, wire::FETCH),
        range(ApiKey::Heartbeat, 0, HeartbeatRequest::VERSIONS.max),
        range(ApiKey::Metadata, 2, MetadataRequest::VERSIONS.max),
        range(ApiKey::ApiVersions, 0, ApiVersionsRequest::VERSIONS.max),
    ]
}
