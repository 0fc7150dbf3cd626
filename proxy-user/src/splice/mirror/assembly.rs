//! A connection's frames, put together of the kernel's copies and what the daemon passes on itself. Pure: the caller says
//! when something has been waited for long enough.

use std::sync::atomic::{AtomicUsize, Ordering};

use proxy_common::splice::mirror::{Head, Tally};
use proxy_common::splice::state::Side;

use super::Event;
pub use super::way::Local;
use super::way::{Out, Way};

/// Memory that all connections' frames share while they aren't whole, in bytes.
#[derive(Debug)]
pub struct Room {
    used: AtomicUsize,
    limit: usize,
}

impl Room {
    /// So much.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit }
    }

    /// What is used.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes some, if there is as much.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes it in any case: a few bytes that are given back soon.
    pub(super) fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives it back.
    pub(super) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// See the module. What it keeps of a [`Room`] must be given back by [`Self::release`].
#[derive(Debug, Default)]
pub struct Assembly {
    ways: [Way; 2],
    has_ended: bool,
}

const SIDES: [Side; 2] = [Side::Client, Side::Broker];

impl Assembly {
    /// The daemon passes something on.
    pub fn local(&mut self, side: Side, local: Local, room: &Room, give: &mut dyn FnMut(Event)) {
        self.ways[side.index()].local(local, room, &mut |out| give(event(side, out)));
    }

    /// A piece of the kernel's.
    pub fn piece(&mut self, head: Head, bytes: &[u8], room: &Room, give: &mut dyn FnMut(Event)) {
        let side = if head.side == Side::Client as u32 { Side::Client } else { Side::Broker };
        self.ways[side.index()].piece(head, bytes, room, &mut |out| give(event(side, out)));
        self.say_end(give);
    }

    /// The connection has ended: the daemon passes nothing on any more, and the kernel has marked so much. May be said
    /// again with more.
    pub fn end(&mut self, last: [Tally; 2], room: &Room, give: &mut dyn FnMut(Event)) {
        for side in SIDES {
            self.ways[side.index()].end(last[side.index()], room, &mut |out| give(event(side, out)));
        }
        self.say_end(give);
    }

    /// Whether something is missing.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.ways.iter().any(Way::is_waiting)
    }

    /// How far it is: as long as this stays the same, what is waited for has not come.
    #[must_use]
    pub fn progress(&self) -> [(u32, u32); 2] {
        self.ways.each_ref().map(Way::progress)
    }

    /// What is missing now will not come.
    pub fn give_up(&mut self, room: &Room, give: &mut dyn FnMut(Event)) {
        for side in SIDES {
            self.ways[side.index()].give_up(room, &mut |out| give(event(side, out)));
        }
        self.say_end(give);
    }

    /// Whether [`Event::Ended`] was given.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.has_ended
    }

    /// Gives back the room that it has.
    pub fn release(&mut self, room: &Room) {
        self.ways.iter_mut().for_each(|way| way.release(room));
    }

    fn say_end(&mut self, give: &mut dyn FnMut(Event)) {
        if !self.has_ended && self.ways.iter().all(Way::is_over) {
            self.has_ended = true;
            give(Event::Ended);
        }
    }
}

fn event(side: Side, out: Out) -> Event {
    match out {
        Out::Frame { index, frame } => Event::Frame { side, index, frame },
        Out::Lost { frames, cause } => Event::Lost { side, frames, cause },
    }
}

#[cfg(test)]
#[path = "assembly_tests.rs"]
mod tests;
