//! What the gateway asks of the kernel around its sockets: who is let in before there is a socket (admission), and one
//! listening socket for all ports (steering). `kernel` implements it; without it the gateway does the same by itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use proxy_common::admission::{Prefix, Rate};
use proxy_common::tables::{self, Settings};
use serde::Serialize;

use crate::splice::session::Splicer;

/// A virtual cluster's place in the kernel's tables and counters. Kept for the life of the virtual cluster's name, and
/// not given to another while counters of the old one may still grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Slot(pub u16);

/// Virtual clusters that the kernel's tables have room for. Those beyond it bind their ports one by one.
pub const SLOTS: u16 = 256;

/// What a port of ours is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whose it is.
    pub slot: Slot,
    /// There is a broker (or the bootstrap) behind it; else it is a port of the range that is refused at once.
    pub open: bool,
}

/// Every port of every virtual cluster, the closed ones of the ranges included. An unspecified address (`0.0.0.0`,
/// `::`) stands for all addresses of its family that the host has and that are not listed themselves.
pub type PortTable = BTreeMap<SocketAddr, Port>;

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionRules {
    /// Every packet from here to a port of ours is dropped, also of connections that are open.
    pub deny: Vec<Prefix>,
    /// Where not empty, new connections come from here only.
    pub allow: Vec<Prefix>,
    /// How many new connections each source prefix may open.
    pub new_connections: Option<NewConnections>,
}

impl AdmissionRules {
    /// What of them is no prefix, as the tables have it.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let settings = Settings { allow_listed_only: (!self.allow.is_empty()).into(), ..Settings::open() };
        match self.new_connections {
            Some(NewConnections { bits_v4, bits_v6, rate }) => settings.with_rate(rate, bits_v4, bits_v6),
            None => settings,
        }
    }
}

/// A limit of new connections for each source prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewConnections {
    /// Leading bits of an IPv4 address that make a source, 1–32.
    pub bits_v4: u8,
    /// Leading bits of an IPv6 address that make a source, 1–128.
    pub bits_v6: u8,
    /// The bucket of each source.
    pub rate: Rate,
}

/// Why the kernel dropped a packet or refused a connection. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// From a denied prefix.
    Deny,
    /// A new connection from outside the allow list.
    NotAllowed,
    /// A new connection above its source's rate.
    Rate,
    /// Headers that contradict themselves.
    Malformed,
    /// A port of the range without a broker (steering).
    NoBroker,
    /// The daemon is gone or has no socket for the family (steering).
    NoSocket,
}

impl From<tables::Reason> for Reason {
    fn from(reason: tables::Reason) -> Self {
        match reason {
            tables::Reason::Deny => Self::Deny,
            tables::Reason::NotAllowed => Self::NotAllowed,
            tables::Reason::Rate => Self::Rate,
            tables::Reason::Malformed => Self::Malformed,
            tables::Reason::NoBroker => Self::NoBroker,
            tables::Reason::NoSocket => Self::NoSocket,
        }
    }
}

/// What was counted for one virtual cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EdgeCounters {
    /// New connections that XDP let through.
    pub admitted: u64,
    /// Connections that were steered to a socket of ours.
    pub steered: u64,
    /// Packets dropped or connections refused, by reason.
    pub refused: BTreeMap<Reason, u64>,
}

/// A source that was refused lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedSource {
    /// The address, not the prefix.
    pub address: IpAddr,
    /// Whose port it wanted.
    pub slot: Slot,
    /// Why.
    pub reason: Reason,
    /// Packets refused since it was first remembered.
    pub packets: u64,
    /// Milliseconds since the last one.
    pub last_ms_ago: u64,
}

/// One interface that admission runs on, or should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceStatus {
    /// Name.
    pub name: String,
    /// `native`, `generic`; `None`: not attached.
    pub mode: Option<&'static str>,
    /// Why not attached, or why generic.
    pub reason: Option<String>,
}

/// What is loaded and attached, for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EdgeStatus {
    /// Folder of the pins.
    pub pin: String,
    /// Fingerprint of the map layout.
    pub layout: String,
    /// Program name to (kernel id, tag).
    pub programs: BTreeMap<String, (u32, String)>,
    /// Interfaces that admission runs on, or should.
    pub interfaces: Vec<InterfaceStatus>,
    /// Whether new connections are steered.
    pub steering: bool,
}

/// One interface that the splice stands on, or should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpliceInterface {
    /// Name.
    pub name: String,
    /// Why connections by it can't be spliced; `None`: they can.
    pub reason: Option<String>,
}

/// What the splice does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpliceStatus {
    /// Interfaces that it stands on, or should.
    pub interfaces: Vec<SpliceInterface>,
    /// Sessions that have not ended.
    pub sessions: u32,
    /// Sessions that the tables have room for; those that ended lately are in it.
    pub room: u32,
    /// What its programs counted since they were loaded, by name.
    pub counters: BTreeMap<&'static str, u64>,
}

/// The kernel around the gateway's sockets. All calls are short (map updates and netlink), and safe from any thread.
pub trait Edge: Send + Sync + 'static {
    /// Replaces the table of ports. Ports in both tables are never missing in between.
    ///
    /// # Errors
    /// The table has no room, or the kernel refused; the old table may then be partly replaced, and the call is
    /// repeated with the old table by whoever made it.
    fn set_ports(&self, ports: &PortTable) -> anyhow::Result<()>;

    /// Replaces who may connect. Prefixes in both are never missing in between.
    ///
    /// # Errors
    /// As [`Edge::set_ports`].
    fn set_admission(&self, rules: &AdmissionRules) -> anyhow::Result<()>;

    /// Steers to these listening sockets from now on, spread over them by the connection's hash. Both families may be
    /// among them; a family without a socket is refused.
    ///
    /// # Errors
    /// The kernel refused a socket.
    fn set_sockets(&self, sockets: &[BorrowedFd<'_>]) -> anyhow::Result<()>;

    /// Attaches admission to these interfaces and takes it off others; `None`: every interface that can carry
    /// clients (Ethernet, up, not loopback). What fails is in [`Edge::status`], and tried again by [`Edge::upkeep`].
    fn set_interfaces(&self, wanted: Option<&[String]>);

    /// Brings interfaces and the host's own addresses up to date. Called every second.
    fn upkeep(&self);

    /// Why it does nothing any more: somebody else took its programs off the host. Noticed by [`Edge::upkeep`]; it
    /// stays so.
    fn lost(&self) -> Option<String> {
        None
    }

    /// What was counted, by virtual cluster.
    fn counters(&self) -> BTreeMap<Slot, EdgeCounters>;

    /// Who was refused lately, the most first; at most `limit`.
    fn refused_sources(&self, limit: usize) -> Vec<RefusedSource>;

    /// What is loaded and attached.
    fn status(&self) -> EdgeStatus;

    /// Where connections are handed to the kernel; `Err`: why nowhere, in a sentence for an operator.
    ///
    /// # Errors
    /// The kernel did not take the programs, or they were taken off.
    fn splicer(&self) -> Result<Arc<dyn Splicer>, String> {
        Err("this edge has no splice".into())
    }

    /// What the splice does; `None`: there is none.
    fn splice_status(&self) -> Option<SpliceStatus> {
        None
    }

    /// Lets go of the pins so that another process may take them over (a planned hand-over); maps and links stay.
    fn release(&self);

    /// Another descriptor of the lock that says whose the pins are, for a successor. While both have it, only one may
    /// change anything; the gateway sees to that. Edges without pins have none.
    fn lock(&self) -> Option<OwnedFd> {
        None
    }

    /// Takes everything off the host: links, pins, programs. What is called afterwards has no effect.
    ///
    /// # Errors
    /// Something could not be removed; the rest was.
    fn detach(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Where an edge comes from.
pub trait EdgeSource: Send + Sync + 'static {
    /// Loads the programs, or takes over those that are pinned under `pin`. Nothing is admitted, refused or steered
    /// otherwise than before until the tables are set. `lock`: what a predecessor handed over. `mirror`: bytes for copies
    /// of frames, if there are to be any.
    ///
    /// # Errors
    /// Why this host can't have it, in a sentence for an operator.
    fn open(&self, pin: &Path, lock: Option<OwnedFd>, mirror: Option<u64>) -> anyhow::Result<Arc<dyn Edge>>;
}
