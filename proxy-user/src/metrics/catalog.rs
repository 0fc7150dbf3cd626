//! Every metric, declared once: `/metrics` is encoded from these declarations and `docs/metrics.md` is generated from
//! them, so a metric can't exist under two names, without a meaning, or with a label that has no bound.
//!
//! Names follow Prometheus: base units, `_total` for counters, `_info` for constants; what every process has keeps the
//! `process_` names that dashboards know.

use std::fmt::Write as _;

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from the start of the process or of the thing that its labels name.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
    /// Always 1; the labels are the information.
    Info,
}

impl Kind {
    /// The word for it in the documentation.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// A label. Each has a bounded set of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// Name of a virtual cluster.
    VirtualCluster,
    /// Name of a real cluster.
    Cluster,
    /// Name of a Kafka API.
    Api,
    /// Why it happened.
    Reason,
    /// Which limit of the config.
    Limit,
    /// Client or broker.
    Side,
    /// How the admission program is attached.
    Mode,
    /// Rack of clients.
    ClientRack,
    /// Rack of brokers.
    BrokerRack,
    /// State of a real cluster.
    State,
    /// How it ended.
    Result,
    /// Version of the binary.
    Version,
}

impl Label {
    /// All labels, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::VirtualCluster,
        Self::Cluster,
        Self::Api,
        Self::Reason,
        Self::Limit,
        Self::Side,
        Self::Mode,
        Self::ClientRack,
        Self::BrokerRack,
        Self::State,
        Self::Result,
        Self::Version,
    ];

    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::VirtualCluster => "virtual_cluster",
            Self::Cluster => "cluster",
            Self::Api => "api",
            Self::Reason => "reason",
            Self::Limit => "limit",
            Self::Side => "side",
            Self::Mode => "mode",
            Self::ClientRack => "client_rack",
            Self::BrokerRack => "broker_rack",
            Self::State => "state",
            Self::Result => "result",
            Self::Version => "version",
        }
    }

    /// What bounds the number of its values.
    #[must_use]
    pub fn bound(self) -> &'static str {
        match self {
            Self::VirtualCluster => "the virtual clusters of the running config; a removed one takes its series along",
            Self::Cluster => "the clusters of the running config; a removed one takes its series along",
            Self::Api => "the 127 API keys 0 to 126 that were seen, and `other` for every other key",
            Self::Reason => "a fixed set of words in the code",
            Self::Limit => "the limits of the config, named by their keys",
            Self::Side => "`client`, `broker`",
            Self::Mode => "`native`, `generic`, `none`",
            Self::ClientRack | Self::BrokerRack => {
                "the first 32 racks that were seen, `unknown` among them, and `other`"
            }
            Self::State => "`unknown`, `reached`, `degraded`, `passive`",
            Self::Result => "`applied`, `refused`",
            Self::Version => "one value for each running binary",
        }
    }
}

/// A metric: what it is called, what it means and how its series are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Name as scraped, `_total` and `_info` included.
    pub name: &'static str,
    /// Kind of number.
    pub kind: Kind,
    /// Labels, in the order in which values are given.
    pub labels: &'static [Label],
    /// Meaning, in one sentence.
    pub meaning: &'static str,
}

impl Declaration {
    /// Name of the family: OpenMetrics adds `_total` and `_info` to the samples only.
    #[must_use]
    pub fn family(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }
}

macro_rules! catalog {
    ($($ident:ident = $kind:ident $name:literal [$($label:ident),*] $meaning:literal;)+) => {
        $(
            #[doc = $meaning]
            pub const $ident: Declaration =
                Declaration { name: $name, kind: Kind::$kind, labels: &[$(Label::$label),*], meaning: $meaning };
        )+

        /// All metrics, in the order of the documentation and of `/metrics`.
        pub const CATALOG: &[Declaration] = &[$($ident),+];
    };
}

catalog! {
    CONNECTIONS_ACCEPTED = Counter "turnout_connections_accepted_total" [VirtualCluster]
        "Client connections accepted.";
    CONNECTIONS_REFUSED = Counter "turnout_connections_refused_total" [VirtualCluster, Reason]
        "Client connections closed right after accept, before a byte was read.";
    CONNECTIONS = Gauge "turnout_connections" [VirtualCluster]
        "Client connections open now.";
    CONNECTIONS_CLOSED = Counter "turnout_connections_closed_total" [VirtualCluster, Reason]
        "Client connections that ended, by the reason that ended them.";
    LIMIT_HITS = Counter "turnout_limit_hits_total" [VirtualCluster, Limit]
        "Times a limit of the config was hit, by the key to turn.";
    REQUESTS = Counter "turnout_requests_total" [VirtualCluster, Api]
        "Request frames read from clients.";
    REQUEST_BYTES = Counter "turnout_request_bytes_total" [VirtualCluster]
        "Bytes read from clients.";
    ANSWER_BYTES = Counter "turnout_answer_bytes_total" [VirtualCluster]
        "Bytes written to clients.";
    SPLICED_REQUEST_BYTES = Counter "turnout_spliced_request_bytes_total" [VirtualCluster]
        "Bytes from clients that the kernel passed on; part of turnout_request_bytes_total.";
    SPLICED_ANSWER_BYTES = Counter "turnout_spliced_answer_bytes_total" [VirtualCluster]
        "Bytes to clients that the kernel passed on; part of turnout_answer_bytes_total.";
    SPLICED = Gauge "turnout_spliced_connections" [VirtualCluster]
        "Connections whose frames the kernel may pass on.";
    NOT_SPLICED = Counter "turnout_not_spliced_total" [VirtualCluster, Reason]
        "Times that a connection could not be spliced and stayed the daemon's, by the obstacle.";
    MIRRORED_FRAMES = Counter "turnout_mirrored_frames_total" [VirtualCluster, Side]
        "Frames that were copied whole, by the side that sent them.";
    MIRRORED_BYTES = Counter "turnout_mirrored_bytes_total" [VirtualCluster]
        "Their bytes.";
    MIRROR_LOST = Counter "turnout_mirror_lost_frames_total" [VirtualCluster, Reason]
        "Frames that should have been copied and could not be; each was passed on all the same.";
    IN_FLIGHT = Gauge "turnout_in_flight_requests" [VirtualCluster]
        "Requests waiting for their answer now.";
    FRAMES_REWRITTEN = Counter "turnout_frames_rewritten_total" [VirtualCluster]
        "Frames that were held whole to be rewritten; every other frame streams through.";
    HELD_BYTES = Gauge "turnout_held_bytes" [VirtualCluster]
        "Bytes of frames that are held now to be rewritten.";
    REQUESTS_ANSWERED = Counter "turnout_requests_answered_total" [VirtualCluster]
        "Requests that the gateway answered by itself.";
    READ_PAUSES = Counter "turnout_read_pauses_total" [VirtualCluster, Side]
        "Times reading from this side paused because the other side took no more bytes (back-pressure).";
    DIAL_SECONDS = Histogram "turnout_dial_seconds" [VirtualCluster]
        "Time to connect to a broker for a client, every address that was tried included; failures are not observed.";
    DIAL_FAILURES = Counter "turnout_dial_failures_total" [VirtualCluster]
        "Attempts to connect to a broker for a client that failed.";
    UNREACHABLE_BROKERS = Gauge "turnout_unreachable_brokers" [VirtualCluster]
        "Brokers whose node id is outside of broker_ports, so that clients can't reach them.";
    EDGE_ADMITTED = Counter "turnout_edge_admitted_total" [VirtualCluster]
        "New connections that the kernel's admission program let through.";
    EDGE_STEERED = Counter "turnout_edge_steered_total" [VirtualCluster]
        "Connections that the kernel steered to a shared socket.";
    EDGE_REFUSED = Counter "turnout_edge_refused_total" [VirtualCluster, Reason]
        "Packets that the kernel dropped and connections that it refused, before the daemon saw them.";
    EDGE_PORTS = Gauge "turnout_edge_steered_ports" [VirtualCluster]
        "Ports that the kernel steers, those without a broker included; 0 where each is bound by itself.";
    EDGE_INTERFACES = Gauge "turnout_edge_interfaces" [Mode]
        "Interfaces that should have the admission program, by how they have it; `none`: it could not be attached.";
    EDGE_STEERING = Gauge "turnout_edge_steering" []
        "1 while the kernel steers new connections, 0 while each port is bound by itself.";
    RACK_BYTES = Counter "turnout_rack_read_bytes_total" [VirtualCluster, ClientRack, BrokerRack]
        "Bytes of records that consumers read, by their rack and the broker's; only where replica routing is on.";
    RACK_SAVED = Counter "turnout_rack_saved_bytes_total" [VirtualCluster, ClientRack, BrokerRack]
        "Bytes of records that were read in the consumer's rack, while their leader is in another.";
    RACK_AVOIDABLE = Counter "turnout_rack_avoidable_bytes_total" [VirtualCluster, ClientRack, BrokerRack]
        "Bytes of records that crossed racks, though a replica in the consumer's rack could have served them.";
    RACK_REDIRECTS = Counter "turnout_rack_redirects_total" [VirtualCluster, ClientRack, BrokerRack]
        "Times that a consumer was told to read a partition from a replica, by the rack of the broker that told it.";
    RACK_BOUNCES = Counter "turnout_rack_bounces_total" [VirtualCluster, ClientRack, BrokerRack]
        "Times that a consumer was told to go back to the leader, by the rack of the replica it leaves.";
    RACK_STAYS = Counter "turnout_rack_stays_total" [VirtualCluster, Reason]
        "Partitions with records in answers of their leader whose consumer was sent nowhere, by the reason.";
    RACK_HELD = Gauge "turnout_rack_held_replicas" [VirtualCluster]
        "Replicas that no consumer is sent to now, because they could not serve a partition.";
    RACK_STOOD_IN = Counter "turnout_rack_stood_in_total" [VirtualCluster]
        "Connections on which the gateway answered Fetch in the place of a broker that was out of reach.";
    RACK_OVERFLOWS = Counter "turnout_rack_overflows_total" [VirtualCluster]
        "Fetch answers of which more than racks.patch_buffer was to be kept, so that the rest passed as it was.";
    UNROUTED = Counter "turnout_unrouted_connections_total" []
        "Connections ended at accept because the address they came in by is no port of a virtual cluster.";
    CLUSTER_STATE = Gauge "turnout_cluster_state" [Cluster, State]
        "1 for the state that the cluster is in, as the gateway's own client sees it; 0 for the others.";
    CLUSTER_BROKERS = Gauge "turnout_cluster_brokers" [Cluster]
        "Brokers in the last Metadata answer.";
    ACCEPT_PAUSES = Counter "turnout_accept_pauses_total" []
        "Times accepting paused because the process or the host ran out of file descriptors: raise LimitNOFILE.";
    CONFIG_RELOADS = Counter "turnout_config_reloads_total" [Result]
        "Reloads of the config, by how they ended; the load at start is not counted.";
    CONFIG_GENERATION = Gauge "turnout_config_generation" []
        "Configs applied so far: 1 after the start, one more for each applied reload.";
    DRAINING = Gauge "turnout_draining" []
        "1 while a drain is under way.";
    BUILD = Info "turnout_build_info" [Version]
        "The running version.";
    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "CPU time of the daemon, user and system.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" []
        "Resident memory of the daemon.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" []
        "Virtual memory of the daemon.";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" []
        "File descriptors open in the daemon; each proxied connection takes two.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "File descriptors that the daemon may open.";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "When the daemon started, in seconds since 1970-01-01 UTC.";
}

/// The reference page, `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         <!-- Generated from proxy-user/src/metrics/catalog.rs; `UPDATE_GENERATED=1 cargo test -p proxy-user --lib \
         metrics` writes it. -->\n\n\
         `GET /metrics` on `admin.http` and on the control socket answers in OpenMetrics text. A counter starts at 0 \
         with the process, or with the virtual cluster that its label names. No series is labelled by client, topic, \
         group or address, so the number of series depends on the config alone.\n\n\
         | metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for Declaration { name, kind, labels, meaning } in CATALOG {
        let labels = labels.iter().map(|l| format!("`{}`", l.name())).collect::<Vec<_>>().join(", ");
        let _ = writeln!(page, "| `{name}` | {} | {labels} | {meaning} |", kind.word());
    }
    page.push_str("\n## Labels\n\n| label | values |\n|---|---|\n");
    for label in Label::ALL {
        let _ = writeln!(page, "| `{}` | {} |", label.name(), label.bound());
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn names_are_unique_and_follow_prometheus() {
        let mut names = BTreeSet::new();
        for d in CATALOG {
            assert!(names.insert(d.name), "{} is declared twice", d.name);
            assert!(d.name.starts_with("turnout_") || d.name.starts_with("process_"), "{}: no prefix", d.name);
            assert!(d.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}: not snake_case", d.name);
            assert_eq!(d.kind == Kind::Counter, d.name.ends_with("_total"), "{}: `_total` is for counters", d.name);
            assert_eq!(d.kind == Kind::Info, d.name.ends_with("_info"), "{}: `_info` is for constants", d.name);
            assert!(d.meaning.ends_with('.'), "{}: the meaning is a sentence", d.name);
            for unit in ["_milliseconds", "_ms", "_kib", "_mb", "_minutes"] {
                assert!(!d.name.contains(unit), "{}: base units only", d.name);
            }
        }
    }

    #[test]
    fn every_label_is_used_and_documented() {
        for label in Label::ALL {
            assert!(CATALOG.iter().any(|d| d.labels.contains(&label)), "{label:?} is unused");
        }
    }

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md"));
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("docs/ can be made");
            std::fs::write(&path, markdown()).expect("docs/metrics.md can be written");
        }
        let written = std::fs::read_to_string(&path).expect("docs/metrics.md is there");
        assert_eq!(written, markdown(), "run UPDATE_GENERATED=1 cargo test -p proxy-user --lib metrics");
    }
}
