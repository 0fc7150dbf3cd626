// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What is taken off a SYN, so that its connection can be spliced: the timestamp option (two clocks on one wire break
//! PAWS, RFC 7323) and the request for congestion notification (RFC 3168).

/// Words of the longest TCP options.
pub const OPTION_WORDS: usize = 10;

const END: u8 = 0;
const NOP: u8 = 1;
const TIMESTAMP: u8 = 8;
const TIMESTAMP_LEN: u8 = 10;

/// AE, CWR and ECE, in the host's reading of the header word with offset, flags and window.
const CONGESTION: u32 = 0x01c0_0000;

/// Header word without the flags of congestion notification; as on the wire.
#[must_use]
#[inline(always)]
pub const fn without_congestion(word: u32) -> u32 {
    word & !CONGESTION.to_be()
}

/// Where in a SYN's options the timestamp stands. Options that contradict themselves end the search: the socket ignores
/// what follows as well.
///
/// `options` are `length` bytes, the rest is not looked at.
#[must_use]
#[inline(always)]
pub fn timestamp(options: &[u8; 4 * OPTION_WORDS], length: u32) -> Option<u32> {
    let mut skip = 0u32;
    let mut at = 0u32;
    // One byte a step: a loop whose steps are as long as the options say has no bound that the verifier finds.
    while at < (4 * OPTION_WORDS) as u32 - 1 {
        if at >= length {
            return None;
        }
        if skip > 0 {
            skip -= 1;
        } else {
            let (Some(&kind), Some(&size)) = (options.get(at as usize), options.get(at as usize + 1)) else {
                return None;
            };
            if kind == END {
                return None;
            }
            if kind != NOP {
                if size < 2 || at + size as u32 > length {
                    return None;
                }
                if kind == TIMESTAMP {
                    return if size == TIMESTAMP_LEN { Some(at) } else { None };
                }
                skip = size as u32 - 1;
            }
        }
        at += 1;
    }
    None
}

/// The four bytes of options that begin at `from`, with NOPs where the timestamp that begins at `at` stands; bytes in
/// their order in the array.
#[must_use]
#[inline(always)]
pub const fn blanked(bytes: [u8; 4], from: u32, at: u32) -> [u8; 4] {
    [
        blank(bytes[0], from, at),
        blank(bytes[1], from + 1, at),
        blank(bytes[2], from + 2, at),
        blank(bytes[3], from + 3, at),
    ]
}

#[inline(always)]
const fn blank(byte: u8, place: u32, at: u32) -> u8 {
    if place.wrapping_sub(at) < TIMESTAMP_LEN as u32 { NOP } else { byte }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_timestamps_bytes_become_nops() {
        let mut options = [7u8; 20];
        for (n, word) in options.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = blanked(*word, 4 * n as u32, 6);
        }
        assert_eq!(options, [7, 7, 7, 7, 7, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7]);
    }

    fn find(options: &[u8]) -> Option<u32> {
        let mut all = [0xff; 40];
        all[..options.len()].copy_from_slice(options);
        timestamp(&all, options.len() as u32)
    }

    #[test]
    fn the_timestamp_is_found_wherever_it_stands() {
        // As Linux writes it: MSS, SACK permitted, timestamps, NOP, window scale.
        let linux = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(find(&linux), Some(6));
        assert_eq!(find(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]), Some(2));
        let mut last = [1u8; 40];
        last[30..32].copy_from_slice(&[8, 10]);
        assert_eq!(find(&last), Some(30));
    }

    #[test]
    fn options_without_one_or_in_disorder_have_none() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[2, 4, 5, 180]), None);
        assert_eq!(find(&[0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0]), None, "behind the end");
        assert_eq!(find(&[8, 10, 0, 0]), None, "beyond the header");
        assert_eq!(find(&[8, 9, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1]), None, "of another length");
        assert_eq!(find(&[3, 0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]), None, "behind an option without length");
        assert_eq!(find(&[253, 12, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]), None, "within another option");
    }

    #[test]
    fn flags_of_congestion_notification_go_and_the_others_stay() {
        let word = 0xa1c2_7210u32.to_be();
        assert_eq!(without_congestion(word), 0xa002_7210u32.to_be());
    }
}
