// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The Internet checksum (RFC 1071, RFC 1624), over words as they lie in memory: it doesn't depend on the byte order.

use crate::headers::Headers;

const TCP: u32 = 6;

/// A sum of words that isn't folded yet. Room for 2³² words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Sum {
    /// With one more word.
    #[must_use]
    #[inline(always)]
    pub const fn plus(self, word: u32) -> Self {
        Self(self.0 + word as u64)
    }

    /// With one word less.
    #[must_use]
    #[inline(always)]
    pub const fn minus(self, word: u32) -> Self {
        self.plus(!word)
    }

    /// With one word in the place of another.
    #[must_use]
    #[inline(always)]
    pub const fn replaced(self, from: u32, to: u32) -> Self {
        self.minus(from).plus(to)
    }

    /// Folded to 32 bits, as the kernel's helpers take it.
    #[must_use]
    #[inline(always)]
    pub const fn partial(self) -> u32 {
        let once = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        ((once & 0xffff_ffff) + (once >> 32)) as u32
    }

    /// Folded to 16 bits.
    #[must_use]
    #[inline(always)]
    pub const fn folded(self) -> u16 {
        let sum = self.partial();
        let once = (sum & 0xffff) + (sum >> 16);
        ((once & 0xffff) + (once >> 16)) as u16
    }
}

/// Of TCP's pseudo header.
#[must_use]
#[inline(always)]
pub const fn pseudo(h: &Headers) -> Sum {
    let (s, d) = (&h.source.words, &h.destination.words);
    let ends = Sum(0).plus(s[0]).plus(s[1]).plus(s[2]).plus(s[3]).plus(d[0]).plus(d[1]).plus(d[2]).plus(d[3]);
    ends.plus(TCP.to_be()).plus((h.tcp_length + h.payload).to_be())
}

/// The checksum of an IPv4 header without options; `words` are the header's, with 0 in the checksum's place. In the
/// order of the wire.
#[must_use]
#[inline(always)]
pub const fn ipv4(words: &[u32; 5]) -> u16 {
    !Sum(0).plus(words[0]).plus(words[1]).plus(words[2]).plus(words[3]).plus(words[4]).folded()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_example_of_the_standard() {
        let word = |bytes: [u8; 4]| u32::from_ne_bytes(bytes);
        let sum = Sum(0).plus(word([0x00, 0x01, 0xf2, 0x03])).plus(word([0xf4, 0xf5, 0xf6, 0xf7]));
        assert_eq!(sum.folded().to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn a_replaced_word_is_as_if_it_had_always_been_there() {
        for (a, b, c) in [(0, 0, 0), (1, u32::MAX, 7), (0x8000_0000, 0xffff, 0xffff_0000), (u32::MAX, 1, u32::MAX - 1)]
        {
            let whole = Sum(0).plus(a).plus(c).folded();
            let replaced = Sum(0).plus(a).plus(b).replaced(b, c).folded();
            // 0 and 0xffff are the same number in ones' complement.
            assert_eq!(whole % 0xffff, replaced % 0xffff, "{a:x} {b:x} {c:x}");
        }
    }

    /// From RFC 1071's companions: a header seen on the wire.
    #[test]
    fn the_checksum_of_a_header() {
        let bytes = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        let mut words = [0u32; 5];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*chunk);
        }
        assert_eq!(ipv4(&words).to_ne_bytes(), [0xb8, 0x61]);
    }
}
