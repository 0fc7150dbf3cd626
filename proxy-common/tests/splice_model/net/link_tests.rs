// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::*;
use crate::tcp::{ACK, Socket};

fn segment(number: u32, len: usize) -> Segment {
    let bare = Segment::bare(Socket::Client, Socket::ToClient, ACK, number * len as u32, 0);
    Segment { payload: vec![number as u8; len], ..bare }
}

fn link(faults: Faults) -> Link {
    Link::new(Rng::new(7), faults, 100, 0)
}

/// What arrives, and when, of `count` segments of ten bytes that are sent a microsecond after each other.
fn carry(link: &mut Link, count: u32) -> Vec<(Micros, Segment)> {
    (0..count).for_each(|number| link.send(number.into(), segment(number, 10)));
    let mut arrived = vec![];
    while let Some(at) = link.next_arrival() {
        arrived.push((at, link.receive(at).unwrap()));
    }
    arrived
}

#[test]
fn without_faults_everything_arrives_in_order_and_in_time() {
    let arrived = carry(&mut link(Faults::NONE), 50);
    let expected: Vec<_> = (0..50).map(|number| (100 + Micros::from(number), segment(number, 10))).collect();
    assert_eq!(arrived, expected);
}

#[test]
fn the_rate_spaces_segments_out() {
    // 76 bytes with headers, at 38 bytes per millisecond.
    let mut link = Link::new(Rng::new(7), Faults::NONE, 100, 38);
    let times: Vec<_> = carry(&mut link, 3).iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [2_100, 4_100, 6_100]);
}

#[test]
fn each_fault_happens_as_often_as_said() {
    let carry = |faults| carry(&mut link(faults), 10_000);
    let about = |n: usize| (2_200..2_800).contains(&n);

    let lossy = carry(Faults { loss: 250, ..Faults::NONE });
    assert!(about(10_000 - lossy.len()), "{}", lossy.len());

    let doubling = carry(Faults { duplication: 250, ..Faults::NONE });
    assert!(about(doubling.len() - 10_000), "{}", doubling.len());

    let damaging = carry(Faults { damage: 250, ..Faults::NONE });
    let damaged = damaging.iter().filter(|(_, segment)| !segment.checksum_ok);
    assert!(about(damaged.count()));
    let changed = damaging.iter().enumerate().filter(|(i, (_, it))| *it != segment(*i as u32, 10));
    assert!(changed.clone().all(|(_, (_, segment))| !segment.checksum_ok));
    assert!(about(
        changed.filter(|(i, (_, it))| Segment { checksum_ok: true, ..it.clone() } != segment(*i as u32, 10)).count()
    ));

    let late = carry(Faults { reordering: 250, jitter: 50, ..Faults::NONE });
    assert!(late.windows(2).filter(|pair| pair[1].1.seq < pair[0].1.seq).count() > 1_000);
    assert!(late.iter().all(|(at, segment)| (100..150).contains(&(at - Micros::from(segment.seq / 10)))));

    let cut = carry(Faults { cutting: 250, ..Faults::NONE });
    assert!(about(cut.len() - 10_000), "{}", cut.len());
    assert!(cut.windows(2).all(|pair| pair[0].1.end() == pair[1].1.seq));
}

#[test]
fn big_segments_are_cut_into_packets_or_pass_whole() {
    for (whole, expected) in [(1_000, 1), (0, 4)] {
        let mut link = link(Faults { whole, ..Faults::NONE });
        link.send(0, Segment { gso_size: 10, ..segment(1, 35) });
        assert_eq!(std::iter::from_fn(|| link.receive(100)).count(), expected);
    }
}

#[test]
fn what_arrives_together_is_joined_if_both_wishes_are_met() {
    for (merging, coalescing, expected) in [(1_000, 50, 2), (1_000, 0, 50), (0, 50, 50)] {
        let arrived = carry(&mut link(Faults { merging, coalescing, ..Faults::NONE }), 50);
        assert_eq!(arrived.len(), expected, "{merging} {coalescing}");
        assert!(arrived.windows(2).all(|pair| pair[0].1.end() == pair[1].1.seq));
    }
}

#[test]
fn faults_end_with_calm_or_with_the_budget() {
    let storm = Faults { loss: 500, duplication: 500, damage: 500, reordering: 500, jitter: 50, ..Faults::NONE };
    let mut calm = link(storm.clone());
    calm.calm();
    assert_eq!((carry(&mut calm, 50).len(), calm.faults_done()), (50, 0));
    let mut bounded = link(Faults { budget: 3, ..storm });
    carry(&mut bounded, 1_000);
    assert_eq!(bounded.faults_done(), 3);
}

#[test]
fn a_seed_always_does_the_same() {
    let storm = Faults { loss: 200, duplication: 200, damage: 200, reordering: 200, jitter: 50, ..Faults::NONE };
    let run = |seed| carry(&mut Link::new(Rng::new(seed), storm.clone(), 100, 0), 200);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
