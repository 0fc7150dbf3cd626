// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Who must have what, kept apart from the state under test: which stretches of a host's stream were forwarded, and so
//! whether an acknowledgment that reaches the host is true.

use proxy_common::splice::state::Dir;

/// A stretch of W from `from` to the next one's.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u32,
    peer: bool,
    /// From W to V in PEER; from L to W and from S to V in LOCAL.
    shift: u32,
    /// Where it begins in S.
    sent: u32,
}

/// The stretches of both directions.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    stretches: [Vec<Stretch>; 2],
}

/// Further on modulo 2³².
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

impl Ledger {
    /// Starts with both directions LOCAL.
    pub(super) fn begin(&mut self, dirs: &[Dir; 2]) {
        for (stretches, d) in self.stretches.iter_mut().zip(dirs) {
            // From the stream's beginning: further back than anything that is acknowledged from here on.
            let far = 1 << 30;
            let (from, sent) = (d.w0.0.wrapping_sub(far), d.s0.0.wrapping_sub(far));
            stretches.push(Stretch { from, peer: false, shift: 0, sent });
        }
    }

    /// Notes the switches between two states. A packet can open a segment, but not close the one it opened.
    pub(super) fn observe(&mut self, before: &[Dir; 2], after: &[Dir; 2]) {
        for ((stretches, was), is) in self.stretches.iter_mut().zip(before).zip(after) {
            if was.epoch == is.epoch {
                continue;
            }
            let peer = is.epoch & 1 == 1;
            let stretch = if peer {
                Stretch { from: is.pw.0, peer, shift: is.pv.0.wrapping_sub(is.pw.0), sent: is.s0.0 }
            } else {
                Stretch { from: is.w0.0, peer, shift: is.w0.0.wrapping_sub(is.lpos.0), sent: is.s0.0 }
            };
            stretches.push(stretch);
        }
    }

    /// Whether all before `acknowledged` (W) has arrived: in PEER at Y, who expects `y_next` (V), in LOCAL at x, who
    /// expects `x_next` (L). Only the last byte needs a look, because the same held for the earlier ones.
    pub(super) fn is_true(&self, direction: usize, acknowledged: u32, x_next: u32, y_next: u32) -> bool {
        let stretches = &self.stretches[direction];
        let Some(stretch) = stretches.iter().rev().find(|stretch| after(acknowledged, stretch.from)) else {
            return true;
        };
        if stretch.peer {
            !after(acknowledged.wrapping_add(stretch.shift), y_next)
        } else {
            !after(acknowledged.wrapping_sub(stretch.shift), x_next)
        }
    }

    /// Whether all of y before `acknowledged` (S) has arrived at Y, who expects `y_next` (V).
    pub(super) fn is_true_of_y(&self, direction: usize, acknowledged: u32, y_next: u32) -> bool {
        let local = |stretch: &&Stretch| !stretch.peer && after(acknowledged, stretch.sent);
        let stretch = self.stretches[direction].iter().rev().find(local);
        stretch.is_none_or(|stretch| !after(acknowledged.wrapping_add(stretch.shift), y_next))
    }
}
