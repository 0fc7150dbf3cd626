//! One direction: the kernel's pieces and the daemon's own bytes, put in the order of the stream.
//!
//! The kernel numbers the packets that it copies, and the daemon says with each turn of its own how many there were
//! before ([`Local::Resume`]). So what is next is always known, whatever comes first: bytes of the daemon's wait for the
//! packets before them, and packets for those with lower numbers. A packet can't come before the daemon's bytes that it
//! follows, because the kernel is given leave only after these were put in here.
//!
//! ```text
//!   daemon's      kernel's             daemon's          kernel's
//!  ─────────────┤ packet 0, 1, 2, 3 ├─ Resume{4} ──────┤ packet 4, …
//! ```
//! What is missing is waited for until the caller says that it will not come ([`Way::give_up`]); then reading goes on at
//! the next frame's start.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use bytes::{Bytes, BytesMut};
use proxy_common::frame::SIZE_LEN;
use proxy_common::splice::mirror::{Head, Tally};

use super::Cause;
use super::assembly::Room;

/// Pieces of packets that came before their turn, at most; more of them, and what they wait for is given up.
const EARLY: usize = 64;

/// Entries of the daemon's own that wait for the kernel's packets, at most.
const QUEUE: usize = 4096;

/// Room that a frame takes at first, however long it says it is.
const FIRST: usize = 16 * 1024;

/// What a waiting entry or piece counts for, beside its bytes.
const OVERHEAD: usize = 96;

/// What the daemon passes on, or learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// A mirrored frame of so many bytes begins, size field included.
    Begin {
        /// As in [`super::Event::Frame`].
        index: Option<u32>,
        /// Bytes.
        length: u64,
    },
    /// Bytes of the mirrored frame under way.
    Bytes(Bytes),
    /// The kernel had a turn, which has ended.
    Resume {
        /// All that it marked until now.
        tally: Tally,
        /// Bytes that are left of the frame under way.
        prefix: u32,
    },
}

/// What comes out.
#[derive(Debug)]
pub(super) enum Out {
    Frame { index: Option<u32>, frame: Bytes },
    Lost { frames: u32, cause: Cause },
}

/// A mirrored frame that isn't whole.
#[derive(Debug)]
struct Open {
    index: Option<u32>,
    left: u64,
    bytes: BytesMut,
}

/// A packet of the kernel's that isn't read to its end.
#[derive(Clone, Copy, Debug)]
struct Packet {
    head: Head,
    /// Bytes read.
    read: u32,
    /// Frames begun.
    nth: u32,
    /// Bytes of a frame to pass by.
    skip: u64,
    /// A size field that isn't whole.
    size: [u8; SIZE_LEN],
    has: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Packets read, and mirrored frames begun in them.
    tally: Tally,
    open: Option<Open>,
    packet: Option<Packet>,
    /// By the packet's number.
    early: BTreeMap<u32, Vec<(Head, Bytes)>>,
    early_pieces: usize,
    queue: VecDeque<Local>,
    /// The connection has ended, and this is all there was.
    last: Option<Tally>,
    is_over: bool,
}

impl Way {
    /// The daemon passes something on.
    pub(super) fn local(&mut self, local: Local, room: &Room, out: &mut impl FnMut(Out)) {
        if self.is_over {
            return;
        }
        if self.queue.is_empty() && self.is_in_turn(&local) {
            return self.take_local(local, room, out);
        }
        let size = OVERHEAD + if let Local::Bytes(bytes) = &local { bytes.len() } else { 0 };
        let fits = self.queue.len() < QUEUE && room.take(size);
        self.queue.push_back(local);
        if !fits {
            self.collapse(size, room, out);
        }
    }

    /// A piece of the kernel's.
    pub(super) fn piece(&mut self, head: Head, bytes: &[u8], room: &Room, out: &mut impl FnMut(Out)) {
        let ahead = head.packet.wrapping_sub(self.number()) as i32;
        if self.is_over || ahead < 0 || bytes.len() != head.length as usize {
            // Given up before it came.
            return;
        }
        if ahead == 0 && self.is_next(&head) {
            self.take_piece(head, bytes, room, out);
            return self.go_on(room, out);
        }
        if ahead == 0 {
            // Later than what is missing of its own packet: nothing of that can come any more.
            return;
        }
        if !room.take(OVERHEAD + bytes.len()) {
            // As if it had not been copied.
            return;
        }
        self.early.entry(head.packet).or_default().push((head, Bytes::copy_from_slice(bytes)));
        self.early_pieces += 1;
        while self.early_pieces > EARLY {
            self.give_up(room, out);
        }
    }

    /// The connection has ended, after so much. Nothing of the daemon's comes any more.
    pub(super) fn end(&mut self, last: Tally, room: &Room, out: &mut impl FnMut(Out)) {
        self.last = Some(last);
        self.go_on(room, out);
    }

    /// Something is missing that the kernel has copied, or that was lost.
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_over
            && (self.packet.is_some() || !self.early.is_empty() || !self.queue.is_empty() || self.last.is_some())
    }

    /// Packets read, and bytes of the one that is read.
    pub(super) fn progress(&self) -> (u32, u32) {
        (self.tally.packets, self.packet.as_ref().map_or(0, |packet| packet.read))
    }

    /// Everything has come out.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// What is missing now will not come: goes on behind it.
    pub(super) fn give_up(&mut self, room: &Room, out: &mut impl FnMut(Out)) {
        if !self.is_waiting() {
            return;
        }
        if self.packet.is_some() {
            self.leave_packet(room, out);
        } else {
            let nearest = self.early.values().map(|pieces| pieces[0].0);
            let early = nearest.map(|head| Tally { packets: head.packet, frames: head.begun });
            let resume = self.queue.front().and_then(|local| match local {
                Local::Resume { tally, .. } => Some(*tally),
                Local::Begin { .. } | Local::Bytes(_) => None,
            });
            let ahead = |tally: &Tally| tally.packets.wrapping_sub(self.tally.packets);
            let next = early.chain(resume).chain(self.last).min_by_key(ahead);
            if let Some(next) = next {
                self.jump(next, room, out);
            }
        }
        self.go_on(room, out);
    }

    /// Gives back what it keeps.
    pub(super) fn release(&mut self, room: &Room) {
        self.drop_open(room);
        self.queue.drain(..).for_each(|local| room.give(weight(&local)));
        mem::take(&mut self.early).into_values().flatten().for_each(|(_, bytes)| room.give(OVERHEAD + bytes.len()));
        self.early_pieces = 0;
    }

    /// Number of the packet that is read, or comes next.
    fn number(&self) -> u32 {
        match &self.packet {
            Some(packet) => packet.head.packet,
            None => self.tally.packets,
        }
    }

    /// Whether the piece is the next one of its packet.
    fn is_next(&self, head: &Head) -> bool {
        head.from == self.packet.as_ref().map_or(0, |packet| packet.read)
    }

    fn is_in_turn(&self, local: &Local) -> bool {
        match local {
            Local::Resume { tally, .. } => {
                self.packet.is_none() && tally.packets.wrapping_sub(self.tally.packets) as i32 <= 0
            }
            Local::Begin { .. } | Local::Bytes(_) => true,
        }
    }

    /// Takes whatever is in its turn now.
    fn go_on(&mut self, room: &Room, out: &mut impl FnMut(Out)) {
        loop {
            while self.queue.front().is_some_and(|local| self.is_in_turn(local)) {
                if let Some(local) = self.queue.pop_front() {
                    room.give(weight(&local));
                    self.take_local(local, room, out);
                }
            }
            let number = self.number();
            let Some(pieces) = self.early.remove(&number) else { break };
            self.early_pieces -= pieces.len();
            for (head, bytes) in pieces {
                room.give(OVERHEAD + bytes.len());
                if head.packet == self.number() && self.is_next(&head) {
                    self.take_piece(head, &bytes, room, out);
                }
            }
        }
        let is_all = self.last.is_some_and(|last| last.packets.wrapping_sub(self.tally.packets) as i32 <= 0);
        if is_all && self.packet.is_none() && self.queue.is_empty() && !self.is_over {
            self.lose_open(Cause::Cut, room, out);
            self.is_over = true;
            self.release(room);
        }
    }

    fn take_local(&mut self, local: Local, room: &Room, out: &mut impl FnMut(Out)) {
        match local {
            Local::Begin { index, length } => self.begin(index, length, room, out),
            Local::Bytes(bytes) => self.fill(&bytes, room, out),
            Local::Resume { prefix, .. } => {
                if self.open.as_ref().is_some_and(|open| open.left != u64::from(prefix)) {
                    self.lose_open(Cause::Torn, room, out);
                }
            }
        }
    }

    fn take_piece(&mut self, head: Head, bytes: &[u8], room: &Room, out: &mut impl FnMut(Out)) {
        let mut packet = match self.packet.take() {
            Some(packet) => packet,
            None => self.enter(head, room, out),
        };
        packet.read += head.length;
        let mut rest = bytes;
        while !rest.is_empty() {
            if packet.skip > 0 {
                let n = packet.skip.min(rest.len() as u64) as usize;
                // Passed by, or of the frame that is open.
                self.fill(&rest[..n], room, out);
                packet.skip -= n as u64;
                rest = &rest[n..];
                continue;
            }
            let n = (SIZE_LEN - packet.has).min(rest.len());
            packet.size[packet.has..packet.has + n].copy_from_slice(&rest[..n]);
            packet.has += n;
            rest = &rest[n..];
            if packet.has < SIZE_LEN {
                break;
            }
            packet.has = 0;
            packet.skip = u64::from(u32::from_be_bytes(packet.size));
            if is_mirrored(&packet.head, packet.nth) {
                let index = packet.head.frames.wrapping_add(packet.nth);
                self.begin(Some(index), SIZE_LEN as u64 + packet.skip, room, out);
                let size = packet.size;
                self.fill(&size, room, out);
            }
            packet.nth += 1;
        }
        if packet.read < packet.head.total {
            self.packet = Some(packet);
        } else {
            self.close(&packet.head);
        }
    }

    /// A packet's first piece.
    fn enter(&mut self, head: Head, room: &Room, out: &mut impl FnMut(Out)) -> Packet {
        let goes_on = self.open.as_ref().is_some_and(|open| open.left == u64::from(head.remain) && head.continues == 1);
        if !goes_on {
            self.lose_open(Cause::Torn, room, out);
        }
        Packet { head, read: 0, nth: 0, skip: head.remain.into(), size: [0; SIZE_LEN], has: 0 }
    }

    /// A packet is done with.
    const fn close(&mut self, head: &Head) {
        self.tally.packets = head.packet.wrapping_add(1);
        self.tally.frames = head.begun.wrapping_add(head.mirrored.count_ones());
    }

    /// The rest of the packet is missing.
    fn leave_packet(&mut self, room: &Room, out: &mut impl FnMut(Out)) {
        let Some(packet) = self.packet.take() else { return };
        self.lose_open(Cause::Ring, room, out);
        let begun = packet.head.mirrored.checked_shr(packet.nth).unwrap_or(0);
        lose(begun.count_ones(), Cause::Ring, out);
        self.close(&packet.head);
    }

    /// All packets up to there are missing.
    fn jump(&mut self, to: Tally, room: &Room, out: &mut impl FnMut(Out)) {
        if to.packets == self.tally.packets {
            return;
        }
        self.lose_open(Cause::Ring, room, out);
        lose(to.frames.wrapping_sub(self.tally.frames), Cause::Ring, out);
        self.tally = to;
    }

    fn begin(&mut self, index: Option<u32>, length: u64, room: &Room, out: &mut impl FnMut(Out)) {
        self.lose_open(Cause::Torn, room, out);
        let capacity = (length.min(FIRST as u64)) as usize;
        self.open = Some(Open { index, left: length, bytes: BytesMut::with_capacity(capacity) });
    }

    /// Bytes of the open frame; without one they are of a frame that is lost, or none that is wanted.
    fn fill(&mut self, bytes: &[u8], room: &Room, out: &mut impl FnMut(Out)) {
        let Some(open) = &mut self.open else { return };
        if bytes.len() as u64 > open.left {
            return self.lose_open(Cause::Torn, room, out);
        }
        if !room.take(bytes.len()) {
            return self.lose_open(Cause::Memory, room, out);
        }
        open.bytes.extend_from_slice(bytes);
        open.left -= bytes.len() as u64;
        if open.left == 0
            && let Some(Open { index, bytes, .. }) = self.open.take()
        {
            room.give(bytes.len());
            out(Out::Frame { index, frame: bytes.freeze() });
        }
    }

    fn drop_open(&mut self, room: &Room) -> bool {
        let open = self.open.take();
        open.iter().for_each(|open| room.give(open.bytes.len()));
        open.is_some()
    }

    fn lose_open(&mut self, cause: Cause, room: &Room, out: &mut impl FnMut(Out)) {
        if self.drop_open(room) {
            lose(1, cause, out);
        }
    }

    /// There is no room for what waits: of it, only where the daemon is in the kernel's count is kept. `unpaid`: what the
    /// last entry would have taken.
    fn collapse(&mut self, unpaid: usize, room: &Room, out: &mut impl FnMut(Out)) {
        let mut frames = 0;
        let mut latest = None;
        let mut weights = 0;
        for local in self.queue.drain(..) {
            weights += weight(&local);
            match local {
                Local::Begin { .. } => frames += 1,
                Local::Bytes(_) => {}
                Local::Resume { .. } => latest = Some(local),
            }
        }
        room.give(weights - unpaid);
        lose(frames, Cause::Memory, out);
        // The bytes of a frame that was to be finished by the daemon are gone with it; what the kernel has of it comes.
        if let Some(Local::Resume { tally, .. }) = latest {
            let local = Local::Resume { tally, prefix: u32::MAX };
            room.force(weight(&local));
            self.queue.push_back(local);
        }
    }
}

fn lose(frames: u32, cause: Cause, out: &mut impl FnMut(Out)) {
    if frames > 0 {
        out(Out::Lost { frames, cause });
    }
}

fn is_mirrored(head: &Head, nth: u32) -> bool {
    head.mirrored.checked_shr(nth).is_some_and(|bits| bits & 1 == 1)
}

fn weight(local: &Local) -> usize {
    OVERHEAD + if let Local::Bytes(bytes) = local { bytes.len() } else { 0 }
}
