//! The gateway's own client: one short connection to one broker.
//!
//! ```text
//!   TCP ─► [TLS] ─► ApiVersions ─► [SaslHandshake ─► SaslAuthenticate…] ─► Metadata | DescribeConfigs
//! ```
//!
//! Every step is bounded in time, every frame in size. ApiVersions needs no authentication, so a broker's versions are
//! known even where the config has no credentials. Re-authentication (KIP-368) is not needed: no connection lives that
//! long.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
pub use super::error::{ClientError, Problem, Step};
use super::merge::Observed;
use super::own::Opened;
pub use super::scram::ScramError;
use super::scram::{self, Hash};
use super::topology::VersionTable;
use super::watcher::Wanted;
use super::wire::{self, Malformed, Reader, Request, code};
use crate::config::{Mechanism, Sasl};
use crate::kafka::ids::{CorrelationId, NodeId};
use crate::kafka::topics::SeenTopic;

/// The largest answer that is read: the Metadata of a thousand brokers is a hundredth of it.
const FRAME: usize = 16 << 20;

/// The client id that brokers see in quotas and request logs.
const CLIENT_ID: &str = "turnout";

/// Both directions of a connection, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection whose ApiVersions are known.
pub(super) struct Connection {
    peer: Endpoint,
    stream: Box<dyn Stream>,
    tls: bool,
    bound: Duration,
    next_id: i32,
    versions: VersionTable,
}

impl Connection {
    /// Speaks TLS if there is a config for it, and asks for ApiVersions. `bound` limits each step.
    ///
    /// # Errors
    /// [`ClientError`], at step TLS or ApiVersions.
    pub(super) async fn open(
        stream: TcpStream,
        peer: Endpoint,
        tls: Option<Arc<ClientConfig>>,
        bound: Duration,
    ) -> Result<Self, ClientError> {
        let is_tls = tls.is_some();
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(stream),
            Some(config) => Box::new(handshake(stream, &peer, config, bound).await?),
        };
        let mut this = Self { peer, stream, tls: is_tls, bound, next_id: 0, versions: VersionTable::new() };
        this.versions = this.api_versions().await?;
        Ok(this)
    }

    /// The connection itself, for requests of another room.
    pub(super) fn into_opened(self) -> Opened {
        let Self { peer, stream, versions, tls: _, bound: _, next_id: _ } = self;
        Opened { stream, versions, peer }
    }

    /// What the broker speaks.
    pub(super) fn versions(&self) -> &VersionTable {
        &self.versions
    }

    async fn api_versions(&mut self) -> Result<VersionTable, ClientError> {
        let step = Step::ApiVersions;
        for version in [wire::API_VERSIONS, 0] {
            let answer = self.exchange(step, &Request::ApiVersions, version).await?;
            let (error, table) = wire::api_versions(&answer, version).map_err(|m| self.malformed(step, m))?;
            match error {
                0 => return Ok(table),
                code::UNSUPPORTED_VERSION => {}
                other => return Err(self.error(step, Problem::Broker(other))),
            }
        }
        Err(self.error(step, Problem::Broker(code::UNSUPPORTED_VERSION)))
    }

    /// Logs in.
    ///
    /// # Errors
    /// [`ClientError`], at step SaslHandshake or SaslAuthenticate.
    pub(super) async fn authenticate(&mut self, sasl: &Sasl) -> Result<(), ClientError> {
        let step = Step::SaslHandshake;
        let mechanism = name(sasl.mechanism);
        let request = Request::SaslHandshake { mechanism };
        let version = self.negotiate(step, &request, &wire::SASL_HANDSHAKE)?;
        let answer = self.exchange(step, &request, version).await?;
        let (error, enabled) = wire::sasl_handshake(&answer).map_err(|m| self.malformed(step, m))?;
        match error {
            0 => {}
            code::UNSUPPORTED_SASL_MECHANISM => {
                // Kafka has five; the list ends up in a log line.
                let enabled = enabled.iter().take(16).map(|m| scram::printable(m)).collect();
                return Err(self.error(step, Problem::MechanismNotEnabled { wanted: mechanism, enabled }));
            }
            code::ILLEGAL_SASL_STATE => return Err(self.error(step, Problem::SaslNotUsed)),
            other => return Err(self.error(step, Problem::Broker(other))),
        }
        match sasl.mechanism {
            Mechanism::Plain => {
                let token = scram::plain(&sasl.username, &sasl.password).map_err(|e| self.scram(e))?;
                self.token(sasl, token).await.map(drop)
            }
            Mechanism::ScramSha256 => self.scram_login(sasl, Hash::Sha256).await,
            Mechanism::ScramSha512 => self.scram_login(sasl, Hash::Sha512).await,
        }
    }

    async fn scram_login(&mut self, sasl: &Sasl, hash: Hash) -> Result<(), ClientError> {
        let (first, message) = scram::start(hash, &sasl.username, &sasl.password).map_err(|e| self.scram(e))?;
        let answer = self.token(sasl, message).await?;
        let challenge = first.server_first(&answer).map_err(|e| self.scram(e))?;
        let password = sasl.password.clone();
        // PBKDF2 takes milliseconds at least: not on a thread that moves clients' bytes.
        let derived = tokio::task::spawn_blocking(move || challenge.answer(&password)).await;
        let (proof, message) =
            derived.map_err(|e| self.error(Step::SaslAuthenticate, Problem::Io(std::io::Error::other(e))))?;
        let answer = self.token(sasl, message).await?;
        proof.server_final(&answer).map_err(|e| self.scram(e))
    }

    /// Sends one message of the mechanism, returns the broker's.
    async fn token(&mut self, sasl: &Sasl, token: Vec<u8>) -> Result<Vec<u8>, ClientError> {
        let step = Step::SaslAuthenticate;
        let request = Request::SaslAuthenticate { token: Bytes::from(token) };
        let version = self.negotiate(step, &request, &wire::SASL_AUTHENTICATE)?;
        let answer = self.exchange(step, &request, version).await?;
        let answer = wire::sasl_authenticate(&answer, version).map_err(|m| self.malformed(step, m))?;
        match answer.error {
            0 => Ok(answer.token.to_vec()),
            code::SASL_AUTHENTICATION_FAILED => {
                let message = scram::printable(answer.message.unwrap_or("no reason given"));
                let (mechanism, username) = (name(sasl.mechanism), sasl.username.clone());
                Err(self.error(step, Problem::WrongCredentials { mechanism, username, message }))
            }
            other => Err(self.error(step, Problem::Broker(other))),
        }
    }

    /// The cluster's brokers. `authenticated` tells what a close means: a broker that wants SASL closes the connection
    /// at the first request that isn't part of it.
    ///
    /// # Errors
    /// [`ClientError`], at step Metadata.
    pub(super) async fn metadata(&mut self, authenticated: bool) -> Result<Observed, ClientError> {
        let step = Step::Metadata;
        let version = self.negotiate(step, &Request::Metadata, &wire::METADATA)?;
        let answer = match self.exchange(step, &Request::Metadata, version).await {
            Err(ClientError { problem: Problem::Closed { .. }, .. }) if !authenticated => {
                return Err(self.error(step, Problem::NeedsAuthentication));
            }
            other => other?,
        };
        wire::metadata(&answer, version).map_err(|m| self.malformed(step, m))
    }

    /// These topics, with leaders and in-sync replicas. Those that are known by their id alone are left out where the
    /// broker can't be asked by ids.
    ///
    /// # Errors
    /// [`ClientError`], at step Metadata.
    pub(super) async fn topics(
        &mut self,
        topics: &[Wanted],
        authenticated: bool,
    ) -> Result<Vec<SeenTopic>, ClientError> {
        let step = Step::Metadata;
        let request = Request::Topics { topics: topics.to_vec() };
        let version = self.negotiate(step, &request, &wire::METADATA)?;
        let answer = match self.exchange(step, &request, version).await {
            Err(ClientError { problem: Problem::Closed { .. }, .. }) if !authenticated => {
                return Err(self.error(step, Problem::NeedsAuthentication));
            }
            other => other?,
        };
        wire::topics(&answer, version).map_err(|m| self.malformed(step, m))
    }

    /// Whether this broker runs a rack-aware replica selector; `None`: it does not say.
    ///
    /// # Errors
    /// [`ClientError`], at step DescribeConfigs.
    pub(super) async fn is_rack_aware(&mut self, broker: NodeId) -> Result<Option<bool>, ClientError> {
        let step = Step::DescribeConfigs;
        let request = Request::Selector { broker };
        let version = self.negotiate(step, &request, &wire::DESCRIBE_CONFIGS)?;
        let answer = self.exchange(step, &request, version).await?;
        let (error, selector) = wire::selector(&answer, version).map_err(|m| self.malformed(step, m))?;
        Ok((error == 0).then(|| selector.is_some_and(|class| class.ends_with(wire::RACK_AWARE))))
    }

    fn negotiate(
        &self,
        step: Step,
        request: &Request,
        ours: &std::ops::RangeInclusive<i16>,
    ) -> Result<i16, ClientError> {
        wire::negotiate(&self.versions, request.key(), ours)
            .ok_or_else(|| self.error(step, Problem::NoCommonVersion(request.key())))
    }

    /// Sends a request and returns the answer's body.
    async fn exchange(&mut self, step: Step, request: &Request, version: i16) -> Result<Vec<u8>, ClientError> {
        let id = CorrelationId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let frame = request.frame(version, id, CLIENT_ID).map_err(|m| self.malformed(step, m))?;
        let answer = timeout(self.bound, self.write_and_read(step, &frame)).await;
        let mut answer = match answer {
            Ok(read) => read.map_err(|problem| self.error(step, problem))?,
            Err(_) => return Err(self.error(step, Problem::Timeout(self.bound))),
        };
        let mut header = Reader::new(&answer, request.answer_header_has_tags(version));
        let received = CorrelationId(header.i32().map_err(|m| self.malformed(step, m))?);
        if received != id {
            return Err(self.error(step, Problem::Correlation { sent: id, received }));
        }
        header.tags().map_err(|m| self.malformed(step, m))?;
        let body = answer.len() - header.remaining();
        Ok(answer.split_off(body))
    }

    async fn write_and_read(&mut self, step: Step, frame: &[u8]) -> Result<Vec<u8>, Problem> {
        let tls = self.tls;
        let failed = |e| Problem::from_io(e, step, tls);
        // A broker that refuses the connection may have said why before it closed: read even if the write failed.
        let written = match self.stream.write_all(frame).await {
            Ok(()) => self.stream.flush().await,
            error => error,
        };
        let mut size = [0; 4];
        match (self.stream.read_exact(&mut size).await, written) {
            (Ok(_), _) => {}
            (Err(e), Ok(())) => return Err(failed(e)),
            (Err(read), Err(write)) => {
                return Err(failed(if super::tls::inside(&read).is_some() { read } else { write }));
            }
        }
        let declared = i32::from_be_bytes(size);
        let size = match usize::try_from(declared) {
            Ok(n) if (4..=FRAME).contains(&n) => n,
            _ => return Err(other_protocol(size).unwrap_or(Problem::FrameSize(declared))),
        };
        // Grows with the bytes that arrive, not with the size that was declared.
        let mut answer = Vec::new();
        (&mut self.stream).take(size as u64).read_to_end(&mut answer).await.map_err(failed)?;
        if answer.len() < size { Err(Problem::Closed { tls, step }) } else { Ok(answer) }
    }

    fn error(&self, step: Step, problem: Problem) -> ClientError {
        ClientError { peer: self.peer.clone(), step, problem }
    }

    fn malformed(&self, step: Step, Malformed(what): Malformed) -> ClientError {
        self.error(step, Problem::Malformed(what))
    }

    fn scram(&self, error: ScramError) -> ClientError {
        self.error(Step::SaslAuthenticate, Problem::Scram(error))
    }
}

async fn handshake(
    stream: TcpStream,
    peer: &Endpoint,
    config: Arc<ClientConfig>,
    bound: Duration,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ClientError> {
    let error = |problem| ClientError { peer: peer.clone(), step: Step::Tls, problem };
    let host = ServerName::try_from(peer.host.clone()).map_err(|_| error(Problem::HostName))?;
    match timeout(bound, TlsConnector::from(config).connect(host, stream)).await {
        Ok(connected) => connected.map_err(|e| error(Problem::from_io(e, Step::Tls, true))),
        Err(_) => Err(error(Problem::Timeout(bound))),
    }
}

/// What else may be at the other end, by the bytes where a frame's size should be.
fn other_protocol(start: [u8; 4]) -> Option<Problem> {
    match &start {
        [0x15 | 0x16, 0x03, _, _] => Some(Problem::SpeaksTls),
        b"HTTP" => Some(Problem::NotKafka("HTTP")),
        [b'S', b'S', b'H', b'-'] => Some(Problem::NotKafka("SSH")),
        _ => None,
    }
}

/// The mechanism as it is named on the wire.
#[must_use]
pub(super) fn name(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Plain => "PLAIN",
        Mechanism::ScramSha256 => "SCRAM-SHA-256",
        Mechanism::ScramSha512 => "SCRAM-SHA-512",
    }
}

#[cfg(test)]
mod tests;
