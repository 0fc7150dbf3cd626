//! What the daemon counts, and how it is told to Prometheus.
//!
//! A metric is declared once, in [`catalog`]; the structs here hold the numbers, one for each virtual cluster and real
//! cluster of the running config and one for the gateway as a whole. A scrape reads them as they are: nothing is
//! registered, so what a reload removes is gone from the next scrape.

pub mod catalog;
mod counters;
mod exposition;
mod process;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use counters::{Limit, LimitCounters, Reason, ReasonCounters, RequestCounters};
pub use exposition::CONTENT_TYPE;
pub use process::Process;

use crate::kafka::api;
use crate::kafka::ids::ApiKey;
use crate::racks::tally::Counts;
use crate::splice::mirror::Cause;
use catalog::Declaration;
use exposition::{Sample, Value, write};

/// Upper bounds of the buckets of `turnout_dial_seconds`: from a broker next door to the default `connect_timeout`
/// spent on two addresses.
const DIAL_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];

/// Numbers of one virtual cluster. Cloning shares them.
#[derive(Clone, Debug)]
pub struct VirtualClusterMetrics {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed right after accept, by reason.
    pub refused: ReasonCounters,
    /// Connections open.
    pub open: Gauge,
    /// Connections ended, by reason.
    pub closed: ReasonCounters,
    /// Limits hit; besides `refused` and `closed`, which say what became of the connection.
    pub limit_hits: LimitCounters,
    /// Bytes read from clients.
    pub request_bytes: Counter,
    /// Bytes written to clients.
    pub answer_bytes: Counter,
    /// Of those, bytes that the kernel passed on.
    pub spliced_request_bytes: Counter,
    /// Likewise.
    pub spliced_answer_bytes: Counter,
    /// Connections that the kernel may pass frames of.
    pub spliced: Gauge,
    /// Connections that it may not, by the obstacle.
    pub not_spliced: ReasonCounters,
    /// Copies of frames.
    pub mirror: MirrorMetrics,
    /// Request frames, by API.
    pub requests: RequestCounters,
    /// Requests waiting for their answer.
    pub in_flight: Gauge,
    /// Frames held whole to be rewritten.
    pub rewritten: Counter,
    /// Bytes of frames that are held now.
    pub held_bytes: Gauge,
    /// Answers made by the gateway itself.
    pub answered: Counter,
    /// Times reading from a client paused because its broker took no more.
    pub client_read_pauses: Counter,
    /// Times reading from a broker paused because its client took no more.
    pub broker_read_pauses: Counter,
    /// Attempts to reach a broker that failed.
    pub dial_failures: Counter,
    /// Seconds to connect to a broker.
    pub dial_seconds: Histogram,
    /// Brokers outside of `broker_ports`.
    pub unreachable_brokers: Gauge,
    /// What the kernel's programs counted, as last read.
    pub edge: EdgeMetrics,
    /// What replica routing counted, as last read.
    pub racks: RacksMetrics,
}

/// Numbers of the mirror. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct MirrorMetrics {
    /// Frames copied: requests and answers.
    pub frames: [Counter; 2],
    /// Their bytes.
    pub bytes: Counter,
    /// Frames lost, by the place of their cause in [`Cause::ALL`].
    lost: [Counter; Cause::ALL.len()],
}

impl MirrorMetrics {
    /// Frames could not be copied.
    pub fn lose(&self, cause: Cause, frames: u32) {
        self.lost[cause as usize].inc_by(frames.into());
    }

    /// Frames that could not be copied, by cause.
    pub fn lost(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.lost.iter().map(Counter::get))
    }
}

/// What replica routing counted for a virtual cluster, as last read. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct RacksMetrics(Arc<Mutex<RacksReading>>);

/// One reading of it.
#[derive(Clone, Debug, Default)]
pub struct RacksReading {
    /// By the client's rack and the broker's.
    pub by_racks: BTreeMap<(String, String), Counts>,
    /// Partitions that were read at the leader, by the reason.
    pub stays: BTreeMap<&'static str, u64>,
    /// Replicas that nobody is sent to now.
    pub held: u64,
    /// Connections on which the gateway stood in for a broker.
    pub stood_in: u64,
    /// Answers that passed `patch_buffer`.
    pub overflows: u64,
}

impl RacksMetrics {
    /// Replaces the reading.
    pub fn set(&self, reading: RacksReading) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }

    fn reading(&self) -> RacksReading {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the kernel's programs counted for a virtual cluster, as last read. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct EdgeMetrics(Arc<Mutex<EdgeReading>>);

#[derive(Clone, Debug, Default)]
struct EdgeReading {
    admitted: u64,
    steered: u64,
    refused: BTreeMap<&'static str, u64>,
    ports: u64,
}

impl EdgeMetrics {
    /// Replaces the reading. Counts never go back: after the programs were loaded anew they stand still until the new
    /// ones have passed the old.
    pub fn set(&self, admitted: u64, steered: u64, refused: BTreeMap<&'static str, u64>, ports: u64) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.admitted = now.admitted.max(admitted);
        now.steered = now.steered.max(steered);
        for (reason, n) in refused {
            let count = now.refused.entry(reason).or_default();
            *count = (*count).max(n);
        }
        now.ports = ports;
    }

    fn reading(&self) -> EdgeReading {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for VirtualClusterMetrics {
    fn default() -> Self {
        Self {
            accepted: Counter::default(),
            refused: ReasonCounters::default(),
            open: Gauge::default(),
            closed: ReasonCounters::default(),
            limit_hits: LimitCounters::default(),
            request_bytes: Counter::default(),
            answer_bytes: Counter::default(),
            spliced_request_bytes: Counter::default(),
            spliced_answer_bytes: Counter::default(),
            spliced: Gauge::default(),
            not_spliced: ReasonCounters::default(),
            mirror: MirrorMetrics::default(),
            requests: RequestCounters::default(),
            in_flight: Gauge::default(),
            rewritten: Counter::default(),
            held_bytes: Gauge::default(),
            answered: Counter::default(),
            client_read_pauses: Counter::default(),
            broker_read_pauses: Counter::default(),
            dial_failures: Counter::default(),
            dial_seconds: Histogram::new(DIAL_BUCKETS),
            unreachable_brokers: Gauge::default(),
            edge: EdgeMetrics::default(),
            racks: RacksMetrics::default(),
        }
    }
}

/// State of a real cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Not tried to the end yet.
    Unknown,
    /// The last refresh succeeded.
    Reached,
    /// The last refresh failed.
    Degraded,
    /// No credentials: topology comes from Metadata answers that pass.
    Passive,
}

impl ClusterState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Reached, Self::Degraded, Self::Passive];

    /// Value of the label `state`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Reached => "reached",
            Self::Degraded => "degraded",
            Self::Passive => "passive",
        }
    }
}

/// Numbers of one real cluster. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct ClusterMetrics {
    state: Arc<AtomicU8>,
    /// Brokers in the last Metadata answer.
    pub brokers: Gauge,
}

impl ClusterMetrics {
    /// Enters a state.
    pub fn set_state(&self, state: ClusterState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// The state it is in; [`ClusterState::Unknown`] at first.
    #[must_use]
    pub fn state(&self) -> ClusterState {
        ClusterState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }
}

/// Numbers of the gateway as a whole. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct GatewayMetrics {
    /// Times accepting paused for want of file descriptors.
    pub accept_pauses: Counter,
    /// Reloads applied.
    pub reloads_applied: Counter,
    /// Reloads refused.
    pub reloads_refused: Counter,
    /// Configs applied so far, the one at start included.
    pub config_generation: Gauge,
    /// 1 while a drain is under way.
    pub draining: Gauge,
    /// Connections that came in by no port of a virtual cluster.
    pub unrouted: Counter,
    /// 1 while the kernel steers.
    pub steering: Gauge,
    interfaces: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

/// Values of the label `mode`.
const MODES: [&str; 3] = ["native", "generic", "none"];

impl GatewayMetrics {
    /// The interfaces that should have the admission program, by how they have it.
    pub fn set_interfaces(&self, modes: impl Iterator<Item = Option<&'static str>>) {
        let mut counts = BTreeMap::new();
        for mode in modes {
            *counts.entry(mode.unwrap_or("none")).or_default() += 1;
        }
        *self.interfaces.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

/// Everything that is counted. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    gateway: GatewayMetrics,
    virtual_clusters: RwLock<BTreeMap<String, VirtualClusterMetrics>>,
    clusters: RwLock<BTreeMap<String, ClusterMetrics>>,
    started: SystemTime,
}

impl Default for Metrics {
    fn default() -> Self {
        Self(Arc::new(Inner {
            gateway: GatewayMetrics::default(),
            virtual_clusters: RwLock::default(),
            clusters: RwLock::default(),
            started: SystemTime::now(),
        }))
    }
}

impl Metrics {
    /// The gateway's own numbers.
    #[must_use]
    pub fn gateway(&self) -> &GatewayMetrics {
        &self.0.gateway
    }

    /// The numbers of a virtual cluster, from zero if it is new.
    #[must_use]
    pub fn virtual_cluster(&self, name: &str) -> VirtualClusterMetrics {
        get_or_default(&self.0.virtual_clusters, name)
    }

    /// The numbers of a real cluster, from zero if it is new.
    #[must_use]
    pub fn cluster(&self, name: &str) -> ClusterMetrics {
        get_or_default(&self.0.clusters, name)
    }

    /// Drops the virtual clusters and clusters that these don't keep: to be called when a config was applied.
    pub fn retain(&self, virtual_cluster: impl Fn(&str) -> bool, cluster: impl Fn(&str) -> bool) {
        self.0.virtual_clusters.write().unwrap_or_else(PoisonError::into_inner).retain(|name, _| virtual_cluster(name));
        self.0.clusters.write().unwrap_or_else(PoisonError::into_inner).retain(|name, _| cluster(name));
    }

    /// The whole page that a scrape gets: OpenMetrics text, to be sent as [`CONTENT_TYPE`].
    #[must_use]
    pub fn encode(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&self.0)));
        let mut page = String::with_capacity(16 * 1024);
        match prometheus_client::encoding::text::encode(&mut page, &registry) {
            Ok(()) => page,
            // Writing to a `String` doesn't fail; the declarations are covered by a test.
            Err(fmt::Error) => String::from("# EOF\n"),
        }
    }
}

fn get_or_default<T: Clone + Default>(map: &RwLock<BTreeMap<String, T>>, name: &str) -> T {
    if let Some(found) = map.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return found.clone();
    }
    map.write().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default().clone()
}

/// Value of the label `api` for a slot of [`RequestCounters`]: Kafka's name, or the number of a key without one.
fn api_label(slot: usize) -> Cow<'static, str> {
    if slot == RequestCounters::SLOTS - 1 {
        return "other".into();
    }
    match i16::try_from(slot).ok().and_then(|key| api::spec(ApiKey(key))) {
        Some(spec) => spec.name.into(),
        None => slot.to_string().into(),
    }
}

impl Collector for Inner {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_virtual_clusters(&mut encoder)?;
        self.encode_clusters(&mut encoder)?;
        self.encode_gateway(&mut encoder)?;
        self.encode_process(&mut encoder)
    }
}

/// Gauges count things; one that is below zero for a moment, between two threads, is shown as zero.
fn level(gauge: &Gauge) -> Value {
    Value::Integer(u64::try_from(gauge.get()).unwrap_or(0))
}

fn single(value: Value) -> [Sample<'static>; 1] {
    [Sample { labels: Vec::new(), value }]
}

impl Inner {
    fn encode_virtual_clusters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        // A snapshot, so that a scrape never holds up a reload.
        let all: Vec<(String, VirtualClusterMetrics)> = {
            let map = self.virtual_clusters.read().unwrap_or_else(PoisonError::into_inner);
            map.iter().map(|(name, metrics)| (name.clone(), metrics.clone())).collect()
        };
        let mut each = |metric: &Declaration, value: fn(&VirtualClusterMetrics) -> Value| {
            let samples = all.iter().map(|(name, m)| Sample { labels: vec![name.into()], value: value(m) });
            write(encoder, metric, samples)
        };
        each(&catalog::CONNECTIONS_ACCEPTED, |m| Value::Integer(m.accepted.get()))?;
        each(&catalog::CONNECTIONS, |m| level(&m.open))?;
        each(&catalog::REQUEST_BYTES, |m| Value::Integer(m.request_bytes.get()))?;
        each(&catalog::ANSWER_BYTES, |m| Value::Integer(m.answer_bytes.get()))?;
        each(&catalog::SPLICED_REQUEST_BYTES, |m| Value::Integer(m.spliced_request_bytes.get()))?;
        each(&catalog::SPLICED_ANSWER_BYTES, |m| Value::Integer(m.spliced_answer_bytes.get()))?;
        each(&catalog::SPLICED, |m| level(&m.spliced))?;
        each(&catalog::MIRRORED_BYTES, |m| Value::Integer(m.mirror.bytes.get()))?;
        each(&catalog::IN_FLIGHT, |m| level(&m.in_flight))?;
        each(&catalog::FRAMES_REWRITTEN, |m| Value::Integer(m.rewritten.get()))?;
        each(&catalog::HELD_BYTES, |m| level(&m.held_bytes))?;
        each(&catalog::REQUESTS_ANSWERED, |m| Value::Integer(m.answered.get()))?;
        each(&catalog::DIAL_FAILURES, |m| Value::Integer(m.dial_failures.get()))?;
        each(&catalog::DIAL_SECONDS, |m| Value::Distribution(m.dial_seconds.clone()))?;
        each(&catalog::UNREACHABLE_BROKERS, |m| level(&m.unreachable_brokers))?;
        each(&catalog::EDGE_ADMITTED, |m| Value::Integer(m.edge.reading().admitted))?;
        each(&catalog::EDGE_STEERED, |m| Value::Integer(m.edge.reading().steered))?;
        each(&catalog::EDGE_PORTS, |m| Value::Integer(m.edge.reading().ports))?;

        each(&catalog::RACK_HELD, |m| Value::Integer(m.racks.reading().held))?;
        each(&catalog::RACK_STOOD_IN, |m| Value::Integer(m.racks.reading().stood_in))?;
        each(&catalog::RACK_OVERFLOWS, |m| Value::Integer(m.racks.reading().overflows))?;

        let mut by_racks = |metric: &Declaration, value: fn(&Counts) -> u64| {
            let samples = all.iter().flat_map(|(name, m)| {
                m.racks.reading().by_racks.into_iter().map(move |((client, broker), counts)| Sample {
                    labels: vec![name.into(), client.into(), broker.into()],
                    value: Value::Integer(value(&counts)),
                })
            });
            write(encoder, metric, samples)
        };
        by_racks(&catalog::RACK_BYTES, Counts::bytes)?;
        by_racks(&catalog::RACK_SAVED, |counts| counts.saved_bytes)?;
        by_racks(&catalog::RACK_AVOIDABLE, |counts| counts.avoidable_bytes)?;
        by_racks(&catalog::RACK_REDIRECTS, |counts| counts.redirects)?;
        by_racks(&catalog::RACK_BOUNCES, |counts| counts.bounces)?;

        let mut by_label = |metric: &Declaration, values: fn(&VirtualClusterMetrics) -> Labelled| {
            let samples = all.iter().flat_map(|(name, m)| {
                values(m)
                    .into_iter()
                    .map(move |(label, n)| Sample { labels: vec![name.into(), label], value: Value::Integer(n) })
            });
            write(encoder, metric, samples)
        };
        by_label(&catalog::CONNECTIONS_REFUSED, |m| by_reason(&m.refused))?;
        by_label(&catalog::CONNECTIONS_CLOSED, |m| by_reason(&m.closed))?;
        by_label(&catalog::NOT_SPLICED, |m| by_reason(&m.not_spliced))?;
        by_label(&catalog::EDGE_REFUSED, |m| {
            m.edge.reading().refused.into_iter().map(|(reason, n)| (reason.into(), n)).collect()
        })?;
        by_label(&catalog::RACK_STAYS, |m| {
            m.racks.reading().stays.into_iter().map(|(reason, n)| (reason.into(), n)).collect()
        })?;
        by_label(&catalog::LIMIT_HITS, |m| Limit::ALL.map(|l| (l.key().into(), m.limit_hits.get(l))).into())?;
        by_label(&catalog::MIRRORED_FRAMES, |m| {
            let [requests, answers] = &m.mirror.frames;
            vec![("client".into(), requests.get()), ("broker".into(), answers.get())]
        })?;
        by_label(&catalog::MIRROR_LOST, |m| m.mirror.lost().map(|(cause, n)| (cause.label().into(), n)).collect())?;
        by_label(&catalog::READ_PAUSES, |m| {
            vec![("client".into(), m.client_read_pauses.get()), ("broker".into(), m.broker_read_pauses.get())]
        })?;
        by_label(&catalog::REQUESTS, |m| {
            let seen = (0..RequestCounters::SLOTS).map(|slot| (slot, m.requests.get(slot))).filter(|(_, n)| *n > 0);
            seen.map(|(slot, n)| (api_label(slot), n)).collect()
        })
    }

    fn encode_clusters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<(String, ClusterMetrics)> = {
            let map = self.clusters.read().unwrap_or_else(PoisonError::into_inner);
            map.iter().map(|(name, metrics)| (name.clone(), metrics.clone())).collect()
        };
        let states = all.iter().flat_map(|(name, m)| {
            ClusterState::ALL.map(|state| Sample {
                labels: vec![name.into(), state.name().into()],
                value: Value::Integer(u64::from(m.state() == state)),
            })
        });
        write(encoder, &catalog::CLUSTER_STATE, states)?;
        let brokers = all.iter().map(|(name, m)| Sample { labels: vec![name.into()], value: level(&m.brokers) });
        write(encoder, &catalog::CLUSTER_BROKERS, brokers)
    }

    fn encode_gateway(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let GatewayMetrics {
            accept_pauses,
            reloads_applied,
            reloads_refused,
            config_generation,
            draining,
            unrouted,
            steering,
            interfaces,
        } = &self.gateway;
        let interfaces = interfaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let by_mode = MODES.map(|mode| Sample {
            labels: vec![mode.into()],
            value: Value::Integer(interfaces.get(mode).copied().unwrap_or(0)),
        });
        write(encoder, &catalog::EDGE_INTERFACES, by_mode)?;
        write(encoder, &catalog::EDGE_STEERING, single(level(steering)))?;
        write(encoder, &catalog::UNROUTED, single(Value::Integer(unrouted.get())))?;
        write(encoder, &catalog::ACCEPT_PAUSES, single(Value::Integer(accept_pauses.get())))?;
        let reloads = [("applied", reloads_applied), ("refused", reloads_refused)]
            .map(|(result, n)| Sample { labels: vec![result.into()], value: Value::Integer(n.get()) });
        write(encoder, &catalog::CONFIG_RELOADS, reloads)?;
        write(encoder, &catalog::CONFIG_GENERATION, single(level(config_generation)))?;
        write(encoder, &catalog::DRAINING, single(level(draining)))?;
        let version = Sample { labels: vec![env!("CARGO_PKG_VERSION").into()], value: Value::One };
        write(encoder, &catalog::BUILD, [version])
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Process { cpu, resident, virtual_memory, open_fds, max_fds } = Process::read();
        let seconds = cpu.map(|d| Value::Float(d.as_secs_f64()));
        let started = Value::Float(process::unix_seconds(self.started));
        let figures = [
            (&catalog::PROCESS_CPU, seconds),
            (&catalog::PROCESS_RESIDENT, resident.map(Value::Integer)),
            (&catalog::PROCESS_VIRTUAL, virtual_memory.map(Value::Integer)),
            (&catalog::PROCESS_OPEN_FDS, open_fds.map(Value::Integer)),
            (&catalog::PROCESS_MAX_FDS, max_fds.map(Value::Integer)),
            (&catalog::PROCESS_START, Some(started)),
        ];
        for (metric, value) in figures {
            write(encoder, metric, value.map(single).into_iter().flatten())?;
        }
        Ok(())
    }
}

/// Values of a second label, with their counts.
type Labelled = Vec<(Cow<'static, str>, u64)>;

fn by_reason(counters: &ReasonCounters) -> Labelled {
    counters.snapshot().into_iter().map(|(reason, n)| (reason.into(), n)).collect()
}

#[cfg(test)]
mod tests;
