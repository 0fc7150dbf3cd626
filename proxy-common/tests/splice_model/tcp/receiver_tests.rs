// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use std::ops::Range;

use super::super::Socket;
use super::*;

/// Of a SACK option, as offsets into the stream.
type Block = (u32, u32);

const ISN: u32 = u32::MAX - 9;
const START: u64 = (1 << 32) + ISN as u64;

fn config(receive_buffer: usize) -> Config {
    Config { receive_buffer, scale: 0, mss: 10, ..Config::of(Socket::Broker) }
}

fn receiver(buffer: usize) -> Receiver {
    Receiver::new(&config(buffer), ISN)
}

/// The bytes of the stream at these offsets.
fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(|at| at as u8).collect()
}

fn take(receiver: &mut Receiver, range: Range<u64>) -> Arrival {
    receiver.take(START + range.start, &bytes(range), false)
}

fn blocks(receiver: &Receiver) -> Vec<Block> {
    receiver.blocks().iter().map(|(start, end)| (start.wrapping_sub(ISN), end.wrapping_sub(ISN))).collect()
}

#[test]
fn each_place_of_a_segment_has_its_fate() {
    // The first 20 of a window of 100 were received and acknowledged, 40..50 too.
    let cases = [
        (20..30, Arrival::InOrder { closed_gap: true }, 30),
        (20..40, Arrival::InOrder { closed_gap: true }, 50),
        (10..30, Arrival::InOrder { closed_gap: true }, 30),
        (10..60, Arrival::InOrder { closed_gap: true }, 60),
        (90..130, Arrival::OutOfOrder, 20),
        (20..130, Arrival::InOrder { closed_gap: true }, 120),
        (30..40, Arrival::OutOfOrder, 20),
        (0..20, Arrival::Duplicate, 20),
        (5..15, Arrival::Duplicate, 20),
        (120..130, Arrival::NoRoom, 20),
        (20..20, Arrival::Empty, 20),
    ];
    for (range, arrival, next) in cases {
        let mut receiver = receiver(1_000);
        assert_eq!(take(&mut receiver, 0..20), Arrival::InOrder { closed_gap: false });
        receiver.tell();
        receiver.window = 100;
        assert_eq!(take(&mut receiver, 40..50), Arrival::OutOfOrder);
        assert_eq!(take(&mut receiver, range.clone()), arrival, "{range:?}");
        assert_eq!(receiver.next() - START, next, "{range:?}");
        assert_eq!(receiver.read(1_000), bytes(0..next), "{range:?}");
    }
}

#[test]
fn a_window_without_room_takes_a_bare_fin_and_nothing_else() {
    let closed = || {
        let mut receiver = receiver(40);
        take(&mut receiver, 0..40);
        assert_eq!(receiver.tell(), 0);
        receiver
    };
    for (payload, fin, arrival) in [
        (vec![], true, Arrival::InOrder { closed_gap: false }),
        (vec![1], false, Arrival::NoRoom),
        (vec![1], true, Arrival::NoRoom),
    ] {
        let mut receiver = closed();
        assert_eq!(receiver.take(START + 40, &payload, fin), arrival);
        assert_eq!(receiver.is_finished(), arrival != Arrival::NoRoom);
    }
}

#[test]
fn acceptable_is_what_touches_the_window() {
    let mut receiver = receiver(100);
    take(&mut receiver, 0..20);
    receiver.tell();
    take(&mut receiver, 20..30);
    // Told of 20, received 30, right edge at 100.
    let cases = [(0, 19, false), (0, 20, true), (19, 19, false), (20, 20, true), (100, 100, true), (100, 200, true)];
    for (start, end, accepted) in cases.into_iter().chain([(101, 101, false), (30, 5_000, true)]) {
        assert_eq!(receiver.accepts(START + start, START + end), accepted, "{start}..{end}");
    }
}

#[test]
fn early_bytes_are_reported_newest_first_in_at_most_four_blocks() {
    let mut receiver = receiver(1_000);
    let cases: [(Range<u64>, &[Block]); 8] = [
        (100..110, &[(100, 110)]),
        (50..60, &[(50, 60), (100, 110)]),
        (110..120, &[(100, 120), (50, 60)]),
        (200..210, &[(200, 210), (100, 120), (50, 60)]),
        (300..310, &[(300, 310), (200, 210), (100, 120), (50, 60)]),
        (400..410, &[(400, 410), (300, 310), (200, 210), (100, 120)]),
        (55..205, &[(50, 210), (400, 410), (300, 310)]),
        (0..50, &[(400, 410), (300, 310)]),
    ];
    for (range, expected) in cases {
        take(&mut receiver, range.clone());
        assert_eq!(blocks(&receiver), expected, "after {range:?}");
    }
    assert_eq!(receiver.read(1_000), bytes(0..210));
}

#[test]
fn what_comes_twice_is_reported_once_before_what_is_early() {
    let cases: [(Range<u64>, &[Block]); 6] = [
        (0..20, &[(40, 50)]),
        (5..15, &[(5, 15), (40, 50)]),
        (10..25, &[(10, 20), (40, 50)]),
        (42..48, &[(42, 48), (40, 50)]),
        (45..55, &[(40, 55)]),
        (25..40, &[]),
    ];
    let mut receiver = receiver(1_000);
    take(&mut receiver, 40..50);
    for (range, expected) in cases {
        take(&mut receiver, range.clone());
        assert_eq!(blocks(&receiver), expected, "after {range:?}");
        receiver.tell();
    }
}

#[test]
fn bytes_that_were_here_first_stay() {
    let mut receiver = receiver(1_000);
    take(&mut receiver, 10..20);
    take(&mut receiver, 30..40);
    receiver.take(START + 5, &[0xff; 40], false);
    receiver.take(START, &[0xee; 5], false);
    let read = receiver.read(1_000);
    assert_eq!((&read[10..20], &read[30..40]), (&*bytes(10..20), &*bytes(30..40)));
    assert_eq!(
        (&read[..5], &read[5..10], &read[20..30], &read[40..]),
        (&[0xee; 5][..], &[0xff; 5][..], &[0xff; 10][..], &[0xff; 5][..])
    );
}

#[test]
fn a_fin_waits_for_all_before_it_and_nothing_follows_it() {
    let mut receiver = receiver(1_000);
    assert_eq!(receiver.take(START + 10, &bytes(10..20), true), Arrival::OutOfOrder);
    assert!(receiver.has_gap() && !receiver.is_finished());
    assert_eq!(blocks(&receiver), [(10, 21)]);
    assert_eq!(take(&mut receiver, 15..30), Arrival::OutOfOrder);
    assert_eq!(take(&mut receiver, 0..10), Arrival::InOrder { closed_gap: true });
    assert!(receiver.is_finished() && !receiver.has_gap());
    assert_eq!(receiver.next() - START, 21);
    assert_eq!(take(&mut receiver, 21..30), Arrival::Duplicate);
    assert_eq!(receiver.read(1_000), bytes(0..20));
}

#[test]
fn the_window_is_told_in_steps_worth_sending_and_never_taken_back() {
    let mut receiver = receiver(100);
    take(&mut receiver, 0..95);
    assert_eq!(receiver.tell(), 5, "promised before");
    take(&mut receiver, 95..100);
    assert_eq!(receiver.tell(), 0);
    receiver.read(3);
    assert!(!receiver.must_tell_window(), "3 bytes are less than a packet");
    assert_eq!(receiver.tell(), 0);
    receiver.read(20);
    assert!(receiver.must_tell_window());
    assert_eq!(receiver.tell(), 20, "whole packets");
}

#[test]
fn a_buffer_smaller_than_a_packet_is_told_whole_once_half_of_it_has_become_free() {
    let mut receiver = receiver(9);
    take(&mut receiver, 0..8);
    assert_eq!(receiver.tell(), 1);
    receiver.read(8);
    assert!(receiver.must_tell_window());
    assert_eq!(receiver.tell(), 9);
}

#[test]
fn a_scaled_window_is_rounded_up_and_bounded_by_the_field() {
    for (buffer, scale, raw) in [(1_000, 7, 8), (100 << 10, 7, 800), (100 << 20, 7, 65_535), (100 << 10, 0, 65_535)] {
        let mut receiver = Receiver::new(&Config { scale, mss: 1, window: 1 << 30, ..config(buffer) }, ISN);
        assert_eq!(receiver.tell(), raw, "{buffer} bytes by {scale} bits");
    }
}

#[test]
fn without_memory_early_bytes_go_first_and_then_the_window_closes() {
    let mut receiver = receiver(100);
    take(&mut receiver, 50..100);
    receiver.window = 1_000;
    assert_eq!(take(&mut receiver, 200..260), Arrival::NoRoom, "early bytes push nothing out");
    assert_eq!(take(&mut receiver, 0..49), Arrival::InOrder { closed_gap: true });
    assert_eq!(receiver.take(START + 49, &[0; 40], false), Arrival::InOrder { closed_gap: false });
    assert_eq!(blocks(&receiver), []);
    assert_eq!(receiver.next() - START, 89, "what was early was thrown away");
    assert_eq!(take(&mut receiver, 89..109), Arrival::NoRoom);
    assert_eq!(receiver.tell(), 0);
    receiver.read(100);
    assert_eq!(receiver.tell(), 100);
}
