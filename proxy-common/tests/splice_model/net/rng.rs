// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Numbers that only look random.

/// SplitMix64 (Steele, Lea and Flood, 2014): the whole state is a counter, so any seed is good.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True `per_mille` times of 1000. Draws a number even when certain, so that rates don't shift what follows.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1_000) < u64::from(per_mille)
    }

    /// One that goes its own way from here.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers_and_a_fork_others() {
        let mut rng = Rng::new(1_234_567);
        // The first numbers of the reference implementation for this seed.
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_ne!(rng.fork().next(), rng.next());
    }

    #[test]
    fn rates_are_kept_and_bounds_too() {
        let mut rng = Rng::new(1);
        assert!((0..1_000).all(|_| rng.below(7) < 7 && rng.below(0) == 0));
        assert!((0..1_000).all(|_| rng.chance(1_000) && !rng.chance(0)));
        let hits = (0..100_000).filter(|_| rng.chance(250)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
    }
}
