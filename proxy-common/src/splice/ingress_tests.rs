// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use std::vec::Vec;

use super::*;
use crate::packet::{ACK, FIN};
use crate::splice::notes::Kind;
use crate::splice::segment::{Segment, URG};
use crate::splice::seq::{InWire, OutLocal};
use crate::splice::testing::{BROKER, Bench, CLIENT, TO_BROKER, TO_CLIENT, WINDOW, note, request};

/// Offsets of a verdict's copies from the beginnings of the streams they are in.
fn to_broker(verdict: &Verdict) -> i32 {
    verdict.peer.seq.ahead_of(OutWire(TO_BROKER))
}

fn to_local(verdict: &Verdict) -> i32 {
    verdict.local.seq.ahead_of(InLocal(CLIENT))
}

#[test]
fn without_an_arm_everything_goes_to_x_as_it_is() {
    let mut bench = Bench::new();
    let verdict = bench.client(&bench.data(0, 100), &request(1, 4, 100));
    assert_eq!((verdict.route, verdict.local.seq.0, verdict.local.ack.0), (Route::Local, CLIENT, TO_CLIENT));
    assert_eq!(bench.q.l_max.0, CLIENT.wrapping_add(100));
    assert!(!bench.q.is_peer());
}

#[test]
fn an_arm_opens_at_its_exact_point_when_all_books_are_even() {
    type Spoil = fn(&mut Bench);
    let cases: &[(&str, bool, Spoil)] = &[
        ("even", true, |_| {}),
        ("of another epoch", false, |b| b.armed[0].iter_mut().for_each(|a| a.epoch = 2)),
        ("at another point", false, |b| b.armed[0].iter_mut().for_each(|a| a.at = a.at.plus(1))),
        ("x was given more", false, |b| b.q.l_max = b.q.l_max.plus(1)),
        ("y has not sent all", false, |b| b.armed[0].iter_mut().for_each(|a| a.sent = a.sent.plus(1))),
        ("Y has not acknowledged all", false, |b| b.q.y_ack = b.q.y_ack.minus(1)),
        ("y does not know", false, |b| b.q.y_lacked = b.q.y_lacked.minus(1)),
        ("a frame in the way", false, |b| b.policy.rules[1].flags = 0),
        ("a path too narrow", false, |b| b.room = 99),
    ];
    for (what, opens, spoil) in cases {
        let mut bench = Bench::new();
        bench.arm(0, 0);
        spoil(&mut bench);
        let verdict = bench.client(&bench.data(0, 100), &request(1, 4, 100));
        assert_eq!(bench.q.is_peer(), *opens, "{what}");
        assert_eq!(verdict.route, if *opens { Route::Peer } else { Route::Local }, "{what}");
    }
    for flags in [ACK | FIN, ACK | URG] {
        let mut bench = Bench::new();
        bench.arm(0, 0);
        let p = Segment { flags, ..bench.data(0, 100) };
        assert_eq!(bench.client(&p, &request(1, 4, 100)).route, Route::Local);
    }
}

#[test]
fn an_arm_in_the_middle_of_a_frame_forwards_the_rest_of_it() {
    let mut bench = Bench::new();
    bench.arm(7, 60);
    let mut payload = std::vec![0xff; 60];
    payload.extend(request(1, 4, 100));
    let verdict = bench.client(&bench.data(0, 120), &payload[..120]);
    assert_eq!((verdict.route, verdict.reason), (Route::Peer, Reason::Opened));
    assert_eq!((bench.q.frames, bench.q.remain), (8, 40));
    assert_eq!(bench.notes.get(7), note(Kind::Plain));
}

#[test]
fn what_opened_is_forwarded_and_goes_on() {
    let mut bench = Bench::opened(300, 300);
    let verdict = bench.client(&bench.data(300, 100), &request(1, 4, 100));
    assert_eq!((verdict.route, to_broker(&verdict)), (Route::Peer, 300));
    assert_eq!(verdict.peer.ack.0, BROKER, "what c acknowledged of the broker");
    assert_eq!((bench.q.exp.0, bench.q.frames), (CLIENT.wrapping_add(400), 2));
    assert_eq!(bench.q.v_max.0, TO_BROKER + 400);
}

#[test]
fn peer_is_left_for_what_only_the_daemon_can_handle() {
    let local = request(3, 12, 100);
    let mut two = request(1, 4, 60);
    two.extend(request(3, 12, 100));
    type Case<'a> = (&'a str, i32, Vec<u8>, u8, u32, Reason);
    let cases: [Case<'_>; 8] = [
        ("a frame of the daemon's", 300, local.clone(), ACK, u32::MAX, Reason::Frame),
        ("one behind another", 300, two, ACK, u32::MAX, Reason::Frame),
        ("a header that is cut", 300, request(1, 4, 100)[..7].to_vec(), ACK, u32::MAX, Reason::Frame),
        ("a hole", 310, request(1, 4, 100), ACK, u32::MAX, Reason::Hole),
        ("a FIN", 300, request(1, 4, 100), ACK | FIN, u32::MAX, Reason::Fin),
        ("a FIN alone", 300, Vec::new(), ACK | FIN, u32::MAX, Reason::Fin),
        ("urgent data", 300, request(1, 4, 100), ACK | URG, u32::MAX, Reason::Urgent),
        ("too large", 300, request(1, 4, 100), ACK, 99, Reason::TooLarge),
    ];
    for (what, offset, payload, flags, room, reason) in cases {
        let mut bench = Bench::opened(300, 300);
        bench.broker_acks(300);
        let p = Segment { flags, room, ..bench.data(offset, payload.len() as u32) };
        let verdict = bench.client(&p, &payload);
        assert_eq!((verdict.route, verdict.reason), (Route::Local, reason), "{what}");
        assert_eq!(to_local(&verdict), offset - 300, "{what}: x has seen nothing of the segment");
        assert_eq!((bench.q.epoch, bench.q.k, bench.q.prefix), (2, 300, 0), "{what}");
        assert_eq!(bench.q.w0.0, CLIENT.wrapping_add(300), "{what}");
    }
}

#[test]
fn the_daemon_is_told_how_much_of_a_frame_is_left() {
    let mut bench = Bench::opened(300, 1_000);
    bench.client(&bench.data(350, 100), &[0; 100]);
    assert_eq!((bench.q.epoch, bench.q.prefix, bench.q.frames), (2, 700, 1));
}

#[test]
fn a_walk_of_another_state_is_not_committed() {
    let mut bench = Bench::opened(300, 300);
    let p = bench.data(300, 100);
    let survey = bench.survey(Side::Client, &p, &request(1, 4, 100));
    bench.q.frames += 1;
    let verdict = ingress(&mut bench.q, &mut bench.r, Side::Client, &p, &survey, None, &bench.notes);
    assert_eq!((verdict.route, verdict.reason, bench.q.epoch), (Route::Local, Reason::Raced, 2));
    assert_eq!(bench.notes.get(1).kind, Kind::Unknown);
}

#[test]
fn a_retransmission_goes_where_its_bytes_went_first() {
    // k was 0 before the segment [0, 300), and is 300 behind it.
    type Case = (&'static str, i32, u32, u32, Route, i32, u32);
    let whole = WHOLE;
    let cases: [Case; 10] = [
        ("inside, Y lacks it", 50, 100, 0, Route::Peer, 50, whole),
        ("inside, Y has part of the segment", 50, 100, 120, Route::Peer, 50, whole),
        ("inside, Y has it all: a duplicate for x", 50, 100, 300, Route::Local, -250, whole),
        ("before", -80, 80, 0, Route::Local, -80, whole),
        ("before, Y has it all", -80, 80, 300, Route::Local, -80, whole),
        ("across the start, Y lacks the segment", -80, 180, 0, Route::Peer, -80, whole),
        ("across the end, Y lacks it", 250, 100, 0, Route::Peer, 250, 50),
        ("across the end, Y has it", 250, 100, 300, Route::Local, -50, whole),
        ("across both, Y lacks it", -10, 400, 299, Route::Peer, -10, 310),
        ("behind", 300, 100, 0, Route::Local, 0, whole),
    ];
    for (what, offset, length, acked, route, at, keep) in cases {
        let mut bench = Bench::closed(300, acked);
        let before = bench.q;
        let verdict = bench.client(&bench.data(offset, length), &[0; 400][..length as usize]);
        assert_eq!((verdict.route, verdict.keep), (route, keep), "{what}");
        let went = if route == Route::Peer { to_broker(&verdict) } else { to_local(&verdict) };
        assert_eq!(went, at, "{what}");
        assert_eq!(bench.q.v_max, before.v_max, "{what}: nothing new for Y");
    }
}

#[test]
fn a_fin_does_not_reach_x_before_y_has_the_segment() {
    let fin = |bench: &Bench| Segment { flags: ACK | FIN, ..bench.data(300, 20) };
    let mut bench = Bench::opened(300, 300);
    let verdict = bench.client(&fin(&bench), &[0; 20]);
    assert_eq!((verdict.route, verdict.reason, bench.q.epoch), (Route::Drop, Reason::Fin, 2));
    assert_eq!(bench.q.l_max.0, CLIENT);
    bench.broker_acks(299);
    assert_eq!(bench.client(&fin(&bench), &[0; 20]).route, Route::Drop);
    bench.broker_acks(300);
    let verdict = bench.client(&fin(&bench), &[0; 20]);
    assert_eq!((verdict.route, to_local(&verdict), verdict.keep), (Route::Local, 0, WHOLE));
    assert_eq!(bench.q.l_max.0, CLIENT.wrapping_add(21));
}

#[test]
fn a_fin_behind_a_straddling_retransmission_is_left_for_later() {
    let mut bench = Bench::closed(300, 0);
    let p = Segment { flags: ACK | FIN, ..bench.data(250, 50) };
    let verdict = bench.client(&p, &[0; 50]);
    assert_eq!((verdict.route, verdict.reason, verdict.keep), (Route::Peer, Reason::Straddling, 50));
}

#[test]
fn what_is_trimmed_of_a_merged_packet_becomes_one_packet() {
    let mut bench = Bench::closed(300, 0);
    let p = Segment { gso: 120, ..bench.data(0, 400) };
    assert_eq!(bench.client(&p, &[0; 400]).keep, 120);
    let narrow = Segment { room: 90, ..bench.data(0, 200) };
    assert_eq!(bench.client(&narrow, &[0; 200]).keep, 90, "too large for the path, and can't go the other way");
}

#[test]
fn in_peer_old_bytes_are_forwarded_again() {
    let mut bench = Bench::opened(300, 300);
    let verdict = bench.client(&bench.data(100, 200), &[0; 200]);
    assert_eq!((verdict.route, to_broker(&verdict), bench.q.epoch), (Route::Peer, 100, 1));
    let before = bench.client(&bench.data(-50, 50), &[0; 50]);
    assert_eq!((before.route, to_local(&before)), (Route::Local, -50));
}

#[test]
fn a_bare_ack_goes_to_whom_it_concerns() {
    // In LOCAL to y alone; in PEER to X alone; to both while X waits for the rest of the segment.
    let mut bench = Bench::new();
    assert_eq!(bench.broker_acks(0).route, Route::Local);
    let mut bench = Bench::opened(300, 300);
    let verdict = bench.broker_acks(200);
    assert_eq!((verdict.route, verdict.peer.ack), (Route::Peer, InWire(CLIENT.wrapping_add(200))));
    assert_eq!(verdict.peer.seq.0, TO_CLIENT, "the highest sent to the client");
    let mut bench = Bench::closed(300, 200);
    let verdict = bench.broker_acks(300);
    assert_eq!((verdict.route, verdict.local.ack.0), (Route::Both, TO_BROKER), "y's point stands still");
    assert_eq!(verdict.peer.ack.0, CLIENT.wrapping_add(300));
    assert_eq!(bench.broker_acks(300).route, Route::Local);
}

#[test]
fn a_probe_is_answered_by_both_with_what_they_have() {
    let mut bench = Bench::opened(300, 300);
    bench.broker_acks(300);
    let verdict = bench.client(&bench.data(299, 0), &[]);
    assert_eq!((verdict.route, verdict.reason), (Route::Both, Reason::Probe));
    assert_eq!(verdict.peer.seq.0, TO_BROKER + 299, "one below what the broker has acknowledged");
    assert_eq!(verdict.local.seq.0, CLIENT.wrapping_sub(1), "one below what x has");
}

#[test]
fn y_is_told_by_a_packet_that_is_not_for_it() {
    // c has sent 50 bytes; the client acknowledges them with a request that is forwarded.
    let mut bench = Bench::opened(300, 300);
    let sent = bench.leaving(Side::Client, 0, 50, 0);
    assert!(bench.leave(Side::Client, &sent).leaves);
    let p = Segment { ack: OutWire(TO_CLIENT + 50), ..bench.data(300, 100) };
    let verdict = bench.client(&p, &request(1, 4, 100));
    assert_eq!((verdict.route, verdict.local.ack), (Route::Split, OutLocal(TO_CLIENT + 50)));
    assert_eq!((to_local(&verdict), bench.r.y_lacked.0), (0, TO_CLIENT + 50));
}

#[test]
fn the_acknowledgment_of_the_last_forwarded_bytes_is_not_lost_on_the_daemon() {
    // The broker acknowledges the request with an answer that goes to b: the client hears of it all the same.
    let mut bench = Bench::opened(300, 300);
    let p = Segment { ack: OutWire(TO_BROKER + 300), ..bench.answer(0, 40) };
    let verdict = bench.broker(&p, &[0; 40]);
    assert_eq!((verdict.route, verdict.peer.ack.0), (Route::Echo, CLIENT.wrapping_add(300)));
    let again = Segment { ack: OutWire(TO_BROKER + 300), ..bench.answer(40, 40) };
    assert_eq!(bench.broker(&again, &[0; 40]).route, Route::Local, "once");
}

/// While X waits for the segment x's acknowledgments are withheld; what ends the wait tells X, or X finds out by a timeout.
#[test]
fn x_hears_that_y_has_the_segment_though_b_has_more_under_way() {
    let mut bench = Bench::closed(300, 100);
    let sent = bench.leaving(Side::Broker, 0, 50, 0);
    assert!(bench.leave(Side::Broker, &sent).leaves);
    let some = Segment { ack: OutWire(TO_BROKER + 200), ..bench.answer(0, 40) };
    assert_eq!(bench.broker(&some, &[0; 40]).route, Route::Local, "more acknowledgments will come");
    let last = Segment { ack: OutWire(TO_BROKER + 310), ..bench.answer(40, 40) };
    let verdict = bench.broker(&last, &[0; 40]);
    assert_eq!((verdict.route, verdict.peer.ack.0), (Route::Echo, CLIENT.wrapping_add(300)));
}

#[test]
fn a_window_that_opens_again_reaches_x_in_local() {
    let mut bench = Bench::new();
    (bench.q.y_win, bench.q.x_edge) = (0, bench.q.reached());
    let p = Segment { window: 20_000, ..bench.answer(1, 0) };
    let verdict = bench.broker(&p, &[]);
    assert_eq!((verdict.route, verdict.peer.window), (Route::Both, 20_000));
}

#[test]
fn windows_are_of_the_latest_teller_and_promises_are_kept() {
    let mut bench = Bench::opened(300, 300);
    let told = bench.broker_acks(200).peer.window;
    assert_eq!(told, WINDOW);
    // The same acknowledgment from an older packet, with another window.
    bench.q.y_wl = bench.q.y_wl.plus(10);
    let old = Segment { window: 5, ack: OutWire(TO_BROKER + 200), ..bench.answer(0, 0) };
    assert_eq!(bench.broker(&old, &[]).peer.window, WINDOW);
    // A window that really shrinks: X keeps what it was promised, and no more.
    let new = Segment { window: 5, ack: OutWire(TO_BROKER + 300), ..bench.answer(0, 0) };
    assert_eq!(bench.broker(&new, &[]).peer.window, WINDOW - 100);
    assert_eq!(bench.q.y_win, 5);
}

/// Y ran out of memory: it drops what it had promised room for, and says 0. Whoever is told anything else sends again
/// and again, and gives up.
/// A forged segment whose numbers lie in the window is accepted, as a socket would. What it says of the window holds until
/// the host speaks, though its sequence number is lower.
#[test]
fn a_packet_from_far_ahead_does_not_make_deaf_for_what_follows() {
    let mut bench = Bench::new();
    let forged = Segment { window: 0, ..bench.answer(5_000, 40) };
    assert_eq!(bench.broker(&forged, &[0; 40]).route, Route::Local);
    assert_eq!(bench.q.y_win, 0);
    let genuine = bench.answer(0, 0);
    let verdict = bench.broker(&genuine, &[]);
    assert_eq!((bench.q.y_win, verdict.local.window), (WINDOW, WINDOW));
    let smaller = Segment { window: 70, ..bench.answer(0, 0) };
    let _ = bench.broker(&smaller, &[]);
    assert_eq!(bench.q.y_win, WINDOW, "it may have been under way for longer than the last");
}

#[test]
fn a_host_that_closes_the_window_it_promised_is_believed() {
    let shut = |bench: &Bench| Segment { window: 0, seq: bench.q.y_wl.plus(1), ..bench.answer(0, 0) };
    // b has sent 50 bytes into the window it was promised.
    let mut bench = Bench::closed(300, 300);
    let sent = bench.leaving(Side::Broker, 0, 50, 0);
    assert!(bench.leave(Side::Broker, &sent).leaves);
    let verdict = bench.broker(&shut(&bench), &[]);
    assert_eq!((verdict.route, verdict.local.window), (Route::Local, 0));
    let p = Segment { window: 70, seq: bench.q.y_wl, ..bench.answer(0, 0) };
    assert_eq!(bench.broker(&p, &[]).local.window, 70, "and it opens as far as Y says");
    // The client has sent 300, of which the broker has 100.
    let mut bench = Bench::opened(300, 300);
    bench.broker_acks(100);
    let verdict = bench.broker(&shut(&bench), &[]);
    assert_eq!((verdict.route, verdict.peer.window), (Route::Peer, 0));
    // It opens again with an answer that goes to b: the client hears of it.
    let p = Segment { seq: bench.q.y_wl, ..bench.answer(0, 40) };
    let verdict = bench.broker(&p, &[0; 40]);
    assert_eq!((verdict.route, verdict.peer.window), (Route::Echo, WINDOW));
    assert_eq!(verdict.peer.ack.0, CLIENT.wrapping_add(100));
}

#[test]
fn an_acknowledgment_that_x_will_not_read_is_not_counted_as_told() {
    let mut bench = Bench::new();
    let sent = bench.leaving(Side::Client, 0, 50, 0);
    assert!(bench.leave(Side::Client, &sent).leaves);
    bench.client(&bench.data(0, 100), &[0; 100]);
    let got = bench.leaving(Side::Client, 50, 0, 100);
    assert!(bench.leave(Side::Client, &got).leaves);
    let again = Segment { ack: OutWire(TO_CLIENT + 50), ..bench.data(0, 90) };
    bench.client(&again, &[0; 90]);
    assert_eq!(bench.r.y_lacked.0, TO_CLIENT);
    let probe = Segment { ack: OutWire(TO_CLIENT + 50), ..bench.data(90, 0) };
    let verdict = bench.client(&probe, &[]);
    assert_eq!((verdict.reason, verdict.local.ack.0, to_local(&verdict)), (Reason::Probe, TO_CLIENT + 50, 100));
}
