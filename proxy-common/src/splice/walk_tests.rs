// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::packet::{ACK, FIN};
use crate::produce::is_clean_answer;
use crate::request::{Partial, produce_acks};
use crate::splice::notes::{Kind, RING};
use crate::splice::segment::Segment;
use crate::splice::testing::{Bench, note, request};

/// What a walk of these bytes, which begin at a frame's start, finds.
fn walked(bench: &mut Bench, side: Side, bytes: &[u8]) -> Survey {
    bench.arm(0, 0);
    let p = match side {
        Side::Client => bench.data(0, bytes.len() as u32),
        Side::Broker => {
            let (at, sent, epoch) = (bench.r.l_max, bench.r.s_max, bench.r.epoch);
            bench.armed[1] = Some(Armed { at, sent, frames: 0, remain: 0, epoch });
            bench.answer(0, bytes.len() as u32)
        }
    };
    bench.survey(side, &p, bytes)
}

fn forwards(bytes: &[u8]) -> bool {
    walked(&mut Bench::new(), Side::Client, bytes).forward
}

/// Client id of so many bytes (`None`: null), tagged fields, transactional id, acks; a frame of 400 bytes.
fn produce(version: u16, id: Option<u16>, tags: u8, acks: i16) -> Vec<u8> {
    let mut frame = request(0, version, 400);
    let mut body = id.map_or([0xff, 0xff], u16::to_be_bytes).to_vec();
    body.resize(2 + usize::from(id.unwrap_or(0)), b'c');
    if version >= 9 {
        body.extend([tags, 0]);
    } else if version >= 3 {
        body.extend([0xff, 0xff]);
    }
    body.extend(acks.to_be_bytes());
    let end = 12 + body.len();
    frame.splice(12..end.min(400), body);
    frame.truncate(end.max(400));
    let size = (frame.len() as u32 - 4).to_be_bytes();
    frame[..4].copy_from_slice(&size);
    frame
}

#[test]
fn a_request_is_forwarded_by_its_key_version_and_size() {
    let sized = |size: u32| {
        let mut frame = request(1, 4, 100);
        frame[..4].copy_from_slice(&size.to_be_bytes());
        frame
    };
    for size in 0..8 {
        assert!(!forwards(&sized(size)), "size {size}");
    }
    assert!(forwards(&request(1, 4, 12)), "the least");
    assert!(forwards(&sized(1 << 20)), "the largest");
    assert!(!forwards(&sized((1 << 20) + 1)) && !forwards(&sized(u32::MAX)) && !forwards(&sized(1 << 31)));
    for (key, version, expected) in [
        (1, 15, true),
        (1, 16, false),
        (1, 3, false),
        (1, 0xffff, false),
        (3, 12, false),
        (200, 0, false),
        (0x8000, 0, false),
    ] {
        assert_eq!(forwards(&request(key, version, 100)), expected, "key {key} version {version}");
    }
}

#[test]
fn a_header_must_lie_in_the_packet() {
    let frame = request(1, 4, 100);
    for cut in 1..8 {
        assert!(!forwards(&frame[..cut]), "{cut} bytes");
    }
    let survey = walked(&mut Bench::new(), Side::Client, &frame[..8]);
    assert_eq!((survey.forward, survey.frames, survey.remain), (true, 1, 92));
    let mut two = frame.clone();
    two.extend(&frame[..7]);
    assert!(!forwards(&two), "all or nothing");
    assert!(forwards(&two[..100]));
}

#[test]
fn a_produce_is_forwarded_if_it_gets_an_answer() {
    for version in [3, 8, 9, 10, 12, 13] {
        for id in [None, Some(0), Some(30), Some(220)] {
            assert!(forwards(&produce(version, id, 0, -1)), "v{version} {id:?}");
            assert!(forwards(&produce(version, id, 0, 1)), "v{version} {id:?}");
            assert!(!forwards(&produce(version, id, 0, 0)), "v{version} {id:?}: acks = 0");
        }
        assert!(!forwards(&produce(version, Some(300), 0, -1)), "acks lie too far behind");
        assert!(!forwards(&produce(version, None, 0, -1)[..17]), "acks are cut");
    }
    assert!(!forwards(&produce(9, None, 1, -1)), "tagged fields");
    assert!(!forwards(&produce(2, None, 0, -1)) && !forwards(&produce(14, None, 0, -1)));
}

#[test]
fn acks_are_not_read_beyond_their_frame() {
    let mut frame = request(0, 3, 16);
    frame[12..16].copy_from_slice(&[0xff; 4]);
    frame.extend([0xff; 40]);
    assert!(!forwards(&frame));
}

#[test]
fn each_request_is_noted_with_what_its_answer_needs() {
    let mut bytes = request(1, 4, 50);
    for version in [9, 10, 13] {
        bytes.extend(produce(version, None, 0, 1));
    }
    bytes.extend(request(2, 0, 60));
    let mut bench = Bench::new();
    bench.policy.rules[1].flags |= crate::splice::policy::MIRROR;
    let survey = walked(&mut bench, Side::Client, &bytes);
    survey.commit_notes(Side::Client, &bench.notes);
    assert_eq!(bench.notes.get(0), Note { kind: Kind::Plain, mirrored: true });
    let kinds: Vec<_> = (1..6).map(|index| bench.notes.get(index).kind).collect();
    assert_eq!(kinds, [Kind::Plain, Kind::Produce, Kind::ProduceIds, Kind::LocalIfSmaller, Kind::Unknown]);
}

#[test]
fn a_packet_of_too_many_frames_and_a_full_ring_are_the_daemons() {
    let many = |n: u32| (0..n).flat_map(|_| request(1, 4, 12)).collect::<Vec<_>>();
    let survey = walked(&mut Bench::new(), Side::Client, &many(MAX_FRAMES));
    assert_eq!((survey.forward, survey.frames), (true, MAX_FRAMES));
    assert!(!forwards(&many(MAX_FRAMES + 1)));
    let mut bench = Bench::new();
    bench.notes.set_answered(0u32.wrapping_sub(RING - 2));
    assert!(walked(&mut bench, Side::Client, &many(2)).forward);
    assert!(!walked(&mut bench, Side::Client, &many(3)).forward);
}

#[test]
fn requests_beyond_the_limit_of_unanswered_ones_are_the_daemons() {
    let many = |n: u32| (0..n).flat_map(|_| request(1, 4, 12)).collect::<Vec<_>>();
    let mut bench = Bench::new();
    bench.policy.in_flight = 5;
    bench.notes.set_answered(0u32.wrapping_sub(3));
    assert!(walked(&mut bench, Side::Client, &many(2)).forward, "the fourth and the fifth");
    assert!(!walked(&mut bench, Side::Client, &many(3)).forward, "the sixth");
    bench.notes.set_answered(0u32.wrapping_sub(2));
    assert!(walked(&mut bench, Side::Client, &many(3)).forward, "one was answered");
    bench.policy.in_flight = u32::MAX;
    bench.notes.set_answered(0u32.wrapping_sub(RING - 2));
    assert!(!walked(&mut bench, Side::Client, &many(3)).forward, "the ring bounds it in any case");
}

#[test]
fn an_answer_passes_by_its_requests_note() {
    let mut long = std::vec![0; 64];
    long[3] = 60;
    let mut short = std::vec![0; 63];
    short[3] = 59;
    let cases = [
        (Kind::Plain, &short, true),
        (Kind::LocalIfSmaller, &long, true),
        (Kind::LocalIfSmaller, &short, false),
        (Kind::Local, &long, false),
        (Kind::Produce, &long, false),
        (Kind::Unknown, &long, false),
    ];
    for (kind, bytes, expected) in cases {
        let mut bench = Bench::new();
        bench.notes.set(0, note(kind));
        assert_eq!(walked(&mut bench, Side::Broker, bytes).forward, expected, "{kind:?}");
    }
    for size in 0..8 {
        let mut bench = Bench::new();
        bench.notes.set(0, note(Kind::Plain));
        let bytes = [0, 0, 0, size, 0, 0, 0, 0, 0, 0, 0, 0];
        let forward = walked(&mut bench, Side::Broker, &bytes[..4 + usize::from(size)]).forward;
        assert_eq!(forward, size >= 4, "size {size}");
    }
}

#[test]
fn nothing_is_walked_of_what_can_not_be_forwarded() {
    let bytes = request(1, 4, 100);
    let mut bench = Bench::new();
    bench.arm(0, 0);
    let p = bench.data(0, 100);
    assert!(bench.survey(Side::Client, &p, &bytes).forward);
    for other in [Segment { flags: ACK | FIN, ..p }, Segment { room: 99, ..p }, Segment { length: 0, ..p }] {
        assert_eq!(bench.survey(Side::Client, &other, &bytes), Survey::NONE);
    }
    let merged = Segment { gso: 50, room: 50, ..p };
    assert!(bench.survey(Side::Client, &merged, &bytes).forward, "it leaves in pieces that fit");
}

/// The body of a flexible Produce answer, in which some byte may be changed.
fn clean_answer(version: i16, topics: u8, partitions: u8) -> Vec<u8> {
    let mut body = std::vec![0, 0, 0, 7, 0, topics + 1];
    for _ in 0..topics {
        body.extend(if version == 13 { std::vec![9; 16] } else { std::vec![2, b't'] });
        body.push(partitions + 1);
        for partition in 0..partitions {
            body.extend([0, 0, 0, partition, 0, 0]);
            body.extend([5; 24]);
            body.extend([1, 0, 0]);
        }
        body.push(0);
    }
    body.extend([0; 5]);
    body
}

fn passes_produce(version: i16, body: &[u8], packet: &[u8]) -> bool {
    let mut bench = Bench::new();
    bench.notes.set(0, note(if version == 13 { Kind::ProduceIds } else { Kind::Produce }));
    let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
    bytes.extend(packet);
    walked(&mut bench, Side::Broker, &bytes).forward
}

#[test]
fn a_clean_answer_passes_only_whole() {
    for (version, topics, partitions) in [(12, 1, 1), (12, 1, 16), (12, 4, 4), (13, 16, 1), (10, 2, 0), (12, 0, 0)] {
        let body = clean_answer(version, topics, partitions);
        assert!(passes_produce(version, &body, &body), "{topics} topics of {partitions}");
        assert!(!passes_produce(version, &body, &body[..body.len() - 1]));
    }
    let body = clean_answer(12, 1, 17);
    assert!(!passes_produce(12, &body, &body));
}

proptest! {
    /// The kernel's walk never passes what the daemon's reading of the same rules holds back.
    #[test]
    fn the_kernel_passes_no_answer_that_the_daemon_would_not(
        version in prop_oneof![Just(12i16), Just(13)], topics in 0u8..4, partitions in 0u8..5,
        change in any::<Option<(prop::sample::Index, u8)>>(),
    ) {
        let mut body = clean_answer(version, topics, partitions);
        if let Some((at, to)) = change {
            let at = at.index(body.len());
            body[at] = to;
        }
        let passes = passes_produce(version, &body, &body);
        prop_assert_eq!(passes, is_clean_answer(version, &body));
    }

    /// Where the kernel reads acks, it reads what the daemon reads.
    #[test]
    fn the_kernel_reads_the_acks_that_the_daemon_reads(
        version in 3u16..14, id in prop::option::of(0u16..260), tags in 0u8..2, acks in -1i16..2, cut in 8usize..400,
    ) {
        let frame = produce(version, id, tags, acks);
        let cut = cut.min(frame.len());
        if forwards(&frame[..cut]) {
            prop_assert!(matches!(produce_acks(version as i16, &frame[4..cut]), Partial::Done(read) if read != 0));
        }
    }

    /// A walk of several packets finds the frames that a walk of one finds.
    #[test]
    fn frames_are_counted_alike_however_they_are_cut(
        lengths in prop::collection::vec(12u32..200, 1..30), cut in any::<prop::sample::Index>(),
    ) {
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| request(1, 4, *length)).collect();
        let mut bench = Bench::new();
        let whole = walked(&mut bench, Side::Client, &bytes);
        prop_assert!(whole.forward);
        prop_assert_eq!((whole.frames, whole.remain), (lengths.len() as u32, 0));
        let cut = 1 + cut.index(bytes.len());
        let part = walked(&mut bench, Side::Client, &bytes[..cut]);
        let begun = lengths.iter().scan(0, |at, length| { let start = *at; *at += length; Some(start) });
        let begun: Vec<_> = begun.filter(|start| (*start as usize) < cut).collect();
        let last = *begun.last().expect("one begins at 0") as usize;
        if cut - last >= 8 {
            prop_assert_eq!(part.frames, begun.len() as u32);
            prop_assert_eq!(part.remain as usize, last + lengths[begun.len() - 1] as usize - cut);
        } else {
            prop_assert!(!part.forward);
        }
    }

    #[test]
    fn any_bytes_are_walked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 1..400), kind in 0u32..16) {
        let mut bench = Bench::new();
        bench.notes.set(0, Note::from_bits(kind));
        let _ = walked(&mut bench, Side::Broker, &bytes);
        let mut frame = bytes;
        if let Some(head) = frame.first_chunk_mut::<8>() {
            *head = [0, 0, 0, head[3], 0, head[5] % 3, 0, head[7] % 16];
        }
        let _ = walked(&mut bench, Side::Client, &frame);
    }
}
