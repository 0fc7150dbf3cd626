//! Counters with a bounded label that are cheap where a frame passes and can be listed when they are read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;

/// A label `reason` from a fixed set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason {
    /// snake_case, from a fixed set in the code.
    pub reason: &'static str,
}

/// One counter for each reason that occurred. Cloning shares them.
///
/// For events of a connection's life, not of a frame: counting takes a short lock.
#[derive(Clone, Debug, Default)]
pub struct ReasonCounters(Arc<Mutex<BTreeMap<&'static str, Counter>>>);

impl ReasonCounters {
    /// The counter of a reason.
    #[must_use]
    pub fn get_or_create(&self, reason: &Reason) -> Counter {
        self.lock().entry(reason.reason).or_default().clone()
    }

    /// Counts one event.
    pub fn count(&self, reason: &'static str) {
        self.lock().entry(reason).or_default().inc();
    }

    /// All reasons that occurred, with their counts.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        self.lock().iter().map(|(reason, counter)| (*reason, counter.get())).collect()
    }

    /// All events.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.lock().values().map(Counter::get).sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Counter>> {
        // The map is whole between any two statements, so a panic elsewhere takes nothing from it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bound of the config, named by its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `limits.connections`.
    Connections,
    /// `limits.connections_per_source`.
    ConnectionsPerSource,
    /// `limits.frame`.
    Frame,
    /// `limits.rewrite_frame`.
    RewriteFrame,
    /// `limits.in_flight`.
    InFlight,
    /// `limits.first_byte`.
    FirstByte,
    /// `limits.incomplete_frame`.
    IncompleteFrame,
    /// `limits.idle`.
    Idle,
    /// `limits.drain`.
    Drain,
    /// `connect_timeout` of the cluster.
    ConnectTimeout,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 10] = [
        Self::Connections,
        Self::ConnectionsPerSource,
        Self::Frame,
        Self::RewriteFrame,
        Self::InFlight,
        Self::FirstByte,
        Self::IncompleteFrame,
        Self::Idle,
        Self::Drain,
        Self::ConnectTimeout,
    ];

    /// The key in the config: value of the label `limit`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerSource => "connections_per_source",
            Self::Frame => "frame",
            Self::RewriteFrame => "rewrite_frame",
            Self::InFlight => "in_flight",
            Self::FirstByte => "first_byte",
            Self::IncompleteFrame => "incomplete_frame",
            Self::Idle => "idle",
            Self::Drain => "drain",
            Self::ConnectTimeout => "connect_timeout",
        }
    }
}

/// How often each limit was hit. Cloning shares the counts; no lock.
#[derive(Clone, Debug, Default)]
pub struct LimitCounters(Arc<[AtomicU64; Limit::ALL.len()]>);

impl LimitCounters {
    /// Counts one hit.
    pub fn hit(&self, limit: Limit) {
        self.0[limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Hits so far.
    #[must_use]
    pub fn get(&self, limit: Limit) -> u64 {
        self.0[limit as usize].load(Ordering::Relaxed)
    }
}

/// Request frames by api key, without a lock or a hash on the way of a frame.
#[derive(Clone, Debug)]
pub struct RequestCounters(Arc<[AtomicU64; Self::SLOTS]>);

impl RequestCounters {
    /// Keys `0..=126` have a slot of their own; the last slot is every other key.
    pub const SLOTS: usize = 128;

    /// Counts a request frame.
    pub fn count(&self, key: i16) {
        let slot = usize::try_from(key).map_or(Self::SLOTS - 1, |k| k.min(Self::SLOTS - 1));
        self.0[slot].fetch_add(1, Ordering::Relaxed);
    }

    /// Frames of the slot so far.
    #[must_use]
    pub fn get(&self, slot: usize) -> u64 {
        self.0[slot].load(Ordering::Relaxed)
    }

    /// All frames so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        (0..Self::SLOTS).map(|s| self.get(s)).sum()
    }
}

impl Default for RequestCounters {
    fn default() -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_without_a_slot_are_counted_together() {
        let counters = RequestCounters::default();
        for key in [0, 126, 127, 10_000, -1, i16::MIN] {
            counters.count(key);
        }
        assert_eq!((counters.get(0), counters.get(126), counters.get(127)), (1, 1, 4));
        assert_eq!(counters.total(), 6);
    }

    #[test]
    fn a_clone_counts_into_the_same_reasons() {
        let counters = ReasonCounters::default();
        counters.clone().count("idle");
        counters.get_or_create(&Reason { reason: "idle" }).inc();
        counters.count("client");
        assert_eq!(counters.snapshot(), BTreeMap::from([("client", 1), ("idle", 2)]));
        assert_eq!(counters.total(), 3);
    }

    #[test]
    fn every_limit_has_its_own_count() {
        let counters = LimitCounters::default();
        for limit in Limit::ALL {
            counters.hit(limit);
        }
        assert!(Limit::ALL.iter().all(|l| counters.get(*l) == 1));
    }
}
