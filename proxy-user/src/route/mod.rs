//! What happens to a request: pure decisions from the start of its frame.
//!
//! [`plan`] is asked once per request, with as many bytes as are there, and its [`Plan`] is carried out by the
//! gateway. A decision that needs more context (a branch) becomes a further variant of [`Plan`] or [`AnswerPlan`], decided
//! here from further arguments.

use bytes::Bytes;
use proxy_common::frame::RequestPrefix;

use crate::config::Versions;
use crate::kafka::api::{self, VersionRange};
use crate::kafka::fetch;
use crate::kafka::header::Partial;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId};
use crate::kafka::versions;

/// First Produce and Fetch whose answers may carry addresses (KIP-951).
const PRODUCE_WITH_ENDPOINTS: ApiVersion = ApiVersion(10);
const FETCH_WITH_ENDPOINTS: ApiVersion = ApiVersion(16);

/// What happens to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Its bytes go to the broker as they are.
    Forward {
        /// What happens to the answer.
        answer: AnswerPlan,
    },
    /// It is held whole and goes through [`crate::kafka::rewrite::rewrite_request`].
    Rewrite {
        /// What happens to the answer.
        answer: AnswerPlan,
    },
    /// A Fetch that may be routed: it is held whole and looked at, unless it is too large. Its answer is
    /// [`AnswerPlan::Route`], where it is a consumer's.
    Route,
    /// It is read to its end and not forwarded; this is the answer, the whole frame behind the size field. The answer
    /// waits for its turn.
    Answer(Bytes),
    /// The connection ends, as a broker would end it, once the answers before this one are written.
    Close(CloseReason),
}

/// What happens to the answer of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerPlan {
    /// None will ever come: a Produce with acks = 0.
    None,
    /// It passes as it is, unread.
    Stream,
    /// Produce v10 and above: it passes when [`crate::kafka::rewrite::is_clean_produce_answer`] says so, else it is held
    /// whole and goes through [`crate::kafka::rewrite::rewrite_answer`].
    CheckProduce,
    /// Fetch v16 and above where the policy offers it, and ShareFetch: held whole and rewritten up to the bound of
    /// such frames, above it streamed through [`crate::kafka::hints::HintScrubber::of`].
    FetchHints,
    /// Fetch v16 and above from a client that was offered less: streamed through the scrubber, never held.
    FetchScrub,
    /// Fetch of a consumer that is routed by rack: streamed through [`crate::kafka::fetch::AnswerPatcher`].
    Route,
    /// Held whole and rewritten.
    Rewrite,
    /// Held whole; [`crate::kafka::versions::rewrite_api_versions`].
    ApiVersions,
    /// Passes, and [`crate::kafka::sasl::SaslTracker::handshake_answered`] is told.
    Handshake,
    /// SaslAuthenticate: passes; it may end a prelude.
    Authenticate,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// A key that isn't in the table: vendor keys, and those of controllers and between brokers.
    #[error("api key {0} isn't offered to clients")]
    UnknownApi(ApiKey),
    /// A version outside of what is served.
    #[error(
        "{name} v{version} isn't served, v{min} to v{max} are; the client must negotiate by ApiVersions",
        name = api::name(*key), min = served.min, max = served.max
    )]
    UnsupportedVersion {
        /// The API.
        key: ApiKey,
        /// The request's version.
        version: ApiVersion,
        /// What is served.
        served: VersionRange,
    },
}

impl CloseReason {
    /// A bounded label for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::UnknownApi(_) => "unknown_api",
            Self::UnsupportedVersion { .. } => "unsupported_version",
        }
    }
}

/// Decides about a request. `acks` reads a Produce request's field ([`crate::kafka::header::produce_acks`]); it is asked
/// only where the answer matters, and while it needs more bytes, so does the plan.
///
/// `routes_reads`: consumers of this connection are led to replicas.
///
/// Whatever the table lists is served, even where `policy` offers less: a client that doesn't negotiate works as it
/// does at the broker.
pub fn plan(
    prefix: RequestPrefix,
    acks: impl FnOnce() -> Partial<i16>,
    policy: Versions,
    routes_reads: bool,
) -> Partial<Plan> {
    let (key, version) = (ApiKey(prefix.api_key), ApiVersion(prefix.api_version));
    let Some(spec) = api::spec(key) else { return Partial::Done(Plan::Close(CloseReason::UnknownApi(key))) };
    let served = spec.served();
    if !served.contains(version) {
        return Partial::Done(if key == ApiKey::API_VERSIONS {
            Plan::Answer(versions::unsupported_api_versions(CorrelationId(prefix.correlation_id), served))
        } else {
            Plan::Close(CloseReason::UnsupportedVersion { key, version, served })
        });
    }
    if key == ApiKey::PRODUCE {
        return acks().map(|acks| Plan::Forward { answer: produce_answer(version, acks) });
    }
    let answer = answer_plan(key, version, policy);
    Partial::Done(match key {
        ApiKey::FETCH if routes_reads && fetch::is_routable(version) => Plan::Route,
        ApiKey::ADD_RAFT_VOTER | ApiKey::REMOVE_RAFT_VOTER => Plan::Rewrite { answer },
        _ => Plan::Forward { answer },
    })
}

fn produce_answer(version: ApiVersion, acks: i16) -> AnswerPlan {
    match acks {
        0 => AnswerPlan::None,
        _ if version >= PRODUCE_WITH_ENDPOINTS => AnswerPlan::CheckProduce,
        _ => AnswerPlan::Stream,
    }
}

fn answer_plan(key: ApiKey, version: ApiVersion, policy: Versions) -> AnswerPlan {
    match key {
        ApiKey::API_VERSIONS => AnswerPlan::ApiVersions,
        ApiKey::SASL_HANDSHAKE => AnswerPlan::Handshake,
        ApiKey::SASL_AUTHENTICATE => AnswerPlan::Authenticate,
        ApiKey::FETCH if version < FETCH_WITH_ENDPOINTS => AnswerPlan::Stream,
        ApiKey::FETCH if policy == Versions::Full => AnswerPlan::FetchHints,
        ApiKey::FETCH => AnswerPlan::FetchScrub,
        ApiKey::SHARE_FETCH => AnswerPlan::FetchHints,
        ApiKey::DESCRIBE_QUORUM if version < ApiVersion(2) => AnswerPlan::Stream,
        _ if api::spec(key).is_some_and(|spec| spec.rewrites) => AnswerPlan::Rewrite,
        _ => AnswerPlan::Stream,
    }
}

#[cfg(test)]
mod tests;
