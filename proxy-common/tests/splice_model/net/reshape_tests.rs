// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use super::*;
use crate::tcp::{RST, Socket};

fn segment(offset: u32, len: usize) -> Segment {
    let seq = 0xffff_fff0_u32.wrapping_add(offset);
    let payload = (0..len).map(|at| (offset as usize + at) as u8).collect();
    Segment { payload, window: 9, ..Segment::bare(Socket::Client, Socket::ToClient, ACK, seq, 77) }
}

#[test]
fn a_segment_is_cut_into_its_packets_and_joined_again() {
    let whole = Segment { gso_size: 10, flags: ACK | PSH | FIN, ..segment(0, 35) };
    let parts = packets(whole.clone());
    let shape: Vec<_> = parts.iter().map(|part| (part.payload.len(), part.flags, part.gso_size)).collect();
    assert_eq!(shape, [(10, ACK, 0), (10, ACK, 0), (10, ACK, 0), (5, ACK | PSH | FIN, 0)]);
    assert!(parts.windows(2).all(|pair| pair[0].end() == pair[1].seq));
    let mut joined = parts[0].clone();
    for part in &parts[1..] {
        assert_eq!(merge(&mut joined, part.clone()), None);
    }
    assert_eq!(joined, whole);
}

#[test]
fn a_cut_lies_inside_the_payload() {
    for at in [0, 10, 11] {
        assert_eq!(split(&mut segment(0, 10), at), None, "at {at}");
    }
    let mut first = Segment { gso_size: 4, ..segment(0, 10) };
    let rest = split(&mut first, 3).unwrap();
    assert_eq!((first.payload.len(), first.gso_size, rest.payload.len(), rest.gso_size), (3, 0, 7, 4));
}

#[test]
fn only_what_follows_in_the_same_stream_and_says_the_same_is_joined() {
    let next = segment(10, 10);
    let cases = [
        ("the next", segment(0, 10), next.clone(), true),
        ("shorter", segment(0, 10), segment(10, 3), true),
        ("with FIN and PSH", segment(0, 10), Segment { flags: ACK | PSH | FIN, ..next.clone() }, true),
        ("longer", segment(0, 10), segment(10, 11), false),
        ("after a shorter one", Segment { gso_size: 10, ..segment(0, 15) }, segment(15, 10), false),
        ("after PSH", Segment { flags: ACK | PSH, ..segment(0, 10) }, next.clone(), false),
        ("after FIN", Segment { flags: ACK | FIN, ..segment(0, 10) }, segment(11, 10), false),
        ("with a gap", segment(0, 10), segment(11, 10), false),
        ("again", segment(0, 10), segment(0, 10), false),
        ("empty", segment(0, 10), segment(10, 0), false),
        ("to empty", segment(0, 0), segment(0, 10), false),
        ("another acknowledgment", segment(0, 10), Segment { ack: 78, ..next.clone() }, false),
        ("another window", segment(0, 10), Segment { window: 8, ..next.clone() }, false),
        ("other blocks", segment(0, 10), Segment { sack: vec![(80, 90)], ..next.clone() }, false),
        ("RST", segment(0, 10), Segment { flags: ACK | RST, ..next.clone() }, false),
        ("another stream", segment(0, 10), Segment { src: Socket::Broker, ..next.clone() }, false),
        ("damaged", segment(0, 10), Segment { checksum_ok: false, ..next.clone() }, false),
        ("to damaged", Segment { checksum_ok: false, ..segment(0, 10) }, next.clone(), false),
        ("joined before", segment(0, 10), Segment { gso_size: 5, ..next.clone() }, false),
        ("too much", Segment { gso_size: 10, ..segment(0, 65_470) }, segment(65_470, 10), false),
    ];
    for (what, first, next, joins) in cases {
        let mut into = first.clone();
        let left = merge(&mut into, next.clone());
        if joins {
            assert_eq!((left, into.gso_size, into.end()), (None, 10, next.end()), "{what}");
        } else {
            assert_eq!((left, into), (Some(next), first), "{what}");
        }
    }
}
