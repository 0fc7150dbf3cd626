//! The commands, typed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Client;

/// Credentials.
#[derive(Clone, Debug, Serialize)]
pub struct Sasl {
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub mechanism: String,
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
}

/// What `metadata` returns.
#[derive(Clone, Debug, Deserialize)]
pub struct Metadata {
    /// Brokers as the client was told.
    pub brokers: Vec<Broker>,
    /// Every `host:port` that the client was told anywhere in the answer.
    pub addresses: Vec<String>,
    /// The controller's node id, where the client shows it.
    #[serde(default)]
    pub controller: Option<i32>,
    /// The cluster's id, where the client shows it.
    #[serde(default)]
    pub cluster_id: Option<String>,
}

/// A broker in [`Metadata`].
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Broker {
    /// Node id.
    pub id: i32,
    /// Host as advertised.
    pub host: String,
    /// Port as advertised.
    pub port: u16,
}

/// Records to write: the keys are the numbers from `first` on, in decimal; record n goes to partition n % `partitions`
/// unless `partition` is set; the value is the key, a colon and dots up to `size`.
#[derive(Clone, Debug, Serialize)]
pub struct Produce {
    topic: String,
    partitions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    first: u64,
    count: u64,
    size: usize,
    acks: String,
    codec: String,
    idempotent: bool,
    rate: u64,
    headers: BTreeMap<String, String>,
}

impl Produce {
    /// 100 records of 100 bytes to one partition, acks all, no codec, not idempotent.
    #[must_use]
    pub fn to(topic: &str) -> Self {
        Self {
            topic: topic.into(),
            partitions: 1,
            partition: None,
            first: 0,
            count: 100,
            size: 100,
            acks: "all".into(),
            codec: "none".into(),
            idempotent: false,
            rate: 0,
            headers: BTreeMap::new(),
        }
    }

    /// Over how many partitions, in turn.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// All to one partition.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Number of the first record.
    #[must_use]
    pub fn first(mut self, first: u64) -> Self {
        self.first = first;
        self
    }

    /// How many records.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// Size of each value in bytes.
    #[must_use]
    pub fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// `0`, `1` or `all`.
    #[must_use]
    pub fn acks(mut self, acks: &str) -> Self {
        self.acks = acks.into();
        self
    }

    /// `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    #[must_use]
    pub fn codec(mut self, codec: &str) -> Self {
        self.codec = codec.into();
        self
    }

    /// Idempotent producer.
    #[must_use]
    pub fn idempotent(mut self, on: bool) -> Self {
        self.idempotent = on;
        self
    }

    /// Records a second, so that the command lasts while something happens (0: as fast as it goes).
    #[must_use]
    pub fn rate(mut self, rate: u64) -> Self {
        self.rate = rate;
        self
    }

    /// A header on each record.
    #[must_use]
    pub fn header(mut self, key: &str, value: &str) -> Self {
        self.headers.insert(key.into(), value.into());
        self
    }
}

/// Transactions to run one after the other with one producer.
#[derive(Clone, Debug, Serialize)]
pub struct Transaction {
    transactional_id: String,
    outcomes: Vec<String>,
    #[serde(flatten)]
    produce: Produce,
}

impl Transaction {
    /// One transaction for each of `outcomes` (`commit` or `abort`), each with the records of `produce`, numbered on.
    #[must_use]
    pub fn new(transactional_id: &str, outcomes: &[&str], produce: Produce) -> Self {
        let outcomes = outcomes.iter().map(|&outcome| outcome.into()).collect();
        Self { transactional_id: transactional_id.into(), outcomes, produce: produce.idempotent(true) }
    }
}

/// What was written.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Produced {
    /// Records the client reported as delivered (with acks 0: as sent).
    pub delivered: u64,
    /// By partition.
    pub partitions: BTreeMap<i32, PartitionWritten>,
}

/// What was written to one partition.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PartitionWritten {
    /// Records.
    pub count: u64,
    /// Lowest offset; none with acks 0 or where the client doesn't tell.
    #[serde(default)]
    pub first_offset: Option<i64>,
    /// Highest offset.
    #[serde(default)]
    pub last_offset: Option<i64>,
}

/// How to find one's partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Consumption {
    /// The classic group protocol.
    Classic,
    /// KIP-848 (`group.protocol=consumer`).
    Consumer,
    /// No group: all partitions of the topic.
    Assign,
}

/// What to read.
#[derive(Clone, Debug, Serialize)]
pub struct Consume {
    topic: String,
    mode: Consumption,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    count: u64,
    timeout_ms: u64,
    from: &'static str,
    commit: bool,
    isolation: &'static str,
}

impl Consume {
    /// 100 records from the earliest, without a group, within 60 s, uncommitted ones too.
    #[must_use]
    pub fn from(topic: &str) -> Self {
        Self {
            topic: topic.into(),
            mode: Consumption::Assign,
            group: None,
            count: 100,
            timeout_ms: 60_000,
            from: "earliest",
            commit: false,
            isolation: "read_uncommitted",
        }
    }

    /// With the classic protocol of this group.
    #[must_use]
    pub fn group(mut self, group: &str) -> Self {
        self.mode = Consumption::Classic;
        self.group = Some(group.into());
        self
    }

    /// With the KIP-848 protocol of this group.
    #[must_use]
    pub fn consumer_group(mut self, group: &str) -> Self {
        self.mode = Consumption::Consumer;
        self.group = Some(group.into());
        self
    }

    /// Until this many records were read (or the time is up, which is no error).
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// For at most this long.
    #[must_use]
    pub fn timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.timeout_ms = timeout_ms;
        self
    }

    /// From the end instead of the start.
    #[must_use]
    pub fn latest(mut self) -> Self {
        self.from = "latest";
        self
    }

    /// Commit at the end.
    #[must_use]
    pub fn commit(mut self) -> Self {
        self.commit = true;
        self
    }

    /// Only committed transactions.
    #[must_use]
    pub fn read_committed(mut self) -> Self {
        self.isolation = "read_committed";
        self
    }
}

/// What was read.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Consumed {
    /// Records.
    pub count: u64,
    /// Different keys.
    pub distinct: u64,
    /// Records whose key had been read before.
    pub duplicates: u64,
    /// By partition.
    pub partitions: BTreeMap<i32, PartitionRead>,
}

/// What was read from one partition.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PartitionRead {
    /// Records.
    pub count: u64,
    /// Offset of the first.
    pub first_offset: i64,
    /// Offset of the last.
    pub last_offset: i64,
    /// The numbers in the keys only grew.
    pub in_order: bool,
    /// CRC-32 over key, 0, value, 0 of each record in the order read.
    pub checksum: String,
}

impl Consumed {
    /// Fails unless exactly `count` records came, once each and in order within every partition.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_complete(&self, count: u64) -> Result<()> {
        anyhow::ensure!(
            (self.count, self.distinct, self.duplicates) == (count, count, 0),
            "{} records, {} different, {} double; expected {count} once each",
            self.count,
            self.distinct,
            self.duplicates
        );
        let disorder = self.partitions.iter().find(|(_, read)| !read.in_order);
        anyhow::ensure!(disorder.is_none(), "out of order in partition {:?}", disorder.map(|(p, _)| p));
        Ok(())
    }
}

/// What the sweep over the Java Admin client's methods returns.
#[derive(Clone, Debug, Deserialize)]
pub struct AdminSwept {
    /// Each method's result or error, normalised.
    pub methods: BTreeMap<String, Value>,
    /// Every `host:port` seen in a result.
    pub addresses: Vec<String>,
    /// Methods of the interface that the sweep doesn't know.
    pub missing: Vec<String>,
}

/// The commands. All of them fail with [`super::ClientError`] where the library reports an error.
impl Client {
    /// Sets where later commands go, without credentials.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn connect(&mut self, bootstrap: &str) -> Result<()> {
        self.connect_with(bootstrap, json!({}))
    }

    /// With more fields: `client_id`, `sasl`, `tls_ca`, `properties` (the library's own names).
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn connect_with(&mut self, bootstrap: &str, more: Value) -> Result<()> {
        let mut arguments = json!({"bootstrap": bootstrap, "client_id": format!("test-{}", self.family())});
        if let (Some(arguments), Value::Object(more)) = (arguments.as_object_mut(), more) {
            arguments.extend(more);
        }
        self.call("connect", arguments).map(drop)
    }

    /// With SASL, and TLS where `tls_ca` names the authority's PEM file.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn connect_sasl(&mut self, bootstrap: &str, sasl: &Sasl, tls_ca: Option<&Path>) -> Result<()> {
        self.connect_with(bootstrap, json!({"sasl": sasl, "tls_ca": tls_ca}))
    }

    /// What the client is told about brokers and topics.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn metadata(&mut self, topics: &[&str]) -> Result<Metadata> {
        self.typed("metadata", json!({"topics": topics}))
    }

    /// Creates a topic with the cluster's default replication factor.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn create_topic(&mut self, name: &str, partitions: u32) -> Result<()> {
        self.create_topic_with(name, partitions, json!({}))
    }

    /// With topic configs, e.g. `{"max.message.bytes": "60000000"}`.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn create_topic_with(&mut self, name: &str, partitions: u32, configs: Value) -> Result<()> {
        let topic = json!({"name": name, "partitions": partitions, "replication": -1, "configs": configs});
        self.call("create_topics", json!({"topics": [topic]})).map(drop)
    }

    /// Deletes topics.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn delete_topics(&mut self, names: &[&str]) -> Result<()> {
        self.call("delete_topics", json!({"topics": names})).map(drop)
    }

    /// Writes records.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn produce(&mut self, produce: &Produce) -> Result<Produced> {
        self.typed("produce", serde_json::to_value(produce)?)
    }

    /// Runs transactions.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn transactions(&mut self, transaction: &Transaction) -> Result<Produced> {
        self.typed("transaction", serde_json::to_value(transaction)?)
    }

    /// Reads records.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn consume(&mut self, consume: &Consume) -> Result<Consumed> {
        self.typed("consume", serde_json::to_value(consume)?)
    }

    /// Reads records with a share group (KIP-932), Java only.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn share_consume(&mut self, topic: &str, group: &str, count: u64, timeout_ms: u64) -> Result<Consumed> {
        let arguments = json!({"topic": topic, "group": group, "count": count, "timeout_ms": timeout_ms});
        self.typed("share_consume", arguments)
    }

    /// Commits offsets by partition.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn commit(&mut self, group: &str, topic: &str, offsets: &BTreeMap<i32, i64>) -> Result<()> {
        self.call("commit", json!({"group": group, "topic": topic, "offsets": offsets})).map(drop)
    }

    /// Committed offsets by partition.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn committed(&mut self, group: &str, topic: &str) -> Result<BTreeMap<i32, i64>> {
        self.offsets("committed", json!({"group": group, "topic": topic}))
    }

    /// Offsets by partition at `earliest` or `latest`.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn list_offsets(&mut self, topic: &str, at: &str) -> Result<BTreeMap<i32, i64>> {
        self.offsets("list_offsets", json!({"topic": topic, "at": at}))
    }

    /// Runs every method of the Admin client on resources whose names begin with `prefix`, Java only.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn admin_sweep(&mut self, prefix: &str) -> Result<AdminSwept> {
        self.typed("admin", json!({"prefix": prefix}))
    }

    /// Closes the client in an orderly way; the program ends.
    ///
    /// # Errors
    /// See [`super::ClientError`].
    pub fn close(mut self) -> Result<()> {
        self.call("close", json!({})).map(drop)
    }

    fn offsets(&mut self, op: &str, arguments: Value) -> Result<BTreeMap<i32, i64>> {
        let value = self.call(op, arguments)?;
        serde_json::from_value(value["offsets"].clone()).with_context(|| format!("the result of {op}: {value}"))
    }

    fn typed<T: DeserializeOwned>(&mut self, op: &str, arguments: Value) -> Result<T> {
        let value = self.call(op, arguments)?;
        serde_json::from_value(value.clone()).with_context(|| format!("the result of {op}: {value}"))
    }
}
