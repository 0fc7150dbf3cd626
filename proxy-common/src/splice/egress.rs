// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! A packet of a local socket on its way to its host.
//!
//! `d` is the direction it acknowledges, `e` the one it sends into: the socket is x of `d` and y of `e`, the host is X of
//! `d` and Y of `e`. Forwarded packets do not come here. Runs under the session's lock.

use super::acks::{ack_x, bare_seq_y, edge_x, tell_x, win_x};
use super::sack;
use super::segment::Leaving;
use super::seq::{OutLocal, OutWire, window_bytes};
use super::state::Dir;
use super::switch::to_local;
use super::verdict::{Departure, Reason, WHOLE, WireHeader};

/// Judges a packet of a local socket and brings the state up to date.
#[must_use]
#[inline(always)]
pub fn egress(d: &mut Dir, e: &mut Dir, p: &Leaving) -> Departure {
    let advances = acknowledged(d, p);
    let mut departure = Departure {
        leaves: true,
        reason: Reason::Plain,
        wire: WireHeader { seq: OutWire(p.seq.0), ack: ack_x(d), window: win_x(d) },
        keep: WHOLE,
        sack: sack::Map::of(d),
    };
    if p.syn() {
        // Of another connection with the same addresses; the program forgets this one.
        departure.wire = WireHeader { seq: OutWire(p.seq.0), ack: super::seq::InWire(p.ack.0), window: p.window };
        return departure;
    }
    // Y sends no duplicate acknowledgments for X's bytes, x must not make any up: it goes on when there is more to say.
    if p.is_bare() && !p.rst() && advances && d.is_clamped() && p.sack_blocks == 0 && !edge_x(d).after(d.x_edge) {
        departure.leaves = false;
        departure.reason = Reason::Withheld;
        return departure;
    }
    if p.rst() {
        departure.reason = Reason::Reset;
        departure.wire.seq = reset_seq(e, p.seq);
    } else if p.is_bare() {
        departure.wire.seq = bare_seq(e, p.seq);
    } else if !carries(e, p, &mut departure) {
        return departure;
    }
    tell_x(d);
    departure
}

/// Takes in what the packet acknowledges and x's window. Whether it acknowledges more than before. An RST says nothing
/// of either: it may be the answer of no socket to a packet that never counted.
#[inline(always)]
fn acknowledged(d: &mut Dir, p: &Leaving) -> bool {
    if !p.acks() || p.syn() || p.rst() {
        return false;
    }
    let advances = p.ack.after(d.x_lack);
    // Packets of one socket can overtake each other between CPUs; an old one knows nothing of the window.
    if !p.ack.before(d.x_lack) {
        d.x_lack = p.ack;
        d.x_lwin = window_bytes(p.window, d.x_scale);
    }
    d.l_max = d.l_max.latest(p.ack);
    advances
}

/// An RST ends the direction's stream where Y expects it to go on.
#[inline(always)]
fn reset_seq(e: &mut Dir, seq: OutLocal) -> OutWire {
    if e.is_peer() {
        to_local(e);
    }
    if e.is_clamped() { e.y_ack } else { mapped(e, seq) }
}

/// Of y's sequence numbers, those below the last PEER segment's point were shifted by what went before it.
#[inline(always)]
const fn mapped(e: &Dir, seq: OutLocal) -> OutWire {
    OutWire(seq.0.wrapping_add(if seq.before(e.s0) { e.k_old } else { e.k }))
}

/// A bare ACK has the highest sequence number sent, whoever sent it, as far as Y's window goes: y may not know that the
/// window shrank, and Y takes no acknowledgment from beyond it. A probe or a keepalive of y keeps its own.
#[inline(always)]
const fn bare_seq(e: &Dir, seq: OutLocal) -> OutWire {
    if e.is_peer() && !seq.before(e.s0) { bare_seq_y(e) } else { mapped(e, seq).earliest(bare_seq_y(e)) }
}

/// Payload or FIN. Whether it leaves.
#[inline(always)]
fn carries(e: &mut Dir, p: &Leaving, departure: &mut Departure) -> bool {
    // y sends again what it was told is acknowledged: so it was not told (invariant 9).
    e.y_lacked = e.y_lacked.earliest(p.seq);
    let end = p.seq.plus(p.extent());
    let below = !end.after(e.s0);
    if e.is_peer() && !below {
        if p.length != 0 {
            departure.leaves = false;
            departure.reason = Reason::Unannounced;
            return false;
        }
        to_local(e);
        departure.reason = Reason::Fin;
    }
    e.s_max = e.s_max.latest(end);
    let straddles = p.seq.before(e.s0) && !below;
    let mut length = p.extent();
    if straddles && e.is_clamped() {
        // What is below the point can be duplicate at most; what is above it comes again.
        let mut keep = e.s0.since(p.seq);
        if p.gso != 0 && keep > p.gso {
            keep = p.gso;
        }
        departure.keep = keep;
        departure.reason = Reason::Straddling;
        departure.wire.seq = mapped(e, p.seq);
        length = keep;
    } else if straddles {
        // Y has all before the point and the PEER segment: it takes what is new, wherever the rest seems to lie.
        departure.wire.seq = OutWire(p.seq.0.wrapping_add(e.k));
    } else {
        departure.wire.seq = mapped(e, p.seq);
    }
    e.v_max = e.v_max.latest(departure.wire.seq.plus(length));
    true
}

#[cfg(test)]
#[path = "egress_tests.rs"]
mod tests;
