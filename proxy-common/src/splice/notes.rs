// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What answers belong to: a ring with one note for each request that gets an answer, by frame index.
//!
//! Whoever passes a request on writes its note before the request can reach the broker: the kernel when it commits a
//! walk, the daemon before it writes to b. So an answer's note is there when the answer is. An answer without a note is
//! the daemon's.

use super::word::Word;

/// Requests that may be unanswered while the kernel forwards more.
pub const RING: u32 = 256;

/// What an answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// There is no note: to the daemon.
    Unknown,
    /// Nothing: forwarded.
    Plain,
    /// Of Produce v10 to v12: forwarded if it is clean.
    Produce,
    /// Of Produce v13, with topic ids: forwarded if it is clean.
    ProduceIds,
    /// To the daemon.
    Local,
    /// To the daemon if it is smaller than the policy says.
    LocalIfSmaller,
}

/// A kind, and whether the frame is mirrored; four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// What the answer needs.
    pub kind: Kind,
    /// Request and answer are copied to the mirror.
    pub mirrored: bool,
}

const MIRRORED: u32 = 8;

impl Note {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { kind: Kind::Unknown, mirrored: false };

    /// As four bits.
    #[must_use]
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.kind as u32 | if self.mirrored { MIRRORED } else { 0 }
    }

    /// From four bits; unknown ones are [`Kind::Unknown`].
    #[must_use]
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        let kind = match bits & 7 {
            1 => Kind::Plain,
            2 => Kind::Produce,
            3 => Kind::ProduceIds,
            4 => Kind::Local,
            5 => Kind::LocalIfSmaller,
            _ => Kind::Unknown,
        };
        Self { kind, mirrored: bits & MIRRORED != 0 }
    }
}

/// The ring, in memory that the kernel and the daemon share.
#[derive(Debug)]
#[repr(C)]
pub struct Notes {
    /// Answers begun, at least: written by whoever has the answers, the kernel in PEER and the daemon in LOCAL. An old
    /// value only makes the ring look fuller.
    answered: Word,
    reserved: u32,
    /// At `index % RING`: the index's upper 24 bits, and the note in the lower eight.
    ring: [Word; RING as usize],
}

const _: () = assert!(size_of::<Notes>() == 8 + 4 * RING as usize && RING == 256);

impl Default for Notes {
    fn default() -> Self {
        Self { answered: Word::new(0), reserved: 0, ring: [const { Word::new(0) }; RING as usize] }
    }
}

impl Notes {
    /// Notes what the answer of frame `index` needs.
    #[inline(always)]
    pub fn set(&self, index: u32, note: Note) {
        if let Some(slot) = self.ring.get((index % RING) as usize) {
            slot.store(index & !(RING - 1) | note.bits());
        }
    }

    /// What the answer of frame `index` needs.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, index: u32) -> Note {
        let Some(slot) = self.ring.get((index % RING) as usize) else { return Note::UNKNOWN };
        let word = slot.load();
        if word & !(RING - 1) == index & !(RING - 1) { Note::from_bits(word & 0xf) } else { Note::UNKNOWN }
    }

    /// Says that the answers before `index` have begun.
    #[inline(always)]
    pub fn set_answered(&self, index: u32) {
        self.answered.store(index);
    }

    /// Whether the request of frame `index` finds its place in the ring free, and fewer than `most` requests before it are
    /// unanswered.
    #[must_use]
    #[inline(always)]
    pub fn has_room(&self, index: u32, most: u32) -> bool {
        let unanswered = index.wrapping_sub(self.answered.load());
        unanswered < RING && unanswered < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Note = Note { kind: Kind::Plain, mirrored: false };

    #[test]
    fn every_note_survives_its_four_bits() {
        for kind in [Kind::Unknown, Kind::Plain, Kind::Produce, Kind::ProduceIds, Kind::Local, Kind::LocalIfSmaller] {
            for mirrored in [false, true] {
                let note = Note { kind, mirrored };
                assert!(note.bits() < 16);
                assert_eq!(Note::from_bits(note.bits()), note);
            }
        }
        assert_eq!(Note::from_bits(7).kind, Kind::Unknown);
    }

    #[test]
    fn a_note_is_found_by_its_own_index_only() {
        let notes = Notes::default();
        assert_eq!(notes.get(0), Note::UNKNOWN);
        notes.set(5, PLAIN);
        assert_eq!(notes.get(5), PLAIN);
        assert_eq!(notes.get(5 + RING), Note::UNKNOWN);
        notes.set(5u32.wrapping_sub(RING), Note { kind: Kind::Local, mirrored: true });
        assert_eq!(notes.get(5), Note::UNKNOWN, "overwritten");
    }

    #[test]
    fn the_ring_is_full_at_256_unanswered_requests() {
        let notes = Notes::default();
        assert!(notes.has_room(255, RING) && !notes.has_room(256, RING));
        notes.set_answered(u32::MAX - 10);
        assert!(notes.has_room(0, RING) && notes.has_room(244, RING) && !notes.has_room(245, RING));
    }
}
