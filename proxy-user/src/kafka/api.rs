//! The audited version table: which APIs and versions pass the gateway, and which answers must be looked at.
//!
//! Audited against the message schemas of Apache Kafka 4.3.1 (`common/message/*.json` in kafka-clients), and for the
//! versions that 4.0 removed, those of 3.9.1: every API that a broker's listener offers, every version either speaks.
//! An API or version that isn't here isn't offered and, when used, ends the connection, as it does at a broker.
//!
//! # What passes although it names brokers or addresses
//! - Node ids in Fetch (`preferred_read_replica`, and `current_leader` below v16), DescribeTopicPartitions,
//!   List/AlterPartitionReassignments, CreateTopics/CreatePartitions assignments, UnregisterBroker and Remove/AddRaftVoter
//!   pass as they are: the mapping of node ids is identity. So do config resources of type BROKER, whose name is one.
//! - Values of DescribeConfigs and AlterConfigs (e.g. `advertised.listeners`) are data for operators; no client dials them.
//! - `user_endpoint` in StreamsGroupHeartbeat/Describe is an address of a client application; hosts in group
//!   descriptions, ACLs and quotas are those of clients. The voter's `listeners` in AddRaftVoter are for controllers.
//! - Topic ids, producer ids and epochs are the real cluster's.

use super::ids::{ApiKey, ApiVersion};

/// Versions `min..=max` of one API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// Lowest.
    pub min: ApiVersion,
    /// Highest.
    pub max: ApiVersion,
}

impl VersionRange {
    /// Whether `version` is in it.
    #[must_use]
    pub fn contains(self, version: ApiVersion) -> bool {
        self.min <= version && version <= self.max
    }

    /// The versions in both, if there are any.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let (min, max) = (self.min.max(other.min), self.max.min(other.max));
        (min <= max).then_some(Self { min, max })
    }
}

/// What is known of one API.
#[derive(Clone, Copy, Debug)]
pub struct ApiSpec {
    /// Its number on the wire.
    pub key: ApiKey,
    /// Its name in Kafka's schemas: a bounded label for metrics and logs.
    pub name: &'static str,
    /// The versions that were audited, and may be offered.
    pub versions: VersionRange,
    /// From this version on, headers and body carry compact forms and tagged fields (KIP-482). The answer of
    /// ApiVersions keeps response header v0 nevertheless.
    pub flexible_from: Option<ApiVersion>,
    /// Whether an answer may have to be changed: it may carry addresses, a cluster id, or the version table itself.
    pub rewrites: bool,
}

impl ApiSpec {
    /// Whether this version's header and body are flexible.
    #[must_use]
    pub fn is_flexible(&self, version: ApiVersion) -> bool {
        self.flexible_from.is_some_and(|from| version >= from)
    }

    /// The versions that are served when used. Produce v0–2 are offered, where the broker does, only because
    /// librdkafka turns compression off without them (KAFKA-18659).
    #[must_use]
    pub fn served(&self) -> VersionRange {
        let min = if self.key == ApiKey::PRODUCE { FIRST_SERVED_PRODUCE } else { self.versions.min };
        VersionRange { min, max: self.versions.max }
    }
}

/// First version of Produce whose record batches have the v2 format and that Kafka 4 serves.
pub const FIRST_SERVED_PRODUCE: ApiVersion = ApiVersion(3);

/// What is known of `key`; `None`: not offered.
#[must_use]
pub fn spec(key: ApiKey) -> Option<&'static ApiSpec> {
    TABLE.binary_search_by_key(&key, |spec| spec.key).ok().map(|at| &TABLE[at])
}

/// Every API that may be offered, in the order of their keys.
#[must_use]
pub fn all() -> &'static [ApiSpec] {
    TABLE
}

/// The API's name; `unknown` for those that aren't offered.
#[must_use]
pub fn name(key: ApiKey) -> &'static str {
    spec(key).map_or("unknown", |spec| spec.name)
}

const REWRITTEN: bool = true;
const PASSES: bool = false;

const fn api(key: i16, name: &'static str, min: i16, max: i16, flexible_from: i16, rewrites: bool) -> ApiSpec {
    ApiSpec {
        key: ApiKey(key),
        name,
        versions: VersionRange { min: ApiVersion(min), max: ApiVersion(max) },
        flexible_from: if flexible_from < 0 { None } else { Some(ApiVersion(flexible_from)) },
        rewrites,
    }
}

/// key, name, first version, last version, first flexible one (−1: none).
///
/// ApiVersions ends at v4: v5 (KIP-1242) checks the cluster id and node id the client expects.
/// ShareFetch and its kin begin at v1: v0 was another, unstable format.
#[rustfmt::skip]
const TABLE: &[ApiSpec] = &[
    api(0, "Produce", 0, 13, 9, REWRITTEN),
    api(1, "Fetch", 0, 18, 12, REWRITTEN),
    api(2, "ListOffsets", 0, 11, 6, PASSES),
    api(3, "Metadata", 0, 13, 9, REWRITTEN),
    api(8, "OffsetCommit", 0, 10, 8, PASSES),
    api(9, "OffsetFetch", 0, 10, 6, PASSES),
    api(10, "FindCoordinator", 0, 6, 3, REWRITTEN),
    api(11, "JoinGroup", 0, 9, 6, PASSES),
    api(12, "Heartbeat", 0, 4, 4, PASSES),
    api(13, "LeaveGroup", 0, 5, 4, PASSES),
    api(14, "SyncGroup", 0, 5, 4, PASSES),
    api(15, "DescribeGroups", 0, 6, 5, PASSES),
    api(16, "ListGroups", 0, 5, 3, PASSES),
    api(17, "SaslHandshake", 0, 1, -1, PASSES),
    api(18, "ApiVersions", 0, 4, 3, REWRITTEN),
    api(19, "CreateTopics", 0, 7, 5, PASSES),
    api(20, "DeleteTopics", 0, 6, 4, PASSES),
    api(21, "DeleteRecords", 0, 2, 2, PASSES),
    api(22, "InitProducerId", 0, 6, 2, PASSES),
    api(23, "OffsetForLeaderEpoch", 0, 4, 4, PASSES),
    api(24, "AddPartitionsToTxn", 0, 5, 3, PASSES),
    api(25, "AddOffsetsToTxn", 0, 4, 3, PASSES),
    api(26, "EndTxn", 0, 5, 3, PASSES),
    api(27, "WriteTxnMarkers", 0, 2, 1, PASSES),
    api(28, "TxnOffsetCommit", 0, 5, 3, PASSES),
    api(29, "DescribeAcls", 0, 3, 2, PASSES),
    api(30, "CreateAcls", 0, 3, 2, PASSES),
    api(31, "DeleteAcls", 0, 3, 2, PASSES),
    api(32, "DescribeConfigs", 0, 4, 4, PASSES),
    api(33, "AlterConfigs", 0, 2, 2, PASSES),
    api(34, "AlterReplicaLogDirs", 0, 2, 2, PASSES),
    api(35, "DescribeLogDirs", 0, 5, 2, PASSES),
    api(36, "SaslAuthenticate", 0, 2, 2, PASSES),
    api(37, "CreatePartitions", 0, 3, 2, PASSES),
    api(38, "CreateDelegationToken", 0, 3, 2, PASSES),
    api(39, "RenewDelegationToken", 0, 2, 2, PASSES),
    api(40, "ExpireDelegationToken", 0, 2, 2, PASSES),
    api(41, "DescribeDelegationToken", 0, 3, 2, PASSES),
    api(42, "DeleteGroups", 0, 2, 2, PASSES),
    api(43, "ElectLeaders", 0, 2, 2, PASSES),
    api(44, "IncrementalAlterConfigs", 0, 1, 1, PASSES),
    api(45, "AlterPartitionReassignments", 0, 1, 0, PASSES),
    api(46, "ListPartitionReassignments", 0, 0, 0, PASSES),
    api(47, "OffsetDelete", 0, 0, -1, PASSES),
    api(48, "DescribeClientQuotas", 0, 1, 1, PASSES),
    api(49, "AlterClientQuotas", 0, 1, 1, PASSES),
    api(50, "DescribeUserScramCredentials", 0, 0, 0, PASSES),
    api(51, "AlterUserScramCredentials", 0, 0, 0, PASSES),
    api(55, "DescribeQuorum", 0, 2, 0, REWRITTEN),
    api(57, "UpdateFeatures", 0, 2, 0, PASSES),
    api(60, "DescribeCluster", 0, 2, 0, REWRITTEN),
    api(61, "DescribeProducers", 0, 0, 0, PASSES),
    api(64, "UnregisterBroker", 0, 0, 0, PASSES),
    api(65, "DescribeTransactions", 0, 0, 0, PASSES),
    api(66, "ListTransactions", 0, 2, 0, PASSES),
    api(68, "ConsumerGroupHeartbeat", 0, 1, 0, PASSES),
    api(69, "ConsumerGroupDescribe", 0, 1, 0, PASSES),
    api(71, "GetTelemetrySubscriptions", 0, 0, 0, PASSES),
    api(72, "PushTelemetry", 0, 0, 0, PASSES),
    api(74, "ListConfigResources", 0, 1, 0, PASSES),
    api(75, "DescribeTopicPartitions", 0, 0, 0, PASSES),
    api(76, "ShareGroupHeartbeat", 1, 1, 0, PASSES),
    api(77, "ShareGroupDescribe", 1, 1, 0, PASSES),
    api(78, "ShareFetch", 1, 2, 0, REWRITTEN),
    api(79, "ShareAcknowledge", 1, 2, 0, REWRITTEN),
    api(80, "AddRaftVoter", 0, 1, 0, PASSES),
    api(81, "RemoveRaftVoter", 0, 0, 0, PASSES),
    api(83, "InitializeShareGroupState", 0, 0, 0, PASSES),
    api(84, "ReadShareGroupState", 0, 0, 0, PASSES),
    api(85, "WriteShareGroupState", 0, 1, 0, PASSES),
    api(86, "DeleteShareGroupState", 0, 0, 0, PASSES),
    api(87, "ReadShareGroupStateSummary", 0, 1, 0, PASSES),
    api(88, "StreamsGroupHeartbeat", 0, 0, 0, PASSES),
    api(89, "StreamsGroupDescribe", 0, 0, 0, PASSES),
    api(90, "DescribeShareGroupOffsets", 0, 1, 0, PASSES),
    api(91, "AlterShareGroupOffsets", 0, 0, 0, PASSES),
    api(92, "DeleteShareGroupOffsets", 0, 0, 0, PASSES),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// kafka-protocol carries the schemas of 4.1: whatever it knows, the table must agree with or go beyond.
    #[test]
    fn the_table_agrees_with_the_schemas() {
        for known in kafka_protocol::messages::ApiKey::iter() {
            let Some(spec) = spec(ApiKey(known as i16)) else { continue };
            let versions = known.valid_versions();
            assert!(spec.versions.min.0 <= versions.min && spec.versions.max.0 >= versions.max, "{}", spec.name);
            assert_eq!(spec.name, format!("{known:?}"));
            for version in versions.min..=versions.max {
                let flexible = known.request_header_version(version) >= 2;
                assert_eq!(spec.is_flexible(ApiVersion(version)), flexible, "{} v{version}", spec.name);
            }
        }
    }

    #[test]
    fn keys_are_in_order_and_found() {
        assert!(all().windows(2).all(|pair| pair[0].key < pair[1].key));
        assert!(all().iter().all(|s| spec(s.key).is_some_and(|found| found.name == s.name)));
        assert!(all().iter().all(|s| s.versions.min <= s.versions.max));
    }

    #[test]
    fn apis_of_controllers_between_brokers_and_of_vendors_are_not_offered() {
        for key in [4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 93, 10_000, -1] {
            assert!(spec(ApiKey(key)).is_none(), "{key}");
            assert_eq!(name(ApiKey(key)), "unknown");
        }
    }

    #[test]
    fn the_first_produce_versions_are_offered_and_not_served() {
        let produce = spec(ApiKey::PRODUCE).unwrap();
        assert!(produce.versions.contains(ApiVersion(0)));
        assert_eq!(produce.served(), VersionRange { min: ApiVersion(3), max: ApiVersion(13) });
    }
}
