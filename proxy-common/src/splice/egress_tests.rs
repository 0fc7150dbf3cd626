// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::*;
use crate::packet::{ACK, FIN, RST};
use crate::splice::segment::Segment;
use crate::splice::state::Side;
use crate::splice::testing::{BROKER, Bench, CLIENT, TO_BROKER, WINDOW};

#[test]
fn y_is_shifted_by_what_was_forwarded_before_its_bytes() {
    let mut bench = Bench::closed(300, 300);
    let p = bench.leaving(Side::Broker, 0, 80, 0);
    let departure = bench.leave(Side::Broker, &p);
    assert_eq!((departure.wire.seq.0, departure.keep), (TO_BROKER + 300, WHOLE));
    assert_eq!(departure.wire.ack.0, BROKER);
    assert_eq!((bench.q.s_max.0, bench.q.v_max.0), (TO_BROKER + 80, TO_BROKER + 380));
    let before = bench.leaving(Side::Broker, -40, 40, 0);
    assert_eq!(bench.leave(Side::Broker, &before).wire.seq.0, TO_BROKER - 40, "from before the segment");
}

#[test]
fn across_the_point_y_is_cut_only_while_the_segment_is_under_way() {
    let mut bench = Bench::closed(300, 300);
    let p = bench.leaving(Side::Broker, -40, 100, 0);
    let departure = bench.leave(Side::Broker, &p);
    assert_eq!((departure.wire.seq.0, departure.keep), (TO_BROKER + 260, WHOLE));
    let mut bench = Bench::closed(300, 100);
    let departure = bench.leave(Side::Broker, &p);
    assert_eq!((departure.wire.seq.0, departure.keep, departure.reason), (TO_BROKER - 40, 40, Reason::Straddling));
    let merged = Segment { gso: 30, ..p };
    assert_eq!(bench.leave(Side::Broker, &merged).keep, 30);
}

#[test]
fn a_fin_or_rst_of_y_ends_peer_first() {
    for (flags, reason) in [(ACK | FIN, Reason::Fin), (RST | ACK, Reason::Reset)] {
        let mut bench = Bench::opened(300, 300);
        bench.broker_acks(300);
        let p = Segment { flags, ..bench.leaving(Side::Broker, 0, 0, 0) };
        let departure = bench.leave(Side::Broker, &p);
        assert!(departure.leaves && !bench.q.is_peer());
        assert_eq!((departure.wire.seq.0, departure.reason), (TO_BROKER + 300, reason));
    }
}

#[test]
fn an_rst_of_y_hits_where_y_expects_the_next_byte() {
    for peer in [false, true] {
        let mut bench = if peer { Bench::opened(300, 300) } else { Bench::closed(300, 120) };
        bench.broker_acks(120);
        let p = Segment { flags: RST, ..bench.leaving(Side::Broker, 0, 0, 0) };
        assert_eq!(bench.leave(Side::Broker, &p).wire.seq.0, TO_BROKER + 120);
    }
}

#[test]
fn an_rst_teaches_nothing() {
    let mut bench = Bench::closed(300, 300);
    let before = bench.q;
    let p = Segment { flags: RST | ACK, window: 0, ..bench.leaving(Side::Client, 0, 0, 5_000) };
    assert_eq!(bench.leave(Side::Client, &p).wire.ack.0, CLIENT.wrapping_add(300));
    assert_eq!((bench.q.x_lack, bench.q.x_lwin, bench.q.l_max), (before.x_lack, before.x_lwin, before.l_max));
}

#[test]
fn bytes_in_peer_do_not_leave() {
    let mut bench = Bench::opened(300, 300);
    let p = bench.leaving(Side::Broker, 0, 10, 0);
    let departure = bench.leave(Side::Broker, &p);
    assert_eq!((departure.leaves, departure.reason), (false, Reason::Unannounced));
    assert!(bench.q.is_peer());
    assert_eq!(bench.q.s_max.0, TO_BROKER);
}

#[test]
fn x_is_held_back_while_the_broker_lacks_part_of_the_segment() {
    let mut bench = Bench::closed(300, 120);
    bench.client(&bench.data(300, 50), &[0; 50]);
    let more = bench.leaving(Side::Client, 0, 0, 50);
    let more = Segment { window: WINDOW - 50, ..more };
    let departure = bench.leave(Side::Client, &more);
    assert_eq!((departure.leaves, departure.reason), (false, Reason::Withheld), "it would look like a duplicate");
    assert_eq!(bench.q.x_lack.0, CLIENT.wrapping_add(50), "but it is known");
    let again = bench.leave(Side::Client, &more);
    assert!(again.leaves, "a duplicate of x's own is one for X");
    assert_eq!(again.wire.ack.0, CLIENT.wrapping_add(120));
    let blocks = Segment { sack_blocks: 1, ..bench.leaving(Side::Client, 0, 0, 50) };
    assert!(bench.leave(Side::Client, &blocks).leaves);
    bench.broker_acks(300);
    let departure = bench.leave(Side::Client, &more);
    assert_eq!(departure.wire.ack.0, CLIENT.wrapping_add(350));
}

#[test]
fn y_sending_again_proves_that_it_was_not_told() {
    let mut bench = Bench::new();
    let p = bench.leaving(Side::Broker, 0, 100, 0);
    bench.leave(Side::Broker, &p);
    bench.broker_acks(100);
    assert_eq!(bench.q.y_lacked.0, TO_BROKER + 100);
    bench.leave(Side::Broker, &p);
    assert_eq!(bench.q.y_lacked.0, TO_BROKER);
    assert_eq!(bench.broker_acks(100).local.ack.0, TO_BROKER + 100, "told again");
}

#[test]
fn a_bare_ack_has_the_highest_number_sent_within_the_window() {
    let mut bench = Bench::opened(300, 300);
    let p = bench.leaving(Side::Broker, 0, 0, 0);
    assert_eq!(bench.leave(Side::Broker, &p).wire.seq.0, TO_BROKER + 300);
    bench.broker_acks(100);
    bench.q.y_win = 50;
    assert_eq!(bench.leave(Side::Broker, &p).wire.seq.0, TO_BROKER + 150);
    let probe = bench.leaving(Side::Broker, -1, 0, 0);
    assert_eq!(bench.leave(Side::Broker, &probe).wire.seq.0, TO_BROKER - 1, "a probe keeps its own");
}

/// Seed 69 614 of the model: a session began while y still had bytes to send, and the window shrank to nothing.
#[test]
fn a_bare_ack_is_within_a_window_that_shrank_before_y_had_sent_what_was_there_at_the_start() {
    let mut bench = Bench::new();
    bench.q.y_ack = OutWire(TO_BROKER - 400);
    bench.q.y_win = 0;
    let p = bench.leaving(Side::Broker, -240, 0, 0);
    assert_eq!(bench.leave(Side::Broker, &p).wire.seq.0, TO_BROKER - 400, "Y takes no acknowledgment from beyond it");
    bench.q.y_win = 1_000;
    assert_eq!(bench.leave(Side::Broker, &p).wire.seq.0, TO_BROKER - 240);
}

#[test]
fn an_overtaken_packet_does_not_take_back_an_acknowledgment_or_a_window() {
    let mut bench = Bench::new();
    bench.client(&bench.data(0, 100), &[0; 100]);
    let new = bench.leaving(Side::Client, 0, 0, 100);
    let old = Segment { window: 7, ..bench.leaving(Side::Client, 0, 0, 40) };
    bench.leave(Side::Client, &new);
    let departure = bench.leave(Side::Client, &old);
    assert_eq!(departure.wire.ack.0, CLIENT.wrapping_add(100));
    assert_eq!(bench.q.x_lwin, WINDOW);
}
