//! A timer wheel: adding, removing and firing a timer cost the same however many there are.
//!
//! Time is cut into ticks, and a timer waits in the slot of the tick at which it is due, modulo the number of slots. A
//! timer of a later round stays where it is when its slot comes by.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const SLOTS: usize = 256;

/// Where a timer waits; needed to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(u64);

/// Timers by key.
#[derive(Debug)]
pub(super) struct Wheel<K> {
    start: Instant,
    tick: Duration,
    slots: Box<[HashMap<K, Tick>]>,
    /// Every timer of this tick or an earlier one has fired.
    passed: u64,
}

impl<K: Copy + Eq + Hash> Wheel<K> {
    /// A wheel that goes round in about `span`; timers may be due later than that.
    pub(super) fn new(span: Duration, now: Instant) -> Self {
        let tick = (span / SLOTS as u32).max(Duration::from_millis(1));
        Self { start: now, tick, slots: (0..SLOTS).map(|_| HashMap::new()).collect(), passed: 0 }
    }

    /// A timer that fires at `due`, at most a tick later.
    pub(super) fn add(&mut self, key: K, due: Instant) -> Tick {
        let at = Tick(self.ticks(due).saturating_add(1).max(self.passed + 1));
        self.slot(at).insert(key, at);
        at
    }

    /// Takes a timer out that hasn't fired.
    pub(super) fn remove(&mut self, key: &K, at: Tick) {
        self.slot(at).remove(key);
    }

    /// The timers that are due, in no order.
    pub(super) fn fire(&mut self, now: Instant) -> Vec<K> {
        let is = self.ticks(now);
        let mut due = Vec::new();
        // After a long pause once around is enough.
        let first = self.passed.saturating_add(1).max(is.saturating_sub(SLOTS as u64 - 1));
        for tick in first..=is {
            self.slot(Tick(tick)).retain(|key, at| {
                let waits = at.0 > is;
                if !waits {
                    due.push(*key);
                }
                waits
            });
        }
        self.passed = self.passed.max(is);
        due
    }

    /// Whole ticks from the start.
    fn ticks(&self, at: Instant) -> u64 {
        let ticks = at.saturating_duration_since(self.start).as_nanos() / self.tick.as_nanos();
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    fn slot(&mut self, at: Tick) -> &mut HashMap<K, Tick> {
        // Below SLOTS.
        &mut self.slots[(at.0 % SLOTS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, u64),
        Remove(u8),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (any::<u8>(), 0..90_000u64).prop_map(|(key, ms)| Step::Add(key, ms)),
            any::<u8>().prop_map(Step::Remove),
            prop_oneof![0..500u64, 0..100_000u64].prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// A timer never fires early, never more than a tick late, and never after it was removed.
        #[test]
        fn timers_fire_once_and_in_time(steps in steps()) {
            let span = Duration::from_secs(30);
            let tick = span / SLOTS as u32;
            let mut now = Instant::now();
            let mut wheel = Wheel::new(span, now);
            let mut waiting: HashMap<u8, (Instant, Tick)> = HashMap::new();
            for step in steps {
                match step {
                    Step::Add(key, ms) => {
                        if let Some((_, at)) = waiting.remove(&key) {
                            wheel.remove(&key, at);
                        }
                        let due = now + Duration::from_millis(ms);
                        waiting.insert(key, (due, wheel.add(key, due)));
                    }
                    Step::Remove(key) => {
                        if let Some((_, at)) = waiting.remove(&key) {
                            wheel.remove(&key, at);
                        }
                    }
                    Step::Wait(ms) => {
                        now += Duration::from_millis(ms);
                        let fired = wheel.fire(now);
                        let set: BTreeSet<_> = fired.iter().copied().collect();
                        prop_assert_eq!(set.len(), fired.len());
                        for key in fired {
                            let (due, _) = waiting.remove(&key).expect("fired once, and not after its removal");
                            prop_assert!(due <= now);
                        }
                        prop_assert!(waiting.values().all(|(due, _)| *due + tick > now), "one is late");
                    }
                }
            }
        }
    }

    #[test]
    fn a_wheel_of_no_span_still_turns() {
        let now = Instant::now();
        let mut wheel = Wheel::new(Duration::ZERO, now);
        wheel.add(1, now);
        assert_eq!(wheel.fire(now), Vec::<i32>::new());
        assert_eq!(wheel.fire(now + Duration::from_millis(2)), [1]);
    }
}
