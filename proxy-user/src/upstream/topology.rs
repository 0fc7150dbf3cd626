//! What is known of a real cluster: brokers, where they are reached, and what they speak.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::endpoint::Endpoint;
pub use crate::kafka::api::VersionRange;
use crate::kafka::ids::{ApiKey, NodeId};

/// What a broker answered to ApiVersions.
pub type VersionTable = BTreeMap<ApiKey, VersionRange>;

/// A broker of a real cluster, as last seen in Metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Broker {
    /// Where the mainline dials it, after `address_map`. `None`: not known yet (the cluster has `tls` and no Metadata
    /// answer has passed), or advertised as an address that only the broker's own host can dial.
    pub address: Option<Endpoint>,
    /// Where the gateway's own client dials it, after `address_map`; the same as `address` without `tls`.
    pub own_address: Option<Endpoint>,
    /// Rack, after the config's `racks`.
    pub rack: Option<String>,
    /// Missing from Metadata since then; its port stays open until `forget_after`.
    pub absent_since: Option<SystemTime>,
    /// What it answered to ApiVersions, once asked.
    pub versions: Option<VersionTable>,
    /// It runs a rack-aware replica selector, once asked.
    pub rack_aware: Option<bool>,
    /// What the cluster says of it, before the config has its say.
    pub advertised: Advertised,
}

/// A broker in the cluster's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertised {
    /// Address of the listener that the mainline uses.
    pub address: Option<Endpoint>,
    /// Address of the listener that the gateway's own client uses.
    pub own_address: Option<Endpoint>,
    /// `broker.rack`.
    pub rack: Option<String>,
}

impl Broker {
    /// Listed in the last complete view of the cluster.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.absent_since.is_none()
    }
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
    /// What the bootstrap broker asked last answered to ApiVersions: all there is to go by while no broker is known.
    pub bootstrap_versions: Option<VersionTable>,
}

impl Topology {
    /// Brokers listed in the last complete view.
    pub fn present(&self) -> impl Iterator<Item = (NodeId, &Broker)> {
        self.brokers.iter().filter(|(_, b)| b.is_present()).map(|(id, b)| (*id, b))
    }

    /// What every broker speaks: for each API that all of them have, the versions that all of them have. Absent brokers
    /// count until they are forgotten, so that the table does not widen and narrow with each restart of a rolling
    /// upgrade. `None` when no broker has answered ApiVersions yet.
    #[must_use]
    pub fn common_versions(&self) -> Option<VersionTable> {
        let known = self.brokers.values().filter_map(|b| b.versions.as_ref());
        let common = known.cloned().reduce(|common, one| {
            let both = |(key, range): (ApiKey, VersionRange)| Some((key, range.intersect(*one.get(&key)?)?));
            common.into_iter().filter_map(both).collect()
        });
        common.or_else(|| self.bootstrap_versions.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::ids::ApiVersion;

    fn table(rows: &[(i16, i16, i16)]) -> VersionTable {
        let range = |min, max| VersionRange { min: ApiVersion(min), max: ApiVersion(max) };
        rows.iter().map(|(key, min, max)| (ApiKey(*key), range(*min, *max))).collect()
    }

    fn speaking(rows: &[(i16, i16, i16)]) -> Broker {
        Broker { versions: Some(table(rows)), ..Broker::default() }
    }

    #[test]
    fn common_versions_are_what_all_brokers_share() {
        let mut topology = Topology { bootstrap_versions: Some(table(&[(0, 0, 9)])), ..Topology::default() };
        assert_eq!(topology.common_versions(), Some(table(&[(0, 0, 9)])), "bootstrap's word while no broker is known");

        topology.brokers.insert(NodeId(1), speaking(&[(0, 3, 13), (1, 4, 17), (90, 0, 0)]));
        topology.brokers.insert(NodeId(2), speaking(&[(0, 0, 9), (1, 0, 3), (18, 0, 4)]));
        topology.brokers.insert(NodeId(3), Broker::default());
        assert_eq!(topology.common_versions(), Some(table(&[(0, 3, 9)])), "no overlap, or missing in one: dropped");
        assert_eq!(Topology::default().common_versions(), None);
    }
}
