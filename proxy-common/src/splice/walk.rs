// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The frame walk: may everything new in a packet be forwarded?
//!
//! It reads the packet outside the lock, against a copy of the state that may be out of date, and finds a [`Survey`].
//! The commit under the lock ([`super::ingress`]) takes it only if the state is the one it was made for. All or nothing:
//! one frame that isn't the kernel's sends the whole packet to the daemon.

use super::answers::{self, Clean, Look, Start};
use super::arm::Armed;
use super::notes::{Note, Notes};
use super::payload::Payload;
use super::policy::Policy;
use super::requests;
use super::segment::Arriving;
use super::seq::InWire;
use super::state::{Dir, Side};
use crate::produce::MAX_PARTITIONS;

/// Frame starts in one packet that are looked at; a packet with more goes to the daemon. Bounds the walk, and what a
/// commit has to note under the lock.
pub const MAX_FRAMES: u32 = 64;

/// Notes of four bits in a word.
const PER_WORD: u32 = 8;

/// What a walk found, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Everything may be forwarded; else nothing below means anything.
    pub forward: bool,
    /// The PEER epoch that it is for.
    pub epoch: u32,
    /// Where it began, W.
    pub from: InWire,
    /// Frames begun before that.
    pub frames_from: u32,
    /// Bytes of the frame there.
    pub remain_from: u32,
    /// Bytes walked.
    pub length: u32,
    /// Frames begun before the packet's end.
    pub frames: u32,
    /// Bytes of the last frame that are still to come.
    pub remain: u32,
    /// Notes of the requests that begin in the packet.
    notes: [u32; (MAX_FRAMES / PER_WORD) as usize],
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beginning {
    epoch: u32,
    from: InWire,
    frames: u32,
    remain: u32,
}

impl Survey {
    /// Nothing may be forwarded.
    pub const NONE: Self = Self {
        forward: false,
        epoch: 0,
        from: InWire(0),
        frames_from: 0,
        remain_from: 0,
        length: 0,
        frames: 0,
        remain: 0,
        notes: [0; (MAX_FRAMES / PER_WORD) as usize],
    };

    /// Whether the state is the one that the walk was made for.
    #[must_use]
    #[inline(always)]
    pub fn fits(&self, d: &Dir) -> bool {
        self.forward
            && self.epoch == d.epoch
            && self.from == d.exp
            && self.frames_from == d.frames
            && self.remain_from == d.remain
    }

    #[inline(always)]
    fn put(&mut self, nth: u32, note: Note) {
        if let Some(word) = self.notes.get_mut((nth / PER_WORD) as usize) {
            *word |= note.bits() << (nth % PER_WORD * 4);
        }
    }

    #[inline(always)]
    fn note(&self, nth: u32) -> Note {
        match self.notes.get((nth / PER_WORD) as usize) {
            Some(word) => Note::from_bits(word >> (nth % PER_WORD * 4) & 0xf),
            None => Note::UNKNOWN,
        }
    }

    /// Puts what the requests' answers need into the ring, or says how far the answers have come.
    #[inline(always)]
    pub fn commit_notes(&self, side: Side, notes: &Notes) {
        match side {
            Side::Client => {
                let mut nth = 0;
                while nth < MAX_FRAMES && self.frames_from.wrapping_add(nth) != self.frames {
                    notes.set(self.frames_from.wrapping_add(nth), self.note(nth));
                    nth += 1;
                }
            }
            Side::Broker => notes.set_answered(self.frames),
        }
    }
}

/// Where a walk of this packet would begin, if there is anything in it to walk.
#[inline(always)]
fn start(d: &Dir, armed: Option<Armed>, p: &Arriving) -> Option<Beginning> {
    if p.length == 0 || p.fin() || p.urgent() || p.rst() || p.syn() || p.largest_piece() > p.room {
        return None;
    }
    if d.is_peer() {
        return Some(Beginning { epoch: d.epoch, from: d.exp, frames: d.frames, remain: d.remain });
    }
    let armed = armed?;
    let starts = armed.epoch == d.epoch && p.seq.0.wrapping_sub(d.k) == armed.at.0;
    starts.then(|| Beginning {
        epoch: d.epoch.wrapping_add(1),
        from: p.seq,
        frames: armed.frames,
        remain: armed.remain,
    })
}

/// A walk under way. [`survey`] makes one at a go; the program keeps it in a map and has the kernel call
/// [`Walk::step`], because the verifier would follow a loop through all its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    survey: Survey,
    /// Offset in the payload of the next frame's start.
    at: u32,
    /// Frame starts looked at.
    nth: u32,
    /// Bytes of the frame at `at` while `clean` is looking at it, else 0.
    looking_at: u32,
    clean: Clean,
}

impl Walk {
    /// Steps after which every walk is over.
    pub const STEPS: u32 = (MAX_FRAMES + 1) * (2 * MAX_PARTITIONS + 3);

    /// Begins one.
    #[must_use]
    #[inline(always)]
    pub fn begin(d: &Dir, p: &Arriving, armed: Option<Armed>) -> Self {
        let nothing = Self { survey: Survey::NONE, at: p.length, nth: 0, looking_at: 0, clean: Clean::default() };
        let Some(start) = start(d, armed, p) else { return nothing };
        let old = start.from.since(p.seq);
        if old >= p.length {
            return nothing;
        }
        let survey = Survey {
            forward: true,
            epoch: start.epoch,
            from: start.from,
            frames_from: start.frames,
            remain_from: start.remain,
            length: p.length - old,
            frames: start.frames,
            ..Survey::NONE
        };
        Self { survey, at: old.wrapping_add(start.remain), ..nothing }
    }

    /// Reads a frame's start, or goes on looking at an answer. Whether there may be more.
    #[inline(always)]
    pub fn step<P: Payload + ?Sized>(
        &mut self,
        side: Side,
        p: &Arriving,
        payload: &P,
        policy: &Policy,
        notes: &Notes,
    ) -> bool {
        if self.looking_at != 0 {
            return match self.clean.step(payload) {
                Look::More => true,
                Look::Clean => self.passes(self.looking_at),
                Look::Unclean => self.fails(),
            };
        }
        if !self.survey.forward || self.at >= p.length {
            return false;
        }
        let index = self.survey.frames;
        if self.nth >= MAX_FRAMES {
            return self.fails();
        }
        match side {
            Side::Client if notes.has_room(index, policy.in_flight) => {
                match requests::read(payload, self.at, p.length, policy) {
                    Some(request) => {
                        self.survey.put(self.nth, request.note);
                        self.passes(request.length)
                    }
                    None => self.fails(),
                }
            }
            Side::Client => self.fails(),
            Side::Broker => match answers::read(payload, self.at, p.length, notes.get(index), policy) {
                Start::Passes(length) => self.passes(length),
                Start::IfClean(length, clean) => {
                    (self.looking_at, self.clean) = (length, clean);
                    true
                }
                Start::Daemons => self.fails(),
            },
        }
    }

    /// The frame at `at` is the kernel's.
    #[inline(always)]
    fn passes(&mut self, length: u32) -> bool {
        self.at = self.at.wrapping_add(length);
        self.survey.frames = self.survey.frames.wrapping_add(1);
        self.nth += 1;
        self.looking_at = 0;
        true
    }

    /// It isn't.
    #[inline(always)]
    fn fails(&mut self) -> bool {
        self.survey.forward = false;
        self.looking_at = 0;
        false
    }

    /// What it found.
    #[inline(always)]
    pub fn found(&mut self, p: &Arriving) -> &Survey {
        self.survey.remain = self.at.wrapping_sub(p.length);
        &self.survey
    }
}

/// Walks a packet's frames.
#[must_use]
#[inline(always)]
pub fn survey<P: Payload + ?Sized>(
    d: &Dir,
    side: Side,
    p: &Arriving,
    armed: Option<Armed>,
    payload: &P,
    policy: &Policy,
    notes: &Notes,
) -> Survey {
    let mut walk = Walk::begin(d, p, armed);
    while walk.step(side, p, payload, policy, notes) {}
    *walk.found(p)
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
