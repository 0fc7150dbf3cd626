// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::super::URG;
use super::*;

fn client() -> Config {
    Config { seq: u32::MAX - 999, mss: 1_000, quick_acks: 0, ..Config::of(Socket::Client) }
}

fn gateway() -> Config {
    Config { seq: 5_000, mss: 1_000, quick_acks: 0, ..Config::of(Socket::ToClient) }
}

fn pair(own: &Config, peer: &Config) -> (Endpoint, Endpoint) {
    (Endpoint::new(own, peer), Endpoint::new(peer, own))
}

fn all(endpoint: &mut Endpoint, now: Micros) -> Vec<Segment> {
    std::iter::from_fn(|| endpoint.poll(now)).collect()
}

/// Carries everything back and forth until neither has anything to say.
fn settle(now: Micros, a: &mut Endpoint, b: &mut Endpoint) {
    for _ in 0..1_000 {
        let (from_a, from_b) = (a.poll(now), b.poll(now));
        if from_a.is_none() && from_b.is_none() {
            return;
        }
        from_a.iter().for_each(|segment| assert_ne!(b.on_segment(now, segment), Outcome::Damaged));
        from_b.iter().for_each(|segment| assert_ne!(a.on_segment(now, segment), Outcome::Damaged));
    }
    panic!("they never stop");
}

/// A segment from the client to the gateway, at this offset from the start of its stream.
fn from_client(offset: i64, payload: &[u8]) -> Segment {
    let seq = client().seq.wrapping_add(offset as u32);
    let bare = Segment::bare(Socket::Client, Socket::ToClient, ACK, seq, gateway().seq);
    Segment { window: 500, payload: payload.to_vec(), ..bare }
}

#[test]
fn bytes_and_half_closes_go_both_ways_across_the_wrap() {
    let (mut a, mut b) = pair(&client(), &gateway());
    assert_eq!(a.write(&[1; 2_500]), 2_500);
    a.shutdown();
    assert_eq!(a.state(), State::FinWait1);
    settle(0, &mut a, &mut b);
    assert_eq!((a.unacked(), b.unread(), b.state()), (501, 2_500, State::CloseWait), "the FIN's ack is delayed");
    assert_eq!(b.read(10_000), [1; 2_500]);
    assert!(b.at_end());
    settle(DELAY, &mut a, &mut b);
    assert_eq!((a.state(), a.unacked(), a.snd_una()), (State::FinWait2, 0, client().seq.wrapping_add(2_501)));
    b.write(&[2; 10]);
    b.shutdown();
    assert_eq!(b.state(), State::LastAck);
    settle(DELAY, &mut a, &mut b);
    assert_eq!((a.read(100), a.state(), b.state()), (vec![2; 10], State::TimeWait, State::Closed));
    assert_eq!(b.write_seq(), b.snd_una());
}

#[test]
fn a_repeated_fin_is_acknowledged_at_once() {
    let mut endpoint = Endpoint::new(&gateway(), &client());
    let fin = Segment { flags: ACK | FIN, ..from_client(0, &[7; 10]) };
    for answers in [0, 1] {
        assert_eq!(endpoint.on_segment(0, &fin), Outcome::Accepted);
        assert_eq!((endpoint.state(), all(&mut endpoint, 0).len()), (State::CloseWait, answers));
    }
}

#[test]
fn both_closing_at_once_ends_in_time_wait_on_both_sides() {
    let (mut a, mut b) = pair(&client(), &gateway());
    a.shutdown();
    b.shutdown();
    let (from_a, from_b) = (all(&mut a, 0), all(&mut b, 0));
    from_a.iter().for_each(|segment| assert_eq!(b.on_segment(0, segment), Outcome::Accepted));
    assert_eq!(b.state(), State::Closing);
    from_b.iter().for_each(|segment| assert_eq!(a.on_segment(0, segment), Outcome::Accepted));
    settle(DELAY, &mut a, &mut b);
    assert_eq!((a.state(), b.state()), (State::TimeWait, State::TimeWait));
}

#[test]
fn the_queues_are_those_a_daemon_asks_for() {
    let (mut a, mut b) = pair(&client(), &gateway());
    b.write(&[1; 100]);
    assert_eq!((b.write_seq(), b.snd_nxt(), b.snd_una(), b.unacked()), (5_100, 5_000, 5_000, 100));
    let segments = all(&mut b, 0);
    assert_eq!((b.snd_nxt(), b.unacked()), (5_100, 100));
    a.on_segment(0, &segments[0]);
    assert_eq!((a.rcv_nxt(), a.unread()), (5_100, 100));
    a.read(40);
    assert_eq!((a.rcv_nxt(), a.unread()), (5_100, 60));
    settle(DELAY, &mut a, &mut b);
    assert_eq!((b.snd_una(), b.unacked(), b.snd_wnd()), (5_100, 0, 65_536));
}

#[test]
fn each_segment_is_judged_by_where_it_lies_and_answered_accordingly() {
    // Window of 65536; nothing received yet. With which flags, at which offset, with how many bytes.
    let cases = [
        ("in order", ACK, 0, 10, Outcome::Accepted, 0),
        ("urgent, which is inline", ACK | URG, 0, 10, Outcome::Accepted, 0),
        ("early", ACK, 100, 10, Outcome::Accepted, 1),
        ("at the right edge", ACK, 65_536, 10, Outcome::Accepted, 1),
        ("beyond it", ACK, 65_537, 10, Outcome::OutOfWindow, 1),
        ("beyond it, empty", ACK, 65_537, 0, Outcome::OutOfWindow, 1),
        ("old", ACK, -10, 9, Outcome::OutOfWindow, 1),
        ("old up to the edge", ACK, -10, 10, Outcome::Accepted, 1),
        ("probe", ACK, -1, 0, Outcome::OutOfWindow, 1),
        ("neither ACK nor RST", 0, 0, 10, Outcome::Meaningless, 0),
        ("SYN", SYN, 0, 0, Outcome::Challenged, 1),
        ("RST exactly", RST, 0, 0, Outcome::Reset, 0),
        ("RST in the window", RST, 1, 0, Outcome::Challenged, 1),
        ("RST outside", RST, -1, 0, Outcome::OutOfWindow, 0),
    ];
    for (what, flags, offset, len, outcome, answers) in cases {
        let mut endpoint = Endpoint::new(&gateway(), &client());
        let segment = Segment { flags, ..from_client(offset, &vec![7; len]) };
        assert_eq!(endpoint.on_segment(0, &segment), outcome, "{what}");
        let sent = all(&mut endpoint, 0);
        assert_eq!(sent.len(), answers, "{what}");
        assert!(sent.iter().all(|answer| answer.flags == ACK && answer.ack == client().seq && answer.seq == 5_000));
    }
}

#[test]
fn old_data_that_was_received_is_acknowledged_at_once() {
    let mut endpoint = Endpoint::new(&gateway(), &client());
    endpoint.on_segment(0, &from_client(0, &[7; 10]));
    assert_eq!(all(&mut endpoint, 0), []);
    // The second ends before what was acknowledged by then.
    for (offset, outcome) in [(0, Outcome::Accepted), (5, Outcome::OutOfWindow)] {
        assert_eq!(endpoint.on_segment(1, &from_client(offset, &[7; 3])), outcome);
        let [sent] = &all(&mut endpoint, 1)[..] else { panic!("one acknowledgment") };
        let start = client().seq.wrapping_add(offset as u32);
        assert_eq!(sent.ack, client().seq.wrapping_add(10));
        assert_eq!(sent.sack, [(start, start.wrapping_add(3))], "and named");
    }
}

#[test]
fn damaged_segments_change_nothing() {
    let mut endpoint = Endpoint::new(&gateway(), &client());
    for flags in [ACK, RST | ACK, SYN] {
        let segment = Segment { checksum_ok: false, flags, ..from_client(0, &[7; 10]) };
        assert_eq!(endpoint.on_segment(0, &segment), Outcome::Damaged);
    }
    assert_eq!((endpoint.state(), endpoint.unread(), all(&mut endpoint, 0).len()), (State::Established, 0, 0));
}

#[test]
fn a_reset_may_also_stand_at_the_end_of_what_is_early() {
    for (sack, outcome) in [(true, Outcome::Reset), (false, Outcome::Challenged)] {
        let mut endpoint = Endpoint::new(&Config { sack, ..gateway() }, &client());
        endpoint.on_segment(0, &from_client(100, &[7; 10]));
        assert_eq!(endpoint.on_segment(0, &Segment { flags: RST, ..from_client(110, &[]) }), outcome);
    }
}

#[test]
fn a_reset_with_the_number_of_the_fin_counts_after_it() {
    let mut endpoint = Endpoint::new(&gateway(), &client());
    endpoint.on_segment(0, &Segment { flags: ACK | FIN, ..from_client(0, &[]) });
    endpoint.poll(DELAY);
    assert_eq!(endpoint.on_segment(0, &Segment { flags: RST, ..from_client(0, &[]) }), Outcome::Reset);
    assert_eq!(endpoint.state(), State::Failed(Failure::ResetByPeer));
}

#[test]
fn acknowledgments_that_cannot_be_are_answered_as_the_kernel_does() {
    let cases = [
        ("of bytes never sent", 1, false, 0),
        ("of bytes never sent, newer kernels", 1, true, 1),
        ("older than the largest window", -65_537, false, 1),
    ];
    for (what, offset, answers_unsent_acks, answers) in cases {
        let mut endpoint = Endpoint::new(&Config { answers_unsent_acks, ..gateway() }, &client());
        let segment = Segment { ack: 5_000_u32.wrapping_add_signed(offset), ..from_client(0, &[7; 10]) };
        assert_eq!(endpoint.on_segment(0, &segment), Outcome::Challenged, "{what}");
        assert_eq!((endpoint.unread(), all(&mut endpoint, 0).len()), (0, answers), "{what}");
    }
    let mut endpoint = Endpoint::new(&gateway(), &client());
    endpoint.shutdown();
    all(&mut endpoint, 0);
    endpoint.on_segment(0, &Segment { ack: 5_002, ..from_client(0, &[]) });
    assert_eq!(all(&mut endpoint, 0).len(), 1, "while closing every kernel answers");
}

#[test]
fn answers_to_empty_segments_are_half_a_second_apart() {
    let mut endpoint = Endpoint::new(&gateway(), &client());
    let probe = from_client(-1, &[]);
    for (at, answers) in [(0, 1), (1, 0), (ANSWER_INTERVAL - 1, 0), (ANSWER_INTERVAL, 1)] {
        endpoint.on_segment(at, &probe);
        assert_eq!(all(&mut endpoint, at).len(), answers, "at {at}");
    }
    for at in 0..3 {
        endpoint.on_segment(at, &from_client(-20, &[7; 10]));
        assert_eq!(all(&mut endpoint, at).len(), 1, "data is always answered");
    }
}

#[test]
fn two_full_packets_are_acknowledged_at_once_and_less_after_forty_milliseconds() {
    // Memory for no more than the window: unread bytes make it smaller.
    let mut endpoint = Endpoint::new(&Config { receive_buffer: 64 << 10, ..gateway() }, &client());
    endpoint.on_segment(0, &from_client(0, &[7; 1_000]));
    assert_eq!((all(&mut endpoint, 0).len(), endpoint.next_timer()), (0, Some(DELAY)));
    endpoint.read(500);
    assert_eq!(all(&mut endpoint, DELAY - 1).len(), 0);
    assert_eq!(all(&mut endpoint, DELAY).len(), 1);
    assert_eq!(endpoint.next_timer(), None);
    endpoint.read(500);
    endpoint.on_segment(DELAY, &Segment { flags: ACK | PSH, ..from_client(1_000, &[7; 1_000]) });
    assert_eq!(all(&mut endpoint, DELAY).len(), 0);
    endpoint.read(1_000);
    assert_eq!(all(&mut endpoint, DELAY).len(), 1, "read by an application that has nothing to say");
    endpoint.on_segment(DELAY, &from_client(2_000, &[7; 1_000]));
    endpoint.read(0);
    endpoint.on_segment(DELAY, &from_client(3_000, &[7; 1]));
    assert_eq!(all(&mut endpoint, DELAY).len(), 0, "the window doesn't keep up: left to the reader");
    endpoint.read(1);
    assert_eq!(all(&mut endpoint, DELAY).len(), 1);
}

#[test]
fn the_first_acknowledgments_are_quick_until_it_is_a_dialogue() {
    let mut endpoint = Endpoint::new(&Config { quick_acks: 3, ..gateway() }, &client());
    for (i, answers) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
        endpoint.on_segment(0, &from_client(i, &[7]));
        assert_eq!(all(&mut endpoint, 0).len(), answers, "byte {i}");
    }
    let mut endpoint = Endpoint::new(&Config { quick_acks: 3, ..gateway() }, &client());
    endpoint.on_segment(0, &from_client(0, &[7]));
    endpoint.write(b"reply");
    assert_eq!(all(&mut endpoint, 0).len(), 1);
    endpoint.on_segment(0, &from_client(1, &[7]));
    assert_eq!(all(&mut endpoint, 0).len(), 0);
}

#[test]
fn early_segments_and_the_one_that_closes_the_gap_are_acknowledged_at_once_with_blocks() {
    for sack in [true, false] {
        let mut endpoint = Endpoint::new(&Config { sack, ..gateway() }, &client());
        let at = |offset: u32| client().seq.wrapping_add(offset);
        let cases = [
            (20, 0, vec![(at(20), at(30))]),
            (40, 0, vec![(at(40), at(50)), (at(20), at(30))]),
            (0, 10, vec![(at(40), at(50)), (at(20), at(30))]),
            (10, 30, vec![(at(40), at(50))]),
            (30, 50, vec![]),
        ];
        for (offset, ack, blocks) in cases {
            endpoint.on_segment(0, &from_client(offset, &[7; 10]));
            let [sent] = &all(&mut endpoint, 0)[..] else { panic!("one acknowledgment") };
            assert_eq!((sent.ack, &sent.sack), (at(ack), &if sack { blocks } else { vec![] }), "after {offset}");
        }
    }
}

#[test]
fn packets_leave_room_for_the_blocks_they_carry() {
    let mut endpoint = Endpoint::new(&Config { gso: 4, ..gateway() }, &client());
    endpoint.on_segment(0, &from_client(100, &[7; 10]));
    endpoint.write(&[1; 3_000]);
    let sent = all(&mut endpoint, 0);
    assert_eq!((sent[0].sack.len(), sent[0].gso_size, sent[0].payload.len()), (1, 988, 3_000));
}

#[test]
fn reading_opens_a_closed_window_and_says_so() {
    let small = Config { receive_buffer: 4_096, ..gateway() };
    let (mut a, mut b) = pair(&client(), &small);
    a.write(&[7; 20_000]);
    for at in 0..5 {
        settle(at * DELAY, &mut a, &mut b);
    }
    assert!(b.unread() > 3_000 && a.snd_wnd() < 1_000, "{} unread, window {}", b.unread(), a.snd_wnd());
    let mut received = vec![];
    for _ in 0..100 {
        let bytes = b.read(700);
        received.extend(bytes);
        settle(5 * DELAY, &mut a, &mut b);
    }
    assert_eq!(received, [7; 20_000], "without waiting for any timer");
}

#[test]
fn abort_resets_the_other_side_which_can_still_read() {
    let (mut a, mut b) = pair(&client(), &gateway());
    a.write(b"last words");
    settle(0, &mut a, &mut b);
    a.abort();
    assert_eq!(a.state(), State::Failed(Failure::Aborted));
    settle(0, &mut a, &mut b);
    assert_eq!(b.state(), State::Failed(Failure::ResetByPeer));
    assert_eq!((b.read(100), b.write(b"never")), (b"last words".to_vec(), 0));
    assert_eq!((a.next_timer(), b.next_timer()), (None, None));
}

#[test]
fn without_a_connection_segments_are_refused_and_resets_ignored() {
    let mut endpoint = Endpoint::new(&gateway(), &client());
    endpoint.abort();
    all(&mut endpoint, 0);
    assert_eq!(endpoint.on_segment(0, &Segment { flags: RST, ..from_client(0, &[]) }), Outcome::NoConnection);
    assert_eq!(all(&mut endpoint, 0), []);
    assert_eq!(endpoint.on_segment(0, &Segment { ack: 99, ..from_client(0, &[7]) }), Outcome::NoConnection);
    let refused = all(&mut endpoint, 0);
    assert_eq!(refused.iter().map(|segment| (segment.flags, segment.seq)).collect::<Vec<_>>(), [(RST, 99)]);
}

#[test]
fn a_peer_that_never_answers_times_the_connection_out() {
    let mut endpoint = Endpoint::new(&Config { retries: 3, ..gateway() }, &client());
    endpoint.write(b"hello?");
    let mut sent = all(&mut endpoint, 0).len();
    while let Some(at) = endpoint.next_timer() {
        sent += all(&mut endpoint, at).len();
    }
    assert_eq!((sent, endpoint.state()), (4, State::Failed(Failure::TimedOut)));
}
