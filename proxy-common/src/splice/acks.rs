// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Acknowledgments and windows, both ways. What goes on a wire is a function of the state, never of the packet that
//! carries it (invariant 3).

use super::forget;
use super::segment::Arriving;
use super::seq::{InLocal, InWire, OutLocal, OutWire, window_bytes, window_field};
use super::state::Dir;

/// The acknowledgment for X: in PEER Y's, in LOCAL x's, held back while Y lacks part of the last PEER segment.
#[must_use]
#[inline(always)]
pub const fn ack_x(d: &Dir) -> InWire {
    if d.awaits_peer() {
        if d.y_ack.after(d.pv) { d.original(d.y_ack) } else { d.pw }
    } else {
        InWire(d.x_lack.0.wrapping_add(d.k))
    }
}

/// The window field for X: what both x and Y have room for, but never less than was promised (RFC 9293, section 3.8.6.2.1:
/// a sender whose window shrank below what it sent is out of step with everybody), unless the one that X waits for has
/// closed its window altogether ([`is_shut`]). In LOCAL, what y has in flight counts against Y's window, so that X is
/// promised no more than Y can take when the direction becomes PEER.
#[must_use]
#[inline(always)]
pub fn win_x(d: &Dir) -> u32 {
    let in_flight = d.v_max.since(if d.is_clamped() { d.v0 } else { d.y_ack });
    let room = if d.is_peer() { d.y_win } else { d.y_win.saturating_sub(in_flight) };
    let both = if d.x_lwin < room { d.x_lwin } else { room };
    let bytes = if is_shut(d) { 0 } else { at_least(both, d.x_edge.ahead_of(ack_x(d))) };
    window_field(forget::number(bytes), d.x_scale)
}

/// Whether the one whose acknowledgment X waits for says that its window is 0. Then X is told so, whatever was promised:
/// a host out of memory drops what it promised to take, and only who hears of the 0 probes instead of giving up.
#[must_use]
#[inline(always)]
pub fn is_shut(d: &Dir) -> bool {
    let window = if forget::answer(d.awaits_peer()) { d.y_win } else { d.x_lwin };
    forget::answer(window == 0)
}

/// `bytes`, or as many as were promised, if that is more.
#[inline(always)]
const fn at_least(bytes: u32, promised: i32) -> u32 {
    if promised > 0 && promised as u32 > bytes { promised as u32 } else { bytes }
}

/// The right edge that [`ack_x`] and [`win_x`] tell X.
#[must_use]
#[inline(always)]
pub fn edge_x(d: &Dir) -> InWire {
    ack_x(d).plus(window_bytes(win_x(d), d.x_scale))
}

/// Notes that X is told the edge of now.
#[inline(always)]
pub fn tell_x(d: &mut Dir) {
    d.x_edge = d.x_edge.latest(edge_x(d));
}

/// What a bare ACK to x has as its sequence number: the highest byte x has seen, within its window.
#[must_use]
#[inline(always)]
pub const fn bare_seq_x(d: &Dir) -> InLocal {
    if d.is_peer() { d.lpos } else { d.l_max.earliest(d.x_lack.plus(d.x_lwin)) }
}

/// What a bare ACK to Y has as its sequence number: the highest byte sent to Y, within its window.
#[must_use]
#[inline(always)]
pub const fn bare_seq_y(d: &Dir) -> OutWire {
    d.v_max.earliest(d.y_ack.plus(d.y_win))
}

/// Takes in what a packet from Y acknowledges, and Y's window where the packet is the latest to tell or tells of more room.
/// The gate has accepted it.
///
/// Linux believes a packet from before the last one that told of no window (`tcp_may_update_window`), and so can be made
/// deaf for long by one from far ahead. No host shrinks its window but to 0, for want of memory; a larger one is the later
/// one, or was promised.
#[inline(always)]
pub const fn learn(d: &mut Dir, p: &Arriving) {
    let window = window_bytes(p.window, d.y_scale);
    let newer = p.ack.after(d.y_ack)
        || p.ack.0 == d.y_ack.0 && (window > d.y_win || p.seq.after(d.y_wl) || p.seq.0 == d.y_wl.0 && window == 0);
    if newer {
        d.y_ack = p.ack;
        d.y_win = window;
        d.y_wl = p.seq;
    }
}

/// What local y is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Acknowledgment; never beyond what y sent (invariant 4).
    pub ack: OutLocal,
    /// Window field.
    pub window: u32,
    /// The right edge the two make.
    pub edge: OutLocal,
}

/// Y's acknowledgment `a` in y's terms. While it lies in the PEER segment y stands still at that point, and Y's window
/// less what the segment will take of it is left; but never less than y was told, unless Y's window is 0, which a host
/// out of memory makes it: y must probe then, not resend until it gives up.
#[must_use]
#[inline(always)]
pub fn for_y(d: &Dir, a: OutWire) -> Told {
    let (ack, taken) = if a.before(d.pv) {
        (a.0.wrapping_sub(d.k_old), 0)
    } else if a.before(d.peer_end()) {
        (d.s0.0, d.peer_end().since(a))
    } else if d.is_peer() {
        (d.s0.0, 0)
    } else {
        (a.0.wrapping_sub(d.k), 0)
    };
    let ack = OutLocal(ack);
    let promised = if d.y_win == 0 { 0 } else { d.y_told.ahead_of(ack) as u32 };
    let bytes = at_least(d.y_win.saturating_sub(taken), forget::number(promised) as i32);
    let window = forget::number(window_field(bytes, d.y_scale));
    Told { ack, window, edge: ack.plus(window_bytes(window, d.y_scale)) }
}

/// Notes that y is told so. An old acknowledgment tells y nothing; a closed window takes back what was promised.
#[inline(always)]
pub fn tell_y(d: &mut Dir, told: &Told) {
    if !told.ack.before(d.y_lacked) {
        d.y_lacked = told.ack;
        d.y_told = if told.window == 0 { told.edge } else { d.y_told.latest(told.edge) };
    }
}

#[cfg(test)]
#[path = "acks_tests.rs"]
mod tests;
