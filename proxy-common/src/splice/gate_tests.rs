// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use super::*;
use crate::packet::{ACK, FIN, RST, SYN};
use crate::splice::segment::Segment;
use crate::splice::seq::{InWire, OutWire};
use crate::splice::testing::{Bench, CLIENT, TO_BROKER, WINDOW};
use crate::splice::verdict::Route;

/// Requests PEER, 300 bytes forwarded, 100 of them acknowledged: exp is 300, the acknowledgment for the client 100.
fn peer() -> Bench {
    let mut bench = Bench::opened(300, 1_000);
    bench.broker_acks(100);
    bench
}

#[test]
fn each_rule_accepts_up_to_its_bound_and_refuses_beyond() {
    use Judgement::{Accept, Answer, Drop, Untouched};
    let edge = peer().q.x_edge.0.wrapping_sub(CLIENT) as i32;
    let data = |offset, length| peer().data(offset, length);
    let acking = |ack: u32| Segment { ack: OutWire(ack), ..peer().data(300, 10) };
    let flags = |flags, offset| Segment { flags, ..peer().data(offset, 0) };
    let unsound = |soundness| Segment { soundness, ..peer().data(300, 10) };
    let (sent, acked) = (peer().r.v_max.0, peer().r.y_ack.0);
    let cases = [
        ("the next bytes", data(300, 10), Accept),
        ("up to the edge", data(edge - 10, 10), Accept),
        ("one beyond: a probe's byte", data(edge - 9, 10), Accept),
        ("two beyond", data(edge - 8, 10), Answer(Reason::BadSequence)),
        ("a FIN at the edge", flags(ACK | FIN, edge), Accept),
        ("a FIN beyond", flags(ACK | FIN, edge + 1), Answer(Reason::BadSequence)),
        ("a window old", data(100 - 65_535, 10), Accept),
        ("older", data(99 - 65_535, 10), Answer(Reason::BadSequence)),
        ("acknowledges all that was sent", acking(sent), Accept),
        ("acknowledges more", acking(sent + 1), Drop(Reason::BadAck)),
        ("acknowledges a window less", acking(acked - 65_535), Accept),
        ("acknowledges less still", acking(acked - 65_536), Drop(Reason::BadAck)),
        ("RST at the next byte", flags(RST, 300), Accept),
        ("RST at the acknowledgment", flags(RST, 100), Accept),
        ("RST between", flags(RST, 101), Answer(Reason::BadReset)),
        ("RST one beyond", flags(RST | ACK, 301), Answer(Reason::BadReset)),
        ("RST far away", flags(RST, 1 << 30), Answer(Reason::BadReset)),
        ("SYN", flags(SYN, 5_000_000), Untouched),
        ("SYN with data", Segment { flags: SYN, ..data(300, 1) }, Drop(Reason::BadFlags)),
        ("SYN and RST", flags(SYN | RST, 300), Drop(Reason::BadFlags)),
        ("SYN and FIN", flags(SYN | FIN, 300), Drop(Reason::BadFlags)),
        ("no ACK", flags(0, 300), Drop(Reason::BadFlags)),
        ("bad form", unsound(Soundness::BadForm), Drop(Reason::BadForm)),
        ("bad checksum", unsound(Soundness::BadChecksum), Drop(Reason::BadChecksum)),
    ];
    for (what, p, expected) in cases {
        let bench = peer();
        assert_eq!(judge(&bench.q, &bench.r, &p), expected, "{what}");
    }
}

#[test]
fn in_local_an_rst_is_the_local_sockets_to_judge() {
    let mut bench = Bench::closed(300, 300);
    for offset in [300, 305, -7, 1 << 30] {
        let before = (bench.q, bench.r);
        let p = Segment { flags: RST, ..bench.data(offset, 0) };
        let verdict = bench.client(&p, &[]);
        assert_eq!((verdict.route, verdict.reason), (Route::Local, Reason::Reset));
        assert_eq!(verdict.local.seq.0, p.seq.0.wrapping_sub(300), "shifted like everything else");
        assert_eq!((bench.q, bench.r), before);
    }
}

#[test]
fn what_is_refused_changes_nothing_and_leaves_only_what_the_state_says() {
    for p in [
        peer().data(60_000, 500),
        Segment { flags: RST, ..peer().data(301, 0) },
        Segment { ack: OutWire(0), window: 1, ..peer().data(300, 500) },
        Segment { soundness: Soundness::BadChecksum, ..peer().data(300, 500) },
        Segment { flags: FIN, ..peer().data(300, 500) },
    ] {
        let mut bench = peer();
        let before = (bench.q, bench.r);
        let verdict = bench.client(&p, &[0; 500]);
        assert!(verdict.reason.is_refusal(), "{verdict:?}");
        assert_eq!((bench.q, bench.r), before, "{verdict:?}");
        match verdict.route {
            Route::Drop => {}
            Route::LocalBare => {
                assert_eq!(verdict.local.seq, before.0.x_lack.minus(1), "below what x acknowledged: x answers");
                assert_eq!(verdict.local.ack, before.1.y_lacked);
                assert_eq!(verdict.local.window, WINDOW);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_exact_rst_reaches_x_at_the_byte_that_x_expects() {
    for offset in [100, 300] {
        let mut bench = peer();
        let p = Segment { flags: RST, ack: OutWire(7), ..bench.data(offset, 0) };
        let verdict = bench.client(&p, &[]);
        assert_eq!((verdict.route, verdict.reason), (Route::Local, Reason::Reset));
        assert_eq!(verdict.local.seq.0, CLIENT, "x has seen nothing of the PEER segment");
        assert!(!bench.q.is_peer());
        assert_eq!(bench.r.y_ack.0, crate::splice::testing::TO_CLIENT, "nothing is learnt from its acknowledgment");
    }
}

#[test]
fn an_rst_at_what_was_acknowledged_while_clamped_finds_x() {
    let mut bench = Bench::closed(300, 100);
    bench.q.x_lack = bench.q.x_lack.plus(40);
    let p = Segment { flags: RST, ..bench.data(100, 0) };
    assert_eq!(bench.client(&p, &[]).local.seq, bench.q.x_lack);
}

/// As large as packets get (BIG TCP merges up to 512 KiB): no start is taken for old whose end has gone around.
#[test]
fn a_packet_half_the_sequence_space_away_is_refused_whatever_its_length() {
    let oldest = InWire(CLIENT.wrapping_add(100)).minus(65_535);
    for length in [1, 1_460, 65_536, 100_000, 512 << 10] {
        for away in [1 << 31, (1 << 31) - 1, (1 << 31) - length, (1 << 31) - length / 2, u32::MAX] {
            let p = Segment { seq: oldest.plus(away), ..peer().data(0, length) };
            let bench = peer();
            assert_eq!(judge(&bench.q, &bench.r, &p), Judgement::Answer(Reason::BadSequence), "{length} at {away}");
        }
    }
}

#[test]
fn a_window_of_the_largest_scale_does_not_reach_around_the_sequence_space() {
    let mut bench = peer();
    bench.q.x_scale = 14;
    let oldest = InWire(CLIENT.wrapping_add(100)).minus(1 << 28);
    let at = |seq: InWire| Segment { seq, ..peer().data(0, 10) };
    assert_eq!(judge(&bench.q, &bench.r, &at(oldest)), Judgement::Accept);
    assert_eq!(judge(&bench.q, &bench.r, &at(oldest.minus(1))), Judgement::Answer(Reason::BadSequence));
    assert_eq!(TO_BROKER, bench.q.pv.0);
}
