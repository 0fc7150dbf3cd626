// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! SACK blocks (RFC 2018) from one space to another, in place, one block at a time.
//!
//! The option is read only in the layout that Linux writes without timestamps: NOP, NOP, kind 5, length, blocks. A block
//! that means nothing to the receiver becomes the empty block at the acknowledgment, which TCP ignores; so does one
//! that begins there, because it would read as reneging. Branch-free: with four blocks in a row, branches multiply the
//! verifier's paths.

use super::seq::{InLocal, InWire, OutLocal, OutWire};
use super::state::Dir;

/// What the mapping needs of a direction; taken under the lock, used after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Map {
    pv: u32,
    v0: u32,
    k: u32,
    k_old: u32,
    fwd: u32,
    lpos: u32,
    /// All ones in LOCAL.
    local: u32,
}

/// All ones if `a` is at or after `b`.
#[inline(always)]
const fn at_least(a: u32, b: u32) -> u32 {
    !(((a.wrapping_sub(b) as i32) >> 31) as u32)
}

/// All ones if they differ.
#[inline(always)]
const fn differ(a: u32, b: u32) -> u32 {
    let x = a ^ b;
    (((x | x.wrapping_neg()) as i32) >> 31) as u32
}

/// `a` where the mask is all ones, else `b`.
#[inline(always)]
const fn pick(mask: u32, a: u32, b: u32) -> u32 {
    b ^ (mask & (a ^ b))
}

#[inline(always)]
const fn max(a: u32, b: u32) -> u32 {
    pick(at_least(a, b), a, b)
}

#[inline(always)]
const fn min(a: u32, b: u32) -> u32 {
    pick(at_least(a, b), b, a)
}

/// The block, or the empty one where it means nothing or begins at the acknowledgment.
#[inline(always)]
const fn or_empty(meant: u32, left: u32, right: u32, ack: u32) -> (u32, u32) {
    let shown = meant & differ(left, ack);
    (pick(shown, left, ack), pick(shown, right, ack))
}

impl Map {
    /// Of the direction that the blocks acknowledge.
    #[must_use]
    #[inline(always)]
    pub const fn of(d: &Dir) -> Self {
        let local = if d.is_peer() { 0 } else { u32::MAX };
        Self { pv: d.pv.0, v0: d.v0.0, k: d.k, k_old: d.k_old, fwd: d.fwd, lpos: d.lpos.0, local }
    }

    /// A block of Y for y. `ack` is the acknowledgment that goes with it.
    #[must_use]
    #[inline(always)]
    pub const fn for_y(&self, left: OutWire, right: OutWire, ack: OutLocal) -> (OutLocal, OutLocal) {
        let old = at_least(self.pv, right.0);
        let new = self.local & !at_least(self.v0, right.0);
        let shift = pick(old, self.k_old, self.k);
        let from = pick(old, left.0, max(left.0, self.v0));
        let (l, r) = or_empty(old | new, from.wrapping_sub(shift), right.0.wrapping_sub(shift), ack.0);
        (OutLocal(l), OutLocal(r))
    }

    /// A block of Y for X: only bytes of the PEER segment are X's. `came_with` is Y's acknowledgment, `ack` the one that
    /// goes out. A block at or below the acknowledgment reports a duplicate (RFC 2883) and stays one.
    #[must_use]
    #[inline(always)]
    pub const fn for_x(&self, left: OutWire, right: OutWire, came_with: OutWire, ack: InWire) -> (InWire, InWire) {
        let l = max(left.0, self.pv);
        let r = pick(self.local, min(right.0, self.v0), right.0);
        let (wl, wr) = (l.wrapping_sub(self.fwd), r.wrapping_sub(self.fwd));
        let duplicate = at_least(came_with.0, right.0);
        let meant = !at_least(l, r) & (!at_least(ack.0, wr) | duplicate);
        let (l, r) = or_empty(meant, wl, wr, ack.0);
        (InWire(l), InWire(r))
    }

    /// A block of x for X.
    #[must_use]
    #[inline(always)]
    pub const fn of_x(&self, left: InLocal, right: InLocal, came_with: InLocal, ack: InWire) -> (InWire, InWire) {
        let old = at_least(self.lpos, right.0);
        let duplicate = at_least(came_with.0, right.0);
        let wr = right.0.wrapping_add(pick(old, self.k_old, self.k));
        let new = self.local & (!at_least(ack.0, wr) | duplicate);
        let from = pick(old, left.0, max(left.0, self.lpos));
        let (l, r) = or_empty(old | new, from.wrapping_add(pick(old, self.k_old, self.k)), wr, ack.0);
        (InWire(l), InWire(r))
    }
}

#[cfg(test)]
#[path = "sack_tests.rs"]
mod tests;
