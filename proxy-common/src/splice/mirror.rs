// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The mirror: copies of what the kernel forwards, for who wants exact frames.
//!
//! A packet is *marked* under the session's lock, by the commit that forwarded it: only then is it known that its bytes
//! are new and in order, so a retransmission is never copied twice. It is *copied* after the lock, piece by piece, as it
//! came. Between the two other CPUs may overtake, which is why every piece says what it is: which of the direction's
//! mirrored packets ([`Head::packet`]), and where its bytes are in it.
//!
//! ```text
//!  walk ─► lock ─ commit ─ mark: number, which frames ─ unlock ─► pieces into the ring ─► the packet goes on
//!                                                                   └ no room: the rest of the packet is not copied
//! ```
//! A packet in which no frame is mirrored has no number. What is lost is known by the numbers: of packets, and of the
//! frames that began in them ([`Tally`]).

use super::notes::Notes;
use super::segment::Arriving;
use super::seq::InWire;
use super::state::{Dir, Side};
use super::walk::{MAX_FRAMES, Survey};

/// Payload bytes of a piece, by size class: small answers, a full packet of Ethernet, four of them, and the most that one
/// piece has. A piece takes its class's room whatever it needs of it.
pub const CLASSES: [u32; 4] = [192, 1472, 5888, 16_384];

/// Bytes of the largest piece.
pub const LARGEST: u32 = CLASSES[CLASSES.len() - 1];

/// Pieces of a packet at most; the kernel merges up to 8 × 64 KiB.
pub const PIECES: u32 = 8 * 65_536 / LARGEST + 1;

/// What was marked in a direction since the session began. Written under the session's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tally {
    /// Packets.
    pub packets: u32,
    /// Mirrored frames that began in them.
    pub frames: u32,
}

/// What was copied on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Copies {
    /// Pieces in the ring.
    pub pieces: u64,
    /// Their bytes of payload.
    pub bytes: u64,
    /// Packets that were not copied, or not to their end: the ring had no room.
    pub lost: u64,
    /// Their bytes that were not copied.
    pub lost_bytes: u64,
}

/// What stands before a piece's bytes in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Head {
    /// Index of the session's slot.
    pub session: u32,
    /// The slot's generation.
    pub generation: u32,
    /// Whose data it is ([`Side`]).
    pub side: u32,
    /// Which of the direction's mirrored packets.
    pub packet: u32,
    /// Mirrored frames that began in the packets before it.
    pub begun: u32,
    /// Index of the first frame that begins in the packet.
    pub frames: u32,
    /// Bytes at the packet's start that belong to the frame before.
    pub remain: u32,
    /// 1: the frame that `remain` belongs to is mirrored.
    pub continues: u32,
    /// Bit n: the nth frame that begins in the packet is mirrored.
    pub mirrored: u64,
    /// Frames that begin in the packet.
    pub begins: u32,
    /// Where this piece is in the packet's new bytes.
    pub from: u32,
    /// Bytes of this piece.
    pub length: u32,
    /// The packet's new bytes.
    pub total: u32,
}

/// A piece of a class with `N` bytes of payload, as it lies in the ring.
#[repr(C)]
pub struct Piece<const N: usize> {
    /// What it is.
    pub head: Head,
    /// The first [`Head::length`] of them are it.
    pub bytes: [u8; N],
}

/// Of a direction before a packet: what tells whether that packet was the one that committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    side: Side,
    epoch: u32,
    exp: InWire,
}

impl Before {
    /// As it is now.
    #[must_use]
    #[inline(always)]
    pub const fn of(side: Side, d: &Dir) -> Self {
        Self { side, epoch: d.epoch, exp: d.exp }
    }

    /// Whether the packet that was walked has been committed since. Its walk alone doesn't tell: another CPU may have
    /// committed the same bytes first.
    #[inline(always)]
    fn has_committed(self, d: &Dir, survey: &Survey) -> bool {
        let opened = self.epoch.wrapping_add(1) == d.epoch;
        let went_on = self.epoch == d.epoch && self.exp == survey.from;
        survey.forward
            && d.is_peer()
            && (opened || went_on)
            && d.exp == survey.from.plus(survey.length)
            && d.frames == survey.frames
    }
}

/// A packet that is being copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copying {
    /// Of the next piece; its `length` is not set before [`Self::next_piece`].
    pub head: Head,
    /// Where the packet's new bytes are in its payload.
    start: u32,
}

impl Copying {
    /// Nothing is to be copied.
    #[inline(always)]
    pub fn clear(&mut self) {
        (self.head.from, self.head.total) = (0, 0);
    }

    /// Bytes that are still to be copied.
    #[must_use]
    #[inline(always)]
    pub const fn left(&self) -> u32 {
        self.head.total.wrapping_sub(self.head.from)
    }

    /// Under the lock, after the packet's commit: gives the packet its number, if anything in it is mirrored.
    #[inline(always)]
    pub fn mark(&mut self, before: Before, d: &Dir, p: &Arriving, survey: &Survey, notes: &Notes, tally: &mut Tally) {
        self.clear();
        if !before.has_committed(d, survey) {
            return;
        }
        let begins = survey.frames.wrapping_sub(survey.frames_from);
        let mut mirrored = 0u64;
        let mut frames = 0;
        let mut nth = 0;
        while nth < MAX_FRAMES {
            if nth >= begins {
                break;
            }
            let bit = u64::from(notes.get(survey.frames_from.wrapping_add(nth)).mirrored);
            mirrored |= bit << nth;
            frames += bit as u32;
            nth += 1;
        }
        // The frame under way keeps its note until 256 requests further on.
        let continues = survey.remain_from != 0 && notes.get(survey.frames_from.wrapping_sub(1)).mirrored;
        if mirrored == 0 && !continues {
            return;
        }
        self.head.side = before.side as u32;
        self.head.packet = tally.packets;
        self.head.begun = tally.frames;
        self.head.frames = survey.frames_from;
        self.head.remain = survey.remain_from;
        self.head.mirrored = mirrored;
        self.head.continues = continues.into();
        self.head.begins = begins;
        self.head.total = survey.length;
        self.start = p.length.wrapping_sub(survey.length);
        tally.packets = tally.packets.wrapping_add(1);
        tally.frames = tally.frames.wrapping_add(frames);
    }

    /// Sets the head for the next piece: its offset in the payload. `None`: everything is copied.
    #[inline(always)]
    pub fn next_piece(&mut self) -> Option<u32> {
        let left = self.left();
        if left == 0 {
            return None;
        }
        self.head.length = if left < LARGEST { left } else { LARGEST };
        Some(self.start.wrapping_add(self.head.from))
    }

    /// The piece is in the ring.
    #[inline(always)]
    pub const fn copied(&mut self) {
        self.head.from = self.head.from.wrapping_add(self.head.length);
    }
}

const _: () = {
    assert!(size_of::<Tally>() == 8);
    assert!(size_of::<Copies>() == 32);
    assert!(size_of::<Head>() == 56);
    assert!(core::mem::offset_of!(Head, mirrored) == 32);
    assert!(core::mem::offset_of!(Piece<192>, bytes) == size_of::<Head>());
    assert!(MAX_FRAMES == u64::BITS, "a bit for each frame");
};

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
