// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Both halves together: which segments are taken, when to acknowledge, and how a connection ends.
//!
//! ```text
//!                  shutdown                FIN acknowledged
//!   Established ──────────────► FinWait1 ───────────────────► FinWait2
//!        │ FIN                     │ FIN                         │ FIN
//!        ▼         shutdown        ▼        FIN acknowledged     ▼
//!    CloseWait ──► LastAck      Closing ──────────────────────► TimeWait
//!                     └─ FIN acknowledged ─► Closed
//!   any, but TimeWait and Closed: RST, abort or silence ─► Failed
//! ```

use super::receiver::{Arrival, Receiver};
use super::sender::{Ack, BadAck, Burst, Sender};
use super::{ACK, Config, FIN, MILLI, Micros, PSH, RST, SYN, Segment, Socket, place};

/// How long an acknowledgment is delayed at most (TCP_DELACK_MIN).
const DELAY: Micros = 40 * MILLI;
/// Least time between two answers to segments that aren't taken (net.ipv4.tcp_invalid_ratelimit).
const ANSWER_INTERVAL: Micros = 500 * MILLI;
/// Acknowledgments sent at once after something odd (TCP_MAX_QUICKACKS).
const QUICK_ACKS: u32 = 16;

/// Where the connection stands (RFC 9293, 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Established,
    CloseWait,
    FinWait1,
    FinWait2,
    Closing,
    LastAck,
    TimeWait,
    Closed,
    Failed(Failure),
}

/// Why a connection ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// ECONNRESET.
    ResetByPeer,
    /// ETIMEDOUT.
    TimedOut,
    /// Given up by its own application.
    Aborted,
}

/// What a segment was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its acknowledgment counts, and whatever of its bytes was new and had room was taken.
    Accepted,
    /// The checksum is wrong: dropped.
    Damaged,
    /// Its sequence number lies outside the window: dropped, and answered (with restraint).
    OutOfWindow,
    /// A SYN, a RST at another place than the next, or an acknowledgment that can't be: dropped, and perhaps answered.
    Challenged,
    /// Neither ACK nor RST nor SYN: dropped.
    Meaningless,
    /// It ended the connection.
    Reset,
    /// There was no connection any more.
    NoConnection,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    local: Socket,
    remote: Socket,
    receiver: Receiver,
    sender: Sender,
    own_scale: u8,
    peer_scale: u8,
    sack: bool,
    mss: u64,
    answers_unsent_acks: bool,
    failure: Option<Failure>,
    /// It sent its FIN before it received the peer's.
    closed_first: bool,
    /// A RST to send.
    reset: Option<Segment>,
    /// Answers to send whatever else is sent.
    answers: u32,
    last_answer: Option<Micros>,
    /// Something is to be acknowledged, at the latest at `ack_at`, or now.
    ack_pending: bool,
    ack_now: bool,
    ack_at: Option<Micros>,
    /// What is to be acknowledged ended with PSH or a short packet: its sender has said all for now.
    pushed: bool,
    /// Acknowledgments that won't be delayed, unless the connection is seen to be a dialogue.
    quick: u32,
    dialogue: bool,
    last_received: Option<Micros>,
}

impl Endpoint {
    /// The end of `own` in a connection with `peer`.
    pub(crate) fn new(own: &Config, peer: &Config) -> Self {
        Self {
            local: own.socket,
            remote: peer.socket,
            receiver: Receiver::new(own, peer.seq),
            sender: Sender::new(own, peer),
            own_scale: own.scale,
            peer_scale: peer.scale,
            sack: own.sack && peer.sack,
            mss: own.mss as u64,
            answers_unsent_acks: own.answers_unsent_acks,
            failure: None,
            closed_first: false,
            reset: None,
            answers: 0,
            last_answer: None,
            ack_pending: false,
            ack_now: false,
            ack_at: None,
            pushed: false,
            quick: own.quick_acks,
            dialogue: false,
            last_received: None,
        }
    }

    // What the application does.

    /// Takes as many of the bytes as there is room for, and says how many.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        if self.failure.is_some() { 0 } else { self.sender.write(bytes) }
    }

    /// Up to `max` bytes received; what was received before a failure can still be read.
    pub(crate) fn read(&mut self, max: usize) -> Vec<u8> {
        let bytes = self.receiver.read(max);
        if !bytes.is_empty() {
            let waits = self.ack_pending && self.receiver.untold() > self.mss;
            let drained = self.pushed && !self.dialogue && self.receiver.unread() == 0;
            let opened = !self.receiver.is_finished() && self.receiver.must_tell_window();
            self.ack_now |= waits || drained || opened;
        }
        bytes
    }

    /// Sends FIN after all that was written (SHUT_WR).
    pub(crate) fn shutdown(&mut self) {
        if !self.sender.has_fin() {
            self.closed_first = !self.receiver.is_finished();
            self.sender.finish();
        }
    }

    /// Ends the connection with RST.
    pub(crate) fn abort(&mut self) {
        if self.is_gone() {
            return;
        }
        let seq = self.sender.bare_seq(self.own_scale) as u32;
        self.reset = Some(Segment::bare(self.local, self.remote, RST | ACK, seq, self.rcv_nxt()));
        self.fail(Failure::Aborted);
    }

    // What it and the daemon ask.

    pub(crate) fn state(&self) -> State {
        if let Some(failure) = self.failure {
            return State::Failed(failure);
        }
        match (self.sender.has_fin(), self.sender.is_finished(), self.receiver.is_finished()) {
            (false, _, false) => State::Established,
            (false, _, true) => State::CloseWait,
            (true, false, false) => State::FinWait1,
            (true, true, false) => State::FinWait2,
            (true, false, true) if self.closed_first => State::Closing,
            (true, false, true) => State::LastAck,
            (true, true, true) if self.closed_first => State::TimeWait,
            (true, true, true) => State::Closed,
        }
    }

    /// Whether all was received and read that the peer had to send.
    pub(crate) fn at_end(&self) -> bool {
        self.receiver.is_finished() && self.receiver.unread() == 0
    }

    /// Whether it has closed a window that it had promised, for want of memory.
    pub(crate) fn broke_promise(&self) -> bool {
        self.receiver.broke_promise()
    }

    /// Number of the next byte expected (`rcv_nxt`).
    pub(crate) fn rcv_nxt(&self) -> u32 {
        self.receiver.next() as u32
    }

    /// Bytes received and not read (SIOCINQ).
    pub(crate) fn unread(&self) -> usize {
        self.receiver.unread()
    }

    /// Number after the last byte written, the FIN included (TCP_QUEUE_SEQ of the send queue).
    pub(crate) fn write_seq(&self) -> u32 {
        self.sender.end() as u32
    }

    /// Number of the first byte that isn't acknowledged.
    pub(crate) fn snd_una(&self) -> u32 {
        self.sender.una() as u32
    }

    /// Number of the next byte to be sent for the first time.
    pub(crate) fn snd_nxt(&self) -> u32 {
        self.sender.next() as u32
    }

    /// Bytes written and not acknowledged, the FIN included (SIOCOUTQ).
    pub(crate) fn unacked(&self) -> usize {
        (self.sender.end() - self.sender.una()) as usize
    }

    /// The peer's window as last heard, in bytes from [`Self::snd_una`] on.
    pub(crate) fn snd_wnd(&self) -> u64 {
        self.sender.window()
    }

    // What the network does.

    /// Takes a segment.
    pub(crate) fn on_segment(&mut self, now: Micros, segment: &Segment) -> Outcome {
        if !segment.checksum_ok {
            return Outcome::Damaged;
        }
        if self.is_gone() {
            self.refuse(segment);
            return Outcome::NoConnection;
        }
        let start = place::find(self.receiver.next(), segment.seq);
        let end = start + segment.len() as u64;
        if !self.receiver.accepts(start, end) {
            return self.on_unacceptable(now, segment, start);
        }
        if segment.has(RST) {
            let matches = start == self.receiver.next() || self.sack && self.receiver.last_early() == Some(start);
            return if matches { self.on_reset() } else { self.challenge(now) };
        }
        if segment.has(SYN) {
            return self.challenge(now);
        }
        if !segment.has(ACK) {
            return Outcome::Meaningless;
        }
        if let Err(bad) = self.on_ack(now, segment, start) {
            let silent = bad == BadAck::Unsent && self.state() == State::Established && !self.answers_unsent_acks;
            return if silent { Outcome::Challenged } else { self.challenge(now) };
        }
        self.on_data(now, segment, start);
        Outcome::Accepted
    }

    /// The next segment to send at `now`, if there is one.
    pub(crate) fn poll(&mut self, now: Micros) -> Option<Segment> {
        if let Some(reset) = self.reset.take() {
            return Some(reset);
        }
        if self.is_gone() {
            return None;
        }
        self.sender.fire(now);
        if self.sender.has_given_up() {
            self.fail(Failure::TimedOut);
            return None;
        }
        self.ack_now |= self.ack_at.is_some_and(|at| at <= now);
        if self.answers > 0 {
            self.answers -= 1;
            return Some(self.pure_ack());
        }
        let sack = self.blocks();
        let options = if sack.is_empty() { 0 } else { 4 + 8 * sack.len() as u64 };
        if let Some(burst) = self.sender.poll(now, (self.mss - options.min(self.mss - 1)).max(1)) {
            // A reply right after something came in makes it a dialogue.
            self.dialogue |= self.last_received.is_some_and(|at| now - at < DELAY) && !burst.payload.is_empty();
            return Some(self.segment(burst, sack));
        }
        self.ack_now.then(|| self.pure_ack())
    }

    /// When to poll again though nothing has happened.
    pub(crate) fn next_timer(&self) -> Option<Micros> {
        let timers = [self.sender.next_timer(), self.ack_at];
        if self.is_gone() { None } else { timers.into_iter().flatten().min() }
    }

    fn is_gone(&self) -> bool {
        matches!(self.state(), State::Closed | State::Failed(_))
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// Answers a segment without a connection (RFC 9293, 3.10.7.1).
    fn refuse(&mut self, segment: &Segment) {
        if segment.has(RST) {
            return;
        }
        let (flags, seq, ack) = if segment.has(ACK) { (RST, segment.ack, 0) } else { (RST | ACK, 0, segment.end()) };
        self.reset = Some(Segment::bare(self.local, self.remote, flags, seq, ack));
    }

    fn on_unacceptable(&mut self, now: Micros, segment: &Segment, start: u64) -> Outcome {
        if segment.has(RST) {
            // A peer that ended may reset with the sequence number of its FIN (`tcp_reset_check`).
            let after_fin = matches!(self.state(), State::CloseWait | State::LastAck | State::Closing);
            return if after_fin && start + 1 == self.receiver.next() { self.on_reset() } else { Outcome::OutOfWindow };
        }
        // Data can't be part of a loop of acknowledgments that answer each other (`tcp_oow_rate_limited`).
        self.receiver.note_repeated(start, start + segment.len() as u64);
        if segment.len() > 0 && !segment.has(SYN) {
            self.quicken();
            self.answers += 1;
        } else {
            self.answer_with_restraint(now);
        }
        Outcome::OutOfWindow
    }

    fn on_reset(&mut self) -> Outcome {
        // TIME_WAIT isn't assassinated (RFC 1337).
        if self.state() != State::TimeWait {
            self.fail(Failure::ResetByPeer);
        }
        Outcome::Reset
    }

    fn challenge(&mut self, now: Micros) -> Outcome {
        self.answer_with_restraint(now);
        Outcome::Challenged
    }

    fn answer_with_restraint(&mut self, now: Micros) {
        if self.last_answer.is_none_or(|at| now - at >= ANSWER_INTERVAL) {
            self.last_answer = Some(now);
            self.answers += 1;
        }
    }

    fn on_ack(&mut self, now: Micros, segment: &Segment, start: u64) -> Result<(), BadAck> {
        let ack = Ack {
            at: start,
            ack: place::find(self.sender.una(), segment.ack),
            window: u64::from(segment.window) << self.peer_scale,
            sack: &segment.sack,
            carries_data: segment.len() > 0,
        };
        self.sender.acknowledge(now, ack)
    }

    fn on_data(&mut self, now: Micros, segment: &Segment, start: u64) {
        let before = self.state();
        match self.receiver.take(start, &segment.payload, segment.has(FIN)) {
            Arrival::Empty => return,
            Arrival::InOrder { closed_gap } => self.ack_now |= closed_gap,
            Arrival::OutOfOrder => {}
            Arrival::Duplicate | Arrival::NoRoom => self.quicken(),
        }
        if self.receiver.is_finished() && matches!(before, State::Established | State::FinWait1 | State::FinWait2) {
            self.dialogue = true;
            self.ack_now |= before == State::FinWait2;
        }
        self.pushed |= segment.has(PSH) || (segment.payload.len() as u64) < self.mss;
        self.last_received = Some(now);
        self.ack_pending = true;
        let two_packets =
            self.receiver.untold() > self.mss && (self.receiver.window_keeps_up() || self.receiver.unread() == 0);
        let quick = self.quick > 0 && !self.dialogue;
        self.ack_now |= two_packets || quick || self.receiver.has_gap();
        self.ack_at.get_or_insert(now + DELAY);
    }

    /// Something odd came: the next acknowledgments aren't delayed (`tcp_enter_quickack_mode`).
    fn quicken(&mut self) {
        self.quick = self.quick.max(QUICK_ACKS);
        self.dialogue = false;
    }

    fn blocks(&self) -> Vec<(u32, u32)> {
        if self.sack { self.receiver.blocks() } else { vec![] }
    }

    fn pure_ack(&mut self) -> Segment {
        let (start, payload) = (self.sender.bare_seq(self.own_scale), vec![]);
        let sack = self.blocks();
        self.segment(Burst { start, payload, fin: false, push: false, gso_size: 0 }, sack)
    }

    fn segment(&mut self, burst: Burst, sack: Vec<(u32, u32)>) -> Segment {
        let Burst { start, payload, fin, push, gso_size } = burst;
        let flags = ACK | if fin { FIN } else { 0 } | if push { PSH } else { 0 };
        self.quick = self.quick.saturating_sub(1);
        (self.ack_pending, self.ack_now, self.ack_at, self.pushed) = (false, false, None, false);
        let window = self.receiver.tell();
        let bare = Segment::bare(self.local, self.remote, flags, start as u32, self.rcv_nxt());
        Segment { window, sack, payload, gso_size, ..bare }
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
