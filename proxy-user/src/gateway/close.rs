//! Why a connection ended: a label for the counter, a sentence for the log, and the knob where there is one.

use std::io;

use crate::kafka::header::Foreign;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId};
use crate::metrics::Limit;
use crate::route;
use crate::upstream::DialError;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// The client closed after its last answer.
    #[error("the client closed")]
    ClientClosed,
    /// The client closed with answers outstanding or a frame cut short.
    #[error("the client closed with {in_flight} requests in flight")]
    ClientGone {
        /// Requests without an answer.
        in_flight: usize,
    },
    /// The client's socket failed.
    #[error("the client's socket failed: {0}")]
    ClientError(io::Error),
    /// The broker closed.
    #[error("the broker closed with {in_flight} requests in flight")]
    BrokerClosed {
        /// Requests without an answer.
        in_flight: usize,
    },
    /// The broker's socket failed.
    #[error("the broker's socket failed: {0}")]
    BrokerError(io::Error),
    /// No broker could be reached.
    #[error("no broker reached: {0}")]
    Unreachable(DialError),
    /// The broker is out of reach, and the gateway has said in its place what it could.
    #[error("the broker is out of reach; its readers were sent back to the leaders")]
    StoodIn,
    /// The first bytes weren't Kafka.
    #[error("{}", match .0 {
        Foreign::TlsHello => "the client speaks TLS to a plaintext port: set its security.protocol to PLAINTEXT or SASL_PLAINTEXT",
        Foreign::TlsAlert => "the client sent a TLS alert: it expected TLS on this plaintext port; set its security.protocol to PLAINTEXT or SASL_PLAINTEXT",
        Foreign::Http => "the client speaks HTTP to a Kafka port: check what it was told to dial",
        Foreign::Ssh => "the client speaks SSH to a Kafka port: check what it was told to dial",
        Foreign::Proxy => "the client sends a PROXY protocol header: switch it off in the load balancer before this port",
    })]
    Foreign(Foreign),
    /// A request's size field is negative, zero where that's not legal, or too small for a header.
    #[error("a request of {size} bytes can't hold a header")]
    BadSize {
        /// As it stands in the frame.
        size: i32,
    },
    /// A frame's first bytes can't be what the connection is due.
    #[error("a frame of {size} bytes is malformed: {what}")]
    MalformedFrame {
        /// As it stands in the frame.
        size: i32,
        /// In a few words.
        what: &'static str,
    },
    /// A request is larger than `limits.frame`.
    #[error("a request of {size} bytes is above {limit} (limits.frame)")]
    FrameTooLarge {
        /// As it stands in the frame.
        size: i32,
        /// The bound in force.
        limit: u64,
    },
    /// A frame that must be held whole is larger than `limits.rewrite_frame`.
    #[error("a frame of {size} bytes must be rewritten and is above {limit} (limits.rewrite_frame)")]
    HoldTooLarge {
        /// As it stands in the frame.
        size: i32,
        /// The bound in force.
        limit: u64,
    },
    /// Key or version that a broker would not take either.
    #[error("{0}")]
    UnknownRequest(route::CloseReason),
    /// A request header or body can't be read.
    #[error("a request of api key {key} version {version} is malformed: {what}")]
    MalformedRequest {
        /// Key.
        key: ApiKey,
        /// Version.
        version: ApiVersion,
        /// In a few words.
        what: String,
    },
    /// An answer can't be read.
    #[error("the broker's answer to api key {key} version {version} is malformed: {what}")]
    MalformedAnswer {
        /// Key.
        key: ApiKey,
        /// Version.
        version: ApiVersion,
        /// In a few words.
        what: String,
    },
    /// An answer came that nobody asked for.
    #[error("the broker sent an answer without a request")]
    Unsolicited,
    /// An answer's id isn't the oldest request's.
    #[error("the broker answered correlation id {got} where {expected} was due")]
    Correlation {
        /// Of the oldest request.
        expected: CorrelationId,
        /// In the answer.
        got: CorrelationId,
    },
    /// No complete frame header in time.
    #[error("no complete request header in time (limits.first_byte)")]
    FirstByte,
    /// A frame was begun and not finished in time.
    #[error("a request was begun and not finished in time (limits.incomplete_frame)")]
    IncompleteFrame,
    /// Nothing happened for too long.
    #[error("nothing passed for too long (limits.idle)")]
    Idle,
    /// The client didn't take its answers.
    #[error("the client took none of its answers for too long (limits.idle)")]
    Stalled,
    /// The broker didn't take what it was sent.
    #[error("the broker took no request bytes for too long (limits.idle)")]
    BrokerStalled,
    /// Closed on purpose, at a frame boundary with nothing in flight.
    #[error("drained")]
    Drained,
    /// The drain's time was over.
    #[error("the drain's time was over with {in_flight} requests in flight (limits.drain)")]
    DrainTimeout {
        /// Requests without an answer.
        in_flight: usize,
    },
    /// A reload denies its source.
    #[error("its address is denied since the last reload (admission.deny)")]
    Denied,
    /// Somebody took the kernel's programs off, and with them what kept the connection's two sides in step.
    #[error("it was spliced, and the kernel programs are gone from its interfaces")]
    SpliceLost,
    /// The daemon was told a second time to end.
    #[error("stopped")]
    Stopped,
}

impl CloseReason {
    /// Label of the counter.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::ClientClosed => "client_closed",
            Self::ClientGone { .. } => "client_gone",
            Self::ClientError(_) => "client_error",
            Self::BrokerClosed { .. } => "broker_closed",
            Self::BrokerError(_) => "broker_error",
            Self::Unreachable(_) => "unreachable",
            Self::StoodIn => "stood_in",
            Self::Foreign(Foreign::Http) => "http_on_kafka",
            Self::Foreign(Foreign::Ssh | Foreign::Proxy) => "not_kafka",
            Self::Foreign(Foreign::TlsHello | Foreign::TlsAlert) => "tls_on_plaintext",
            Self::BadSize { .. } => "bad_size",
            Self::FrameTooLarge { .. } => "frame_limit",
            Self::HoldTooLarge { .. } => "rewrite_limit",
            Self::UnknownRequest(_) => "unknown_request",
            Self::MalformedRequest { .. } | Self::MalformedFrame { .. } => "malformed_request",
            Self::MalformedAnswer { .. } => "malformed_answer",
            Self::Unsolicited => "unsolicited_answer",
            Self::Correlation { .. } => "correlation",
            Self::FirstByte => "first_byte",
            Self::IncompleteFrame => "incomplete_frame",
            Self::Idle => "idle",
            Self::Stalled => "stalled",
            Self::BrokerStalled => "broker_stalled",
            Self::Drained | Self::DrainTimeout { .. } => "drained",
            Self::Denied => "denied",
            Self::SpliceLost => "splice_lost",
            Self::Stopped => "stopped",
        }
    }

    /// The limit that was hit, where it was one.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        match self {
            Self::FrameTooLarge { .. } => Some(Limit::Frame),
            Self::HoldTooLarge { .. } => Some(Limit::RewriteFrame),
            Self::FirstByte => Some(Limit::FirstByte),
            Self::IncompleteFrame => Some(Limit::IncompleteFrame),
            Self::Idle | Self::Stalled | Self::BrokerStalled => Some(Limit::Idle),
            Self::DrainTimeout { .. } => Some(Limit::Drain),
            Self::Unreachable(error) if error.timed_out() => Some(Limit::ConnectTimeout),
            _ => None,
        }
    }

    /// Whether an operator should see it without asking: a limit, a fault, or a peer that misbehaves.
    #[must_use]
    pub fn is_notable(&self) -> bool {
        !matches!(
            self,
            Self::ClientClosed
                | Self::ClientGone { .. }
                | Self::ClientError(_)
                | Self::Idle
                | Self::Drained
                | Self::StoodIn
                | Self::Stopped
        )
    }
}
