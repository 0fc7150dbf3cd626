//! Which slots are free. Pure: the time is the caller's.
//!
//! A slot that was given back waits at the end of the line, so that it is used anew as late as can be: a program that
//! still has an old flow in its hand finds another generation, not half of a new session.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long the flows of a session that ended stay: packets of either connection may come as long as its sockets, or what
/// the kernel keeps of them, answer (orphans, TIME_WAIT).
pub(super) const LINGER: Duration = Duration::from_secs(120);

/// A session that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its slot.
    pub(super) index: u32,
    /// The slot's generation that it was.
    pub(super) generation: u32,
    /// When.
    pub(super) at: Instant,
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    room: u32,
    free: VecDeque<u32>,
    /// In the order they ended in.
    ended: VecDeque<Ended>,
}

impl Slots {
    pub(super) fn new(room: u32) -> Self {
        Self { room, free: (0..room).collect(), ended: VecDeque::new() }
    }

    /// One that nobody uses.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// One that no flow leads to any more.
    pub(super) fn give_back(&mut self, index: u32) {
        self.free.push_back(index);
    }

    /// The session in it ended.
    pub(super) fn end(&mut self, ended: Ended) {
        self.ended.push_back(ended);
    }

    /// A session whose flows have to go now; its slot is the caller's, to be given back.
    pub(super) fn due(&mut self, now: Instant) -> Option<Ended> {
        let first = self.ended.front()?;
        if now.saturating_duration_since(first.at) < LINGER { None } else { self.ended.pop_front() }
    }

    /// Those that ended and whose flows are still there, the last one first.
    pub(super) fn ended(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter().rev()
    }

    /// Sessions that haven't ended.
    pub(super) fn in_use(&self) -> u32 {
        self.room - (self.free.len() + self.ended.len()) as u32
    }

    /// No slot is used, and no flow is left.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.room as usize
    }
}

/// The generation after this one; 0 is that of a slot without any.
pub(super) const fn next_generation(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_once_and_comes_back_last() {
        let mut slots = Slots::new(3);
        assert!(slots.is_idle());
        assert_eq!([slots.take(), slots.take()], [Some(0), Some(1)]);
        slots.give_back(0);
        assert_eq!([slots.take(), slots.take(), slots.take()], [Some(2), Some(0), None]);
        assert_eq!(slots.in_use(), 3);
    }

    #[test]
    fn what_ended_keeps_its_slot_until_no_packet_can_come() {
        let mut slots = Slots::new(2);
        let begin = Instant::now();
        let [first, second] = [0, 1].map(|n| Ended {
            index: slots.take().expect("free"),
            generation: 1,
            at: begin + Duration::from_secs(n),
        });
        slots.end(first);
        slots.end(second);
        assert_eq!((slots.in_use(), slots.take()), (0, None));
        assert_eq!(slots.due(begin + LINGER - Duration::from_millis(1)), None);
        assert_eq!(slots.due(begin + LINGER), Some(first));
        assert_eq!(slots.due(begin + LINGER), None, "the second ended later");
        slots.give_back(first.index);
        assert_eq!(slots.ended().collect::<Vec<_>>(), [&second]);
        assert!(!slots.is_idle());
        assert_eq!(slots.take(), Some(0));
    }

    #[test]
    fn a_generation_is_never_that_of_an_unused_slot() {
        assert_eq!(next_generation(0), 1);
        assert_eq!(next_generation(u32::MAX), 1);
    }
}
