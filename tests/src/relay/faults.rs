//! What happens to a packet: a pure function of the seed, the packet's number and the faults set.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// An Ethernet header; damage begins behind it, so that a damaged packet still reaches the host and its checksums.
const ETHERNET: usize = 14;

/// What a link does to packets. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Faults {
    /// Time on the way.
    pub delay: Duration,
    /// Up to this much more, at random; it does not reorder by itself.
    pub jitter: Duration,
    /// How many are dropped.
    pub loss: f64,
    /// How many come twice.
    pub duplicate: f64,
    /// How many come with one bit flipped.
    pub damage: f64,
    /// How many are held back by `hold_back`, so that later ones overtake them.
    pub reorder: f64,
    /// For how long.
    pub hold_back: Duration,
    /// Bytes a second; `None`: as fast as it goes.
    pub rate: Option<u64>,
}

impl Faults {
    /// A transparent link.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A bad link that TCP gets through: 1 % lost, doubled and damaged each, 5 % reordered by 5 ms, 1–3 ms of delay.
    #[must_use]
    pub fn rough() -> Self {
        Self {
            delay: Duration::from_millis(1),
            jitter: Duration::from_millis(2),
            loss: 0.01,
            duplicate: 0.01,
            damage: 0.01,
            reorder: 0.05,
            hold_back: Duration::from_millis(5),
            rate: None,
        }
    }
}

/// A packet's fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// When each copy is delivered; empty: lost.
    pub deliveries: Vec<Duration>,
    /// Which bit is flipped in every copy.
    pub flip_bit: Option<usize>,
    /// Later packets may overtake it.
    pub held_back: bool,
}

/// Decides, packet after packet.
///
/// Invariant: without `reorder`, delivery times never decrease, whatever the jitter.
#[derive(Clone, Debug)]
pub struct Decider {
    random: SmallRng,
    /// When the link has sent all it was given, for `rate`.
    free_at: Duration,
    /// Delivery time of the last packet that was not held back.
    last: Duration,
}

impl Decider {
    /// Equal seeds make equal decisions.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: SmallRng::seed_from_u64(seed), free_at: Duration::ZERO, last: Duration::ZERO }
    }

    /// Decides about a packet of `len` bytes that arrives at `now` (time since any fixed moment).
    pub fn decide(&mut self, now: Duration, len: usize, faults: &Faults) -> Fate {
        let Faults { delay, jitter, loss, duplicate, damage, reorder, hold_back, rate } = *faults;
        // Every packet draws the same number of times, so that one probability doesn't shift the others' choices.
        let [lost, doubled, damaged, held] =
            [loss, duplicate, damage, reorder].map(|probability| self.random.random::<f64>() < probability);
        let jitter = jitter.mul_f64(self.random.random::<f64>());
        let bit = self.random.random_range(0..u64::MAX);

        let sent = rate.filter(|rate| *rate > 0).map_or(now, |rate| {
            self.free_at = self.free_at.max(now) + Duration::from_secs_f64(len as f64 / rate as f64);
            self.free_at
        });
        let mut at = (sent + delay + jitter).max(self.last);
        if held {
            at += hold_back;
        } else {
            self.last = at;
        }
        let copies = if lost { 0 } else { 1 + usize::from(doubled) };
        let body = len.saturating_sub(ETHERNET) * 8;
        let flip_bit = (damaged && !lost && body > 0).then(|| ETHERNET * 8 + (bit % body as u64) as usize);
        Fate { deliveries: vec![at; copies], flip_bit, held_back: held && !lost }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn faults() -> impl Strategy<Value = Faults> {
        (0..20u64, 0..20u64, 0.0..0.3, 0.0..0.3, 0.0..0.3, prop::option::of(1_000..10_000_000u64)).prop_map(
            |(delay, jitter, loss, duplicate, damage, rate)| Faults {
                delay: Duration::from_millis(delay),
                jitter: Duration::from_millis(jitter),
                loss,
                duplicate,
                damage,
                reorder: 0.0,
                hold_back: Duration::ZERO,
                rate,
            },
        )
    }

    proptest! {
        #[test]
        fn equal_seeds_decide_alike_and_nothing_overtakes_without_reorder(
            seed: u64,
            faults in faults(),
            packets in prop::collection::vec((0..10_000u64, 14..1514usize), 1..50),
        ) {
            let (mut one, mut other) = (Decider::new(seed), Decider::new(seed));
            let mut now = Duration::ZERO;
            let mut last = Duration::ZERO;
            for (pause, len) in packets {
                now += Duration::from_micros(pause);
                let fate = one.decide(now, len, &faults);
                prop_assert_eq!(&fate, &other.decide(now, len, &faults));
                for at in &fate.deliveries {
                    prop_assert!(*at >= last && *at >= now + faults.delay);
                    last = *at;
                }
                if let Some(bit) = fate.flip_bit {
                    prop_assert!((ETHERNET * 8..len * 8).contains(&bit));
                }
            }
        }
    }

    #[test]
    fn a_rate_spaces_packets_out() {
        let faults = Faults { rate: Some(1000), ..Faults::none() };
        let mut decider = Decider::new(1);
        let at: Vec<_> = (0..3).map(|_| decider.decide(Duration::ZERO, 500, &faults).deliveries[0]).collect();
        assert_eq!(at, [500, 1000, 1500].map(Duration::from_millis));
    }

    #[test]
    fn a_packet_held_back_is_overtaken_by_the_next() {
        let mut decider = Decider::new(1);
        let hold = Faults { reorder: 1.0, hold_back: Duration::from_millis(5), ..Faults::none() };
        let first = decider.decide(Duration::ZERO, 100, &hold);
        let second = decider.decide(Duration::ZERO, 100, &Faults::none());
        assert!(first.held_back && second.deliveries[0] < first.deliveries[0]);
    }
}
