//! The configuration as typed values. Doc comments here become the JSON schema and the reference page.
//!
//! These types say what a file may hold; [`super::load`] is the way to get one, since it also interpolates, gives
//! places to errors, and checks what types can't.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

pub use super::model_edge::{Admission, FastPath, FastPathMode, Interfaces, NewConnections};
pub use super::model_racks::{ClientRack, Racks, RacksMode};
use super::units::{Size, Span};

/// Named things, in the order of their names.
pub type Named<T> = BTreeMap<String, T>;

/// What a secret looks like wherever a config is shown.
pub const MASK: &str = "********";

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What is real: the Kafka clusters, by name. At least one.
    pub clusters: Named<Cluster>,
    /// What clients see, by name. At least one.
    pub virtual_clusters: Named<VirtualCluster>,
    /// The kernel path.
    #[serde(default)]
    pub fast_path: FastPath,
    /// Who may connect, to whatever virtual cluster.
    #[serde(default)]
    pub admission: Admission,
    /// Where operators look and steer.
    #[serde(default)]
    pub admin: Admin,
    /// The daemon's own log.
    #[serde(default)]
    pub log: Log,
    /// Threads that serve connections, 1 to 1024; default: one for each processor this process may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub workers: Option<u16>,
    /// Reload by itself when the file changes.
    #[serde(default)]
    pub watch: bool,
}

/// A real Kafka cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// `host:port` of brokers to start from, tried in turn; an IPv6 address stands in brackets. At least one.
    pub bootstrap: Vec<String>,
    /// Advertised `host:port` → `host:port` to dial instead, when advertised addresses can't be dialled from here;
    /// default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub address_map: BTreeMap<String, String>,
    /// Completes or overrides `broker.rack`, by node id; default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub racks: BTreeMap<i32, String>,
    /// How long one attempt to connect to a broker may take.
    #[serde(default = "Cluster::connect_timeout")]
    pub connect_timeout: Span,
    /// How often the topology is read again; it is also read when a connection to a broker fails.
    #[serde(default = "Cluster::refresh")]
    pub refresh: Span,
    /// How often leaders and in-sync replicas are read again of topics that are read by rack; they are also read when a
    /// replica refuses.
    #[serde(default = "Cluster::partition_refresh")]
    pub partition_refresh: Span,
    /// How long a broker that no longer appears in Metadata keeps its port.
    #[serde(default = "Cluster::forget_after")]
    pub forget_after: Span,
    /// TLS for the gateway's own client; default: plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// SASL for the gateway's own client; default: none. Where the cluster wants it and none is given, topology is
    /// learned from the Metadata answers that pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl: Option<Sasl>,
}

impl Cluster {
    /// Default of `connect_timeout`.
    #[must_use]
    pub const fn connect_timeout() -> Span {
        Span::secs(5)
    }

    /// Default of `refresh`.
    #[must_use]
    pub const fn refresh() -> Span {
        Span::secs(30)
    }

    /// Default of `partition_refresh`.
    #[must_use]
    pub const fn partition_refresh() -> Span {
        Span::secs(5)
    }

    /// Default of `forget_after`.
    #[must_use]
    pub const fn forget_after() -> Span {
        Span::mins(10)
    }
}

/// TLS of the gateway's own client. An empty map, `{}`, turns it on with the host's authorities.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the authorities to trust; default: the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM file with the client's certificate chain, which goes with `key`; default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// PEM file with the client's private key, which goes with `cert`; default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// `host:port` of the TLS listeners, where `bootstrap` names plaintext ones for the mainline; default: `bootstrap`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bootstrap: Vec<String>,
}

/// SASL mechanisms that the gateway's own client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mechanism {
    /// `PLAIN` (RFC 4616).
    #[serde(rename = "PLAIN")]
    Plain,
    /// `SCRAM-SHA-256` (RFC 5802, RFC 7677).
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// `SCRAM-SHA-512`.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl std::fmt::Display for Mechanism {
    /// As Kafka spells it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        })
    }
}

/// SASL of the gateway's own client. `Debug` and `Serialize` don't give the password.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sasl {
    /// How it authenticates. `PLAIN` without `tls` sends the password in clear text, which is warned of.
    pub mechanism: Mechanism,
    /// User name.
    pub username: String,
    /// Password; use `${file:PATH}` or `${NAME}` so that it is not in the file. It is never shown.
    #[serde(serialize_with = "masked")]
    pub password: String,
}

fn masked<S: Serializer>(_: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(MASK)
}

impl std::fmt::Debug for Sasl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mechanism, username, password: _ } = self;
        f.debug_struct("Sasl").field("mechanism", mechanism).field("username", username).finish_non_exhaustive()
    }
}

/// A cluster as clients see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VirtualCluster {
    /// Name of the real cluster behind it, from `clusters`.
    pub cluster: String,
    /// Addresses to listen on. IPv6 sockets take IPv6 only, so `::` and `0.0.0.0` go together.
    #[serde(default = "VirtualCluster::listen")]
    pub listen: Vec<IpAddr>,
    /// Port for the first connection of a client.
    #[schemars(range(min = 1))]
    pub bootstrap_port: u16,
    /// Ports of the virtual brokers. A broker whose node id is outside is reported as degraded, never given another
    /// port. No port may be used twice on addresses that collide.
    pub broker_ports: BrokerPorts,
    /// Host name or IP address told to clients, without a port; default: the address the client dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Which versions clients are offered. `auto`: Fetch ≤ 15, since later ones only add leader hints, nothing else
    /// capped; `conservative`: also Produce ≤ 9 and transactions V1; `full`: nothing capped, an answer with leader
    /// hints is held to be rewritten.
    #[serde(default)]
    pub versions: Versions,
    /// Cluster id told to clients; default: the cluster's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Bounds. Hitting one is counted, and the log says which.
    #[serde(default)]
    pub limits: Limits,
    /// Replica routing by rack. An empty map, `{}`, turns it on; default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub racks: Option<Racks>,
}

impl VirtualCluster {
    /// Default of `listen`: every address of the host.
    #[must_use]
    pub fn listen() -> Vec<IpAddr> {
        vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    }
}

/// Node id n listens on `first + n − first_node_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BrokerPorts {
    /// Port of the first node id.
    #[schemars(range(min = 1))]
    pub first: u16,
    /// How many ports, and so how many node ids; `first + count` is at most 65536.
    #[schemars(range(min = 1))]
    pub count: u16,
    /// Node id of the first port, 0 or more.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub first_node_id: i32,
}

/// Which versions clients are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections in all. One more is closed at accept.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Connections from one source address; default: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub connections_per_source: Option<u32>,
    /// Largest request, size field excluded; at most 2147483647. The default is that of `socket.request.max.bytes`. A
    /// larger one closes the connection. Answers stream whatever their size: what a client asked for is the broker's
    /// to bound.
    pub frame: Size,
    /// Largest answer or request that is held whole because it must be rewritten; at most `frame`. It bounds the
    /// memory of one connection. A larger one closes the connection.
    pub rewrite_frame: Size,
    /// Requests of one connection waiting for their answer. At the bound the client is not read until one is
    /// answered.
    #[schemars(range(min = 1))]
    pub in_flight: u32,
    /// From accept to the first complete frame header. Later is closed.
    pub first_byte: Span,
    /// A request frame that has begun must be complete within this long plus one second for each 64 KiB of its size,
    /// counted from its first byte. So a client that trickles bytes is closed, and a slow one that sends 100 MiB is
    /// not.
    pub incomplete_frame: Span,
    /// No byte either way and nothing in flight for this long: closed. Brokers themselves close after 10 minutes
    /// (`connections.max.idle.ms`), so keep it below.
    pub idle: Span,
    /// How long a drain may take. What is still in flight then is cut.
    pub drain: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 9000,
            connections_per_source: None,
            frame: Size::mib(100),
            rewrite_frame: Size::mib(16),
            in_flight: 256,
            first_byte: Span::secs(10),
            incomplete_frame: Span::secs(30),
            idle: Span::mins(9),
            drain: Span::secs(30),
        }
    }
}

/// Where operators look and steer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port of the HTTP server (metrics, health, status), or `off`. It has no authentication of its own,
    /// so keep it on an address that only operators reach.
    #[serde(with = "address_or_off")]
    #[schemars(with = "AddressOrOff")]
    pub http: Option<SocketAddr>,
    /// Path of the control socket, at most 107 bytes.
    pub socket: PathBuf,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            http: Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9090)),
            socket: PathBuf::from("/run/turnout/turnout.sock"),
        }
    }
}

/// `None` is written `off`, so that leaving the key out and switching it off are two things.
mod address_or_off {
    use std::net::SocketAddr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(address: &Option<SocketAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str("off"),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "off" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                D::Error::custom("not an IP address and port; write one such as `127.0.0.1:9090`, or `off`")
            }),
        }
    }
}

/// How `admin.http` looks in the JSON schema.
struct AddressOrOff;

impl JsonSchema for AddressOrOff {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AddressOrOff".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "title": "IP address and port, or `off`", "type": "string" })
    }
}

/// The daemon's own log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `human` for people, `json` for one JSON object a line.
    pub format: LogFormat,
    /// `off`, `error`, `warn`, `info`, `debug` or `trace`; or filter directives such as
    /// `info,turnout::upstream=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}
