//! Keeps a warning that would repeat from flooding the log.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keys remembered at once. A key beyond that takes the place of the one that was quiet longest.
const MAX_KEYS: usize = 1024;

/// Lets one line through for each key and interval, and counts what it held back.
///
/// The key says what the line is about (`("orders", Limit::Frame)`), the interval how often it may be said again. The
/// clock is an argument, so that a decision can be tested.
///
/// ```
/// use std::time::{Duration, Instant};
/// use turnout::log_gate::LogGate;
///
/// let gate = LogGate::new(Duration::from_secs(10));
/// if let Some(suppressed) = gate.pass("orders: connections", Instant::now()) {
///     tracing::warn!(suppressed, "orders: 9000 connections are open; raise limits.connections");
/// }
/// ```
#[derive(Debug)]
pub struct LogGate<K> {
    interval: Duration,
    keys: Mutex<HashMap<K, Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    printed: Instant,
    suppressed: u64,
}

impl<K: Eq + Hash + Clone> LogGate<K> {
    /// A gate that lets a key through once per interval.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, keys: Mutex::default() }
    }

    /// Whether to print now: `Some(n)` where n lines about this key were held back since the last one printed.
    pub fn pass(&self, key: K, now: Instant) -> Option<u64> {
        // The map is whole between any two statements, so a panic elsewhere takes nothing from it.
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = keys.get_mut(&key) {
            if now.saturating_duration_since(seen.printed) < self.interval {
                seen.suppressed = seen.suppressed.saturating_add(1);
                return None;
            }
            let suppressed = seen.suppressed;
            *seen = Seen { printed: now, suppressed: 0 };
            return Some(suppressed);
        }
        if keys.len() >= MAX_KEYS {
            let oldest = keys.iter().min_by_key(|(_, seen)| seen.printed).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                keys.remove(&oldest);
            }
        }
        keys.insert(key, Seen { printed: now, suppressed: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn the_first_line_passes_and_repeats_within_the_interval_are_counted() {
        let (gate, start) = (LogGate::new(TEN), Instant::now());
        assert_eq!(gate.pass("a", start), Some(0));
        assert_eq!(gate.pass("a", start + Duration::from_secs(1)), None);
        assert_eq!(gate.pass("a", start + Duration::from_secs(9)), None);
        assert_eq!(gate.pass("a", start + TEN), Some(2));
        assert_eq!(gate.pass("a", start + TEN * 2), Some(0));
    }

    #[test]
    fn keys_do_not_hold_each_other_back() {
        let (gate, now) = (LogGate::new(TEN), Instant::now());
        assert_eq!(gate.pass("a", now), Some(0));
        assert_eq!(gate.pass("b", now), Some(0));
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let (gate, now) = (LogGate::new(TEN), Instant::now());
        for key in 0..MAX_KEYS * 2 {
            assert_eq!(gate.pass(key, now), Some(0));
        }
        assert_eq!(gate.keys.lock().expect("unpoisoned").len(), MAX_KEYS);
    }

    proptest! {
        #[test]
        fn no_line_is_lost_from_the_count(steps in proptest::collection::vec(0_u64..20, 1..200)) {
            let (gate, mut now) = (LogGate::new(TEN), Instant::now());
            let (mut told, mut held_back) = (0, 0);
            for step in &steps {
                now += Duration::from_secs(*step);
                match gate.pass((), now) {
                    Some(suppressed) => { told += 1 + suppressed; held_back = 0; }
                    None => held_back += 1,
                }
            }
            prop_assert_eq!(told + held_back, steps.len() as u64);
        }
    }
}
