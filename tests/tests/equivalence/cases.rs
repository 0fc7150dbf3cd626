//! One request for each API, as a tree that serves all its versions.
//!
//! Names with `{side}` in them belong to one side: what one side changes, the others don't see. So every side finds
//! the same state, and the answers are the same once the names are.

use serde_json::{Value, json};

use crate::world::To;

/// A request whose answer makes the one under test meaningful.
pub(crate) struct Before {
    pub(crate) key: i16,
    pub(crate) version: i16,
    pub(crate) to: To,
    pub(crate) body: Value,
    /// JSON pointers into its answer, and the names under which the values are kept.
    pub(crate) keep: Vec<(&'static str, &'static str)>,
}

/// The request for one API.
pub(crate) struct Case {
    pub(crate) key: i16,
    pub(crate) to: To,
    pub(crate) before: Vec<Before>,
    pub(crate) body: Value,
    /// Fields of the answer that differ each time, with the reason beside the case.
    pub(crate) volatile: &'static [&'static str],
    /// Arrays that the broker fills in no fixed order.
    pub(crate) sorted: &'static [&'static str],
}

impl Case {
    fn of(key: i16, to: To, body: Value) -> Self {
        Self { key, to, before: Vec::new(), body, volatile: &[], sorted: &[] }
    }

    fn volatile(mut self, fields: &'static [&'static str]) -> Self {
        self.volatile = fields;
        self
    }

    fn sorted(mut self, arrays: &'static [&'static str]) -> Self {
        self.sorted = arrays;
        self
    }

    fn before(mut self, key: i16, version: i16, body: Value, keep: &[(&'static str, &'static str)]) -> Self {
        let to = match key {
            11 | 14 | 8 | 76 | 68 | 88 => To::Group,
            22 | 24 | 25 => To::Transaction,
            83 | 85 => To::Share,
            _ => To::Leader,
        };
        self.before.push(Before { key, version, to, body, keep: keep.to_vec() });
        self
    }

    /// Joins a classic group and waits for its assignment. Member ids are made by the broker.
    fn joined(self, group: &str) -> Self {
        let join = json!({"groupId": group, "sessionTimeoutMs": 300_000, "rebalanceTimeoutMs": 60_000,
            "protocolType": "consumer", "protocols": [{"name": "range", "metadata": "0001"}]});
        let sync = json!({"groupId": group, "generationId": "{generation}", "memberId": "{member}",
            "assignments": [{"memberId": "{member}", "assignment": "0002"}]});
        self.before(11, 3, join, &[("/memberId", "member"), ("/generationId", "generation")]).before(14, 3, sync, &[])
    }

    /// Begins a transaction. Producer ids are handed out by the broker.
    fn in_transaction(self, id: &str) -> Self {
        let init = json!({"transactionalId": id, "transactionTimeoutMs": 600_000});
        let add = json!({"v3AndBelowTransactionalId": id, "v3AndBelowProducerId": "{pid}",
            "v3AndBelowProducerEpoch": "{epoch}", "v3AndBelowTopics": [{"name": "eq-{side}", "partitions": [0]}]});
        self.before(22, 4, init, &[("/producerId", "pid"), ("/producerEpoch", "epoch")]).before(24, 3, add, &[])
    }
}

/// A share group's member: ids are base64 of 16 bytes.
const SHARE_MEMBER: &str = "AAAAAAAAAAAAAAA{v}{side}A";

/// All of them, in an order in which none disturbs the next.
pub(crate) fn all() -> Vec<Case> {
    use To::{Group, Leader, Share, Transaction};
    let topic_config = json!([{"resourceType": 2, "resourceName": "eq-{side}",
        "configs": [{"name": "retention.ms", "value": "3600000", "configOperation": 0}]}]);
    let acl = json!({"resourceType": 2, "resourceName": "acl-{side}", "resourcePatternType": 3,
        "principal": "User:x", "host": "*", "operation": 3, "permissionType": 3});
    let filter = json!({"resourceTypeFilter": 2, "resourceNameFilter": "acl-{side}", "patternTypeFilter": 3,
        "principalFilter": null, "hostFilter": null, "operation": 1, "permissionType": 1});
    let share_topics = json!([
        {"topicId": "{eq-solo}", "partitions": [{"partitionIndex": 0, "acknowledgementBatches": []}]},
        {"topicId": "{eq-shared}", "partitions": [{"partitionIndex": 1}]}]);
    let share_fetch = json!({"groupId": "sg-{side}", "memberId": SHARE_MEMBER, "shareSessionEpoch": 0, "maxWaitMs": 0,
        "minBytes": 0, "maxRecords": 10, "batchSize": 10, "topics": share_topics});
    let share_state = |fields: Value| json!({"groupId": "ss-{side}-{v}", "topics": [{"topicId": "{eq-shared}", "partitions": [fields]}]});
    let initial = || share_state(json!({"partition": 0, "stateEpoch": 1, "startOffset": 1}));
    vec![
        // Partition 0 of eq-solo is elsewhere: the answer tells where, with node endpoints from v10 on (KIP-951).
        // Ids of the sides' topics differ.
        Case::of(0, Leader, json!({"acks": -1, "timeoutMs": 10_000, "topicData": [
            {"name": "eq-{side}", "topicId": "{own}", "partitionData": [{"index": 0, "records": "{batch}"}]},
            {"name": "eq-solo", "topicId": "{eq-solo}", "partitionData": [{"index": 0, "records": "{batch}"}]}]}))
            .volatile(&["topicId"]).sorted(&["responses"]),
        Case::of(1, Leader, json!({"maxWaitMs": 0, "minBytes": 0, "maxBytes": 1_000_000, "sessionEpoch": -1, "topics": [
            {"topic": "eq-shared", "topicId": "{eq-shared}", "partitions": [
                {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1_000_000},
                {"partition": 1, "fetchOffset": 0, "partitionMaxBytes": 1_000_000},
                {"partition": 7, "fetchOffset": 0, "partitionMaxBytes": 1_000_000}]},
            {"topic": "eq-solo", "topicId": "{eq-solo}", "partitions": [
                {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1_000_000}]}]})),
        Case::of(2, Leader, json!({"replicaId": -1, "timeoutMs": 1000, "topics": [{"name": "eq-shared", "partitions": [
            {"partitionIndex": 0, "currentLeaderEpoch": -1, "timestamp": -1},
            {"partitionIndex": 1, "currentLeaderEpoch": -1, "timestamp": -2}]}]})),
        // In KRaft any broker is as good as the controller to a client: each answer names another one.
        Case::of(3, Leader, json!({"topics": [{"name": "eq-shared"}, {"name": "eq-solo"}],
            "includeClusterAuthorizedOperations": true, "includeTopicAuthorizedOperations": true}))
            .volatile(&["controllerId"]),
        Case::of(8, Group, json!({"groupId": "og-{side}", "generationIdOrMemberEpoch": -1, "retentionTimeMs": -1, "topics": [
            {"name": "eq-{side}", "topicId": "{own}", "partitions": [
                {"partitionIndex": 0, "committedOffset": 1, "committedLeaderEpoch": 0, "committedMetadata": "m"}]}]}))
            .volatile(&["topicId"]),
        Case::of(9, Group, json!({"groupId": "og-{side}", "topics": [{"name": "eq-{side}", "partitionIndexes": [0, 1]}],
            "groups": [{"groupId": "og-{side}", "memberEpoch": -1, "topics": [
                {"name": "eq-{side}", "topicId": "{own}", "partitionIndexes": [0, 1]}]}]}))
            .volatile(&["topicId"]),
        Case::of(10, Leader, json!({"key": "og-{side}", "keyType": 0, "coordinatorKeys": ["og-{side}", "other"]})),
        // The broker makes the member's id.
        Case::of(11, Group, json!({"groupId": "jg-{side}-{v}", "groupInstanceId": "i", "sessionTimeoutMs": 300_000, "rebalanceTimeoutMs": 60_000,
            "protocolType": "consumer", "protocols": [{"name": "range", "metadata": "0001"}], "reason": "a test"}))
            .volatile(&["memberId", "leader"]),
        Case::of(14, Group, json!({"groupId": "yg-{side}-{v}", "generationId": "{generation}", "memberId": "{member}",
            "protocolType": "consumer", "protocolName": "range",
            "assignments": [{"memberId": "{member}", "assignment": "0002"}]})).joined("yg-{side}-{v}"),
        Case::of(12, Group, json!({"groupId": "hg-{side}-{v}", "generationId": "{generation}", "memberId": "{member}"}))
            .joined("hg-{side}-{v}"),
        Case::of(15, Group, json!({"groups": ["dg-{side}-{v}", "none"], "includeAuthorizedOperations": true}))
            .joined("dg-{side}-{v}").volatile(&["memberId"]),
        Case::of(13, Group, json!({"groupId": "lg-{side}-{v}", "memberId": "{member}",
            "members": [{"memberId": "{member}", "reason": "a test"}]})).joined("lg-{side}-{v}").volatile(&["memberId"]),
        Case::of(16, Group, json!({"statesFilter": ["Empty"], "typesFilter": ["classic"]})).sorted(&["groups"]),
        Case::of(42, Group, json!({"groupsNames": ["xg-{side}-{v}", "none"]}))
            .before(8, 2, json!({"groupId": "xg-{side}-{v}", "generationIdOrMemberEpoch": -1, "retentionTimeMs": -1,
                "topics": [{"name": "eq-shared", "partitions": [{"partitionIndex": 0, "committedOffset": 1}]}]}), &[])
            .sorted(&["results"]),
        Case::of(47, Group, json!({"groupId": "og-{side}", "topics": [
            {"name": "eq-{side}", "partitions": [{"partitionIndex": 0}, {"partitionIndex": 5}]}]})).sorted(&["partitions"]),
        // On a listener without SASL both are errors.
        Case::of(17, Leader, json!({"mechanism": "PLAIN"})),
        Case::of(36, Leader, json!({"authBytes": "00"})),
        // The table itself is what the policy makes of it, which main.rs works out. The features' epoch is an offset of the
        // metadata log, which grows by itself; that it passes is a case of `cases::versions`.
        Case::of(18, Leader, json!({"clientSoftwareName": "eq", "clientSoftwareVersion": "1"}))
            .volatile(&["finalizedFeaturesEpoch"])
            .sorted(&["apiKeys"]),
        // Topic ids are random.
        Case::of(19, Leader, json!({"timeoutMs": 10_000, "topics": [
            {"name": "ct-{side}-{v}", "numPartitions": 2, "replicationFactor": 2,
                "configs": [{"name": "cleanup.policy", "value": "compact"}]},
            {"name": "eq-shared", "numPartitions": 1, "replicationFactor": 1}]}))
            .volatile(&["topicId"]).sorted(&["configs", "topics"]),
        Case::of(20, Leader, json!({"timeoutMs": 10_000, "topicNames": ["dt-{side}-{v}", "none"],
            "topics": [{"name": "dt-{side}-{v}"}, {"name": "none"}]}))
            .before(19, 5, json!({"timeoutMs": 10_000, "topics": [
                {"name": "dt-{side}-{v}", "numPartitions": 1, "replicationFactor": 1}]}), &[])
            .volatile(&["topicId"]).sorted(&["responses"]),
        Case::of(21, Leader, json!({"timeoutMs": 10_000, "topics": [
            {"name": "eq-{side}", "partitions": [{"partitionIndex": 0, "offset": 2}]}]})),
        // Producer ids are handed out by the broker.
        Case::of(22, Transaction, json!({"transactionalId": "it-{side}-{v}", "transactionTimeoutMs": 600_000}))
            .volatile(&["producerId"]),
        Case::of(23, Leader, json!({"replicaId": -1, "topics": [{"topic": "eq-shared", "partitions": [
            {"partition": 0, "currentLeaderEpoch": -1, "leaderEpoch": 0}]}]})),
        Case::of(24, Transaction, json!({"v3AndBelowTransactionalId": "at-{side}-{v}", "v3AndBelowProducerId": "{pid}",
            "v3AndBelowProducerEpoch": "{epoch}", "v3AndBelowTopics": [{"name": "eq-{side}", "partitions": [0]}],
            "transactions": [{"transactionalId": "at-{side}-{v}", "producerId": "{pid}", "producerEpoch": "{epoch}",
                "verifyOnly": true, "topics": [{"name": "eq-{side}", "partitions": [0]}]}]}))
            .in_transaction("at-{side}-{v}"),
        Case::of(25, Transaction, json!({"transactionalId": "ot-{side}-{v}", "producerId": "{pid}",
            "producerEpoch": "{epoch}", "groupId": "tg-{side}"})).in_transaction("ot-{side}-{v}"),
        Case::of(28, Group, json!({"transactionalId": "ut-{side}-{v}", "groupId": "tg-{side}-{v}", "producerId": "{pid}",
            "producerEpoch": "{epoch}", "topics": [{"name": "eq-{side}", "partitions": [
                {"partitionIndex": 0, "committedOffset": 1}]}]}))
            .in_transaction("ut-{side}-{v}")
            .before(25, 3, json!({"transactionalId": "ut-{side}-{v}", "producerId": "{pid}",
                "producerEpoch": "{epoch}", "groupId": "tg-{side}-{v}"}), &[]),
        Case::of(26, Transaction, json!({"transactionalId": "et-{side}-{v}", "producerId": "{pid}",
            "producerEpoch": "{epoch}", "committed": true})).in_transaction("et-{side}-{v}").volatile(&["producerId"]),
        // Times and producer ids differ.
        Case::of(65, Transaction, json!({"transactionalIds": ["vt-{side}", "none"]}))
            .in_transaction("vt-{side}").volatile(&["producerId", "transactionStartTimeMs"]),
        Case::of(66, Transaction, json!({"stateFilters": ["Ongoing", "Empty"], "producerIdFilters": [],
            "durationFilter": -1, "transactionalIdPattern": ".*"}))
            .volatile(&["producerId"]).sorted(&["transactionStates"]),
        Case::of(27, Leader, json!({"markers": [{"producerId": 4242, "producerEpoch": 1, "transactionResult": true,
            "coordinatorEpoch": 0, "transactionVersion": 1, "topics": [{"name": "eq-{side}", "partitionIndexes": [0]}]}]})),
        // Times differ.
        Case::of(61, Leader, json!({"topics": [{"name": "eq-{side}", "partitionIndexes": [0, 9]}]}))
            .volatile(&["lastTimestamp", "producerId"]).sorted(&["activeProducers", "partitions"]),
        Case::of(30, Leader, json!({"creations": [acl]})),
        Case::of(29, Leader, filter.clone()).before(30, 2, json!({"creations": [acl]}), &[]),
        Case::of(31, Leader, json!({"filters": [filter]})).before(30, 2, json!({"creations": [acl]}), &[]),
        Case::of(32, Leader, json!({"includeSynonyms": true, "includeDocumentation": true, "resources": [
            {"resourceType": 2, "resourceName": "eq-shared", "configurationKeys": null},
            {"resourceType": 4, "resourceName": "1", "configurationKeys": null}]})).sorted(&["configs"]),
        Case::of(33, Leader, json!({"resources": [{"resourceType": 2, "resourceName": "eq-{side}",
            "configs": [{"name": "retention.ms", "value": "7200000"}]}], "validateOnly": false})),
        Case::of(44, Leader, json!({"resources": topic_config, "validateOnly": false})),
        Case::of(34, Leader, json!({"dirs": [{"path": "/nowhere", "topics": [{"name": "eq-shared", "partitions": [0]}]}]})),
        // Space on the disk changes meanwhile.
        Case::of(35, Leader, json!({"topics": [{"topic": "eq-shared", "partitions": [0, 1]}]}))
            .volatile(&["totalBytes", "usableBytes"]).sorted(&["partitions"]),
        Case::of(37, Leader, json!({"topics": [{"name": "eq-{side}", "count": 5, "assignments": null},
            {"name": "none", "count": 5, "assignments": null}],
            "timeoutMs": 10_000, "validateOnly": true})).sorted(&["results"]),
        // Delegation tokens are refused on a listener without authentication.
        Case::of(38, Leader, json!({"renewers": [], "maxLifetimeMs": 60_000})),
        Case::of(39, Leader, json!({"hmac": "0011", "renewPeriodMs": 1000})),
        Case::of(40, Leader, json!({"hmac": "0011", "expiryTimePeriodMs": 1000})),
        Case::of(41, Leader, json!({"owners": [{"principalType": "User", "principalName": "x"}]})),
        Case::of(43, Leader, json!({"electionType": 0, "topicPartitions": [{"topic": "eq-shared", "partitions": [0, 1]}],
            "timeoutMs": 10_000})).sorted(&["partitionResult"]),
        Case::of(45, Leader, json!({"timeoutMs": 10_000, "topics": [
            {"name": "eq-shared", "partitions": [{"partitionIndex": 0, "replicas": null}]}]})),
        Case::of(46, Leader, json!({"timeoutMs": 10_000, "topics": [{"name": "eq-shared", "partitionIndexes": [0]}]})),
        Case::of(49, Leader, json!({"entries": [{"entity": [{"entityType": "client-id", "entityName": "c-{side}"}],
            "ops": [{"key": "producer_byte_rate", "value": 1e9}]}], "validateOnly": false})),
        Case::of(48, Leader, json!({"components": [{"entityType": "client-id", "matchType": 0, "match": "c-{side}"}],
            "strict": false})),
        Case::of(51, Leader, json!({"deletions": [{"name": "none-{side}", "mechanism": 1}], "upsertions": [
            {"name": "u-{side}", "mechanism": 1, "iterations": 4096, "salt": "0011", "saltedPassword": "2233"}]}))
            .sorted(&["results"]),
        Case::of(50, Leader, json!({"users": [{"name": "u-{side}"}, {"name": "none"}]})).sorted(&["results"]),
        // The metadata log grows all the time.
        Case::of(55, Leader, json!({"topics": [{"topicName": "__cluster_metadata", "partitions": [{"partitionIndex": 0}]}]}))
            .volatile(&["logEndOffset", "highWatermark", "lastFetchTimestamp", "lastCaughtUpTimestamp"])
            .sorted(&["currentVoters", "observers", "nodes"]),
        Case::of(57, Leader, json!({"timeoutMs": 10_000, "validateOnly": true, "featureUpdates": [
            {"feature": "nonesuch", "maxVersionLevel": 1, "upgradeType": 1}]})),
        Case::of(60, Leader, json!({"includeClusterAuthorizedOperations": true, "includeFencedBrokers": true,
            "endpointType": 1})).volatile(&["controllerId"]).sorted(&["brokers"]),
        Case::of(64, Leader, json!({"brokerId": 99})),
        Case::of(68, Group, json!({"groupId": "cg-{side}-{v}", "memberId": "member-{side}", "memberEpoch": 0,
            "rebalanceTimeoutMs": 60_000, "subscribedTopicNames": ["eq-shared"], "topicPartitions": []})),
        Case::of(69, Group, json!({"groupIds": ["cd-{side}-{v}", "none"], "includeAuthorizedOperations": true}))
            .before(68, 1, json!({"groupId": "cd-{side}-{v}", "memberId": "member-{side}", "memberEpoch": 0,
                "rebalanceTimeoutMs": 60_000, "subscribedTopicNames": ["eq-shared"], "topicPartitions": []}), &[]),
        // The broker makes the client's id, and the subscription's from it.
        Case::of(71, Leader, json!({})).volatile(&["clientInstanceId", "subscriptionId"]),
        Case::of(72, Leader, json!({"clientInstanceId": "{client}", "subscriptionId": "{subscription}"}))
            .before(71, 0, json!({}), &[("/clientInstanceId", "client"), ("/subscriptionId", "subscription")]),
        Case::of(74, Leader, json!({"resourceTypes": [4, 8]})).sorted(&["configResources"]),
        Case::of(75, Leader, json!({"topics": [{"name": "eq-shared"}, {"name": "eq-solo"}], "responsePartitionLimit": 10})),
        Case::of(76, Group, json!({"groupId": "sg-{side}", "memberId": SHARE_MEMBER, "memberEpoch": 0,
            "subscribedTopicNames": ["eq-shared"]})),
        Case::of(77, Group, json!({"groupIds": ["sg-{side}", "none"], "includeAuthorizedOperations": true})),
        // eq-solo is elsewhere: leader and endpoint are told.
        Case::of(78, Leader, share_fetch.clone()),
        Case::of(79, Leader, json!({"groupId": "sa-{side}", "memberId": SHARE_MEMBER, "shareSessionEpoch": 1, "topics": [
            {"topicId": "{eq-solo}", "partitions": [{"partitionIndex": 0, "acknowledgementBatches": [
                {"firstOffset": 0, "lastOffset": 0, "acknowledgeTypes": [1]}]}]}]}))
            .before(78, 1, {
                let mut fetch = share_fetch;
                fetch["groupId"] = json!("sa-{side}");
                fetch
            }, &[]),
        Case::of(80, Leader, json!({"clusterId": "{cluster}", "timeoutMs": 1000, "voterId": 99,
            "voterDirectoryId": "00000000000000000000000000000001",
            "listeners": [{"name": "CONTROLLER", "host": "localhost", "port": 9}]})),
        Case::of(81, Leader, json!({"clusterId": "{cluster}", "voterId": 99,
            "voterDirectoryId": "00000000000000000000000000000001"})),
        Case::of(83, Share, initial()),
        Case::of(85, Share, share_state(json!({"partition": 0, "stateEpoch": 1, "leaderEpoch": 0, "startOffset": 2,
            "stateBatches": [{"firstOffset": 2, "lastOffset": 3, "deliveryState": 0, "deliveryCount": 1}]})))
            .before(83, 0, initial(), &[]),
        Case::of(84, Share, share_state(json!({"partition": 0, "leaderEpoch": 0}))).before(83, 0, initial(), &[]),
        Case::of(87, Share, share_state(json!({"partition": 0, "leaderEpoch": 0}))).before(83, 0, initial(), &[]),
        Case::of(86, Share, share_state(json!({"partition": 0}))).before(83, 0, initial(), &[]),
        Case::of(88, Group, json!({"groupId": "st-{side}", "memberId": "member-{side}", "memberEpoch": 0,
            "rebalanceTimeoutMs": 60_000, "processId": "p", "activeTasks": [], "standbyTasks": [], "warmupTasks": [],
            "clientTags": [], "topology": {"epoch": 1, "subtopologies": [
                {"subtopologyId": "0", "sourceTopics": ["eq-shared"]}]}})),
        Case::of(89, Group, json!({"groupIds": ["st-{side}", "none"], "includeAuthorizedOperations": true})),
        Case::of(90, Group, json!({"groups": [{"groupId": "sg-{side}", "topics": [
            {"topicName": "eq-shared", "partitions": [0, 1]}]}]})),
        Case::of(91, Group, json!({"groupId": "so-{side}", "topics": [
            {"topicName": "eq-shared", "partitions": [{"partitionIndex": 0, "startOffset": 1}]}]})),
        Case::of(92, Group, json!({"groupId": "so-{side}", "topics": [{"topicName": "eq-shared"}]})),
    ]
}
