//! Read models: what the gateway tells operators about itself. Plain data, serialised as it stands.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::edge::{EdgeStatus, InterfaceStatus, SpliceInterface, SpliceStatus};
use crate::racks::tally::Counts;

/// The whole daemon at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// `turnout`'s version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// Path of the config file.
    pub config: String,
    /// Loads so far; 1 is the start, each applied reload adds 1.
    pub config_generation: u64,
    /// Why the last reload was refused, until one succeeds.
    pub last_reload_error: Option<String>,
    /// A drain is under way.
    pub draining: bool,
    /// `off: …` or what the kernel path does, in one sentence.
    pub fast_path: String,
    /// What runs in the kernel, if anything does.
    pub edge: Option<EdgeReport>,
    /// Real clusters.
    pub clusters: BTreeMap<String, ClusterStatus>,
    /// Virtual clusters.
    pub virtual_clusters: BTreeMap<String, VirtualClusterStatus>,
}

/// The kernel's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// Folder of the pins.
    pub pin: String,
    /// Fingerprint of the map layout.
    pub layout: String,
    /// By name.
    pub programs: BTreeMap<String, ProgramReport>,
    /// Interfaces that admission runs on, or should.
    pub interfaces: Vec<InterfaceReport>,
    /// Whether new connections are steered.
    pub steering: bool,
    /// What the splice does; none: it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splice: Option<SpliceReport>,
}

/// The splice's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpliceReport {
    /// Interfaces that they stand on, or should, and why connections by one can't be spliced; none: they can.
    pub interfaces: BTreeMap<String, Option<String>>,
    /// Sessions that have not ended.
    pub sessions: u32,
    /// Sessions that the tables have room for, those among them that ended in the last two minutes.
    pub room: u32,
    /// What the programs counted since they were loaded.
    pub counters: BTreeMap<String, u64>,
}

impl From<SpliceStatus> for SpliceReport {
    fn from(status: SpliceStatus) -> Self {
        let SpliceStatus { interfaces, sessions, room, counters } = status;
        Self {
            interfaces: interfaces.into_iter().map(|SpliceInterface { name, reason }| (name, reason)).collect(),
            sessions,
            room,
            counters: counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        }
    }
}

/// A loaded program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReport {
    /// The kernel's id, as in `bpftool prog show id`.
    pub id: u32,
    /// The kernel's tag: a fingerprint of its instructions.
    pub tag: String,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// Name.
    pub name: String,
    /// `native` or `generic`; none: not attached.
    pub mode: Option<String>,
    /// Why not attached, or why generic.
    pub reason: Option<String>,
}

impl From<EdgeStatus> for EdgeReport {
    fn from(status: EdgeStatus) -> Self {
        let EdgeStatus { pin, layout, programs, interfaces, steering } = status;
        let program = |(name, (id, tag))| (name, ProgramReport { id, tag });
        let interface =
            |InterfaceStatus { name, mode, reason }| InterfaceReport { name, mode: mode.map(str::to_owned), reason };
        Self {
            pin,
            layout,
            programs: programs.into_iter().map(program).collect(),
            interfaces: interfaces.into_iter().map(interface).collect(),
            steering,
            splice: None,
        }
    }
}

/// Who may connect, and what was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionReport {
    /// `admission.deny` in force.
    pub deny: Vec<String>,
    /// `admission.allow` in force.
    pub allow: Vec<String>,
    /// `admission.new_connections` in force, in one sentence.
    pub new_connections: Option<String>,
    /// Interfaces where the kernel decides before there is a socket, and how.
    pub in_kernel: Vec<String>,
    /// By virtual cluster.
    pub virtual_clusters: BTreeMap<String, AdmissionCounts>,
}

/// What became of a virtual cluster's new connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionCounts {
    /// New connections that the kernel let through.
    pub admitted_by_kernel: u64,
    /// Packets that the kernel dropped and connections that it refused, by reason.
    pub refused_by_kernel: BTreeMap<String, u64>,
    /// Connections that the daemon ended right after accept, by reason.
    pub refused_by_daemon: BTreeMap<String, u64>,
}

/// A source that was refused lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedReport {
    /// Its address.
    pub address: IpAddr,
    /// Whose port it wanted; none if that is gone.
    pub virtual_cluster: Option<String>,
    /// `deny`, `not_allowed`, `rate`, `malformed`, `no_broker`, `no_socket`.
    pub reason: String,
    /// `kernel` (packets) or `daemon` (connections).
    pub by: String,
    /// How often.
    pub times: u64,
    /// Milliseconds since the last time.
    pub last_ms_ago: u64,
}

/// A real cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `unknown`, `reached`, `degraded` or `passive`.
    pub state: String,
    /// Why, where the state is not `reached`.
    pub reason: Option<String>,
    /// The cluster's own id.
    pub cluster_id: Option<String>,
    /// The controller.
    pub controller: Option<i32>,
    /// Its brokers by node id.
    pub brokers: BTreeMap<i32, BrokerStatus>,
}

/// A real broker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Where it is dialled.
    pub address: String,
    /// Its rack, after the config's `racks`.
    pub rack: Option<String>,
    /// In the last Metadata answer.
    pub present: bool,
}

/// A virtual cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VirtualClusterStatus {
    /// The real cluster behind it.
    pub cluster: String,
    /// `steered`, or `bound one by one: …` and why.
    pub ports: String,
    /// Ports of `broker_ports` that other services of the host have. They stay theirs.
    pub strangers: Vec<String>,
    /// Addresses and ports open, e.g. `0.0.0.0:9092 bootstrap`.
    pub listeners: Vec<ListenerStatus>,
    /// Brokers whose node id is outside `broker_ports`: clients can't reach them.
    pub unreachable_brokers: Vec<i32>,
    /// Open connections.
    pub connections: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Bytes from clients to brokers.
    pub request_bytes: u64,
    /// Bytes from brokers to clients.
    pub answer_bytes: u64,
    /// Request frames.
    pub requests: u64,
    /// Connections ended right after accept, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Connections ended, by reason.
    pub closed: BTreeMap<String, u64>,
    /// What replica routing does, in one sentence; none where it is off.
    pub racks: Option<String>,
    /// What is wrong, in sentences; empty when all is well.
    pub degraded: Vec<String>,
}

/// What replica routing did in a virtual cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RacksReport {
    /// `racks.mode`.
    pub mode: String,
    /// How consumers are led from each broker: `stamp`, `patch` or `off`.
    pub brokers: BTreeMap<i32, String>,
    /// What was read, by racks and topic.
    pub rows: Vec<RackRow>,
    /// All of it.
    pub total: Counts,
    /// Redirects that may be in force.
    pub redirected: u64,
    /// Replicas that nobody is sent to now.
    pub held: Vec<HeldReport>,
    /// Partitions with records that were read at the leader, by the reason.
    pub stays: BTreeMap<String, u64>,
    /// Answers that passed `patch_buffer`.
    pub overflows: u64,
    /// Connections on which the gateway stood in for a broker that was out of reach.
    pub stood_in: u64,
    /// What the saved bytes would have cost, by `price_per_gb`.
    pub saved_cost: Option<String>,
    /// What the bytes that crossed racks cost.
    pub across_cost: Option<String>,
}

/// What was read by clients of one rack at brokers of one rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackRow {
    /// The clients' rack; `unknown`, or `other` beyond the bound.
    pub client_rack: String,
    /// The brokers' rack, likewise.
    pub broker_rack: String,
    /// The topic, `other` beyond the bound.
    pub topic: String,
    /// How much.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A replica that nobody is sent to for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// Its broker.
    pub broker: i32,
    /// `TOPIC-PARTITION`; none: all of them, the broker is out of reach.
    pub partition: Option<String>,
    /// For how long.
    pub seconds_left: u64,
}

/// Why a client reads partitions where it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyReport {
    /// Its rack, if that is known.
    pub rack: Option<String>,
    /// By what.
    pub by: Option<String>,
    /// Partitions.
    pub partitions: Vec<WhyPartition>,
    /// How many more there are.
    pub more: u64,
}

/// Why a client reads a partition where it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyPartition {
    /// Its topic.
    pub topic: String,
    /// Its index.
    pub partition: i32,
    /// Its leader.
    pub leader: Option<i32>,
    /// Its in-sync replicas.
    pub in_sync: Vec<i32>,
    /// Where the client is told to read.
    pub reads_from: Option<i32>,
    /// In which rack that is.
    pub broker_rack: Option<String>,
    /// Why there.
    pub why: String,
}

/// An open port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Address and port.
    pub address: String,
    /// `bootstrap`, or `broker N`.
    pub role: String,
    /// The kernel steers it to the shared sockets; else it has a socket of its own.
    pub steered: bool,
    /// Why it isn't listening, if it isn't.
    pub error: Option<String>,
}

/// One client connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Number of the connection in this process.
    pub id: u64,
    /// Virtual cluster.
    pub virtual_cluster: String,
    /// `bootstrap` or `broker N`.
    pub role: String,
    /// Client's address.
    pub client: String,
    /// Broker's address, once dialled.
    pub broker: Option<String>,
    /// Client id of the last request that was read whole.
    pub client_id: Option<String>,
    /// Software name and version from ApiVersions.
    pub software: Option<String>,
    /// Seconds since accept.
    pub age_seconds: u64,
    /// Requests waiting for their answer.
    pub in_flight: u32,
    /// Request frames so far.
    pub requests: u64,
    /// Bytes from the client.
    pub request_bytes: u64,
    /// Bytes to the client.
    pub answer_bytes: u64,
    /// `local` (through the daemon) and why, or `spliced`.
    pub path: String,
    /// What passed in the kernel, where the connection is spliced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splice: Option<SessionStatus>,
}

/// A connection's session in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number in the kernel's table.
    pub session: u32,
    /// From the client to the broker.
    pub requests: WayStatus,
    /// From the broker to the client.
    pub answers: WayStatus,
}

/// One direction of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayStatus {
    /// The kernel passes it on at this moment; else the daemon.
    pub kernel: bool,
    /// How often the kernel was given it.
    pub turns: u32,
    /// Bytes that the kernel passed on.
    pub bytes: u64,
    /// Packets with them.
    pub packets: u64,
}

/// Whether traffic may be sent here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Readiness {
    /// 200 or 503.
    pub ready: bool,
    /// What is missing, or degraded, in sentences.
    pub reasons: Vec<String>,
}

/// Answer of a reload.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReloadReport {
    /// What changed, one sentence each; empty: nothing did.
    pub changed: Vec<String>,
    /// What changed in the file and needs a restart to take effect.
    pub needs_restart: Vec<String>,
}

/// Answer of a restart without a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeReport {
    /// The process that drains now.
    pub old_pid: u32,
    /// The process that serves from now on.
    pub new_pid: u32,
}
