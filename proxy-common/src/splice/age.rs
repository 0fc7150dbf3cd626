// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Keeping the points of the last PEER segment within reach of comparisons, which hold for 2³¹ bytes.

use super::seq::{InLocal, InWire, OutLocal, OutWire};
use super::state::Dir;

/// Bytes after which a point is moved.
const REACH: u32 = 1 << 29;
/// Bytes it is moved up to behind the newest: more than anything genuine is late by
/// ([`super::seq::largest_window`]).
const MARGIN: u32 = (1 << 28) + (1 << 20);

/// Moves the points that have fallen too far behind. Called for both directions with every accepted packet: each moves
/// one packet's bytes at a time, so none can pass the reach in between.
///
/// - PEER: both starts advance together, along the bytes that Y has acknowledged.
/// - LOCAL, once Y has the whole PEER segment: it is forgotten (made empty, which changes no mapping further on), and
///   its W and V points follow their streams, each by itself: together, 2 GiB on one side would flip a comparison.
#[inline(always)]
pub const fn age(d: &mut Dir) {
    if d.is_peer() {
        let acked = d.y_ack.ahead_of(d.pv);
        if acked > (REACH + MARGIN) as i32 {
            let by = acked as u32 - MARGIN;
            d.pw = d.pw.plus(by);
            d.pv = d.pv.plus(by);
            d.k_old = d.k_old.wrapping_add(by);
        }
        return;
    }
    if d.is_clamped() {
        return;
    }
    let reached = InWire(d.x_lack.0.wrapping_add(d.k));
    let acked = d.y_ack;
    let far_in = reached.ahead_of(d.w0) > (REACH + MARGIN) as i32;
    let far_out = acked.ahead_of(d.v0) > (REACH + MARGIN) as i32;
    if !far_in && !far_out {
        return;
    }
    d.k_old = d.k;
    if far_in {
        d.w0 = reached.minus(MARGIN);
        d.lpos = InLocal(d.w0.0.wrapping_sub(d.k));
    }
    if far_out {
        d.v0 = OutWire(acked.0.wrapping_sub(MARGIN));
        d.s0 = OutLocal(d.v0.0.wrapping_sub(d.k));
    }
    d.pw = d.w0;
    d.pv = d.v0;
}

#[cfg(test)]
#[path = "age_tests.rs"]
mod tests;
