// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::*;
use crate::splice::testing::{Bench, CLIENT, TO_BROKER, WINDOW};

fn acknowledged(d: &Dir) -> u32 {
    ack_x(d).0.wrapping_sub(CLIENT)
}

#[test]
fn x_is_acknowledged_what_the_receiver_has() {
    let mut bench = Bench::opened(300, 1_000);
    assert_eq!(acknowledged(&bench.q), 0, "in PEER what Y has");
    bench.broker_acks(120);
    assert_eq!(acknowledged(&bench.q), 120);
    crate::splice::switch::recall(&mut bench.q);
    assert_eq!(acknowledged(&bench.q), 120, "still");
    bench.client(&bench.data(300, 50), &[0; 50]);
    bench.q.x_lack = bench.q.x_lack.plus(50);
    assert_eq!(acknowledged(&bench.q), 120, "x has more, but Y lacks some before it");
    bench.broker_acks(300);
    assert_eq!(acknowledged(&bench.q), 350);
}

#[test]
fn an_empty_segment_holds_nothing_back() {
    let mut bench = Bench::new();
    bench.q.y_ack = bench.q.y_ack.minus(50);
    bench.q.x_lack = bench.q.x_lack.plus(10);
    assert!(!bench.q.is_clamped());
    assert_eq!(acknowledged(&bench.q), 10);
}

#[test]
fn y_is_acknowledged_up_to_the_point_while_the_segment_is_under_way() {
    // k_old is 0, k is 300. Offset of Y's acknowledgment, whether PEER, offset for y, window that is left.
    let cases = [
        (false, 0, 0, WINDOW - 300),
        (false, 299, 0, WINDOW - 1),
        (false, 300, 0, WINDOW),
        (false, 360, 60, WINDOW),
        (true, 0, 0, WINDOW - 300),
        (true, 300, 0, WINDOW),
    ];
    for (peer, ack, expected, window) in cases {
        let mut bench = if peer { Bench::opened(300, 300) } else { Bench::closed(300, 0) };
        // y was told of no window, so that none is promised.
        bench.q.y_told = bench.q.y_lacked;
        let told = for_y(&bench.q, OutWire(TO_BROKER + ack));
        assert_eq!((told.ack.0, told.window), (TO_BROKER + expected, window), "peer {peer} ack {ack}");
        assert_eq!(told.edge, told.ack.plus(window));
    }
    let bench = Bench::closed(300, 0);
    assert_eq!(for_y(&bench.q, OutWire(TO_BROKER - 20)).ack.0, TO_BROKER - 20, "before the segment");
}

#[test]
fn what_y_was_told_is_not_taken_back() {
    let bench = Bench::closed(300, 0);
    let told = for_y(&bench.q, OutWire(TO_BROKER));
    assert_eq!(told.window, WINDOW, "Y's bytes take 300 of it, but y was promised all");
}

#[test]
fn a_closed_window_of_y_is_told_to_y_whatever_was_promised() {
    // Y acknowledges nothing of the segment, some of it, or all; k is 300.
    for acked in [0, 120, 300] {
        let mut bench = Bench::closed(300, acked);
        bench.q.y_win = 0;
        let told = for_y(&bench.q, OutWire(TO_BROKER + acked));
        assert_eq!((told.ack.0, told.window), (TO_BROKER, 0), "acked {acked}");
        assert!(bench.q.y_told.after(told.edge), "something was promised");
        tell_y(&mut bench.q, &told);
        assert_eq!(bench.q.y_told, told.edge, "no longer");
        // What is left of a small window then is less than was promised first.
        bench.q.y_win = 500;
        let told = for_y(&bench.q, OutWire(TO_BROKER + acked));
        assert_eq!(told.window, 500 - (300 - acked));
    }
}

#[test]
fn x_is_told_of_a_closed_window_of_the_one_it_waits_for() {
    // PEER, clamped, LOCAL; Y's window, x's window, whether X is told 0 though more was promised.
    let cases = [
        (Bench::opened(300, 300), 0, WINDOW, true),
        (Bench::opened(300, 300), 1, 0, false),
        (Bench::closed(300, 120), 0, WINDOW, true),
        (Bench::closed(300, 120), 1, 0, false),
        (Bench::closed(300, 300), 0, WINDOW, false),
        (Bench::closed(300, 300), WINDOW, 0, true),
    ];
    for (mut bench, y_win, x_lwin, closed) in cases {
        let promised = bench.q.x_edge;
        (bench.q.y_win, bench.q.x_lwin) = (y_win, x_lwin);
        assert_eq!(win_x(&bench.q), if closed { 0 } else { promised.since(ack_x(&bench.q)) }, "{:?}", bench.q);
        tell_x(&mut bench.q);
        assert_eq!(bench.q.x_edge, promised, "X may have sent up to there");
    }
}

#[test]
fn in_local_bytes_under_way_to_y_count_against_its_window() {
    let mut bench = Bench::new();
    bench.q.x_edge = ack_x(&bench.q);
    bench.q.v_max = bench.q.v_max.plus(1_000);
    assert_eq!(win_x(&bench.q), WINDOW - 1_000);
    bench.q.v_max = bench.q.v_max.plus(WINDOW);
    assert_eq!(win_x(&bench.q), 0);
    bench.q.x_edge = ack_x(&bench.q).plus(70_000);
    assert_eq!(win_x(&bench.q), 65_535, "promised, as far as the field can say it");
}
