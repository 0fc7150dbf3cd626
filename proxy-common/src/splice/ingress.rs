// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! A packet from a host: gate, acknowledgment, switch, way.
//!
//! `d` is the direction whose data the packet carries, `e` the one it acknowledges; so the local socket that it would
//! reach is x of `d` and y of `e`, and the other host is Y of `d` and X of `e`. Runs under the session's lock.

use super::acks::{Told, ack_x, bare_seq_x, bare_seq_y, edge_x, for_y, is_shut, learn, tell_x, tell_y, win_x};
use super::age::age;
use super::arm::{Armed, may_open};
use super::forget;
use super::gate::{Judgement, judge};
use super::notes::Notes;
use super::sack;
use super::segment::Arriving;
use super::seq::{InLocal, OutWire, window_field};
use super::state::{Dir, Side};
use super::switch::{to_local, to_peer};
use super::verdict::{LocalHeader, Reason, Route, Verdict, WHOLE, WireHeader};
use super::walk::Survey;

/// In LOCAL, y hears of Y's window by packets that go to it; by those that go to X alone once less than this is left.
const REFRESH_LOCAL: i32 = 64 * 1024;
/// In PEER y sends nothing; it must only not find a closed window when it begins.
const REFRESH_PEER: i32 = 6_000;
/// A window of x below this holds X back needlessly while the direction is PEER.
const SMALL_WINDOW: u32 = 32 * 1024;
/// X hears of more room in LOCAL from x; from Y's packets once less than this is left to it.
const NEARLY_CLOSED: i32 = 16 * 1024;

/// Judges a packet and brings the state up to date.
#[must_use]
#[inline(always)]
pub fn ingress(
    d: &mut Dir,
    e: &mut Dir,
    side: Side,
    p: &Arriving,
    survey: &Survey,
    armed: Option<Armed>,
    notes: &Notes,
) -> Verdict {
    let mut verdict = Verdict {
        route: Route::Drop,
        reason: Reason::Plain,
        local: LocalHeader::default(),
        peer: WireHeader::default(),
        keep: WHOLE,
        sack: sack::Map::default(),
    };
    match judge(d, e, p) {
        Judgement::Accept => {}
        Judgement::Untouched => {
            verdict.route = Route::Untouched;
            return verdict;
        }
        Judgement::Drop(reason) => {
            verdict.reason = reason;
            return verdict;
        }
        Judgement::Answer(reason) => {
            verdict.route = Route::LocalBare;
            verdict.reason = reason;
            verdict.local = provoke_x(d, e);
            return verdict;
        }
    }
    age(d);
    age(e);
    if p.rst() {
        reset(d, e, p, &mut verdict);
    } else if p.is_bare() {
        bare(d, e, p, &mut verdict);
    } else {
        if !d.is_peer() {
            open(d, p, survey, armed, &mut verdict);
        }
        if d.is_peer() {
            advance(d, side, p, survey, notes, &mut verdict);
        }
        data(d, e, p, &mut verdict);
    }
    verdict.sack = sack::Map::of(e);
    verdict
}

/// Header of a bare ACK that makes x answer with what it has acknowledged: its sequence number lies below that.
#[inline(always)]
const fn provoke_x(d: &Dir, e: &Dir) -> LocalHeader {
    LocalHeader { seq: d.x_lack.minus(1), ack: e.y_lacked, window: window_field(e.y_told.since(e.y_lacked), e.y_scale) }
}

/// An RST that holds goes to x, at the very number that x expects. Nothing is learnt from it.
#[inline(always)]
fn reset(d: &mut Dir, e: &Dir, p: &Arriving, verdict: &mut Verdict) {
    let seq = if d.is_peer() {
        to_local(d);
        d.lpos
    } else if p.seq == ack_x(d) {
        d.x_lack
    } else {
        InLocal(p.seq.0.wrapping_sub(d.k))
    };
    verdict.route = Route::Local;
    verdict.reason = Reason::Reset;
    verdict.local = LocalHeader { seq, ..provoke_x(d, e) };
}

/// What the acknowledgment part of a packet brought.
struct News {
    /// For local y.
    told: Told,
    /// y has unacknowledged bytes.
    y_waits: bool,
    /// y would find too small a window, and this packet knows of a larger one.
    y_starves: bool,
    /// X waited for Y before this packet.
    x_awaited: bool,
    /// What X is acknowledged has moved.
    x_advanced: bool,
    /// X was nearly out of window, in LOCAL, or waited for Y, whose window was closed; and has more now.
    x_reopened: bool,
}

#[inline(always)]
fn acknowledge(e: &mut Dir, p: &Arriving) -> News {
    let x_awaited = forget::answer(e.awaits_peer());
    let was_shut = x_awaited && is_shut(e);
    let was = ack_x(e);
    learn(e, p);
    let told = for_y(e, p.ack);
    let refresh = if e.is_peer() { REFRESH_PEER } else { REFRESH_LOCAL };
    let more_room = !e.is_peer() && edge_x(e).after(e.x_edge) && e.x_edge.ahead_of(e.reached()) < NEARLY_CLOSED;
    News {
        told,
        y_waits: forget::answer(e.s_max.after(e.y_lacked)),
        y_starves: forget::answer(told.edge.after(e.y_told) && e.y_told.ahead_of(e.s_max) < refresh),
        x_awaited,
        x_advanced: forget::answer(ack_x(e).after(was)),
        x_reopened: forget::answer(was_shut && !is_shut(e) || more_room),
    }
}

/// Header of a copy to the other host; notes that it is told so.
#[inline(always)]
fn wire_header(e: &mut Dir, seq: OutWire) -> WireHeader {
    tell_x(e);
    WireHeader { seq, ack: ack_x(e), window: win_x(e) }
}

/// Header of a copy to the local socket; notes that it is told so.
#[inline(always)]
fn local_header(e: &mut Dir, seq: InLocal, told: &Told) -> LocalHeader {
    tell_y(e, told);
    LocalHeader { seq, ack: told.ack, window: told.window }
}

/// Neither payload nor FIN.
#[inline(always)]
fn bare(d: &mut Dir, e: &mut Dir, p: &Arriving, verdict: &mut Verdict) {
    let news = acknowledge(e, p);
    if p.seq.before(d.reached()) && p.seq.before(ack_x(d)) {
        // A probe of the window, a keepalive, or the ACK of a host that has not heard of its own acknowledgments. Both
        // receivers answer, because either may be the one whose window holds X back, and the one it would not reach
        // might never be asked again. News for y go first: y reads none in what it must answer.
        verdict.route = Route::Both;
        verdict.reason = Reason::Probe;
        let news_for_y = news.y_waits && news.told.ack.after(e.y_lacked);
        verdict.local = if news_for_y { local_header(e, bare_seq_x(d), &news.told) } else { provoke_x(d, e) };
        verdict.peer = wire_header(e, d.y_ack.minus(1));
        return;
    }
    let to_local = !e.is_peer() || news.y_waits || news.y_starves;
    let to_peer = news.x_awaited || news.x_reopened;
    if to_local {
        verdict.local = local_header(e, bare_seq_x(d), &news.told);
    }
    if to_peer {
        verdict.peer = wire_header(e, bare_seq_y(d));
    }
    verdict.route = if to_local && to_peer {
        Route::Both
    } else if to_local {
        Route::Local
    } else {
        Route::Peer
    };
}

/// LOCAL → PEER, where an arm allows it and everything in the packet may be forwarded.
#[inline(always)]
fn open(d: &mut Dir, p: &Arriving, survey: &Survey, armed: Option<Armed>, verdict: &mut Verdict) {
    let Some(armed) = armed else { return };
    let walked = survey.forward
        && survey.epoch == d.epoch.wrapping_add(1)
        && survey.from == p.seq
        && survey.frames_from == armed.frames
        && survey.remain_from == armed.remain;
    if walked && may_open(d, &armed, p) {
        to_peer(d, p.seq, &armed);
        verdict.reason = Reason::Opened;
    }
}

/// In PEER: goes on over what is new in the packet, or leaves PEER.
#[inline(always)]
fn advance(d: &mut Dir, side: Side, p: &Arriving, survey: &Survey, notes: &Notes, verdict: &mut Verdict) {
    if !p.seq.plus(p.extent()).after(d.exp) {
        return;
    }
    let reason = if p.seq.after(d.exp) {
        Reason::Hole
    } else if p.fin() {
        Reason::Fin
    } else if p.urgent() {
        Reason::Urgent
    } else if p.largest_piece() > p.room {
        Reason::TooLarge
    } else if !survey.forward {
        Reason::Frame
    } else if !survey.fits(d) || survey.length != p.seq.plus(p.length).since(d.exp) {
        Reason::Raced
    } else {
        survey.commit_notes(side, notes);
        d.exp = p.seq.plus(p.length);
        d.frames = survey.frames;
        d.remain = survey.remain;
        return;
    };
    to_local(d);
    verdict.reason = reason;
}

/// The way of a packet's bytes.
enum Way {
    /// To x, so many bytes less.
    Local(u32),
    /// To Y.
    Peer,
    /// To Y, the first so many.
    Trimmed(u32),
}

/// Bytes go where they went first, or to x as a duplicate once Y has them (invariant 5). That Y has everything before
/// the PEER segment is invariant 1.
#[inline(always)]
fn way(d: &Dir, p: &Arriving) -> Way {
    let end = p.seq.plus(p.extent());
    if d.is_peer() {
        if p.seq.before(d.pw) && !end.after(d.pw) { Way::Local(d.k_old) } else { Way::Peer }
    } else if !p.seq.before(d.w0) || !d.is_clamped() {
        Way::Local(if !end.after(d.pw) { d.k_old } else { d.k })
    } else if !end.after(d.pw) {
        Way::Local(d.k_old)
    } else if !end.after(d.w0) {
        Way::Peer
    } else {
        Way::Trimmed(d.w0.since(p.seq))
    }
}

/// Payload or FIN.
#[inline(always)]
fn data(d: &mut Dir, e: &mut Dir, p: &Arriving, verdict: &mut Verdict) {
    let news = acknowledge(e, p);
    let mut keep = WHOLE;
    match way(d, p) {
        // A FIN waits, and comes again: once x has it, x can be closed and gone before Y has the PEER segment, and its
        // RST would answer X's retransmissions and destroy what only X still has.
        Way::Local(_) if p.fin() && d.is_clamped() => {
            verdict.reason = Reason::Fin;
            return;
        }
        Way::Local(shift) => {
            let seq = InLocal(p.seq.0.wrapping_sub(shift));
            verdict.route = Route::Local;
            verdict.local = LocalHeader { seq, ack: news.told.ack, window: news.told.window };
            // x looks at no acknowledgment that comes with nothing but what it has acknowledged.
            if !seq.plus(p.extent()).before(d.x_lack) {
                tell_y(e, &news.told);
            }
            if p.seq.before(d.reached()) && matches!(verdict.reason, Reason::Plain) {
                verdict.reason = Reason::Again;
            }
            d.l_max = d.l_max.latest(seq.plus(p.extent()));
            // X's last bytes are acknowledged by a packet that X does not get, and no later one of Y's will be for X; the
            // daemon may have nothing to send.
            let last = e.y_ack == e.v_max || !e.awaits_peer();
            let orphaned = news.x_awaited && news.x_advanced && last;
            if orphaned || news.x_reopened {
                verdict.route = Route::Echo;
                verdict.peer = wire_header(e, bare_seq_y(d));
            }
            return;
        }
        Way::Peer => {}
        Way::Trimmed(count) => {
            keep = count;
            verdict.reason = Reason::Straddling;
        }
    }
    // A retransmission that is too large for the path can't go the other way: its first part goes, as one packet.
    if p.largest_piece() > p.room {
        keep = p.room.min(keep);
        verdict.reason = Reason::Straddling;
    }
    if keep != WHOLE && p.gso != 0 {
        keep = p.gso.min(keep);
    }
    let seq = d.forwarded(p.seq);
    let length = if keep == WHOLE { p.length } else { keep.min(p.length) };
    d.v_max = d.v_max.latest(seq.plus(length));
    verdict.keep = keep;
    verdict.peer = wire_header(e, seq);
    let y_hears =
        news.y_waits && news.told.ack.after(e.y_lacked) || news.y_starves && !news.told.ack.before(e.y_lacked);
    // In PEER x, whose buffer is empty now, has no reason to speak of its window; it is asked, once.
    let x_asked = matches!(verdict.reason, Reason::Opened) && d.x_lwin < SMALL_WINDOW && d.x_lwin < d.y_win;
    if y_hears {
        verdict.local = local_header(e, bare_seq_x(d), &news.told);
    } else if x_asked {
        verdict.local = provoke_x(d, e);
    }
    verdict.route = if y_hears || x_asked { Route::Split } else { Route::Peer };
}

#[cfg(test)]
#[path = "ingress_tests.rs"]
mod tests;
