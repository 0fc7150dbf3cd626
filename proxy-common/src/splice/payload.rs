// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Payload bytes, read in pieces of fixed size: a byte slice on the host, `bpf_skb_load_bytes` in the kernel.

/// Where the bytes behind the TCP header come from.
pub trait Payload {
    /// The `N` bytes at `offset` of the payload; `None` where it ends before, or they can't be read.
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;
}

impl Payload for [u8] {
    #[inline(always)]
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.get(offset as usize..)?.first_chunk::<N>().copied()
    }
}

/// A place in the payload, and where reading must stop. Every reader leaves it untouched when it finds nothing.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// Offset of the next byte.
    pub at: u32,
    /// Offset of the first byte that is out of bounds. At most 2³¹.
    pub end: u32,
}

impl Cursor {
    /// The next `N` bytes.
    #[inline(always)]
    pub fn take<const N: usize, P: Payload + ?Sized>(&mut self, payload: &P) -> Option<[u8; N]> {
        if self.left() < N as u32 {
            return None;
        }
        let bytes = payload.load::<N>(self.at)?;
        self.at += N as u32;
        Some(bytes)
    }

    /// Goes on by so many bytes.
    #[inline(always)]
    pub fn skip(&mut self, count: u32) -> Option<()> {
        if self.left() < count {
            return None;
        }
        self.at += count;
        Some(())
    }

    /// Bytes to the end.
    #[inline(always)]
    pub const fn left(&self) -> u32 {
        self.end.saturating_sub(self.at)
    }

    /// A byte.
    #[inline(always)]
    pub fn byte<P: Payload + ?Sized>(&mut self, payload: &P) -> Option<u32> {
        self.take::<1, P>(payload).map(|[b]| u32::from(b))
    }

    /// A signed 16-bit number.
    #[inline(always)]
    pub fn i16<P: Payload + ?Sized>(&mut self, payload: &P) -> Option<i16> {
        self.take::<2, P>(payload).map(i16::from_be_bytes)
    }

    /// An unsigned varint of at most two bytes: all that a length worth reading here can have.
    #[inline(always)]
    pub fn short_uvarint<P: Payload + ?Sized>(&mut self, payload: &P) -> Option<u32> {
        let low = self.byte(payload)?;
        if low < 0x80 {
            return Some(low);
        }
        let high = self.byte(payload)?;
        if high < 0x80 { Some(low & 0x7f | high << 7) } else { None }
    }

    /// Skips a string with a 16-bit length; null (−1) has no bytes.
    #[inline(always)]
    pub fn skip_string<P: Payload + ?Sized>(&mut self, payload: &P) -> Option<()> {
        match self.i16(payload)? {
            -1 => Some(()),
            n if n >= 0 => self.skip(n as u32),
            _ => None,
        }
    }

    /// Skips a string with a varint length of one more; null is 0.
    #[inline(always)]
    pub fn skip_compact_string<P: Payload + ?Sized>(&mut self, payload: &P) -> Option<()> {
        match self.short_uvarint(payload)? {
            0 => Some(()),
            n => self.skip(n - 1),
        }
    }
}
