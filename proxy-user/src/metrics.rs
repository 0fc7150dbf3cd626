//! Metrics: each declared once, here, with its meaning, labels and bound.
//!
//! Label values come from bounded sets: names in the config, API names of the version table, the reasons below.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A label `reason` from a fixed set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// snake_case, from a fixed set in the code.
    pub reason: &'static str,
}

/// Counters of one virtual cluster. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct VirtualClusterMetrics {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections refused at accept, by limit.
    pub refused: Family<Reason, Counter>,
    /// Connections open.
    pub open: Gauge,
    /// Connections ended, by reason.
    pub closed: Family<Reason, Counter>,
    /// Bytes read from clients.
    pub request_bytes: Counter,
    /// Bytes written to clients.
    pub answer_bytes: Counter,
    /// Request frames, by API: index is the api key; the last slot is every other key.
    pub requests: RequestCounters,
    /// Frames held whole to be rewritten.
    pub rewritten: Counter,
    /// Answers made by the gateway itself.
    pub answered: Counter,
    /// Attempts to reach a broker that failed.
    pub dial_failures: Counter,
}

/// Request frames by api key, without a lock or a hash on the way of a frame.
#[derive(Clone, Debug)]
pub struct RequestCounters(std::sync::Arc<[std::sync::atomic::AtomicU64; Self::SLOTS]>);

impl RequestCounters {
    /// Keys `0..=126` have a slot of their own.
    pub const SLOTS: usize = 128;

    /// Counts a request frame.
    pub fn count(&self, key: i16) {
        let slot = usize::try_from(key).map_or(Self::SLOTS - 1, |k| k.min(Self::SLOTS - 1));
        self.0[slot].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Frames of the slot so far.
    #[must_use]
    pub fn get(&self, slot: usize) -> u64 {
        self.0[slot].load(std::sync::atomic::Ordering::Relaxed)
    }

    /// All frames so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        (0..Self::SLOTS).map(|s| self.get(s)).sum()
    }
}

impl Default for RequestCounters {
    fn default() -> Self {
        Self(std::sync::Arc::new(std::array::from_fn(|_| std::sync::atomic::AtomicU64::new(0))))
    }
}

/// The registry and everything in it.
#[derive(Debug, Default)]
pub struct Metrics {
    /// What `/metrics` encodes.
    pub registry: Registry,
}
