// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::super::{MILLI, Socket};
use super::*;

/// Start and end of what is sent, FIN included, and of a SACK block: offsets into the stream.
type Sending = (u64, u64);
type Block = (u32, u32);

const ISN: u32 = u32::MAX - 9;
const START: u64 = (1 << 32) + ISN as u64;
const RTO: Micros = 201 * MILLI;

fn own() -> Config {
    Config { seq: ISN, mss: 10, ..Config::of(Socket::ToBroker) }
}

/// One that has written these many bytes into a window of `window`.
fn sender(own: &Config, window: usize, written: u64) -> Sender {
    let peer = Config { receive_buffer: window, scale: 0, ..Config::of(Socket::Broker) };
    let mut sender = Sender::new(own, &peer);
    let bytes: Vec<u8> = (0..written).map(|at| at as u8).collect();
    assert_eq!(sender.write(&bytes), bytes.len());
    sender
}

/// Everything it sends now, as offsets into the stream.
fn sent(sender: &mut Sender, now: Micros) -> Vec<Sending> {
    std::iter::from_fn(|| sender.poll(now, 10))
        .map(|burst| {
            let start = burst.start.wrapping_sub(START);
            let end = start.wrapping_add(burst.payload.len() as u64);
            assert!(burst.payload.iter().zip(start..end).all(|(byte, at)| *byte == at as u8));
            (start, end + u64::from(burst.fin))
        })
        .collect()
}

/// An acknowledgment up to `ack`, with a window up to `edge` and blocks, all as offsets.
fn acknowledge(sender: &mut Sender, now: Micros, ack: u64, edge: u64, sack: &[Block]) {
    let sack: Vec<_> = sack.iter().map(|(a, b)| (ISN.wrapping_add(*a), ISN.wrapping_add(*b))).collect();
    let at = sender.window_from;
    let ack = Ack { at, ack: START + ack, window: edge - ack, sack: &sack, carries_data: false };
    assert_eq!(sender.acknowledge(now, ack), Ok(()));
}

#[test]
fn packets_are_full_or_the_last_and_stay_inside_the_window() {
    let cases: [(u64, usize, usize, &[Sending]); 7] = [
        (25, 1_000, 1, &[(0, 10), (10, 20), (20, 25)]),
        (25, 1_000, 8, &[(0, 25)]),
        (25, 24, 1, &[(0, 10), (10, 20)]),
        (25, 24, 8, &[(0, 20)]),
        (25, 9, 8, &[]),
        (5, 5, 1, &[(0, 5)]),
        (45, 1_000, 2, &[(0, 20), (20, 40), (40, 45)]),
    ];
    for (written, window, gso, expected) in cases {
        let mut sender = sender(&Config { gso, ..own() }, window, written);
        assert_eq!(sent(&mut sender, 0), expected, "{written} bytes, window {window}, gso {gso}");
    }
}

#[test]
fn the_fin_goes_with_the_last_bytes_if_the_window_has_room_for_it() {
    for (window, expected) in [(12, vec![(0, 10), (10, 12)]), (13, vec![(0, 10), (10, 13)])] {
        let mut sender = sender(&own(), window, 12);
        sender.finish();
        assert_eq!(sent(&mut sender, 0), expected);
        assert_eq!(sender.write(b"more"), 0);
        acknowledge(&mut sender, 0, 12, 20, &[]);
        let rest = if window == 12 { vec![(12, 13)] } else { vec![] };
        assert_eq!(sent(&mut sender, 0), rest);
        acknowledge(&mut sender, 0, 13, 20, &[]);
        assert!(sender.is_finished());
    }
}

#[test]
fn the_congestion_window_opens_with_what_is_acknowledged() {
    let mut sender = sender(&own(), 1_000, 500);
    assert_eq!(sent(&mut sender, 0).len(), 10);
    acknowledge(&mut sender, 0, 40, 1_040, &[]);
    assert_eq!(sent(&mut sender, 0).len(), 8);
}

#[test]
fn without_nodelay_a_short_packet_waits_for_acknowledgments() {
    for (nodelay, expected) in [(true, vec![(0, 10), (10, 15)]), (false, vec![(0, 10)])] {
        let mut sender = sender(&Config { nodelay, ..own() }, 1_000, 15);
        assert_eq!(sent(&mut sender, 0), expected);
    }
    let mut sender = sender(&Config { nodelay: false, gso: 8, ..own() }, 1_000, 15);
    assert_eq!(sent(&mut sender, 0), [(0, 10)], "nor does it go along with a full one");
    acknowledge(&mut sender, 0, 10, 1_000, &[]);
    assert_eq!(sent(&mut sender, 0), [(10, 15)]);
}

#[test]
fn an_acknowledgment_outside_of_what_was_sent_is_refused() {
    let mut sender = sender(&own(), 100, 100);
    sent(&mut sender, 0);
    acknowledge(&mut sender, 0, 100, 150, &[]);
    let cases = [(101, Err(BadAck::Unsent)), (100, Ok(())), (99, Ok(())), (0, Ok(()))];
    for (ack, expected) in cases {
        let ack = Ack { at: sender.window_from, ack: START + ack, window: 50, sack: &[], carries_data: false };
        assert_eq!(sender.acknowledge(0, ack), expected, "{ack:?}");
    }
    let ack = Ack { at: sender.window_from, ack: START - 1, window: 50, sack: &[], carries_data: false };
    assert_eq!(sender.acknowledge(0, ack), Err(BadAck::TooOld));
    assert_eq!(sender.una(), START + 100);
}

#[test]
fn the_window_comes_from_the_newest_segment_and_within_one_only_opens_or_closes() {
    let cases = [(0, 0, 20, 50), (0, 0, 80, 80), (0, 0, 0, 0), (0, 1, 20, 20), (10, 0, 20, 20)];
    for (acked, later, window, expected) in cases {
        let mut sender = sender(&own(), 50, 100);
        sent(&mut sender, 0);
        let at = sender.window_from + later;
        let ack = Ack { at, ack: START + acked, window, sack: &[], carries_data: false };
        assert_eq!(sender.acknowledge(0, ack), Ok(()));
        assert_eq!(sender.window(), expected, "{ack:?}");
    }
    let mut sender = sender(&own(), 50, 100);
    sent(&mut sender, 0);
    let old = Ack { at: sender.window_from - 1, ack: START, window: 500, sack: &[], carries_data: false };
    assert_eq!(sender.acknowledge(0, old), Ok(()));
    assert_eq!(sender.window(), 50);
}

#[test]
fn three_duplicates_resend_the_first_and_partial_progress_the_next() {
    let mut sender = sender(&Config { sack: false, ..own() }, 100, 50);
    assert_eq!(sent(&mut sender, 0).len(), 5);
    for _ in 0..2 {
        acknowledge(&mut sender, 1, 0, 100, &[]);
        assert_eq!(sent(&mut sender, 1), []);
    }
    acknowledge(&mut sender, 1, 0, 100, &[]);
    assert_eq!(sent(&mut sender, 1), [(0, 10)]);
    acknowledge(&mut sender, 1, 0, 100, &[]);
    assert_eq!(sent(&mut sender, 1), [], "once");
    acknowledge(&mut sender, 1, 20, 100, &[]);
    assert_eq!(sent(&mut sender, 1), [(20, 30)]);
}

#[test]
fn duplicates_count_from_the_last_progress_on() {
    let mut sender = sender(&Config { sack: false, ..own() }, 100, 50);
    sent(&mut sender, 0);
    for ack in [0, 0, 10, 10, 10] {
        acknowledge(&mut sender, 1, ack, 100, &[]);
        assert_eq!(sent(&mut sender, 1), [], "after {ack}");
    }
    acknowledge(&mut sender, 1, 10, 100, &[]);
    assert_eq!(sent(&mut sender, 1), [(10, 20)]);
}

#[test]
fn after_a_timeout_was_repaired_duplicates_count_again() {
    let mut sender = sender(&Config { sack: false, ..own() }, 100, 10);
    sent(&mut sender, 0);
    let due = sender.next_timer().unwrap();
    sender.fire(due);
    assert_eq!(sent(&mut sender, due), [(0, 10)]);
    acknowledge(&mut sender, due, 10, 100, &[]);
    sender.cwnd = 100;
    sender.write(&[10, 11, 12, 13]);
    assert_eq!(sent(&mut sender, due), [(10, 14)]);
    for expected in [vec![], vec![], vec![(10, 14)]] {
        acknowledge(&mut sender, due, 10, 100, &[]);
        assert_eq!(sent(&mut sender, due), expected);
    }
}

#[test]
fn the_timeout_follows_the_round_trips_of_what_was_sent_once() {
    let mut sender = sender(&own(), 10, 1_000);
    let mut now = 0;
    for at in (0..200).step_by(10) {
        assert_eq!(sent(&mut sender, now), [(at, at + 10)]);
        now += 500 * MILLI;
        acknowledge(&mut sender, now, at + 10, at + 20, &[]);
    }
    sent(&mut sender, now);
    let wait = sender.next_timer().unwrap() - now;
    assert!((600 * MILLI..800 * MILLI).contains(&wait), "{wait}");
    let before = sender.rtt.timeout(0);
    let due = sender.next_timer().unwrap();
    sender.fire(due);
    sent(&mut sender, due);
    acknowledge(&mut sender, due + 5_000 * MILLI, 210, 220, &[]);
    assert_eq!(sender.rtt.timeout(0), before, "sent twice: says nothing");
}

#[test]
fn what_opens_the_window_or_carries_data_is_no_duplicate() {
    for (carries_data, opens) in [(true, 0), (false, 1)] {
        let mut sender = sender(&Config { sack: false, ..own() }, 50, 50);
        sent(&mut sender, 0);
        for i in 1..=5 {
            let at = sender.window_from;
            let ack = Ack { at, ack: START, window: 50 + i * opens, sack: &[], carries_data };
            assert_eq!(sender.acknowledge(1, ack), Ok(()));
        }
        assert_eq!(sent(&mut sender, 1), []);
    }
}

#[test]
fn what_lies_under_three_packets_acknowledged_selectively_is_sent_again() {
    // Of 100 bytes sent, which blocks make which packets lost.
    let cases: [(&[Block], &[Sending]); 8] = [
        (&[(10, 40)], &[(0, 10)]),
        (&[(10, 30)], &[]),
        (&[(20, 30), (40, 50), (60, 70)], &[(0, 10), (10, 20)]),
        (&[(15, 45)], &[(0, 10), (10, 15)]),
        // Blocks that make no sense: empty, upside down, from the start on, beyond what was sent, below.
        (&[(30, 30)], &[]),
        (&[(60, 10)], &[]),
        (&[(0, 60)], &[]),
        (&[(60, 101), (u32::MAX - 50, u32::MAX)], &[]),
    ];
    for (blocks, expected) in cases {
        let mut sender = sender(&own(), 100, 100);
        sender.cwnd = 1_000;
        assert_eq!(sent(&mut sender, 0).len(), 10);
        acknowledge(&mut sender, 1, 0, 100, blocks);
        assert_eq!(sent(&mut sender, 1), expected, "{blocks:?}");
        acknowledge(&mut sender, 2, 0, 100, blocks);
        assert_eq!(sent(&mut sender, 2), [], "not twice: {blocks:?}");
    }
}

#[test]
fn blocks_of_an_old_acknowledgment_count_and_its_window_does_not() {
    let mut sender = sender(&own(), 100, 100);
    sent(&mut sender, 0);
    acknowledge(&mut sender, 1, 10, 110, &[]);
    acknowledge(&mut sender, 2, 0, 20, &[(20, 50)]);
    assert_eq!((sent(&mut sender, 2), sender.window()), (vec![(10, 20)], 100));
}

#[test]
fn blocks_mean_nothing_without_the_option() {
    let mut sender = sender(&Config { sack: false, ..own() }, 100, 100);
    sent(&mut sender, 0);
    acknowledge(&mut sender, 1, 0, 100, &[(10, 90)]);
    assert_eq!(sent(&mut sender, 1), []);
}

#[test]
fn silence_resends_the_first_packet_in_doubling_intervals_and_then_gives_up() {
    let mut sender = sender(&Config { retries: 3, ..own() }, 100, 30);
    sent(&mut sender, 0);
    let mut at = 0;
    for wait in [RTO, 2 * RTO, 4 * RTO] {
        let due = sender.next_timer().unwrap();
        assert!((wait..wait + 10 * MILLI).contains(&(due - at)), "{}", due - at);
        sender.fire(due - 1);
        assert_eq!(sent(&mut sender, due - 1), []);
        sender.fire(due);
        assert_eq!(sent(&mut sender, due), [(0, 10)]);
        assert!(!sender.has_given_up());
        at = due;
    }
    sender.fire(sender.next_timer().unwrap());
    assert!(sender.has_given_up());
}

#[test]
fn after_a_timeout_everything_is_sent_again_but_what_was_acknowledged_selectively() {
    let mut sender = sender(&own(), 100, 50);
    sent(&mut sender, 0);
    acknowledge(&mut sender, 1, 0, 100, &[(20, 30)]);
    let due = sender.next_timer().unwrap();
    sender.fire(due);
    assert_eq!(sent(&mut sender, due), [(0, 10)], "slow start");
    acknowledge(&mut sender, due + 1, 10, 100, &[(20, 30)]);
    assert_eq!(sent(&mut sender, due + 1), [(10, 20), (30, 40)]);
    acknowledge(&mut sender, due + 2, 40, 100, &[]);
    assert_eq!(sent(&mut sender, due + 2), [(40, 50)]);
    acknowledge(&mut sender, due + 3, 50, 100, &[]);
    assert_eq!(sender.next_timer(), None);
}

#[test]
fn a_receiver_that_threw_away_what_it_said_it_had_gets_it_again() {
    let mut sender = sender(&own(), 100, 20);
    sent(&mut sender, 0);
    acknowledge(&mut sender, 1, 0, 100, &[(10, 20)]);
    acknowledge(&mut sender, 2, 10, 100, &[]);
    assert_eq!(sent(&mut sender, 2), []);
    let due = sender.next_timer().unwrap();
    sender.fire(due);
    assert_eq!(sent(&mut sender, due), [(10, 20)]);
}

#[test]
fn a_closed_window_is_probed_below_what_is_acknowledged_as_long_as_probes_are_answered() {
    let mut sender = sender(&Config { retries: 2, ..own() }, 10, 30);
    sent(&mut sender, 0);
    acknowledge(&mut sender, 0, 10, 10, &[]);
    assert_eq!(sent(&mut sender, 0), []);
    let mut last = 0;
    for _ in 0..6 {
        let due = sender.next_timer().unwrap();
        assert!(due - last > 200 * MILLI);
        sender.fire(due);
        assert_eq!(sent(&mut sender, due), [(9, 9)]);
        acknowledge(&mut sender, due + 1, 10, 10, &[]);
        assert_eq!(sent(&mut sender, due + 1), []);
        assert!(!sender.has_given_up());
        last = due;
    }
    for _ in 0..3 {
        let due = sender.next_timer().unwrap();
        sender.fire(due);
        sent(&mut sender, due);
    }
    assert!(sender.has_given_up());
}

#[test]
fn a_window_too_small_for_a_packet_is_filled_only_by_the_probe() {
    let mut sender = sender(&own(), 4, 30);
    assert_eq!(sent(&mut sender, 0), []);
    let due = sender.next_timer().unwrap();
    sender.fire(due);
    assert_eq!(sent(&mut sender, due), [(0, 4)]);
    acknowledge(&mut sender, due, 4, 40, &[]);
    assert_eq!(sent(&mut sender, due), [(4, 14), (14, 24), (24, 30)]);
}

#[test]
fn beyond_a_window_that_was_shrunk_only_the_first_packet_is_sent_again() {
    let mut sender = sender(&own(), 100, 50);
    sent(&mut sender, 0);
    for (edge, expected) in [(0, (0, 10)), (4, (0, 4))] {
        acknowledge(&mut sender, 1, 0, edge, &[]);
        let due = sender.next_timer().unwrap();
        sender.fire(due);
        sender.cwnd = 1_000;
        assert_eq!(sent(&mut sender, due), [expected], "up to {edge}");
        assert_eq!(sender.bare_seq(0), START + edge);
    }
}
