// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Produce answers that can pass without being rewritten.
//!
//! From v10 on an answer may carry the address of a new leader (KIP-951), but only as tagged fields beside an error.
//! The walk below recognises answers without any: bounded, without allocation, and "no" whenever in doubt.

use crate::frame::RESPONSE_FIXED_LEN;

/// Most partitions of an answer that is still walked.
pub const MAX_PARTITIONS: u32 = 16;

/// First and last version whose answers are known.
const VERSIONS: core::ops::RangeInclusive<i16> = 3..=13;

/// First version of Produce with compact forms and tagged fields (KIP-482), requests and answers.
pub const FIRST_FLEXIBLE: i16 = 9;

/// First version with topic ids in place of names (KIP-516).
const FIRST_TOPIC_IDS: i16 = 13;

/// Whether a Produce answer says that every partition was written, and nothing else: whole, at most
/// [`MAX_PARTITIONS`] partitions, every error 0, no record error, no message, no tagged field anywhere.
/// `body` are the bytes behind the size field.
#[must_use]
pub fn is_clean_answer(version: i16, body: &[u8]) -> bool {
    VERSIONS.contains(&version) && walk(version, body) == Some(())
}

fn walk(version: i16, body: &[u8]) -> Option<()> {
    let flexible = version >= FIRST_FLEXIBLE;
    let mut r = Cursor { left: body, flexible };
    r.skip(RESPONSE_FIXED_LEN)?;
    r.no_tags()?;
    let mut partitions_left = MAX_PARTITIONS;
    for _ in 0..r.count(MAX_PARTITIONS)? {
        if version >= FIRST_TOPIC_IDS {
            r.skip(16)?;
        } else {
            r.skip_name()?;
        }
        let partitions = r.count(partitions_left)?;
        partitions_left -= partitions;
        for _ in 0..partitions {
            r.clean_partition(version)?;
        }
        r.no_tags()?;
    }
    r.skip(4)?;
    r.no_tags()?;
    r.left.is_empty().then_some(())
}

struct Cursor<'a> {
    left: &'a [u8],
    flexible: bool,
}

impl Cursor<'_> {
    fn skip(&mut self, n: usize) -> Option<()> {
        self.left = self.left.get(n..)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.left.split_first()?;
        self.left = rest;
        Some(*first)
    }

    fn i16(&mut self) -> Option<i16> {
        let bytes = self.left.first_chunk::<2>()?;
        self.left = &self.left[2..];
        Some(i16::from_be_bytes(*bytes))
    }

    fn i32(&mut self) -> Option<i32> {
        let bytes = self.left.first_chunk::<4>()?;
        self.left = &self.left[4..];
        Some(i32::from_be_bytes(*bytes))
    }

    /// A varint of at most two bytes, which holds every length that a clean answer can have.
    fn short_uvarint(&mut self) -> Option<u32> {
        let low = u32::from(self.byte()?);
        if low < 0x80 {
            return Some(low);
        }
        let high = u32::from(self.byte()?);
        (high < 0x80).then_some(low & 0x7f | high << 7)
    }

    /// Length of an array that isn't null, at most `most`.
    fn count(&mut self, most: u32) -> Option<u32> {
        let n = if self.flexible { self.short_uvarint()?.checked_sub(1)? } else { u32::try_from(self.i32()?).ok()? };
        (n <= most).then_some(n)
    }

    fn skip_name(&mut self) -> Option<()> {
        let n = if self.flexible { self.short_uvarint()?.checked_sub(1)? } else { u32::try_from(self.i16()?).ok()? };
        self.skip(n as usize)
    }

    fn no_tags(&mut self) -> Option<()> {
        if self.flexible { (self.byte()? == 0).then_some(()) } else { Some(()) }
    }

    /// index, error = 0, base offset, append time, v5: log start, v8: no record errors and a null message.
    fn clean_partition(&mut self, version: i16) -> Option<()> {
        self.skip(4)?;
        if self.i16()? != 0 {
            return None;
        }
        self.skip(if version >= 5 { 24 } else { 16 })?;
        if version >= 8 {
            if self.count(0)? != 0 {
                return None;
            }
            let no_message = if self.flexible { self.byte()? == 0 } else { self.i16()? == -1 };
            if !no_message {
                return None;
            }
        }
        self.no_tags()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    extern crate std;
    use std::vec::Vec;

    /// Correlation id, one topic `t`, partitions with these errors, v9–v12.
    fn flexible(errors: &[i16], partition_tags: u8, root_tags: u8) -> Vec<u8> {
        let mut b = std::vec![0, 0, 0, 7, 0, 2, 2, b't', errors.len() as u8 + 1];
        for (index, error) in errors.iter().enumerate() {
            b.extend_from_slice(&(index as i32).to_be_bytes());
            b.extend_from_slice(&error.to_be_bytes());
            b.extend_from_slice(&[0; 24]);
            b.extend_from_slice(&[1, 0, partition_tags]);
        }
        b.extend_from_slice(&[0, 0, 0, 0, 0, root_tags]);
        b
    }

    /// The same in v3–v8.
    fn classic(version: i16, error: i16, message: i16) -> Vec<u8> {
        let mut b = std::vec![0, 0, 0, 7, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 0];
        b.extend_from_slice(&error.to_be_bytes());
        b.extend(core::iter::repeat_n(0, if version >= 5 { 24 } else { 16 }));
        if version >= 8 {
            b.extend_from_slice(&[0; 4]);
            b.extend_from_slice(&message.to_be_bytes());
        }
        b.extend_from_slice(&[0; 4]);
        b
    }

    #[test]
    fn success_on_every_partition_is_clean() {
        for version in 9..=12 {
            assert!(is_clean_answer(version, &flexible(&[0; 1], 0, 0)));
            assert!(is_clean_answer(version, &flexible(&[0; 16], 0, 0)));
        }
        for version in 3..=8 {
            assert!(is_clean_answer(version, &classic(version, 0, -1)), "v{version}");
        }
        let mut by_id = flexible(&[0], 0, 0);
        by_id.splice(6..8, [9; 16]);
        assert!(is_clean_answer(13, &by_id));
        assert!(!is_clean_answer(12, &by_id));
    }

    #[test]
    fn an_error_a_tag_a_message_or_too_much_is_not_clean() {
        assert!(!is_clean_answer(12, &flexible(&[0, 6], 0, 0)));
        assert!(!is_clean_answer(12, &flexible(&[0], 1, 0)));
        assert!(!is_clean_answer(12, &flexible(&[0], 0, 1)));
        assert!(!is_clean_answer(12, &flexible(&[0; 17], 0, 0)));
        assert!(!is_clean_answer(8, &classic(8, 0, 0)));
        assert!(!is_clean_answer(8, &classic(8, 6, -1)));
        assert!(!is_clean_answer(14, &flexible(&[0], 0, 0)));
        assert!(!is_clean_answer(2, &classic(3, 0, -1)));
    }

    #[test]
    fn a_cut_or_longer_answer_is_not_clean() {
        let whole = flexible(&[0, 0], 0, 0);
        for cut in 0..whole.len() {
            assert!(!is_clean_answer(12, &whole[..cut]), "cut at {cut}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(!is_clean_answer(12, &longer));
    }

    proptest! {
        #[test]
        fn one_changed_byte_outside_of_offsets_times_and_names_is_not_clean(at in 0usize..48, to in any::<u8>()) {
            let mut b = flexible(&[0], 0, 0);
            let was = std::mem::replace(&mut b[at], to);
            // Correlation id, name, index, offsets and times, throttle time may have any value.
            let free = at < 4 || at == 7 || (9..13).contains(&at) || (15..39).contains(&at) || (43..47).contains(&at);
            prop_assert_eq!(is_clean_answer(12, &b), free || was == to);
        }

        #[test]
        fn any_bytes_are_judged_without_a_panic(version in any::<i16>(), b in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = is_clean_answer(version, &b);
        }
    }
}
