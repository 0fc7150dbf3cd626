// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Packets of a stranger who knows the addresses and ports, and sometimes the state. Only such as no TCP is harmed by:
//! an exact RST, or bytes in the window, would end or falsify any plain connection too.

use proxy_common::splice::acks;
use proxy_common::splice::seq::InWire;
use proxy_common::splice::state::{Dir, Side};

use super::{Gateway, local, remote};
use crate::tcp::{ACK, Micros, RST, SYN, Segment};

impl Gateway {
    /// Injects a packet, and sets the time of the next.
    pub(super) fn attack(&mut self, now: Micros) {
        self.manner.attacks = self.manner.attacks.saturating_sub(1);
        let next = now + 1 + self.rng.below(self.manner.attack_interval);
        self.attacks_at = (self.manner.attacks > 0).then_some(next);
        let Some(session) = &self.session else { return };
        let dirs = session.dirs;
        let side = if self.rng.chance(500) { Side::Client } else { Side::Broker };
        let segment = self.forged(side, &dirs[side.index()], &dirs[side.other().index()]);
        self.arrive(now, side, segment, true);
    }

    fn forged(&mut self, side: Side, d: &Dir, e: &Dir) -> Segment {
        let flags = [RST, RST | ACK, RST | ACK, SYN, SYN | RST, ACK, ACK, ACK, ACK][self.rng.below(9) as usize];
        let seq = self.rng.next() as u32;
        let mut segment = Segment::bare(remote(side), local(side), flags, seq, e.y_ack.0);
        let window = d.x_edge.since(acks::ack_x(d));
        match self.rng.below(6) {
            // Anywhere.
            0 => {}
            // An RST within the window, but for the numbers that hit; what is no RST is a stale ACK, not ahead of the
            // stream: a window told from there would stand against all genuine ones (SND.WL1), in plain TCP too.
            1 | 2 => {
                let ahead = acks::ack_x(d).plus(1 + self.rng.below(u64::from(window.max(2))) as u32);
                segment.seq = if segment.has(RST) { ahead.0 } else { d.reached().minus(ahead.0 % 100).0 };
                segment.ack = e.y_ack.minus(self.rng.below(1_000) as u32).0;
                segment.window = self.rng.next() as u16;
            }
            // Data beyond the window, an acknowledgment of what nobody sent, data from long ago. Far away: a packet waits
            // for its commit, and must not have come true by then.
            3 => {
                segment.seq = d.x_edge.plus((1 << 22) + self.rng.below(100_000) as u32).0;
                segment.payload = vec![0xee; 1 + self.rng.below(1_000) as usize];
            }
            4 => {
                segment.seq = d.reached().0;
                segment.ack = e.v_max.plus((1 << 22) + self.rng.below(100_000) as u32).0;
                segment.payload = vec![0xee; self.rng.below(1_000) as usize];
            }
            _ => {
                segment.seq = acks::ack_x(d).minus((1 << 29) + self.rng.below(1_000) as u32).0;
                segment.payload = vec![0xee; 1 + self.rng.below(1_000) as usize];
            }
        }
        self.harmless(segment, d)
    }

    /// The same, unless it would hit a plain connection as well.
    fn harmless(&mut self, mut segment: Segment, d: &Dir) -> Segment {
        let near = |seq: u32| InWire(seq).ahead_of(d.reached()).unsigned_abs() < 1 << 20;
        if segment.has(SYN) {
            segment.payload.clear();
        }
        let ahead = InWire(segment.seq).after(d.reached()) && !InWire(segment.seq).after(d.x_edge.plus(1));
        if ahead && !segment.has(RST) && segment.payload.is_empty() {
            segment.seq = d.reached().0;
        }
        // In LOCAL an RST that x expects is not the state machine's to refuse.
        if segment.has(RST) && near(segment.seq) {
            let hits = |seq: u32| seq == d.exp.0 || seq == acks::ack_x(d).0 || !d.is_peer();
            while hits(segment.seq) && near(segment.seq) {
                segment.seq = segment.seq.wrapping_add(1 << 21);
            }
        }
        segment
    }
}
