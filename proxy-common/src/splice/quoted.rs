// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Whose packet a router speaks of, and by which number its sender knows it.

use super::seq::{InWire, OutLocal, OutWire, largest_window};
use super::state::Dir;

/// Who sent a packet to Y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoted {
    /// Local y, as this number.
    Local(OutLocal),
    /// X, as this number: it was forwarded.
    Peer(InWire),
    /// Nobody, or so long ago that nobody can say.
    Nobody,
}

/// Who sent the packet with this sequence number to Y.
#[must_use]
#[inline(always)]
pub const fn quoted(e: &Dir, seq: OutWire) -> Quoted {
    if seq.after(e.v_max) || seq.before(e.y_ack.minus(largest_window(e.y_scale))) {
        Quoted::Nobody
    } else if seq.before(e.pv) {
        Quoted::Local(OutLocal(seq.0.wrapping_sub(e.k_old)))
    } else if seq.before(e.peer_end()) {
        Quoted::Peer(e.original(seq))
    } else if e.is_peer() {
        // A bare acknowledgment, of either; it is not sent again in any case.
        Quoted::Local(e.s0)
    } else {
        Quoted::Local(OutLocal(seq.0.wrapping_sub(e.k)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, CLIENT, TO_BROKER};
    use super::*;

    fn of(bench: &Bench, offset: u32) -> Quoted {
        quoted(&bench.q, OutWire(TO_BROKER.wrapping_add(offset)))
    }

    #[test]
    fn bytes_of_a_forwarded_segment_are_the_senders_own() {
        let mut open = Bench::opened(300, 300);
        assert_eq!(of(&open, 0), Quoted::Peer(InWire(CLIENT)));
        assert_eq!(of(&open, 299), Quoted::Peer(InWire(CLIENT.wrapping_add(299))));
        assert_eq!(of(&open, 300), Quoted::Local(OutLocal(TO_BROKER)), "nothing was sent there");
        assert_eq!(of(&open, 301), Quoted::Nobody);
        open.q.v_max = open.q.v_max.plus(10);
        assert_eq!(of(&open, 305), Quoted::Local(OutLocal(TO_BROKER)));
    }

    #[test]
    fn bytes_before_and_behind_a_segment_are_local() {
        let mut bench = Bench::closed(300, 120);
        bench.q.k_old = 50;
        assert_eq!(of(&bench, 0u32.wrapping_sub(1)), Quoted::Local(OutLocal(TO_BROKER.wrapping_sub(51))));
        assert_eq!(of(&bench, 299), Quoted::Peer(InWire(CLIENT.wrapping_add(299))));
        bench.q.v_max = bench.q.v_max.plus(80);
        assert_eq!(of(&bench, 300), Quoted::Local(OutLocal(TO_BROKER)));
        assert_eq!(of(&bench, 370), Quoted::Local(OutLocal(TO_BROKER.wrapping_add(70))));
    }

    #[test]
    fn what_is_older_than_a_window_is_nobodys() {
        let bench = Bench::opened(300, 300);
        let oldest = bench.q.y_ack.minus(largest_window(bench.q.y_scale));
        assert_eq!(quoted(&bench.q, oldest.minus(1)), Quoted::Nobody);
        assert!(matches!(quoted(&bench.q, oldest), Quoted::Local(_)));
    }
}
