// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Arms: the daemon's leave to open a PEER segment at one exact point, given without a system call.
//!
//! An [`Arm`] is a seqlock with one writer, the daemon. It is one-shot, because it names the epoch it was given in. The
//! kernel reads it under the session's lock, so that disarming followed by a recall (which takes the lock) is a fence;
//! disarming alone is none, the kernel may have acted on the arm just before.

use super::segment::Arriving;
use super::seq::{InLocal, OutLocal};
use super::state::Dir;
use super::word::Word;

/// The words as they lie in shared memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Arm {
    /// 0: never armed. Odd: being written, or disarmed. Even: the other words belong together.
    generation: Word,
    at: Word,
    sent: Word,
    frames: Word,
    remain: Word,
    epoch: Word,
}

/// What an arm says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Armed {
    /// All before it was received from x and relayed; a packet that starts there may be forwarded.
    pub at: InLocal,
    /// All before it was written to y.
    pub sent: OutLocal,
    /// Frames begun before `at`.
    pub frames: u32,
    /// Bytes left of the frame at `at`.
    pub remain: u32,
    /// The epoch in which it holds.
    pub epoch: u32,
}

impl Arm {
    /// Gives leave; the daemon's.
    pub fn arm(&self, armed: &Armed) {
        self.disarm();
        let Armed { at, sent, frames, remain, epoch } = *armed;
        self.at.store(at.0);
        self.sent.store(sent.0);
        self.frames.store(frames);
        self.remain.store(remain);
        self.epoch.store(epoch);
        let odd = self.generation.load();
        // 0 says "never": skipped on the wrap.
        let even = if odd == u32::MAX { 2 } else { odd + 1 };
        self.generation.store(even);
    }

    /// Takes the leave back; the daemon's. No fence by itself.
    pub fn disarm(&self) {
        let generation = self.generation.load();
        if generation & 1 == 0 {
            self.generation.store(generation + 1);
        }
    }

    /// What it says now; `None` while it says nothing. The kernel's; it relies on the order of loads, which x86-64
    /// keeps.
    #[must_use]
    #[inline(always)]
    pub fn read(&self) -> Option<Armed> {
        let generation = self.generation.load();
        if generation == 0 || generation & 1 == 1 {
            return None;
        }
        let armed = Armed {
            at: InLocal(self.at.load()),
            sent: OutLocal(self.sent.load()),
            frames: self.frames.load(),
            remain: self.remain.load(),
            epoch: self.epoch.load(),
        };
        (self.generation.load() == generation).then_some(armed)
    }
}

/// Whether a packet of an armed direction may open a PEER segment (invariant 1): it starts where the daemon stopped
/// reading, x holds nothing further on, y has sent all that the daemon wrote, Y has acknowledged all of it, and y knows.
#[must_use]
#[inline(always)]
pub fn may_open(d: &Dir, armed: &Armed, p: &Arriving) -> bool {
    let point = armed.sent.0.wrapping_add(d.k);
    !d.is_peer()
        && armed.epoch == d.epoch
        && p.length != 0
        && !p.fin()
        && !p.urgent()
        && p.seq.0.wrapping_sub(d.k) == armed.at.0
        && !d.l_max.after(armed.at)
        && d.s_max == armed.sent
        && d.y_lacked == armed.sent
        && d.y_ack.0 == point
        && d.v_max.0 == point
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Armed = Armed { at: InLocal(1), sent: OutLocal(2), frames: 3, remain: 4, epoch: 6 };
    const SECOND: Armed = Armed { at: InLocal(10), sent: OutLocal(20), frames: 30, remain: 0, epoch: 8 };

    #[test]
    fn an_arm_says_what_was_armed_last_until_it_is_taken_back() {
        let arm = Arm::default();
        assert_eq!(arm.read(), None, "memory that was never written");
        arm.disarm();
        assert_eq!(arm.read(), None);
        arm.arm(&FIRST);
        assert_eq!(arm.read(), Some(FIRST));
        arm.arm(&SECOND);
        assert_eq!(arm.read(), Some(SECOND));
        arm.disarm();
        arm.disarm();
        assert_eq!(arm.read(), None);
        arm.arm(&FIRST);
        assert_eq!(arm.read(), Some(FIRST));
    }

    #[test]
    fn an_arm_that_is_being_written_says_nothing() {
        let arm = Arm::default();
        arm.arm(&FIRST);
        let before = arm.generation.load();
        arm.generation.store(before + 1);
        arm.at.store(77);
        assert_eq!(arm.read(), None);
    }

    #[test]
    fn generations_wrap_around_the_one_that_says_never() {
        let arm = Arm::default();
        arm.generation.store(u32::MAX - 1);
        arm.arm(&FIRST);
        assert_eq!(arm.read(), Some(FIRST));
        assert_eq!(arm.generation.load(), 2);
    }
}
