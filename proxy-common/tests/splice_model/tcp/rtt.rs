// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The retransmission timeout (RFC 6298, with Linux' bounds).

use super::{MILLI, Micros};

const LEAST: Micros = 200 * MILLI;
const MOST: Micros = 120_000 * MILLI;

/// Smoothed round trip and how much it varies.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed: Micros,
    variation: Micros,
}

impl Rtt {
    pub(super) fn new(first: Micros) -> Self {
        Self { smoothed: first, variation: first / 2 }
    }

    /// Takes a round trip of a segment that was sent once.
    pub(super) fn sample(&mut self, rtt: Micros) {
        self.variation = (3 * self.variation + self.smoothed.abs_diff(rtt)) / 4;
        self.smoothed = (7 * self.smoothed + rtt) / 8;
    }

    /// How long to wait after `backoff` times in vain.
    pub(super) fn timeout(&self, backoff: u32) -> Micros {
        let base = self.smoothed + (4 * self.variation).max(LEAST);
        base.saturating_mul(1 << backoff.min(16)).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_a_round_trip_and_its_variation_doubled_each_time_and_bounded() {
        let mut rtt = Rtt::new(10 * MILLI);
        assert_eq!(rtt.timeout(0), 210 * MILLI);
        assert_eq!(rtt.timeout(3), 1_680 * MILLI);
        assert_eq!(rtt.timeout(40), MOST);
        for _ in 0..100 {
            rtt.sample(500 * MILLI);
        }
        assert!((690 * MILLI..=710 * MILLI).contains(&rtt.timeout(0)), "{}", rtt.timeout(0));
    }
}
