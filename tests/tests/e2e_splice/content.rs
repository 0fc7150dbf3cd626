//! Bytes that both ends know without telling each other: pieces of one long noise, chosen by a number.

use std::sync::OnceLock;

/// Longest piece.
pub(crate) const LONGEST: usize = 1_500_000;

/// Xorshift: equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbours' first numbers would be alike otherwise, and 0 stays 0.
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = random.next());
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`; 0 where that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }
}

fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random::new(7);
        (0..1 << 19).flat_map(|_| random.next().to_le_bytes()).collect()
    })
}

/// The bytes that belong to a number, cut to a length of at most [`LONGEST`].
pub(crate) fn piece(of: u32, length: usize) -> &'static [u8] {
    let noise = noise();
    let at = Random::new(u64::from(of)).below((noise.len() - LONGEST) as u64) as usize;
    &noise[at..at + length.min(LONGEST)]
}
