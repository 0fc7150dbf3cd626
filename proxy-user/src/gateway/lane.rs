//! One direction of a connection: the bytes read and the order in which they leave.
//!
//! ```text
//!   read ──► [ done | waiting to be written | parsed …  | not parsed yet | free ]
//!                    └─ pieces: Raw ranges of this buffer, and frames made by the gateway between them
//! ```
//!
//! Bytes that are only passed on are never copied: what the socket filled is what the other socket reads, as
//! ranges of the same buffer. Frames the gateway rewrites or makes itself are pieces of their own between them.
//! The buffer is borrowed from a pool while bytes are under way, so an idle connection holds none.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

use super::pool;

/// Bytes of a lane's buffer. Holds the longest request header that is looked at (two strings of 32 767 bytes).
pub(crate) const CAPACITY: usize = 128 * 1024;

/// Most pieces handed to one `writev`.
pub(crate) const MAX_SLICES: usize = 16;

/// Room for pieces that an idle lane keeps.
const KEPT_PIECES: usize = 16;

#[derive(Debug)]
enum Piece {
    /// A range of the lane's buffer.
    Raw(Range<usize>),
    /// A frame made by the gateway.
    Owned(Bytes),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Raw(range) => range.len(),
            Self::Owned(bytes) => bytes.len(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    buffer: Option<Box<[u8]>>,
    /// Everything before this has been handed to `out`, skipped or copied elsewhere.
    parsed: usize,
    /// Everything before this has been read from the socket.
    filled: usize,
    out: VecDeque<Piece>,
    waiting: usize,
}

impl Lane {
    /// Where the next bytes may be read to; empty while everything is occupied by bytes that wait to be written.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.compact();
        let buffer = self.buffer.get_or_insert_with(pool::take);
        &mut buffer[self.filled..]
    }

    /// Whether more may be read now. [`space`](Self::space) isn't empty then.
    pub(crate) fn has_space(&self) -> bool {
        !self.is_backed_up() && (self.filled < CAPACITY || self.movable())
    }

    /// So much waits to be written that nothing may be added that can be put off. Frames made by the gateway are
    /// outside of the buffer, so its size alone does not bound them.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.waiting >= CAPACITY
    }

    /// The unparsed bytes take the whole buffer, so they will never be more.
    pub(crate) fn is_full_of_unparsed(&self) -> bool {
        self.filled - self.parsed == CAPACITY
    }

    /// `n` bytes were read into [`space`](Self::space).
    pub(crate) fn filled(&mut self, n: usize) {
        self.filled += n;
        debug_assert!(self.filled <= CAPACITY);
    }

    /// Bytes read and not yet looked at.
    pub(crate) fn unparsed(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |b| &b[self.parsed..self.filled])
    }

    /// The same, to be changed in place (length-preserving rewrites).
    pub(crate) fn unparsed_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |b| &mut b[self.parsed..self.filled])
    }

    /// Passes on the next `n` unparsed bytes as they are.
    pub(crate) fn forward(&mut self, n: usize) {
        debug_assert!(n <= self.filled - self.parsed);
        if n == 0 {
            return;
        }
        let range = self.parsed..self.parsed + n;
        self.parsed = range.end;
        self.waiting += n;
        match self.out.back_mut() {
            Some(Piece::Raw(last)) if last.end == range.start => last.end = range.end,
            _ => self.out.push_back(Piece::Raw(range)),
        }
    }

    /// Leaves out the next `n` unparsed bytes.
    pub(crate) fn skip(&mut self, n: usize) {
        debug_assert!(n <= self.filled - self.parsed);
        self.parsed += n;
    }

    /// Sends a frame made by the gateway after everything passed on so far.
    pub(crate) fn push(&mut self, frame: Bytes) {
        if !frame.is_empty() {
            self.waiting += frame.len();
            self.out.push_back(Piece::Owned(frame));
        }
    }

    /// All that was read was passed on, and all of that was written.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.parsed == self.filled
    }

    /// Bytes waiting to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// What to write next, in order. Returns how many of `slices` are set.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let raw: &[u8] = self.buffer.as_deref().unwrap_or_default();
        let mut used = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.out) {
            *slot = IoSlice::new(match piece {
                Piece::Raw(range) => &raw[range.clone()],
                Piece::Owned(bytes) => bytes,
            });
            used += 1;
        }
        used
    }

    /// `n` bytes of [`slices`](Self::slices) were written.
    pub(crate) fn wrote(&mut self, mut n: usize) {
        debug_assert!(n <= self.waiting);
        self.waiting -= n;
        while n > 0 {
            let Some(front) = self.out.front_mut() else { break };
            let len = front.len();
            if n >= len {
                n -= len;
                self.out.pop_front();
                continue;
            }
            match front {
                Piece::Raw(range) => range.start += n,
                Piece::Owned(bytes) => drop(bytes.split_to(n)),
            }
            break;
        }
        if self.filled == self.parsed && self.movable() {
            self.parsed = 0;
            self.filled = 0;
        }
    }

    /// Gives the buffer back while it holds nothing.
    pub(crate) fn release(&mut self) {
        if self.filled == self.parsed && self.movable() {
            self.parsed = 0;
            self.filled = 0;
            if let Some(buffer) = self.buffer.take() {
                pool::give(buffer);
            }
        }
        if self.out.is_empty() && self.out.capacity() > KEPT_PIECES {
            self.out = VecDeque::new();
        }
    }

    /// No range of the buffer waits to be written, so its bytes may move.
    fn movable(&self) -> bool {
        self.filled == 0 || self.parsed > 0 && !self.out.iter().any(|piece| matches!(piece, Piece::Raw(_)))
    }

    /// Moves the unparsed rest to the front once the buffer is full.
    fn compact(&mut self) {
        if self.filled == CAPACITY && self.movable() {
            if let Some(buffer) = &mut self.buffer {
                buffer.copy_within(self.parsed..self.filled, 0);
            }
            self.filled -= self.parsed;
            self.parsed = 0;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            pool::give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(lane: &mut Lane, bytes: &[u8]) -> usize {
        let space = lane.space();
        let n = bytes.len().min(space.len());
        space[..n].copy_from_slice(&bytes[..n]);
        lane.filled(n);
        n
    }

    fn write(lane: &mut Lane, most: usize) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let used = lane.slices(&mut slices);
        let mut bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).collect();
        bytes.truncate(most);
        lane.wrote(bytes.len());
        bytes
    }

    #[test]
    fn gateway_frames_leave_between_the_bytes_around_them() {
        let mut lane = Lane::default();
        read(&mut lane, b"aaXXbb");
        lane.forward(2);
        lane.skip(2);
        lane.push(Bytes::from_static(b"12345"));
        lane.forward(2);
        assert_eq!(lane.waiting(), 9);
        assert_eq!(write(&mut lane, 4), b"aa12");
        assert_eq!(write(&mut lane, 100), b"345bb");
        assert_eq!(lane.waiting(), 0);
    }

    #[test]
    fn an_idle_lane_holds_no_buffer() {
        let mut lane = Lane::default();
        read(&mut lane, b"abc");
        lane.forward(3);
        lane.release();
        assert!(lane.buffer.is_some(), "bytes wait to be written");
        write(&mut lane, 3);
        lane.release();
        assert!(lane.buffer.is_none());
    }

    #[test]
    fn a_full_buffer_of_waiting_bytes_offers_no_space() {
        let mut lane = Lane::default();
        let bytes = vec![7u8; CAPACITY];
        assert_eq!(read(&mut lane, &bytes), CAPACITY);
        lane.forward(CAPACITY - 1);
        assert!(!lane.has_space());
        assert!(lane.space().is_empty());
        write(&mut lane, CAPACITY);
        assert!(lane.has_space());
        assert_eq!(lane.space().len(), CAPACITY - 1);
        assert_eq!(lane.unparsed(), [7]);
    }

    #[test]
    fn frames_outside_of_the_buffer_are_bounded_too() {
        let mut lane = Lane::default();
        read(&mut lane, b"abc");
        lane.skip(3);
        lane.push(Bytes::from(vec![0; CAPACITY - 1]));
        assert!(lane.has_space());
        lane.push(Bytes::from_static(b"x"));
        assert!(!lane.has_space() && lane.is_backed_up());
        write(&mut lane, 1);
        assert!(lane.has_space());
    }

    #[test]
    fn an_idle_lane_keeps_no_room_for_a_burst_of_pieces() {
        let mut lane = Lane::default();
        for _ in 0..1000 {
            lane.push(Bytes::from_static(b"x"));
        }
        while lane.waiting() > 0 {
            write(&mut lane, usize::MAX);
        }
        lane.release();
        assert!(lane.out.capacity() <= KEPT_PIECES);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Read(usize),
        Forward(usize),
        Skip(usize),
        Push(usize),
        Write(usize),
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..200_000usize).prop_map(Step::Read),
            (0..200_000usize).prop_map(Step::Forward),
            (0..2_000usize).prop_map(Step::Skip),
            (0..2_000usize).prop_map(Step::Push),
            (0..200_000usize).prop_map(Step::Write),
            Just(Step::Release),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_byte_leaves_once_and_in_order(steps in prop::collection::vec(step(), 1..200)) {
            let mut lane = Lane::default();
            let mut next_in = 0u32;
            let mut unparsed: VecDeque<u8> = VecDeque::new();
            let mut expected: Vec<u8> = Vec::new();
            let mut written: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Read(n) => {
                        let bytes: Vec<u8> = (0..n).map(|i| (next_in.wrapping_add(i as u32) % 251) as u8).collect();
                        let took = read(&mut lane, &bytes);
                        next_in = next_in.wrapping_add(took as u32);
                        unparsed.extend(&bytes[..took]);
                    }
                    Step::Forward(n) => {
                        let n = n.min(unparsed.len());
                        expected.extend(unparsed.drain(..n));
                        lane.forward(n);
                    }
                    Step::Skip(n) => {
                        let n = n.min(unparsed.len());
                        unparsed.drain(..n);
                        lane.skip(n);
                    }
                    Step::Push(n) => {
                        expected.extend(std::iter::repeat_n(255, n));
                        lane.push(Bytes::from(vec![255; n]));
                    }
                    Step::Write(n) => written.extend(write(&mut lane, n)),
                    Step::Release => lane.release(),
                }
                prop_assert_eq!(lane.unparsed().len(), unparsed.len());
                prop_assert!(!lane.has_space() || !lane.space().is_empty(), "an empty read would pass for a FIN");
                prop_assert_eq!(lane.waiting(), expected.len() - written.len());
            }
            while lane.waiting() > 0 {
                written.extend(write(&mut lane, usize::MAX));
            }
            prop_assert!(written == expected);
        }
    }
}
