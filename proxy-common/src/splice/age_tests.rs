// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Gigabytes through one direction, with the true places in 64 bits beside it.

use super::*;
use crate::splice::acks::{ack_x, for_y};
use crate::splice::arm::Armed;
use crate::splice::gate::{Judgement, judge};
use crate::splice::segment::Segment;
use crate::splice::switch::{to_local, to_peer};
use crate::splice::testing::{BROKER, Bench, CLIENT, TO_BROKER};

const MIB: u64 = 1 << 20;

/// What has passed, in bytes.
struct Run {
    bench: Bench,
    /// From X in LOCAL, from y, and in PEER.
    into_x: u64,
    from_y: u64,
    forwarded: u64,
}

impl Run {
    fn new() -> Self {
        Self { bench: Bench::new(), into_x: 0, from_y: 0, forwarded: 0 }
    }

    fn w(&self) -> u32 {
        CLIENT.wrapping_add((self.into_x + self.forwarded) as u32)
    }

    fn v(&self) -> u32 {
        TO_BROKER.wrapping_add((self.from_y + self.forwarded) as u32)
    }

    /// In LOCAL: bytes of X are received, acknowledged, and others sent and acknowledged, a step at a time.
    fn local(&mut self, received: u64, sent: u64) {
        let steps = received.max(sent).div_ceil(MIB);
        for step in 0..steps {
            let share = |total: u64| total * (step + 1) / steps - total * step / steps;
            self.into_x += share(received);
            self.from_y += share(sent);
            let l = InLocal(CLIENT.wrapping_add(self.into_x as u32));
            let s = OutLocal(TO_BROKER.wrapping_add(self.from_y as u32));
            let v = OutWire(self.v());
            let q = &mut self.bench.q;
            (q.l_max, q.x_lack, q.x_edge) = (l, l, InWire(l.0.wrapping_add(q.k)).plus(40_000));
            (q.s_max, q.v_max, q.y_ack, q.y_lacked, q.y_told) = (s, v, v, s, s.plus(40_000));
            age(q);
            self.check();
        }
    }

    /// In PEER: forwarded and acknowledged.
    fn peer(&mut self, bytes: u64) {
        let w = InWire(self.w());
        let q = &mut self.bench.q;
        let armed = Armed { at: q.l_max, sent: q.s_max, frames: 0, remain: 0, epoch: q.epoch };
        to_peer(q, w, &armed);
        for _ in 0..bytes / MIB {
            self.forwarded += MIB;
            let (w, v) = (InWire(self.w()), OutWire(self.v()));
            let q = &mut self.bench.q;
            (q.exp, q.v_max, q.y_ack, q.x_edge) = (w, v, v, w.plus(40_000));
            age(q);
            self.check();
        }
        to_local(&mut self.bench.q);
        self.check();
    }

    /// The state says what is true, and takes the next packet and a late one.
    fn check(&self) {
        let q = &self.bench.q;
        assert_eq!(ack_x(q).0, self.w());
        assert_eq!(for_y(q, OutWire(self.v())).ack.0, TO_BROKER.wrapping_add(self.from_y as u32));
        assert!(!q.y_ack.before(q.pv) && !q.is_clamped());
        let late = Segment { seq: InWire(self.w()).minus(60_000), ..self.bench.data(0, 100) };
        assert!(late.seq.before(ack_x(q)));
        for p in [late, Segment { seq: InWire(self.w()), ..self.bench.data(0, 100) }] {
            assert_eq!(judge(q, &self.bench.r, &p), Judgement::Accept);
        }
        assert_eq!(self.bench.r.pw.0, BROKER, "the other direction is not touched");
    }
}

#[test]
fn five_gigabytes_in_one_peer_segment() {
    let mut run = Run::new();
    run.peer(5 << 30);
    run.local(MIB, MIB);
    run.peer(5 << 30);
}

#[test]
fn five_gigabytes_one_way_and_five_thousand_bytes_the_other_and_back() {
    let mut run = Run::new();
    run.peer(10 * MIB);
    run.local(5 << 30, 5_000);
    run.peer(10 * MIB);
    run.local(5_000, 5 << 30);
    run.peer(10 * MIB);
    run.local(5 << 30, 5 << 30);
}

#[test]
fn many_turns_around_the_wrap() {
    let mut run = Run::new();
    for turn in 0..600 {
        run.peer((turn % 7) * 3 * MIB);
        run.local((turn % 5) * 4 * MIB, (turn % 3) * 9 * MIB);
    }
}

#[test]
fn nothing_is_forgotten_while_y_lacks_part_of_the_segment() {
    let mut bench = Bench::closed(300, 120);
    bench.q.x_lack = bench.q.x_lack.plus((REACH + MARGIN) * 2);
    let before = bench.q;
    age(&mut bench.q);
    assert_eq!(bench.q, before);
}
