// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The gate (invariant 7): nothing of a packet that fails here gets into the state, or to anybody as it came.
//!
//! Rules of RFC 9293, section 3.10.7.4, and RFC 5961. What an established socket would answer is answered by the local
//! socket: it gets a bare ACK one below what it has acknowledged, made of the state alone, and its duplicate or
//! challenge ACK leaves as what the state says. Passing the refused packet itself, shifted, would be wrong: x has been
//! told of more room than X was (X's window is the lesser of two), so it might accept data that the state knows nothing
//! of.

use super::acks::ack_x;
use super::segment::{Arriving, Soundness};
use super::seq::largest_window;
use super::state::Dir;
use super::verdict::Reason;

/// What becomes of a packet at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It may change the state.
    Accept,
    /// It goes to the local socket as it is: a SYN, which is judged by its own numbers whatever the stream's are (an
    /// established socket answers it with a challenge, one in TIME_WAIT may start anew).
    Untouched,
    /// It is dropped.
    Drop(Reason),
    /// It is answered by the local socket.
    Answer(Reason),
}

/// Judges a packet that carries data of `d` and acknowledges `e`.
#[must_use]
#[inline(always)]
pub const fn judge(d: &Dir, e: &Dir, p: &Arriving) -> Judgement {
    match p.soundness {
        Soundness::BadForm => return Judgement::Drop(Reason::BadForm),
        Soundness::BadChecksum => return Judgement::Drop(Reason::BadChecksum),
        Soundness::Sound => {}
    }
    if p.syn() {
        // With RST it would be judged as one, by numbers that are not x's.
        let alone = p.length == 0 && !p.rst() && !p.fin();
        return if alone { Judgement::Untouched } else { Judgement::Drop(Reason::BadFlags) };
    }
    if p.rst() {
        // In LOCAL x judges by its own numbers, as without us.
        let hits = !d.is_peer() || p.seq.0 == d.exp.0 || p.seq.0 == ack_x(d).0;
        return if hits { Judgement::Accept } else { Judgement::Answer(Reason::BadReset) };
    }
    if !p.acks() {
        return Judgement::Drop(Reason::BadFlags);
    }
    // One beyond the edge: a FIN, or the byte of a window probe (RFC 9293, section 3.8.6.1). As distances from the
    // oldest, because start and end compared each by itself can lie on two sides of the sequence space.
    let oldest = ack_x(d).minus(largest_window(d.x_scale));
    let (from, room) = (p.seq.since(oldest), d.x_edge.plus(1).since(oldest));
    if from > room || p.extent() > room - from {
        return Judgement::Answer(Reason::BadSequence);
    }
    // Dropped, not answered: no genuine peer acknowledges what was not sent, and the other case is a packet that was
    // under way longer than a window lasts.
    if p.ack.after(e.v_max) || p.ack.before(e.y_ack.minus(largest_window(e.y_scale))) {
        return Judgement::Drop(Reason::BadAck);
    }
    Judgement::Accept
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
