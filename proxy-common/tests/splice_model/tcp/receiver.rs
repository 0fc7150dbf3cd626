// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The receiving half: what was received, what is missing, and the window.

use std::collections::{BTreeMap, VecDeque};

use super::{Config, place};

/// Most blocks of a SACK option beside no other option.
const MAX_BLOCKS: usize = 4;

/// What became of the bytes and the FIN of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// There were none.
    Empty,
    /// They extend the stream; perhaps they closed a gap before others.
    InOrder { closed_gap: bool },
    /// Kept until those before them come.
    OutOfOrder,
    /// All of them were here.
    Duplicate,
    /// None of them lies in the window, or the buffer is full.
    NoRoom,
}

/// The receiving half of an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// `rcv_nxt`.
    next: u64,
    /// `rcv_wup`: `next` when the last acknowledgment was sent.
    told: u64,
    /// `rcv_wnd`: the window it carried, in bytes.
    window: u64,
    largest_window: u64,
    scale: u8,
    mss: u64,
    buffer: u64,
    unread: VecDeque<u8>,
    /// Received with something missing before: disjoint, never adjacent, by place.
    early: BTreeMap<u64, Vec<u8>>,
    /// Places of those that changed last, newest first.
    recent: Vec<u64>,
    /// Place of the peer's FIN once it was seen.
    fin: Option<u64>,
    /// What came a second time, to be reported once (D-SACK, RFC 2883).
    repeated: Option<(u64, u64)>,
    /// An arrival found no memory: the next acknowledgment says so.
    starved: bool,
    /// It has closed a window that it had promised, for want of memory.
    broke_promise: bool,
}

impl Receiver {
    pub(super) fn new(own: &Config, peer_seq: u32) -> Self {
        let next = place::first(peer_seq);
        Self {
            next,
            told: next,
            window: own.first_window(),
            largest_window: own.largest_window(),
            scale: own.scale,
            mss: own.mss as u64,
            buffer: own.receive_buffer as u64,
            unread: VecDeque::new(),
            early: BTreeMap::new(),
            recent: vec![],
            fin: None,
            repeated: None,
            starved: false,
            broke_promise: false,
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes received since the last acknowledgment was sent.
    pub(super) fn untold(&self) -> u64 {
        self.next - self.told
    }

    pub(super) fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Whether something before what was received is missing.
    pub(super) fn has_gap(&self) -> bool {
        !self.early.is_empty() || self.fin.is_some_and(|at| at >= self.next)
    }

    /// Whether all was received, the FIN too.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|at| at < self.next)
    }

    /// What is left of the window that the peer was told.
    pub(super) fn available(&self) -> u64 {
        (self.told + self.window).saturating_sub(self.next)
    }

    /// Whether a segment is one to look at (RFC 9293, 3.10.7.4, as `tcp_sequence` has it).
    pub(super) fn accepts(&self, start: u64, end: u64) -> bool {
        end >= self.told && start <= self.next + self.available()
    }

    /// The end of the last byte that was received, with gaps before it (`rst_seq_match`).
    pub(super) fn last_early(&self) -> Option<u64> {
        self.early.last_key_value().map(|(at, bytes)| at + bytes.len() as u64)
    }

    /// Takes what [`Self::accepts`] accepted.
    pub(super) fn take(&mut self, start: u64, payload: &[u8], fin: bool) -> Arrival {
        if payload.is_empty() && !fin {
            return Arrival::Empty;
        }
        let data_end = start + payload.len() as u64;
        // Nothing can follow a FIN, and it has one place.
        let (data_end, fin) = match self.fin {
            Some(at) if data_end > at => (at, true),
            Some(at) => (data_end, fin && data_end == at),
            None => (data_end, fin),
        };
        let end = data_end + u64::from(fin);
        if end <= self.next.max(start) {
            self.note_repeated(start, end);
            return Arrival::Duplicate;
        }
        let is_bare_fin = payload.is_empty() && start == self.next;
        let edge = self.next + self.available();
        if start.max(self.next) >= edge && !is_bare_fin {
            return Arrival::NoRoom;
        }
        let end = if is_bare_fin { end } else { end.min(edge) };
        let from = start.max(self.next);
        let payload = &payload[(from - start) as usize..(end.min(data_end) - start) as usize];
        if !self.make_room(payload.len() as u64, start <= self.next) {
            return Arrival::NoRoom;
        }
        let closed_gap = self.has_gap();
        if fin && end == data_end + 1 {
            self.fin = Some(data_end);
        }
        if from > self.next {
            if self.has_early(from, end) {
                self.repeated = Some((from, end));
            }
            self.keep(from, payload);
            return Arrival::OutOfOrder;
        }
        self.note_repeated(start, from);
        self.unread.extend(payload);
        self.next += payload.len() as u64;
        self.join();
        Arrival::InOrder { closed_gap }
    }

    /// Notes what arrived though it was received before, in order; nothing if `end` isn't after `start`.
    pub(super) fn note_repeated(&mut self, start: u64, end: u64) {
        let end = end.min(self.next);
        if start < end {
            self.repeated = Some((start, end));
        }
    }

    /// Whether all of this is held, with something missing before.
    fn has_early(&self, start: u64, end: u64) -> bool {
        let before = self.early.range(..=start).next_back();
        before.is_some_and(|(at, bytes)| end <= at + bytes.len() as u64)
    }

    /// Whether so much more may be held. Bytes in order push out those that wait for others (`tcp_prune_queue`), and if
    /// that isn't enough, the window closes.
    fn make_room(&mut self, more: u64, in_order: bool) -> bool {
        let limit = self.buffer.next_multiple_of(1 << self.scale);
        while in_order && self.held() + more > limit && self.early.pop_last().is_some() {}
        self.recent.retain(|at| self.early.contains_key(at));
        let fits = self.held() + more <= limit;
        self.starved |= in_order && !fits;
        fits
    }

    fn held(&self) -> u64 {
        (self.unread.len() + self.early.values().map(Vec::len).sum::<usize>()) as u64
    }

    /// Keeps bytes that are early; those that were here first stay.
    fn keep(&mut self, start: u64, payload: &[u8]) {
        if payload.is_empty() {
            return;
        }
        let before = self.early.range(..=start).next_back();
        let before = before.filter(|(at, held)| **at + held.len() as u64 >= start).map(|(at, _)| *at);
        let at = before.unwrap_or(start);
        let mut bytes = self.early.remove(&at).unwrap_or_default();
        let known = bytes.len() - (start - at) as usize;
        bytes.extend_from_slice(payload.get(known..).unwrap_or_default());
        while let Some(after) = self.early.range(at..=at + bytes.len() as u64).next().map(|(after, _)| *after) {
            let held = self.early.remove(&after).unwrap_or_default();
            let (shared, rest) = held.split_at(held.len().min(bytes.len() - (after - at) as usize));
            bytes[(after - at) as usize..][..shared.len()].copy_from_slice(shared);
            bytes.extend_from_slice(rest);
        }
        self.early.insert(at, bytes);
        self.recent.retain(|other| *other != at && self.early.contains_key(other));
        self.recent.insert(0, at);
        self.recent.truncate(MAX_BLOCKS);
    }

    /// Appends what is no longer early.
    fn join(&mut self) {
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() <= self.next) {
            let (at, bytes) = entry.remove_entry();
            let new = bytes.get((self.next - at) as usize..).unwrap_or_default();
            self.unread.extend(new);
            self.next += new.len() as u64;
        }
        self.recent.retain(|at| self.early.contains_key(at));
        if self.fin == Some(self.next) {
            self.next += 1;
        }
    }

    /// Takes up to `max` bytes for the application.
    pub(super) fn read(&mut self, max: usize) -> Vec<u8> {
        self.unread.drain(..max.min(self.unread.len())).collect()
    }

    /// The window there is memory for, without regard to what was promised (`__tcp_select_window`).
    pub(super) fn selected(&self) -> u64 {
        let free = self.buffer.saturating_sub(self.held());
        let full = self.buffer.min(self.largest_window);
        let mss = self.mss.min(full);
        if free < full / 2 && (free < self.buffer / 16 || free < mss) {
            return 0;
        }
        if self.scale > 0 {
            return free.next_multiple_of(1 << self.scale).min(self.largest_window);
        }
        let changes = self.window <= free.saturating_sub(mss) || self.window > free;
        let reopens = mss == full && free > self.window + full / 2;
        match (changes, reopens) {
            (true, _) => (free / mss * mss).min(self.largest_window),
            (false, true) => free.min(self.largest_window),
            (false, false) => self.window,
        }
    }

    /// Whether reading has opened the window so far that the peer must hear of it (`__tcp_cleanup_rbuf`).
    pub(super) fn must_tell_window(&self) -> bool {
        let now = self.available();
        let new = self.selected();
        2 * now <= self.buffer.min(self.largest_window) && new > 0 && new >= 2 * now
    }

    /// Whether the window that would be told isn't smaller than the last.
    pub(super) fn window_keeps_up(&self) -> bool {
        self.selected() >= self.window
    }

    /// The window field of a segment about to be sent, which also acknowledges everything (`tcp_select_window`).
    pub(super) fn tell(&mut self) -> u16 {
        let promised = self.available().next_multiple_of(1 << self.scale);
        // Without memory the promise is broken: Linux shrinks the window, to zero.
        self.broke_promise |= self.starved;
        let window = if self.starved { 0 } else { self.selected().max(promised).min(self.largest_window) };
        self.starved = false;
        self.repeated = None;
        self.told = self.next;
        self.window = window;
        (window >> self.scale) as u16
    }

    /// Whether it has closed a window that it had promised.
    pub(super) fn broke_promise(&self) -> bool {
        self.broke_promise
    }

    /// The blocks of the SACK option: what came twice, then what is early, newest first.
    pub(super) fn blocks(&self) -> Vec<(u32, u32)> {
        let block = |at: &u64| {
            let end = *at + self.early.get(at).map_or(0, Vec::len) as u64;
            let end = if self.fin == Some(end) { end + 1 } else { end };
            (*at as u32, end as u32)
        };
        let repeated = self.repeated.map(|(start, end)| (start as u32, end as u32));
        repeated.into_iter().chain(self.recent.iter().map(block)).take(MAX_BLOCKS).collect()
    }
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod tests;
