//! The configuration as typed values. Doc comments here become the JSON schema and the reference page.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::units::{Size, Span};

/// Named things, in the order of their names.
pub type Named<T> = BTreeMap<String, T>;

/// The whole file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What is real: the Kafka clusters, by name.
    pub clusters: Named<Cluster>,
    /// What clients see, by name.
    pub virtual_clusters: Named<VirtualCluster>,
    /// The kernel path.
    pub fast_path: FastPath,
    /// Where operators look and steer.
    pub admin: Admin,
    /// The daemon's own log.
    pub log: Log,
    /// Threads that serve connections; default: one for each processor this process may use.
    pub workers: Option<u16>,
    /// Reload by itself when the file changes.
    pub watch: bool,
}

/// A real Kafka cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// `host:port` of brokers to start from.
    pub bootstrap: Vec<String>,
    /// Advertised `host:port` → `host:port` to dial instead, when advertised addresses can't be dialled from here.
    pub address_map: BTreeMap<String, String>,
    /// Completes or overrides `broker.rack`, by node id.
    pub racks: BTreeMap<i32, String>,
    /// How long one attempt to connect to a broker may take (default 5s).
    pub connect_timeout: Span,
    /// How often the topology is read again (default 30s); it is also read when a connection to a broker fails.
    pub refresh: Span,
    /// How long a broker that no longer appears in Metadata keeps its port (default 10m).
    pub forget_after: Span,
    /// TLS for the gateway's own client.
    pub tls: Option<Tls>,
    /// SASL for the gateway's own client.
    pub sasl: Option<Sasl>,
}

/// TLS of the gateway's own client.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Tls {
    /// PEM file with the authorities to trust; default: the host's.
    pub ca: Option<PathBuf>,
    /// PEM file with the client's certificate chain.
    pub cert: Option<PathBuf>,
    /// PEM file with the client's private key.
    pub key: Option<PathBuf>,
    /// `host:port` of the TLS listeners, where `bootstrap` names plaintext ones for the mainline; default: `bootstrap`.
    pub bootstrap: Vec<String>,
}

/// SASL mechanisms that the gateway's own client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// `PLAIN` (RFC 4616).
    Plain,
    /// `SCRAM-SHA-256` (RFC 5802, RFC 7677).
    ScramSha256,
    /// `SCRAM-SHA-512`.
    ScramSha512,
}

/// SASL of the gateway's own client. `Debug` must not print the password.
#[derive(Clone, PartialEq)]
pub struct Sasl {
    /// Mechanism.
    pub mechanism: Mechanism,
    /// User name.
    pub username: String,
    /// Password; use `${file:PATH}` or `${NAME}`.
    pub password: String,
}

impl std::fmt::Debug for Sasl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mechanism, username, password: _ } = self;
        f.debug_struct("Sasl").field("mechanism", mechanism).field("username", username).finish_non_exhaustive()
    }
}

/// A cluster as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualCluster {
    /// Name of the real cluster behind it.
    pub cluster: String,
    /// Addresses to listen on (default `["0.0.0.0", "::"]`).
    pub listen: Vec<std::net::IpAddr>,
    /// Port for the first connection of a client.
    pub bootstrap_port: u16,
    /// Ports of the virtual brokers.
    pub broker_ports: BrokerPorts,
    /// Host told to clients; default: the address the client dialled.
    pub advertise: Option<String>,
    /// Which versions clients are offered.
    pub versions: Versions,
    /// Cluster id told to clients; default: the cluster's own.
    pub cluster_id: Option<String>,
    /// Bounds.
    pub limits: Limits,
}

/// Node id n listens on `first + n − first_node_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerPorts {
    /// Port of the first node id.
    pub first: u16,
    /// How many ports.
    pub count: u16,
    /// Node id of the first port (default 0).
    pub first_node_id: i32,
}

/// Which versions clients are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Versions {
    /// Fetch ≤ 15, nothing else capped.
    #[default]
    Auto,
    /// Also Produce ≤ 9 and transactions V1.
    Conservative,
    /// Nothing capped.
    Full,
}

/// Bounds of a virtual cluster. Hitting one is counted, and the log says which.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Connections in all (default 9000).
    pub connections: u32,
    /// Connections from one source address; `None`: no bound (the default).
    pub connections_per_source: Option<u32>,
    /// Largest frame, request or answer, size field excluded (default 100MiB, as `socket.request.max.bytes`).
    pub frame: Size,
    /// Largest answer or request that is held whole because it must be rewritten (default 16MiB).
    pub rewrite_frame: Size,
    /// Requests of one connection waiting for their answer (default 256).
    pub in_flight: u32,
    /// From accept to the first complete frame header (default 10s).
    pub first_byte: Span,
    /// A begun request frame must be complete after this long without progress… see the reference (default 30s).
    pub incomplete_frame: Span,
    /// No byte either way and nothing in flight (default 9m).
    pub idle: Span,
    /// How long a drain may take (default 30s).
    pub drain: Span,
}

/// The kernel path.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FastPath {
    /// `off` or `auto` (the default).
    pub mode: FastPathMode,
}

/// How much of the kernel path to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FastPathMode {
    /// No kernel program at all.
    Off,
    /// What the host can, the rest in the daemon.
    #[default]
    Auto,
}

/// Where operators look and steer.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address of the HTTP server (default `127.0.0.1:9090`).
    pub http: Option<std::net::SocketAddr>,
    /// Path of the control socket (default `/run/turnout/turnout.sock`).
    pub socket: PathBuf,
}

/// The daemon's own log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// `human` (default) or `json`.
    pub format: LogFormat,
    /// `error`, `warn`, `info` (default), `debug` or `trace`; or filter directives like `info,turnout::upstream=debug`.
    pub level: String,
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}
