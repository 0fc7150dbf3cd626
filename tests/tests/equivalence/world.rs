//! The cluster, the ways to it, and what the requests refer to.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use harness::kafka::{Cluster, Listener, heavy};
use harness::paths::FileLock;
use harness::raw::{batch::Batch, frame};
use harness::turnout::Gateway;
use harness::wait;
use serde_json::{Value, json};

use crate::codec;
use crate::schema::{self, Api};

const PATIENCE: Duration = Duration::from_secs(30);

/// How a request reaches the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// Without a gateway.
    Direct,
    /// Through one with `versions: auto`.
    Auto,
    /// Through one with `versions: full`.
    Full,
}

impl Side {
    pub(crate) const ALL: [Self; 3] = [Self::Direct, Self::Auto, Self::Full];

    /// A part of names, of one length for all, so that things that belong to one side have like names and sizes.
    fn marker(self) -> &'static str {
        match self {
            Self::Direct => "SIDE0",
            Self::Auto => "SIDE1",
            Self::Full => "SIDE2",
        }
    }
}

/// Which broker a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The leader of partition 0 of `eq-shared` and of the sides' topics.
    Leader,
    /// The coordinator of all groups.
    Group,
    /// The coordinator of all transactions.
    Transaction,
    /// The coordinator of all share group state.
    Share,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// The connection was closed instead.
    Closed,
    /// The body.
    Body(Value),
}

pub(crate) const LEADER: i32 = 1;
pub(crate) const OTHER: i32 = 2;

/// A cluster of two brokers in which every kind of coordinator has one partition, so that one broker has them all.
pub(crate) fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: OnceLock<Result<(Cluster, FileLock), String>> = OnceLock::new();
    let started = CLUSTER.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    match started {
        Ok((cluster, _)) => Ok(cluster),
        Err(error) => anyhow::bail!("the cluster could not be started: {error}"),
    }
}

fn start() -> Result<(Cluster, FileLock)> {
    let lock = heavy()?;
    let one = |key: &str| (key.to_owned(), "1".to_owned());
    let properties = [
        one("offsets.topic.num.partitions"),
        one("transaction.state.log.num.partitions"),
        one("share.coordinator.state.topic.num.partitions"),
        // What a streams group says depends on the time until it is over.
        ("group.streams.initial.rebalance.delay.ms".to_owned(), "0".to_owned()),
    ];
    let builder = Cluster::builder().name("equivalence").node_ids(&[LEADER, OTHER]).listeners(&[Listener::Sasl]);
    let builder = builder.users(&["alice"]).authorizer(&["alice"]);
    let builder = properties.iter().fold(builder, |builder, (key, value)| builder.property(key, value));
    Ok((builder.start()?, lock))
}

/// Everything a comparison needs.
pub(crate) struct World {
    pub(crate) apis: std::collections::BTreeMap<i16, Api>,
    cluster: &'static Cluster,
    auto: Gateway,
    full: Gateway,
    connections: HashMap<(Side, i32), TcpStream>,
    /// Values of `{name}` in requests.
    known: HashMap<String, String>,
    coordinators: HashMap<&'static str, i32>,
    correlation: i32,
}

impl World {
    /// With topics, records and coordinators, once in the life of the cluster.
    pub(crate) fn new() -> Result<Self> {
        let mut world = Self::bare()?;
        world.prepare()?;
        Ok(world)
    }

    /// With the gateways alone.
    pub(crate) fn bare() -> Result<Self> {
        let cluster = cluster()?;
        let gateway = |policy: &str| {
            let gateway = Gateway::before(cluster).virtual_line(&format!("versions: {policy}")).start()?;
            for node in [LEADER, OTHER] {
                let address = gateway.broker_addr(node)?;
                wait::until("a broker's port", PATIENCE, || Ok(TcpStream::connect(address)?))?;
            }
            anyhow::Ok(gateway)
        };
        Ok(Self {
            apis: schema::load()?,
            cluster,
            auto: gateway("auto")?,
            full: gateway("full")?,
            connections: HashMap::new(),
            known: HashMap::new(),
            coordinators: HashMap::new(),
            correlation: 0,
        })
    }

    /// Topics with records in them, and who coordinates what.
    fn prepare(&mut self) -> Result<()> {
        let mut topics = vec![
            json!({"name": "eq-shared", "assignments": [
                {"partitionIndex": 0, "brokerIds": [LEADER, OTHER]}, {"partitionIndex": 1, "brokerIds": [OTHER, LEADER]}]}),
            json!({"name": "eq-solo", "assignments": [{"partitionIndex": 0, "brokerIds": [OTHER]}]}),
        ];
        for side in Side::ALL {
            let name = format!("eq-{}", side.marker());
            topics.push(json!({"name": name, "assignments": [{"partitionIndex": 0, "brokerIds": [LEADER]}]}));
        }
        for topic in &mut topics {
            topic["numPartitions"] = json!(-1);
            topic["replicationFactor"] = json!(-1);
        }
        let created = self.must(19, 7, LEADER, &json!({"topics": topics, "timeoutMs": 20_000}))?;
        for topic in created["topics"].as_array().context("topics")? {
            ensure!(topic["errorCode"] == 0, "{topic}");
            let name = topic["name"].as_str().context("a name")?.to_owned();
            self.known.insert(name, topic["topicId"].as_str().context("an id")?.to_owned());
        }
        self.known.insert("batch".into(), codec::hex(&Batch::numbered(0, 3).encode()?));
        self.known.insert("cluster".into(), self.cluster.cluster_id().to_owned());
        for (topic, node) in [("eq-shared", LEADER), ("eq-solo", OTHER)] {
            let records = json!({"acks": -1, "timeoutMs": 10_000, "topicData": [
                {"name": topic, "partitionData": [{"index": 0, "records": "{batch}"}]}]});
            self.until("the first records", |world| {
                let answer = world.must(0, 9, node, &records)?;
                ensure!(answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0, "{answer}");
                Ok(())
            })?;
        }
        // The follower serves consumers too, once its high watermark has come up.
        let fetch = json!({"maxBytes": 1_000_000, "sessionEpoch": -1, "topics": [
            {"topic": "eq-shared", "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1_000_000}]}]});
        self.until("the follower", |world| {
            let answer = world.must(1, 12, OTHER, &fetch)?;
            ensure!(answer["responses"][0]["partitions"][0]["highWatermark"] == 3, "{answer}");
            Ok(())
        })?;
        for (what, key, kind) in
            [("group", "g", 0), ("transaction", "t", 1), ("share", "s:AAAAAAAAAAAAAAAAAAAAAQ:0", 2)]
        {
            let request = json!({"keyType": kind, "coordinatorKeys": [key]});
            let node = self.until("a coordinator", |world| {
                let answer = world.must(10, 6, LEADER, &request)?;
                let found = &answer["coordinators"][0];
                ensure!(found["errorCode"] == 0, "{answer}");
                found["nodeId"].as_i64().context("a node id")
            })?;
            self.coordinators.insert(what, node as i32);
        }
        // Until it hands out producer ids, a transaction coordinator answers COORDINATOR_LOAD_IN_PROGRESS.
        let transaction = json!({"transactionalId": "warm-up", "transactionTimeoutMs": 60_000});
        let node = self.node(To::Transaction);
        self.until("the transaction coordinator", |world| {
            let answer = world.must(22, 4, node, &transaction)?;
            ensure!(answer["errorCode"] == 0, "{answer}");
            Ok(())
        })
    }

    fn until<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        wait::until(what, PATIENCE, || probe(self))
    }

    /// A direct exchange that must be answered.
    fn must(&mut self, key: i16, version: i16, node: i32, body: &Value) -> Result<Value> {
        let body = self.filled(body, Side::Direct, version)?;
        match self.exchange(Side::Direct, node, key, version, &body)? {
            Answer::Body(answer) => Ok(answer),
            Answer::Closed => anyhow::bail!("closed instead of answering {key} v{version}"),
        }
    }

    pub(crate) fn node(&self, to: To) -> i32 {
        let coordinator = |what| self.coordinators.get(what).copied().unwrap_or(LEADER);
        match to {
            To::Leader => LEADER,
            To::Group => coordinator("group"),
            To::Transaction => coordinator("transaction"),
            To::Share => coordinator("share"),
        }
    }

    /// Where a client of this side finds a broker.
    pub(crate) fn address(&self, side: Side, node: i32) -> Result<SocketAddr> {
        match side {
            Side::Direct => Ok(self.cluster.broker(node)?.plaintext()),
            Side::Auto => self.auto.broker_addr(node),
            Side::Full => self.full.broker_addr(node),
        }
    }

    /// Remembers a value for `{name}`.
    pub(crate) fn remember(&mut self, name: &str, value: &Value) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.known.insert(name.to_owned(), text);
    }

    /// `body` with every `{name}` in its strings replaced; `{side}` and `{v}` are the side's marker and the version,
    /// `{own}` is the id of the side's topic.
    pub(crate) fn filled(&self, body: &Value, side: Side, version: i16) -> Result<Value> {
        Ok(match body {
            Value::String(text) => {
                let mut text = text.replace("{side}", side.marker()).replace("{v}", &version.to_string());
                while let Some((start, end)) = text.find('{').zip(text.find('}')) {
                    let name = match &text[start + 1..end] {
                        "own" => format!("eq-{}", side.marker()),
                        name => name.to_owned(),
                    };
                    let value = self.known.get(&name).with_context(|| format!("{{{name}}} isn't known"))?;
                    text.replace_range(start..=end, value);
                }
                Value::String(text)
            }
            Value::Array(items) => {
                items.iter().map(|item| self.filled(item, side, version)).collect::<Result<Vec<_>>>()?.into()
            }
            Value::Object(fields) => {
                let filled = fields.iter().map(|(k, v)| Ok((k.clone(), self.filled(v, side, version)?)));
                Value::Object(filled.collect::<Result<_>>()?)
            }
            other => other.clone(),
        })
    }

    /// One request and its answer, on the side's connection to that broker. Where the request has the side's marker,
    /// the one in the answer is replaced by that of the direct side.
    pub(crate) fn exchange(&mut self, side: Side, node: i32, key: i16, version: i16, body: &Value) -> Result<Answer> {
        let api = self.apis.get(&key).with_context(|| format!("no schema of key {key}"))?;
        let flexible = api.request.flexible.contains(version);
        let is_own = body.to_string().contains(side.marker());
        let body =
            codec::write(&api.request, version, body).with_context(|| format!("writing {} v{version}", api.name))?;
        self.correlation += 1;
        let id = self.correlation;
        let bytes = request(key, version, id, flexible, &body);
        let Some(mut answer) = self.transfer(side, node, &bytes)? else { return Ok(Answer::Closed) };
        ensure!(answer.len() >= 4 && answer.get_i32() == id, "{key} v{version}: another correlation id");
        let api = &self.apis[&key];
        // The header of an ApiVersions answer has no tagged fields (KIP-511).
        if api.response.flexible.contains(version) && key != 18 {
            ensure!(answer.has_remaining() && answer.get_u8() == 0, "{key} v{version}: a header with tagged fields");
        }
        let answer = if is_own { replaced(&answer, side.marker(), Side::Direct.marker()) } else { answer };
        let tree = codec::read(&api.response, version, answer);
        Ok(Answer::Body(tree.with_context(|| format!("reading {} v{version} by way of {side:?}", api.name))?))
    }

    /// Sends a frame; its answer without the size field, `None` when the connection is closed instead.
    pub(crate) fn transfer(&mut self, side: Side, node: i32, bytes: &[u8]) -> Result<Option<Bytes>> {
        let address = self.address(side, node)?;
        let mut stream = match self.connections.remove(&(side, node)) {
            Some(stream) => stream,
            None => connect(address)?,
        };
        let answer = transfer(&mut stream, bytes)?;
        if answer.is_some() {
            self.connections.insert((side, node), stream);
        }
        Ok(answer)
    }

    /// What the gateways complained of, if anything.
    pub(crate) fn check_quiet(&self, expected: &[&str]) -> Result<()> {
        self.auto.check_quiet(expected)?;
        self.full.check_quiet(expected)
    }
}

pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a frame and reads one; `None` when the peer closes, or resets, instead.
pub(crate) fn transfer(stream: &mut TcpStream, bytes: &[u8]) -> Result<Option<Bytes>> {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let mut read = || -> std::io::Result<Bytes> {
        stream.write_all(bytes)?;
        let mut size = [0; 4];
        stream.read_exact(&mut size)?;
        let mut answer = vec![0; i32::from_be_bytes(size).max(0) as usize];
        stream.read_exact(&mut answer)?;
        Ok(answer.into())
    };
    match read() {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A whole request frame with the client id `eq`.
pub(crate) fn request(key: i16, version: i16, id: i32, flexible: bool, body: &[u8]) -> Bytes {
    let mut payload = BytesMut::new();
    payload.put_i16(key);
    payload.put_i16(version);
    payload.put_i32(id);
    payload.put_slice(b"\0\x02eq");
    if flexible {
        payload.put_u8(0);
    }
    payload.put_slice(body);
    frame(&payload)
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Bytes {
    let mut bytes = bytes.to_vec();
    let (from, to) = (from.as_bytes(), to.as_bytes());
    for at in 0..bytes.len().saturating_sub(from.len() - 1) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    bytes.into()
}
