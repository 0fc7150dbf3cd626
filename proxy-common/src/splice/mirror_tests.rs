// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use std::vec::Vec;

use super::*;
use crate::splice::ingress::ingress;
use crate::splice::notes::{Kind, Note};
use crate::splice::policy::MIRROR;
use crate::splice::testing::{Bench, note, request};

/// An API that is mirrored, and one that isn't.
const COPIED: u16 = 1;
const OTHER: u16 = 2;

/// A session whose requests are armed.
struct Mirrored {
    bench: Bench,
    tally: Tally,
}

impl Mirrored {
    fn new() -> Self {
        let mut bench = Bench::new();
        bench.policy.mirror(COPIED);
        bench.arm(0, 0);
        Self { bench, tally: Tally::default() }
    }

    /// The client's packet arrives, and is marked.
    fn client(&mut self, offset: i32, payload: &[u8]) -> Copying {
        let p = self.bench.data(offset, payload.len() as u32);
        let survey = self.bench.survey(Side::Client, &p, payload);
        self.commit(&p, &survey)
    }

    /// With a walk that was made before.
    fn commit(&mut self, p: &Arriving, survey: &Survey) -> Copying {
        let Self { bench, tally } = self;
        let mut copying = Copying::default();
        let before = Before::of(Side::Client, &bench.q);
        let armed = bench.armed[0];
        let _ = ingress(&mut bench.q, &mut bench.r, Side::Client, p, survey, armed, &bench.notes);
        copying.mark(before, &bench.q, p, survey, &bench.notes, tally);
        copying
    }
}

fn frames(keys: &[u16], length: u32) -> Vec<u8> {
    keys.iter().flat_map(|key| request(*key, 4, length)).collect()
}

#[test]
fn what_is_forwarded_and_mirrored_is_marked_with_a_number() {
    let mut m = Mirrored::new();
    let first = m.client(0, &frames(&[COPIED, OTHER, COPIED], 20)).head;
    assert_eq!((first.packet, first.begun, first.frames, first.remain), (0, 0, 0, 0));
    assert_eq!((first.mirrored, first.begins, first.continues), (0b101, 3, 0));
    assert_eq!((first.from, first.total), (0, 60));
    assert_eq!(m.client(60, &frames(&[OTHER], 40)[..20]).left(), 0, "nothing in it is mirrored");
    assert_eq!(m.client(80, &[0; 20]).left(), 0, "nor the rest");
    let second = m.client(100, &frames(&[COPIED], 100)[..30]).head;
    assert_eq!((second.packet, second.begun, second.frames, second.mirrored), (1, 2, 4, 1));
    let rest = [&[0; 70][..], &frames(&[OTHER], 20)].concat();
    let third = m.client(130, &rest).head;
    assert_eq!((third.packet, third.begun, third.frames, third.remain), (2, 3, 5, 70));
    assert_eq!((third.continues, third.mirrored, third.begins, third.total), (1, 0, 1, 90));
    assert_eq!(m.tally, Tally { packets: 3, frames: 3 });
}

#[test]
fn only_bytes_that_are_new_are_marked() {
    let mut m = Mirrored::new();
    let payload = frames(&[COPIED, COPIED], 50);
    assert_eq!(m.client(0, &payload[..70]).head.total, 70);
    assert_eq!(m.client(0, &payload[..70]).left(), 0, "a retransmission");
    let mut more = m.client(20, &payload[20..]);
    assert_eq!((more.head.remain, more.head.continues, more.head.total), (30, 1, 30));
    assert_eq!(more.next_piece(), Some(50), "behind what was there already");
    assert_eq!(m.tally, Tally { packets: 2, frames: 2 });
}

#[test]
fn of_two_that_walked_the_same_bytes_the_one_that_commits_is_marked() {
    let mut m = Mirrored::new();
    assert_ne!(m.client(0, &frames(&[COPIED], 20)).left(), 0);
    let payload = frames(&[COPIED], 30);
    let p = m.bench.data(20, 30);
    let survey = m.bench.survey(Side::Client, &p, &payload);
    assert_eq!(m.commit(&p, &survey).left(), 30);
    assert_eq!(m.commit(&p, &survey).left(), 0, "the other came later");
}

#[test]
fn what_goes_to_the_daemon_is_not_marked() {
    let mut m = Mirrored::new();
    assert_ne!(m.client(0, &frames(&[COPIED], 20)).left(), 0);
    assert_eq!(m.client(30, &frames(&[COPIED], 20)).left(), 0, "a hole");
    assert!(!m.bench.q.is_peer());
    assert_eq!(m.client(20, &frames(&[COPIED], 20)).left(), 0, "without leave");
    assert_eq!(m.tally, Tally { packets: 1, frames: 1 });
}

#[test]
fn answers_are_marked_by_what_their_requests_noted() {
    let mut m = Mirrored::new();
    m.bench.notes.set(0, Note { kind: Kind::Plain, mirrored: true });
    m.bench.notes.set(1, note(Kind::Plain));
    let d = &m.bench.r;
    let armed = crate::splice::arm::Armed { at: d.l_max, sent: d.s_max, frames: 0, remain: 0, epoch: 0 };
    m.bench.armed[1] = Some(armed);
    let payload = frames(&[0, 0], 20);
    let p = m.bench.answer(0, 40);
    let survey = m.bench.survey(Side::Broker, &p, &payload);
    let before = Before::of(Side::Broker, &m.bench.r);
    let Bench { q, r, notes, .. } = &mut m.bench;
    let _ = ingress(r, q, Side::Broker, &p, &survey, Some(armed), notes);
    let mut copying = Copying::default();
    copying.mark(before, r, &p, &survey, notes, &mut m.tally);
    assert_eq!((copying.head.side, copying.head.mirrored, copying.head.total), (1, 0b01, 40));
}

#[test]
fn pieces_cover_a_packet_once_and_in_order() {
    for total in [1, 192, 193, LARGEST, LARGEST + 1, 65_483, 8 * 65_536] {
        let mut copying = Copying { head: Head { total, ..Head::default() }, start: 17 };
        let (mut covered, mut pieces) = (0, 0);
        while let Some(offset) = copying.next_piece() {
            assert_eq!((offset, copying.head.from), (17 + covered, covered));
            assert!((1..=LARGEST).contains(&copying.head.length));
            covered += copying.head.length;
            pieces += 1;
            copying.copied();
        }
        assert_eq!((covered, copying.left()), (total, 0));
        assert!(pieces <= PIECES, "{pieces} of {total} bytes");
    }
}

#[test]
fn only_what_is_forwarded_at_all_can_be_mirrored() {
    let mut policy = Bench::new().policy;
    policy.mirror(5);
    assert_eq!((policy.mirrors, policy.rules[5].flags), (0, 0), "the daemon's");
    policy.mirror(u16::MAX);
    assert_eq!(policy.mirrors, 0, "beyond the table");
    policy.mirror(COPIED);
    assert_eq!((policy.mirrors, policy.rules[1].flags & MIRROR), (1, MIRROR));
}
