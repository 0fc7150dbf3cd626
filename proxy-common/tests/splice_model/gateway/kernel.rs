// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The kernel's part: summarise a packet, walk it, judge it later, carry the verdict out; and what must hold every time.

use proxy_common::splice::egress::egress;
use proxy_common::splice::ingress::ingress;
use proxy_common::splice::notes::{Kind, Note, Notes, RING};
use proxy_common::splice::segment::{Arriving, Leaving, Soundness};
use proxy_common::splice::seq::{InLocal, InWire, OutLocal, OutWire, largest_window};
use proxy_common::splice::state::{Dir, Side};
use proxy_common::splice::verdict::{Departure, Reason, Route, Verdict, WHOLE};
use proxy_common::splice::walk::{Survey, survey};
use proxy_common::splice::{acks, switch};

use super::{Gateway, Held, host, local, remote};
use crate::net::Host;
use crate::tcp::{ACK, FIN, Micros, Segment, State, URG};

/// What happened, by reason and route.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reasons: std::collections::BTreeMap<&'static str, u64>,
    /// Payload bytes that went straight to the other host.
    pub(crate) forwarded: u64,
    /// Requests and answers that began in them.
    pub(crate) frames: u64,
    /// When all answers had arrived.
    pub(crate) took: Micros,
}

impl Counts {
    pub(super) fn count(&mut self, what: &'static str) {
        *self.reasons.entry(what).or_default() += 1;
    }

    /// Adds another run's.
    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.reasons {
            *self.reasons.entry(what).or_default() += count;
        }
        self.forwarded += other.forwarded;
        self.frames += other.frames;
        self.took += other.took;
    }
}

fn name(reason: Reason) -> &'static str {
    match reason {
        Reason::Plain => "plain",
        Reason::Opened => "opened",
        Reason::Frame => "frame",
        Reason::Hole => "hole",
        Reason::Fin => "fin",
        Reason::Reset => "reset",
        Reason::Urgent => "urgent",
        Reason::TooLarge => "too large",
        Reason::Raced => "raced",
        Reason::Again => "again",
        Reason::Straddling => "straddling",
        Reason::Probe => "probe",
        Reason::BadForm => "bad form",
        Reason::BadChecksum => "bad checksum",
        Reason::BadSequence => "bad sequence",
        Reason::BadAck => "bad ack",
        Reason::BadReset => "bad reset",
        Reason::BadFlags => "bad flags",
        Reason::Withheld => "withheld",
        Reason::Unannounced => "unannounced",
    }
}

fn route_name(route: Route) -> &'static str {
    match route {
        Route::Drop => "→ nowhere",
        Route::Untouched => "→ untouched",
        Route::Local => "→ local",
        Route::LocalBare => "→ local, bare",
        Route::Peer => "→ peer",
        Route::Both => "→ both",
        Route::Split => "→ split",
        Route::Echo => "→ echo",
    }
}

/// The pair of directions of a packet from `side`: that of its data, that of its acknowledgment.
pub(super) fn pair(dirs: &mut [Dir; 2], side: Side) -> (&mut Dir, &mut Dir) {
    let [q, r] = dirs;
    match side {
        Side::Client => (q, r),
        Side::Broker => (r, q),
    }
}

impl Gateway {
    fn arriving(&self, segment: &Segment, soundness: Soundness) -> Arriving {
        Arriving {
            seq: InWire(segment.seq),
            ack: OutWire(segment.ack),
            window: segment.window.into(),
            length: segment.payload.len() as u32,
            flags: segment.flags,
            sack_blocks: segment.sack.len() as u32,
            gso: segment.gso_size as u32,
            room: self.manner.room,
            soundness,
        }
    }

    /// A packet comes from a side's host.
    pub(super) fn arrive(&mut self, now: Micros, side: Side, segment: Segment, injected: bool) {
        let Some(session) = &self.session else {
            let early = segment.seq.wrapping_sub(self.sockets[side.index()].rcv_nxt()) as i32 > 0;
            self.had_early[side.index()] |= early;
            self.sockets[side.index()].on_segment(now, &segment);
            return;
        };
        let soundness = if segment.checksum_ok { Soundness::Sound } else { Soundness::BadChecksum };
        let arriving = self.arriving(&segment, soundness);
        let i = side.index();
        let armed = session.arms[i].read();
        let (d, notes) = (&session.dirs[i], &session.notes);
        let walked = |notes: &Notes| survey(d, side, &arriving, armed, &segment.payload[..], &self.policy, notes);
        let survey = walked(notes);
        let missed = (!survey.forward).then(|| self.missed(d, side, notes, walked)).flatten();
        // A CPU takes its packets in order.
        let cpu = self.rng.below(2) as usize;
        let free = self.held.iter().filter(|held| held.cpu == cpu).map(|held| held.at).max().unwrap_or(now);
        let delay = if self.rng.chance(500) { self.rng.below(self.manner.cpu_delay + 1) } else { 0 };
        let at = free.max(now + delay);
        self.held.push(Held { at, cpu, side, segment, arriving, survey, injected });
        if let Some(what) = missed {
            self.counts.count(what);
        }
    }

    /// What of the notes alone kept a packet from being forwarded.
    fn missed(&self, d: &Dir, side: Side, notes: &Notes, walked: impl Fn(&Notes) -> Survey) -> Option<&'static str> {
        let other = Notes::default();
        match side {
            Side::Client => {
                other.set_answered(d.frames);
                walked(&other).forward.then_some("ring full")
            }
            Side::Broker if self.manner.unnoted == 0 => None,
            Side::Broker => {
                for index in (0..RING).map(|nth| d.frames.wrapping_add(nth)) {
                    let note = notes.get(index);
                    let known = note.kind != Kind::Unknown;
                    other.set(index, if known { note } else { Note { kind: Kind::Plain, ..note } });
                }
                walked(&other).forward.then_some("no note")
            }
        }
    }

    pub(super) fn commit_due(&mut self, now: Micros) {
        while let Some(i) = self.held.iter().position(|held| held.at <= now) {
            let held = self.held.remove(i);
            self.commit(now, held);
        }
    }

    fn commit(&mut self, now: Micros, held: Held) {
        let Held { side, segment, arriving: p, survey, injected, .. } = held;
        let Some(session) = &mut self.session else { return };
        let armed = session.arms[side.index()].read();
        let before = session.dirs;
        let (d, e) = pair(&mut session.dirs, side);
        let verdict = ingress(d, e, side, &p, &survey, armed, &session.notes);
        let after = session.dirs;
        self.counts.count(name(verdict.reason));
        self.counts.count(route_name(verdict.route));
        if self.trace {
            eprintln!("{now:>9} {side:?} {} {p:?}\n          → {verdict:?}", if injected { "INJECTED" } else { "" });
        }
        self.hold_to_rules(side, &before, &after, &p, &verdict, injected);
        self.count_progress(side, &before, &after, &survey);
        self.ledger.observe(&before, &after);
        self.carry_out(now, side, segment, &p, &verdict);
    }

    fn count_progress(&mut self, side: Side, before: &[Dir; 2], after: &[Dir; 2], survey: &Survey) {
        let (was, is) = (&before[side.index()], &after[side.index()]);
        if is.is_peer() && !was.is_peer() && is.pw == survey.from && survey.remain_from > 0 {
            self.counts.count("opened in mid-frame");
            // The same frame was the kernel's, then the daemon's, and is the kernel's again.
            if was.epoch > 0 && was.prefix > 0 && was.frames == survey.frames_from {
                self.counts.count("frame in turns");
            }
        }
        if is.is_peer() && (!was.is_peer() || is.exp != was.exp) {
            self.counts.forwarded += u64::from(survey.length);
            self.counts.frames += u64::from(survey.frames.wrapping_sub(survey.frames_from));
        }
    }

    /// What must hold whatever happens.
    fn hold_to_rules(
        &mut self,
        side: Side,
        before: &[Dir; 2],
        after: &[Dir; 2],
        p: &Arriving,
        verdict: &Verdict,
        injected: bool,
    ) {
        if verdict.reason.is_refusal() {
            if before != after {
                self.fail(format!("a refused packet changed the state: {p:?}"));
            }
            if !injected && p.soundness == Soundness::Sound {
                self.excuse(before, side, p, verdict.reason);
            }
        }
        for dir in after {
            if let Some(broken) = broken_invariant(dir) {
                self.fail(format!("{broken}: {dir:?} after {p:?}, {verdict:?}"));
            }
        }
    }

    /// Genuine traffic is refused only where it is older than the largest window, or an RST that the host will correct.
    fn excuse(&mut self, before: &[Dir; 2], side: Side, p: &Arriving, reason: Reason) {
        let (d, e) = (&before[side.index()], &before[side.other().index()]);
        let excused = match reason {
            Reason::BadSequence => p.seq.before(acks::ack_x(d).minus(largest_window(d.x_scale))),
            Reason::BadAck => p.ack.before(e.y_ack),
            Reason::BadReset => true,
            _ => false,
        };
        if !excused {
            self.fail(format!("genuine traffic was refused ({reason:?}): {p:?}\n{d:?}\n{e:?}"));
        }
    }

    fn carry_out(&mut self, now: Micros, side: Side, segment: Segment, p: &Arriving, verdict: &Verdict) {
        match verdict.route {
            Route::Drop => return,
            Route::Untouched => {
                self.sockets[side.index()].on_segment(now, &segment);
                return;
            }
            _ => {}
        }
        if verdict.route.reaches_peer() {
            let copy = peer_copy(side, &segment, p, verdict);
            self.outgoing.push_back((host(side.other()), copy));
        }
        if verdict.route.reaches_local() {
            self.deliver(now, side, local_copy(segment, verdict), verdict);
        }
    }

    fn deliver(&mut self, now: Micros, side: Side, copy: Segment, verdict: &Verdict) {
        let lost = self.rng.chance(self.manner.local_loss) && self.manner.most_local_losses > 0 && !self.calm;
        if lost {
            self.manner.most_local_losses -= 1;
            return;
        }
        let socket = &mut self.sockets[side.index()];
        let alive = !matches!(socket.state(), State::Closed | State::Failed(_));
        let unsent = copy.has(ACK) && copy.ack.wrapping_sub(socket.snd_nxt()) as i32 > 0;
        socket.on_segment(now, &copy);
        if alive && unsent {
            self.fail(format!("a local socket was acknowledged what it did not send: {copy:?} by {verdict:?}"));
        }
    }

    /// A packet leaves a local socket.
    pub(super) fn leave(&mut self, side: Side, mut segment: Segment) -> Option<(Host, Segment)> {
        let Some(session) = &mut self.session else {
            let window = u32::from(segment.window) << self.configs[side.index()][0].scale;
            let edge = segment.ack.wrapping_add(window);
            let promised = &mut self.promised[side.index()];
            if segment.has(ACK) && edge.wrapping_sub(*promised) as i32 > 0 {
                *promised = edge;
            }
            return Some((host(side), segment));
        };
        let p = Leaving {
            seq: OutLocal(segment.seq),
            ack: InLocal(segment.ack),
            window: segment.window.into(),
            length: segment.payload.len() as u32,
            flags: segment.flags,
            sack_blocks: segment.sack.len() as u32,
            gso: segment.gso_size as u32,
            room: u32::MAX,
            soundness: Soundness::Sound,
        };
        let before = session.dirs;
        let (d, e) = pair(&mut session.dirs, side);
        let departure = egress(d, e, &p);
        let after = session.dirs;
        self.counts.count(name(departure.reason));
        if self.trace {
            eprintln!("          {side:?} leaves {p:?}\n          → {departure:?}");
        }
        if departure.reason == Reason::Unannounced {
            self.fail(format!("the daemon wrote while the direction was PEER: {p:?}"));
        }
        for dir in &after {
            if let Some(broken) = broken_invariant(dir) {
                self.fail(format!("{broken}: {dir:?} after leaving {p:?}"));
            }
        }
        self.ledger.observe(&before, &after);
        if !departure.leaves {
            return None;
        }
        let Departure { wire, keep, sack, .. } = departure;
        for (left, right) in &mut segment.sack {
            let (l, r) = sack.of_x(InLocal(*left), InLocal(*right), p.ack, wire.ack);
            (*left, *right) = (l.0, r.0);
        }
        (segment.seq, segment.ack, segment.window) = (wire.seq.0, wire.ack.0, wire.window as u16);
        trim(&mut segment, keep);
        Some((host(side), segment))
    }

    /// The daemon takes a direction back: the program that it calls.
    pub(super) fn recall(&mut self, side: Side) {
        if let Some(session) = &mut self.session {
            let before = session.dirs;
            switch::recall(&mut session.dirs[side.index()]);
            let after = session.dirs;
            self.ledger.observe(&before, &after);
            self.counts.count("recalled");
        }
    }
}

fn local_copy(mut copy: Segment, verdict: &Verdict) -> Segment {
    let header = verdict.local;
    (copy.seq, copy.ack, copy.window) = (header.seq.0, header.ack.0, header.window as u16);
    for (left, right) in &mut copy.sack {
        let (l, r) = verdict.sack.for_y(OutWire(*left), OutWire(*right), header.ack);
        (*left, *right) = (l.0, r.0);
    }
    if matches!(verdict.route, Route::LocalBare | Route::Both | Route::Split) {
        make_bare(&mut copy);
    }
    if verdict.route == Route::LocalBare {
        copy.sack.clear();
    }
    copy
}

fn peer_copy(side: Side, segment: &Segment, p: &Arriving, verdict: &Verdict) -> Segment {
    let mut copy = segment.clone();
    let header = verdict.peer;
    (copy.src, copy.dst) = (local(side.other()), remote(side.other()));
    (copy.seq, copy.ack, copy.window) = (header.seq.0, header.ack.0, header.window as u16);
    for (left, right) in &mut copy.sack {
        let (l, r) = verdict.sack.for_x(OutWire(*left), OutWire(*right), p.ack, header.ack);
        (*left, *right) = (l.0, r.0);
    }
    copy.flags &= !URG;
    if matches!(verdict.route, Route::Both | Route::Echo) {
        make_bare(&mut copy);
    }
    trim(&mut copy, verdict.keep);
    copy
}

fn make_bare(segment: &mut Segment) {
    segment.payload.clear();
    segment.gso_size = 0;
    segment.flags = ACK;
}

fn trim(segment: &mut Segment, keep: u32) {
    if keep != WHOLE {
        if segment.payload.len() > keep as usize {
            segment.payload.truncate(keep as usize);
            segment.gso_size = 0;
        }
        segment.flags &= !FIN;
    }
}

/// An invariant of a direction that does not hold.
pub(super) fn broken_invariant(d: &Dir) -> Option<&'static str> {
    let rules = [
        (d.y_ack.before(d.pv) && d.pw != d.w0, "Y lacks bytes before the PEER segment"),
        (d.y_ack.after(d.v_max), "Y acknowledged what nobody sent"),
        (d.peer_end().after(d.v_max), "Y was not sent the whole PEER segment"),
        (d.y_lacked.after(d.s_max), "y was acknowledged what it did not send"),
        (d.x_lack.after(d.l_max), "x acknowledged what it was not given"),
        (d.is_peer() && d.exp.before(d.pw), "the next byte lies before the PEER segment"),
        (d.is_peer() && d.s_max != d.s0, "y sent while the direction was PEER"),
        (acks::ack_x(d).after(d.reached()), "X is acknowledged what it did not send"),
        (d.forwarded(d.pw) != d.pv && d.pw != d.w0, "the PEER segment's starts do not belong together"),
        (!d.is_peer() && d.pw != d.w0 && d.forwarded(d.w0) != d.v0, "its ends do not belong together"),
    ];
    rules.into_iter().find_map(|(broken, what)| broken.then_some(what))
}
