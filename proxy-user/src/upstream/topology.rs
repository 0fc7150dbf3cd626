//! What is known of a real cluster: brokers, where they are reached, and what they speak.

use std::collections::BTreeMap;
use std::time::SystemTime;

pub use crate::kafka::api::VersionRange;
use crate::kafka::ids::{ApiKey, NodeId};

/// A broker of a real cluster, as last seen in Metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Broker {
    /// Host to dial, after `address_map`.
    pub host: String,
    /// Port to dial, after `address_map`.
    pub port: u16,
    /// Rack, after the config's `racks`.
    pub rack: Option<String>,
    /// Missing from Metadata since then; its port stays open until `forget_after`.
    pub absent_since: Option<SystemTime>,
    /// What it answered to ApiVersions, once asked.
    pub versions: Option<BTreeMap<ApiKey, VersionRange>>,
}

/// Whether the gateway's own client reached the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Reach {
    /// Not tried to the end yet.
    #[default]
    Unknown,
    /// The last refresh succeeded.
    Reached,
    /// The last refresh failed; why, in one sentence.
    Degraded(String),
    /// No credentials for a cluster that wants them: topology comes from Metadata answers that pass.
    Passive(String),
}

/// A snapshot of a cluster. Cheap to share behind an `Arc`, replaced whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// Every broker known, absent ones included.
    pub brokers: BTreeMap<NodeId, Broker>,
    /// The cluster's own id.
    pub cluster_id: Option<String>,
    /// The controller as Metadata names it.
    pub controller: Option<NodeId>,
    /// Whether the cluster was reached.
    pub reach: Reach,
}
