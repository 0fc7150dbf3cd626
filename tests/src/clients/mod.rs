//! Client programs of other languages behind one line protocol (`tests/clients/README.md`).
//!
//! ```no_run
//! use harness::clients::{Client, Consume, Family, Produce};
//! # fn main() -> anyhow::Result<()> {
//! let mut client = Client::start(Family::Java)?;
//! client.connect("127.0.0.1:9092")?;
//! client.create_topic("t", 3)?;
//! client.produce(&Produce::to("t").partitions(3).count(1000))?;
//! let read = client.consume(&Consume::from("t").group("g").count(1000))?;
//! assert_eq!((read.distinct, read.duplicates), (1000, 0));
//! # Ok(()) }
//! ```

mod commands;
mod prepare;

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::netns::Netns;
use crate::process::Process;
use crate::rundir::RunDir;

pub use commands::{
    AdminSwept, Broker, Consume, Consumed, Consumption, Metadata, PartitionRead, PartitionWritten, Produce, Produced,
    Sasl, Transaction,
};
pub use prepare::prepare;

/// How long a command may take unless a test says otherwise.
const PATIENCE: Duration = Duration::from_secs(120);

/// A family of clients: one protocol implementation each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Apache Kafka's own.
    Java,
    /// librdkafka, through confluent-kafka for Python.
    Librdkafka,
    /// kafka-python, all Python.
    KafkaPython,
    /// franz-go, Go.
    Franz,
    /// sarama, Go.
    Sarama,
    /// kafkajs, Node.
    Kafkajs,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Java, Self::Librdkafka, Self::KafkaPython, Self::Franz, Self::Sarama, Self::Kafkajs];

    /// Its name: also its folder under `tests/clients`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Java => "java",
            Self::Librdkafka => "librdkafka",
            Self::KafkaPython => "kafka-python",
            Self::Franz => "franz",
            Self::Sarama => "sarama",
            Self::Kafkajs => "kafkajs",
        }
    }

    /// The families that can run here. Each other one is registered as skipped; on CI (`CI=true`) it is a failure.
    ///
    /// # Panics
    /// On CI, when a family can't be prepared.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let is_usable = |family: &Self| match prepare(*family) {
            Ok(_) => true,
            Err(error) => {
                assert!(!crate::skip::is_ci(), "the client family {family} can't be prepared: {error:#}");
                crate::skip::record(&format!("client family {family}"), &format!("{error:#}"));
                false
            }
        };
        Self::ALL.into_iter().filter(is_usable).collect()
    }

    /// Whether it speaks KIP-848 groups (`group.protocol=consumer`).
    #[must_use]
    pub fn has_consumer_protocol(self) -> bool {
        matches!(self, Self::Java | Self::Librdkafka)
    }

    /// Whether it has transactions.
    #[must_use]
    pub fn has_transactions(self) -> bool {
        true
    }

    /// Whether it has this codec (`none`, `gzip`, `snappy`, `lz4`, `zstd`) in the set-up used here.
    #[must_use]
    pub fn has_codec(self, codec: &str) -> bool {
        self != Self::Kafkajs || matches!(codec, "none" | "gzip")
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error that the client library reported, as opposed to one of the harness.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct ClientError {
    /// The library's own class or code.
    pub class: String,
    /// Kafka's name of the error, e.g. `TOPIC_AUTHORIZATION_FAILED`, where it is one.
    #[serde(default)]
    pub kafka: Option<String>,
    /// The library's words.
    #[serde(default)]
    pub message: String,
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.class, self.kafka.as_deref().unwrap_or("not a Kafka error"), self.message)
    }
}

impl std::error::Error for ClientError {}

/// Whether an error is a [`ClientError`] with this name of Kafka's.
#[must_use]
pub fn is_kafka_error(error: &anyhow::Error, name: &str) -> bool {
    error.downcast_ref::<ClientError>().is_some_and(|error| error.kafka.as_deref() == Some(name))
}

#[derive(Debug, Deserialize)]
struct Reply {
    id: u64,
    ok: Option<Value>,
    error: Option<ClientError>,
}

/// A running client program.
#[derive(Debug)]
pub struct Client {
    family: Family,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// Ids of commands sent whose replies were not read yet, in order.
    pending: VecDeque<u64>,
    next_id: u64,
    patience: Duration,
    process: Process,
    dir: RunDir,
}

impl Client {
    /// Prepares the family if needed and starts its program on this host.
    ///
    /// # Errors
    /// It can't be prepared or started.
    pub fn start(family: Family) -> Result<Self> {
        Self::launch(family, None)
    }

    /// The same on a host of its own.
    ///
    /// # Errors
    /// It can't be prepared or started.
    pub fn start_in(family: Family, netns: &Netns) -> Result<Self> {
        Self::launch(family, Some(netns))
    }

    fn launch(family: Family, netns: Option<&Netns>) -> Result<Self> {
        let mut command = prepare(family)?.command();
        let dir = RunDir::create(&format!("client-{family}"))?;
        let log = std::fs::File::create(dir.path().join("stderr.log"))?;
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).stderr(log);
        let process = Process::spawn(&format!("client {family}"), command, netns, None)?;
        let (stdin, stdout) = process.take_pipes().context("the client has no pipes")?;
        let (send, lines) = channel();
        // Ends with the pipe, that is with the process.
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let pending = VecDeque::new();
        let client = Self { family, stdin, lines, pending, next_id: 1, patience: PATIENCE, process, dir };
        let hello = client.line(Duration::from_secs(60))?;
        anyhow::ensure!(hello.contains("\"ready\""), "client {family} greets with {hello}");
        Ok(client)
    }

    /// Which family it is.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Its process, to freeze or kill it.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// How long a command may take (120 s unless set).
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`ClientError`] if the library reports one; another kind if the program dies or takes too long.
    pub fn call(&mut self, op: &str, arguments: Value) -> Result<Value> {
        self.send(op, arguments)?;
        self.receive()
    }

    /// Sends a command without waiting, so that the test can hurt the cluster meanwhile; see [`Self::receive`].
    ///
    /// # Errors
    /// The program has ended.
    pub fn send(&mut self, op: &str, arguments: Value) -> Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        let mut command = json!({"id": id, "op": op});
        let (Some(command_fields), Value::Object(arguments)) = (command.as_object_mut(), arguments) else {
            bail!("the arguments of {op} must be an object");
        };
        command_fields.extend(arguments);
        writeln!(self.stdin, "{command}").map_err(|error| self.died(&error.to_string()))?;
        self.pending.push_back(id);
        Ok(())
    }

    /// Reads the reply to the oldest command that was sent and not yet received.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn receive(&mut self) -> Result<Value> {
        let expected = self.pending.pop_front().context("no command is pending")?;
        let line = self.line(self.patience)?;
        let reply: Reply =
            serde_json::from_str(&line).with_context(|| format!("client {} wrote {line}", self.family))?;
        anyhow::ensure!(reply.id == expected, "reply {} to command {expected}", reply.id);
        match (reply.ok, reply.error) {
            (Some(value), None) => Ok(value),
            (_, Some(error)) => Err(error.into()),
            (None, None) => bail!("client {} wrote neither ok nor error: {line}", self.family),
        }
    }

    fn line(&self, patience: Duration) -> Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Disconnected) => Err(self.died("it closed its output")),
            Err(RecvTimeoutError::Timeout) => Err(self.died(&format!("no reply within {patience:?}"))),
        }
    }

    /// The last lines of what the client program wrote to stderr, for a failure's message.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        crate::process::tail(&self.dir.path().join("stderr.log"), lines)
    }

    fn died(&self, why: &str) -> anyhow::Error {
        anyhow!("client {}: {why}; the end of its log:\n{}", self.family, self.log_tail(15))
    }
}
