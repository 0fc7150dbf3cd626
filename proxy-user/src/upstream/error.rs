//! What goes wrong between the gateway's own client and a broker: the peer, the step, the problem, and what to do.

use std::fmt;
use std::io;
use std::time::Duration;

use super::dial::DialError;
use super::endpoint::Endpoint;
use super::scram::ScramError;
use super::tls::{self, TlsConfigError};
use crate::kafka::ids::{ApiKey, CorrelationId};

/// Where in a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// TLS handshake.
    Tls,
    /// ApiVersions.
    ApiVersions,
    /// SaslHandshake: which mechanism.
    SaslHandshake,
    /// SaslAuthenticate: the mechanism's own messages.
    SaslAuthenticate,
    /// Metadata.
    Metadata,
    /// DescribeConfigs.
    DescribeConfigs,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "TLS handshake",
            Self::ApiVersions => "ApiVersions",
            Self::SaslHandshake => "SaslHandshake",
            Self::SaslAuthenticate => "SaslAuthenticate",
            Self::Metadata => "Metadata",
            Self::DescribeConfigs => "DescribeConfigs",
        })
    }
}

/// A connected broker did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{peer}, {step}: {problem}")]
pub struct ClientError {
    /// Which broker.
    pub peer: Endpoint,
    /// Doing what.
    pub step: Step,
    /// What happened.
    pub problem: Problem,
}

/// What happened.
#[derive(Debug)]
pub enum Problem {
    /// No answer in time.
    Timeout(Duration),
    /// The broker closed the connection.
    Closed {
        /// The connection had TLS.
        tls: bool,
        /// The step at which it did.
        step: Step,
    },
    /// The connection failed.
    Io(io::Error),
    /// The bytes are a TLS record: a plaintext client on a TLS listener.
    SpeaksTls,
    /// The bytes are another protocol's.
    NotKafka(&'static str),
    /// A frame's declared size is negative, too short for an answer, or above the bound.
    FrameSize(i32),
    /// An answer isn't what its schema says.
    Malformed(&'static str),
    /// An answer to something else.
    Correlation {
        /// What was sent.
        sent: CorrelationId,
        /// What came back.
        received: CorrelationId,
    },
    /// The TLS handshake failed; what it means.
    Tls(String),
    /// The listener has no SASL.
    SaslNotUsed,
    /// The listener has other mechanisms.
    MechanismNotEnabled {
        /// The config's.
        wanted: &'static str,
        /// What the listener enables.
        enabled: Vec<String>,
    },
    /// The user or the password is wrong.
    WrongCredentials {
        /// The mechanism used.
        mechanism: &'static str,
        /// The user.
        username: String,
        /// The broker's words.
        message: String,
    },
    /// The SCRAM exchange failed.
    Scram(ScramError),
    /// The listener wants authentication and the config has none.
    NeedsAuthentication,
    /// The broker answered with an error code.
    Broker(i16),
    /// No version of this API that both speak.
    NoCommonVersion(ApiKey),
    /// The host can't be a name in a certificate.
    HostName,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(after) => write!(f, "no answer within {after:?}: overloaded, frozen, or not a Kafka broker"),
            Self::Closed { step: Step::Tls, .. } => f.write_str(
                "it closed the connection: a plaintext listener (name a TLS listener in tls.bootstrap, or remove tls), \
                 or it wants a client certificate (set tls.cert and tls.key)",
            ),
            Self::Closed { step: Step::ApiVersions, tls: false } => {
                f.write_str("it closed the connection: a TLS listener (set tls), a connection limit, or not Kafka")
            }
            Self::Closed { step: Step::ApiVersions, tls: true } => f.write_str(
                "it closed the connection: it wants a client certificate (set tls.cert and tls.key), or it is at a \
                 connection limit",
            ),
            Self::Closed { step: Step::SaslAuthenticate, .. } => {
                f.write_str("it closed the connection: the broker's log says why")
            }
            Self::Closed { .. } => f.write_str("it closed the connection: it is shutting down, or its log says why"),
            Self::Io(e) => write!(f, "the connection failed: {e}"),
            Self::SpeaksTls => f.write_str("it speaks TLS: set tls, or name a plaintext listener"),
            Self::NotKafka(what) => write!(f, "it speaks {what}, not Kafka: check host and port"),
            Self::FrameSize(size) => {
                write!(f, "it sent a frame of {size} bytes, so it is no Kafka broker: check host and port")
            }
            Self::Malformed(what) => write!(f, "its answer can't be read: {what}"),
            Self::Correlation { sent, received } => {
                write!(f, "it answered request {received} when asked {sent}: no Kafka broker, or mixed up on the way")
            }
            Self::Tls(what) => f.write_str(what),
            Self::SaslNotUsed => f.write_str("this listener has no SASL: remove sasl, or name a SASL listener"),
            Self::MechanismNotEnabled { wanted, enabled } => {
                write!(
                    f,
                    "{wanted} is not enabled on this listener, which has {}: set sasl.mechanism",
                    enabled.join(", ")
                )
            }
            Self::WrongCredentials { mechanism, username, message } => {
                write!(f, "{mechanism} as `{username}` was refused ({message}): check sasl.username and sasl.password")
            }
            Self::Scram(e) => e.fmt(f),
            Self::NeedsAuthentication => f.write_str(
                "it wants authentication and the cluster has no sasl: brokers are learned from the answers that pass; \
                 set sasl for the gateway to ask by itself",
            ),
            Self::Broker(code) => write!(f, "it answered error {code}"),
            Self::NoCommonVersion(key) => write!(f, "no common version of API {key}: a newer turnout is needed"),
            Self::HostName => {
                f.write_str("its host is neither a DNS name nor an IP address: no certificate can be for it")
            }
        }
    }
}

impl Problem {
    /// From an I/O error at `step`.
    pub(super) fn from_io(error: io::Error, step: Step, tls: bool) -> Self {
        if let Some(inner) = tls::inside(&error) {
            return Self::Tls(tls::explain(inner));
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed { tls, step },
            _ => Self::Io(error),
        }
    }

    /// Short name of the kind, from a fixed set.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::Closed { .. } => "closed",
            Self::Io(_) => "io",
            Self::SpeaksTls | Self::Tls(_) | Self::HostName => "tls",
            Self::NotKafka(_) | Self::FrameSize(_) | Self::Malformed(_) | Self::Correlation { .. } => "not_kafka",
            Self::SaslNotUsed | Self::MechanismNotEnabled { .. } | Self::Scram(_) => "sasl",
            Self::WrongCredentials { .. } => "credentials",
            Self::NeedsAuthentication => "needs_authentication",
            Self::Broker(_) => "broker_error",
            Self::NoCommonVersion(_) => "version",
        }
    }

    /// Another broker of the same cluster would say the same, and asking it may lock the account.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::MechanismNotEnabled { .. }
                | Self::WrongCredentials { .. }
                | Self::Scram(ScramError::Refused(_) | ScramError::Unusable(_))
        )
    }
}

/// Why a cluster's topology could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    #[error("no usable bootstrap address: {0}")]
    Config(String),
}

impl ReadError {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Dial(e) => e.kind(),
            Self::Client(e) => e.problem.kind(),
            Self::Tls(_) | Self::Config(_) => "config",
        }
    }

    pub(super) fn needs_authentication(&self) -> bool {
        matches!(self, Self::Client(ClientError { problem: Problem::NeedsAuthentication, .. }))
    }

    /// Only a change of the config, or of the cluster's users, can help: trying often does harm.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Client(e) => e.problem.is_final(),
            Self::Tls(_) | Self::Config(_) => true,
            Self::Dial(_) => false,
        }
    }
}
