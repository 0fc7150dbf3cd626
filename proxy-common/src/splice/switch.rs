// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The two switches between LOCAL and PEER.

use super::arm::Armed;
use super::seq::{InWire, OutWire};
use super::state::Dir;

/// LOCAL → PEER at `seq`, by an arm that [`super::arm::may_open`] agreed to.
#[inline(always)]
pub fn to_peer(d: &mut Dir, seq: InWire, armed: &Armed) {
    debug_assert!(!d.is_peer());
    d.pw = seq;
    d.exp = seq;
    d.lpos = armed.at;
    d.s0 = armed.sent;
    d.pv = OutWire(armed.sent.0.wrapping_add(d.k));
    d.k_old = d.k;
    d.fwd = d.pv.0.wrapping_sub(d.pw.0);
    d.remain = armed.remain;
    d.frames = armed.frames;
    // x received all up to here, whether or not it has said so yet: its window shrinks by what it didn't.
    if armed.at.after(d.x_lack) {
        d.x_lwin = d.x_lwin.saturating_sub(armed.at.since(d.x_lack));
        d.x_lack = armed.at;
    }
    d.v_max = d.v_max.latest(d.pv);
    d.epoch = d.epoch.wrapping_add(1);
}

/// PEER → LOCAL at `exp`; always allowed.
#[inline(always)]
pub fn to_local(d: &mut Dir) {
    debug_assert!(d.is_peer());
    d.w0 = d.exp;
    d.v0 = d.forwarded(d.w0);
    d.k = d.w0.0.wrapping_sub(d.lpos.0);
    d.prefix = d.remain;
    d.l_max = d.lpos;
    d.epoch = d.epoch.wrapping_add(1);
}

/// The daemon takes the direction back; run under the lock, after the arm was taken back. Whether it was PEER.
#[inline(always)]
pub fn recall(d: &mut Dir) -> bool {
    let peer = d.is_peer();
    if peer {
        to_local(d);
    }
    peer
}
