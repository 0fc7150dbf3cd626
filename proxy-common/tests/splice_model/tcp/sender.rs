// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The sending half: what is unsent and unacknowledged, the peer's window, and what to send next.

use std::collections::VecDeque;

use super::rtt::Rtt;
use super::{Config, Micros, place};

/// Duplicate acknowledgments, or packets acknowledged selectively above, that make a packet lost.
const DUPLICATES: usize = 3;
/// Packets that may be in flight at the start (RFC 6928).
const FIRST_PACKETS: u64 = 10;

/// What is believed of a range that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Sacked,
    Lost,
    /// Lost, and in flight again.
    Resent,
}

/// A range of the stream that was sent and isn't acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    start: u64,
    end: u64,
    at: Micros,
    fate: Fate,
    /// Its acknowledgment says nothing about the round trip (Karn).
    more_than_once: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Something was found lost; ends when all that was sent until then is acknowledged.
    Recovery(u64),
    /// The timer found everything lost; ends likewise.
    Loss(u64),
}

/// Why an acknowledgment isn't taken (RFC 5961, 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadAck {
    TooOld,
    Unsent,
}

/// What an acknowledgment says; places, but for the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack<'a> {
    /// Where its segment starts in the peer's stream.
    pub(super) at: u64,
    pub(super) ack: u64,
    /// In bytes.
    pub(super) window: u64,
    pub(super) sack: &'a [(u32, u32)],
    /// Whether its segment takes sequence space.
    pub(super) carries_data: bool,
}

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    pub(super) start: u64,
    pub(super) payload: Vec<u8>,
    pub(super) fin: bool,
    pub(super) push: bool,
    pub(super) gso_size: usize,
}

/// The sending half of an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// `snd_una`.
    una: u64,
    /// `snd_nxt`.
    next: u64,
    /// Unacknowledged and unsent bytes; the first is the one at `write - bytes.len()`.
    bytes: VecDeque<u8>,
    /// Place after the last byte written; the FIN's, if there is one.
    write: u64,
    fin: bool,
    /// `snd_wnd` in bytes, and `snd_wl1`.
    window: u64,
    window_from: u64,
    max_window: u64,
    sent: VecDeque<Sent>,
    mss: u64,
    gso: u64,
    limit: usize,
    sack: bool,
    nodelay: bool,
    cwnd: u64,
    ssthresh: u64,
    phase: Phase,
    duplicates: usize,
    /// One lost packet may go whatever `cwnd` says.
    urgent: bool,
    rtt: Rtt,
    /// Timeouts since the last progress: their number, and the power of two of the next.
    retries: u32,
    backoff: u32,
    max_retries: u32,
    retransmit_at: Option<Micros>,
    /// Probes of a closed window: unanswered ones, the power of two of the next, and whether one is due.
    probes: u32,
    probe_backoff: u32,
    probe_at: Option<Micros>,
    probe_due: bool,
}

impl Sender {
    pub(super) fn new(own: &Config, peer: &Config) -> Self {
        let start = place::first(own.seq);
        let mss = own.mss as u64;
        Self {
            una: start,
            next: start,
            bytes: VecDeque::new(),
            write: start,
            fin: false,
            window: peer.first_window(),
            window_from: place::first(peer.seq),
            max_window: peer.first_window(),
            sent: VecDeque::new(),
            mss,
            gso: own.gso.max(1) as u64,
            limit: own.send_buffer,
            sack: own.sack && peer.sack,
            nodelay: own.nodelay,
            cwnd: FIRST_PACKETS * mss,
            ssthresh: u64::MAX,
            phase: Phase::Open,
            duplicates: 0,
            urgent: false,
            rtt: Rtt::new(own.rtt),
            retries: 0,
            backoff: 0,
            max_retries: own.retries,
            retransmit_at: None,
            probes: 0,
            probe_backoff: 0,
            probe_at: None,
            probe_due: false,
        }
    }

    pub(super) fn una(&self) -> u64 {
        self.una
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Place after the last that there is to send, the FIN included.
    pub(super) fn end(&self) -> u64 {
        self.write + u64::from(self.fin)
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn has_fin(&self) -> bool {
        self.fin
    }

    /// Whether the FIN was acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.fin && self.una == self.end()
    }

    /// Whether the peer has not been heard for too many timeouts.
    pub(super) fn has_given_up(&self) -> bool {
        self.retries.max(self.probes) > self.max_retries
    }

    pub(super) fn next_timer(&self) -> Option<Micros> {
        [self.retransmit_at, self.probe_at].into_iter().flatten().min()
    }

    /// Takes as many bytes as there is room for, and says how many.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = if self.fin { 0 } else { self.limit.saturating_sub(self.bytes.len()) };
        let taken = bytes.len().min(room);
        self.bytes.extend(&bytes[..taken]);
        self.write += taken as u64;
        taken
    }

    /// Nothing will be written any more.
    pub(super) fn finish(&mut self) {
        self.fin = true;
    }

    /// The sequence number of a segment without payload (`tcp_acceptable_seq`): `snd_nxt`, unless the window was
    /// shrunk below it by more than the scale's rounding.
    pub(super) fn bare_seq(&self, own_scale: u8) -> u64 {
        let edge = self.una + self.window;
        if edge >= self.next || self.next - edge < 1 << own_scale { self.next } else { edge }
    }

    /// Takes an acknowledgment.
    pub(super) fn acknowledge(&mut self, now: Micros, segment: Ack<'_>) -> Result<(), BadAck> {
        let Ack { at, ack, window, sack, carries_data } = segment;
        if ack + self.max_window < self.una {
            return Err(BadAck::TooOld);
        }
        if ack > self.next {
            return Err(BadAck::Unsent);
        }
        if ack < self.una {
            self.mark_sacked(sack);
            self.find_lost(false);
            return Ok(());
        }
        let newer = at > self.window_from || at == self.window_from && (window > self.window || window == 0);
        let updates_window = ack > self.una || newer;
        if updates_window {
            self.window_from = at;
            self.window = window;
            self.max_window = self.max_window.max(window);
        }
        self.probes = 0;
        if self.sent.is_empty() {
            // Alive: the next probe is counted from here.
            self.probe_at = None;
        }
        if self.window == 0 {
            // What is sent into a closed window serves as probe, and it was answered.
            self.retries = 0;
        }
        let advanced = ack - self.una;
        if advanced > 0 {
            self.advance(now, ack);
        } else if !self.sent.is_empty() && !carries_data && !updates_window {
            self.duplicates += 1;
        }
        self.mark_sacked(sack);
        self.find_lost(advanced > 0);
        self.grow(advanced);
        Ok(())
    }

    fn advance(&mut self, now: Micros, ack: u64) {
        while let Some(first) = self.sent.front_mut().filter(|sent| sent.start < ack) {
            if first.end > ack {
                first.start = ack;
                break;
            }
            if !first.more_than_once && first.fate != Fate::Sacked {
                self.rtt.sample(now - first.at);
            }
            self.sent.pop_front();
        }
        let base = self.write - self.bytes.len() as u64;
        self.bytes.drain(..(ack.min(self.write) - base) as usize);
        self.una = ack;
        self.duplicates = 0;
        self.retries = 0;
        self.backoff = 0;
        self.retransmit_at = (!self.sent.is_empty()).then(|| now + self.rtt.timeout(0));
        match self.phase {
            Phase::Recovery(until) | Phase::Loss(until) if ack >= until => self.phase = Phase::Open,
            _ => {}
        }
    }

    /// Marks what the blocks cover. A block that begins at or below `snd_una` or ends above `snd_nxt` means nothing
    /// (`tcp_is_sackblock_valid`, without D-SACK).
    fn mark_sacked(&mut self, blocks: &[(u32, u32)]) {
        if !self.sack {
            return;
        }
        for &(start, end) in blocks {
            let (start, end) = (place::find(self.una, start), place::find(self.una, end));
            if start <= self.una || start >= end || end > self.next {
                continue;
            }
            self.split_sent(start);
            self.split_sent(end);
            for sent in self.sent.iter_mut().filter(|sent| start <= sent.start && sent.end <= end) {
                sent.fate = Fate::Sacked;
            }
        }
    }

    /// Makes `at` a border between two ranges, if it lies within one.
    fn split_sent(&mut self, at: u64) {
        let Some(i) = self.sent.iter().position(|sent| sent.start < at && at < sent.end) else { return };
        let rest = Sent { start: at, ..self.sent[i] };
        self.sent[i].end = at;
        self.sent.insert(i + 1, rest);
    }

    fn find_lost(&mut self, advanced: bool) {
        let mut found = false;
        if self.sack {
            let mut above = 0;
            for sent in self.sent.iter_mut().rev() {
                match sent.fate {
                    Fate::Sacked => above += (sent.end - sent.start).div_ceil(self.mss) as usize,
                    Fate::InFlight if above >= DUPLICATES => {
                        sent.fate = Fate::Lost;
                        found = true;
                    }
                    _ => {}
                }
            }
        } else if let Some(first) = self.sent.front_mut().filter(|sent| sent.fate == Fate::InFlight) {
            let partial = advanced && matches!(self.phase, Phase::Recovery(_));
            let repeated = self.duplicates >= DUPLICATES && self.phase == Phase::Open;
            if partial || repeated {
                first.fate = Fate::Lost;
                found = true;
                self.urgent = true;
            }
        }
        if found && self.phase == Phase::Open {
            self.ssthresh = (self.cwnd / 2).max(2 * self.mss);
            self.cwnd = self.ssthresh;
            self.phase = Phase::Recovery(self.next);
            self.urgent = true;
        }
    }

    fn grow(&mut self, acknowledged: u64) {
        if matches!(self.phase, Phase::Recovery(_)) {
            return;
        }
        self.cwnd += if self.cwnd < self.ssthresh { acknowledged } else { self.mss * acknowledged / self.cwnd };
    }

    /// Does what was due at `now`.
    pub(super) fn fire(&mut self, now: Micros) {
        if self.retransmit_at.is_some_and(|at| at <= now) {
            self.retries += 1;
            self.backoff += 1;
            self.lose_all();
            self.retransmit_at = Some(now + self.rtt.timeout(self.backoff));
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probes += 1;
            self.probe_backoff += 1;
            self.probe_due = true;
            self.probe_at = Some(now + self.rtt.timeout(self.probe_backoff));
        }
    }

    fn lose_all(&mut self) {
        if !matches!(self.phase, Phase::Loss(_)) {
            self.ssthresh = (self.in_flight() / 2).max(2 * self.mss);
        }
        // A receiver that leaves the first byte unacknowledged though it said it had it has thrown it away.
        let reneged = self.sent.front().is_some_and(|sent| sent.fate == Fate::Sacked);
        for sent in self.sent.iter_mut().filter(|sent| reneged || sent.fate != Fate::Sacked) {
            sent.fate = Fate::Lost;
        }
        self.cwnd = self.mss;
        self.phase = Phase::Loss(self.next);
        self.duplicates = 0;
    }

    fn in_flight(&self) -> u64 {
        let flies = |sent: &&Sent| matches!(sent.fate, Fate::InFlight | Fate::Resent);
        self.sent.iter().filter(flies).map(|sent| sent.end - sent.start).sum()
    }

    /// What to send now, in packets of at most `room` bytes of payload.
    pub(super) fn poll(&mut self, now: Micros, room: u64) -> Option<Burst> {
        let range = self.resend(now, room).or_else(|| self.send(now, room)).or_else(|| self.probe(now));
        if let Some((start, end)) = range {
            return Some(self.burst(start, end, room));
        }
        let waits_for_window = self.sent.is_empty() && self.next < self.end();
        if !waits_for_window {
            self.probe_at = None;
        } else if self.probe_at.is_none() {
            self.probe_at = Some(now + self.rtt.timeout(self.probe_backoff));
        }
        None
    }

    /// The first lost packet.
    fn resend(&mut self, now: Micros, room: u64) -> Option<(u64, u64)> {
        let i = self.sent.iter().position(|sent| sent.fate == Fate::Lost)?;
        let in_flight = self.in_flight();
        if !self.urgent && in_flight > 0 && in_flight + room > self.cwnd {
            return None;
        }
        let start = self.sent[i].start;
        let inside = (self.una + self.window).saturating_sub(start);
        // Beyond a window that was shrunk nothing is sent again but the first packet, as a probe.
        if inside == 0 && start != self.una {
            return None;
        }
        let len = if inside == 0 { room } else { room.min(inside) };
        if self.sent[i].end.min(self.write) > start + len {
            self.split_sent(start + len);
        }
        let sent = &mut self.sent[i];
        (sent.fate, sent.at, sent.more_than_once) = (Fate::Resent, now, true);
        let range = (sent.start, sent.end);
        self.urgent = false;
        if i == 0 || self.retransmit_at.is_none() {
            self.retransmit_at = Some(now + self.rtt.timeout(self.backoff));
        }
        Some(range)
    }

    /// New bytes, or the FIN.
    fn send(&mut self, now: Micros, room: u64) -> Option<(u64, u64)> {
        let inside = (self.una + self.window).saturating_sub(self.next);
        let unsent = self.write.saturating_sub(self.next);
        let len = if unsent > 0 { self.sendable(unsent, inside, room)? } else { 0 };
        let with_fin = self.fin && len == unsent && self.next <= self.write && inside > len;
        let end = self.next + len + u64::from(with_fin);
        (end > self.next).then(|| self.launch(now, end))
    }

    /// How many of `unsent` bytes go with `inside` left of the window. A packet that doesn't fit is not cut to fit
    /// (`tcp_snd_wnd_test`): the window opens, or the probe timer cuts it.
    fn sendable(&self, unsent: u64, inside: u64, room: u64) -> Option<u64> {
        let in_flight = self.in_flight();
        let congestion = self.cwnd.saturating_sub(in_flight).max(if in_flight == 0 { room } else { 0 });
        let limit = inside.min(congestion);
        let whole = (unsent / room).min(self.gso).min(limit / room) * room;
        let tail = unsent - whole;
        let holds_tail = !self.nodelay && !self.fin && (whole > 0 || !self.sent.is_empty());
        let takes_tail = tail < room && whole < self.gso * room && unsent <= limit && !holds_tail;
        let len = if takes_tail { unsent } else { whole };
        (len > 0).then_some(len)
    }

    fn launch(&mut self, now: Micros, end: u64) -> (u64, u64) {
        let start = self.next;
        self.sent.push_back(Sent { start, end, at: now, fate: Fate::InFlight, more_than_once: false });
        self.next = end;
        (self.probe_at, self.probe_backoff, self.probe_due) = (None, 0, false);
        self.retransmit_at.get_or_insert(now + self.rtt.timeout(self.backoff));
        (start, end)
    }

    /// What a closed window is probed with (`tcp_write_wakeup`): as much as fits, or nothing, one below `snd_una`.
    fn probe(&mut self, now: Micros) -> Option<(u64, u64)> {
        if !std::mem::take(&mut self.probe_due) || !self.sent.is_empty() || self.next == self.end() {
            return None;
        }
        let inside = (self.una + self.window).saturating_sub(self.next).min(self.write.saturating_sub(self.next));
        Some(if inside > 0 { self.launch(now, self.next + inside) } else { (self.una - 1, self.una - 1) })
    }

    fn burst(&self, start: u64, end: u64, room: u64) -> Burst {
        let base = self.write - self.bytes.len() as u64;
        let data_end = end.min(self.write);
        let range = (start.max(base) - base) as usize..(data_end.max(base) - base) as usize;
        let payload: Vec<u8> = if start < end { self.bytes.range(range).copied().collect() } else { vec![] };
        let gso_size = if payload.len() as u64 > room { room as usize } else { 0 };
        Burst { start, fin: end > self.write, push: !payload.is_empty() && data_end == self.write, payload, gso_size }
    }
}

#[cfg(test)]
#[path = "sender_tests.rs"]
mod tests;
