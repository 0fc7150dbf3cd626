//! Rewriting of addresses, node ids and cluster ids in whole frames.
//!
//! Each API is one bounded walk over the bytes; what isn't rewritten is copied as it stands, unknown tagged fields
//! included. Nothing is allocated by a declared length. An address that no virtual broker stands for never passes:
//! the broker is left out of arrays and endpoints, a hint that names it is removed with it, a coordinator becomes
//! COORDINATOR_NOT_AVAILABLE. Ids of such brokers stay in partition lists, where clients take them for a leader that
//! is down.

mod answers;
mod walk;

#[cfg(test)]
mod tests;

use bytes::Bytes;

use super::api;
use super::ids::{ApiKey, ApiVersion, NodeId};
use super::topics::SeenTopic;
use super::wire::Malformed;
use walk::Walk;

/// What clients of one virtual cluster are told.
pub trait Addresses {
    /// Where clients reach this broker; `None`: no virtual broker stands for it.
    fn broker(&self, node: NodeId) -> Option<(&str, u16)>;

    /// The cluster id clients see instead of the real one; `None`: the real one.
    fn cluster_id(&self) -> Option<&str>;

    /// The real cluster's id, once known: put into requests that name the virtual one.
    fn real_cluster_id(&self) -> Option<&str>;

    /// Whether topics in Metadata answers are worth noting.
    fn learns_topics(&self) -> bool {
        false
    }
}

/// A broker as an answer named it, before rewriting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBroker {
    /// Its id.
    pub node: NodeId,
    /// Advertised host.
    pub host: String,
    /// Advertised port.
    pub port: u16,
    /// Its rack, where the answer carries it.
    pub rack: Option<String>,
}

/// What an answer told about the real cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Brokers with a real address; fenced ones (DescribeCluster v2) left out.
    pub brokers: Vec<SeenBroker>,
    /// The real cluster id.
    pub cluster_id: Option<String>,
    /// The controller as the answer names it.
    pub controller: Option<NodeId>,
    /// Whether `brokers` are all that are alive (Metadata, DescribeCluster), not some of them.
    pub complete: bool,
    /// Topics of a Metadata answer, where [`Addresses::learns_topics`].
    pub topics: Vec<SeenTopic>,
}

/// Outcome of [`rewrite_answer`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The new frame behind the size field; `None`: forward the old one.
    pub body: Option<Bytes>,
    /// What the answer told; `None` where it named no broker.
    pub seen: Option<Seen>,
}

/// Rewrites an answer. `body` is the whole frame behind the size field.
///
/// APIs without anything to rewrite come back unchanged without being read; so do Produce below v10 and Fetch below
/// v16, which carry no address, and ApiVersions, which is [`super::versions`]' part.
///
/// # Errors
/// When the bytes don't follow the schema of `key` and `version`: forwarding them could leak an address.
pub fn rewrite_answer(
    key: ApiKey,
    version: ApiVersion,
    body: &[u8],
    to: &dyn Addresses,
) -> Result<Rewritten, Malformed> {
    let walk: fn(&mut Walk<'_>, i16) -> Result<Option<Seen>, Malformed> = match (key, version.0) {
        (ApiKey::METADATA, _) => answers::metadata,
        (ApiKey::FIND_COORDINATOR, 4..) => answers::find_coordinators,
        (ApiKey::FIND_COORDINATOR, _) => answers::find_coordinator,
        (ApiKey::DESCRIBE_CLUSTER, _) => answers::describe_cluster,
        (ApiKey::PRODUCE, 10..) => answers::produce,
        (ApiKey::FETCH, 16..) => answers::fetch,
        (ApiKey::SHARE_FETCH, _) => answers::share_fetch,
        (ApiKey::SHARE_ACKNOWLEDGE, _) => answers::share_acknowledge,
        (ApiKey::DESCRIBE_QUORUM, 2..) => answers::describe_quorum,
        _ => return Ok(Rewritten::default()),
    };
    let spec = audited(key, version)?;
    let mut on = Walk::new(body, spec.is_flexible(version), to);
    on.r.skip_response_header()?;
    let seen = walk(&mut on, version.0)?;
    on.r.end()?;
    Ok(Rewritten { body: on.patch.finish().map(Bytes::from), seen })
}

/// Rewrites a request: the cluster id in AddRaftVoter and RemoveRaftVoter, from the virtual one to the real one.
/// `body` is the whole frame behind the size field; `None`: forward it as it is.
///
/// The cluster id in Fetch (a tagged field) is for replicas of controllers; consumers don't send it.
///
/// # Errors
/// When the bytes don't follow the schema of `key` and `version`.
pub fn rewrite_request(
    key: ApiKey,
    version: ApiVersion,
    body: &[u8],
    to: &dyn Addresses,
) -> Result<Option<Bytes>, Malformed> {
    if !matches!(key, ApiKey::ADD_RAFT_VOTER | ApiKey::REMOVE_RAFT_VOTER) {
        return Ok(None);
    }
    let flexible = audited(key, version)?.is_flexible(version);
    let mut on = Walk::new(body, flexible, to);
    on.r.skip_request_header()?;
    on.real_cluster_id()?;
    Ok(on.patch.finish().map(Bytes::from))
}

/// Whether a Produce answer says that all is well and carries no hint: it can be forwarded without being rewritten.
/// `body` is the whole frame behind the size field. The kernel path uses the same function.
#[must_use]
pub fn is_clean_produce_answer(version: ApiVersion, body: &[u8]) -> bool {
    proxy_common::produce::is_clean_answer(version.0, body)
}

fn audited(key: ApiKey, version: ApiVersion) -> Result<&'static api::ApiSpec, Malformed> {
    api::spec(key)
        .filter(|spec| spec.versions.contains(version))
        .ok_or(Malformed { what: "API or version that wasn't audited", at: 0 })
}
