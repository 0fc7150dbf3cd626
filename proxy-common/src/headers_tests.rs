// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// A frame in the form: 12 bytes of options, 5 bytes of payload.
fn v4() -> Vec<u8> {
    let mut frame = std::vec![2u8; 12];
    frame.extend([8, 0, 0x45, 0x28, 0, 57, 0x12, 0x34, 0x40, 0, 63, 6, 0xab, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(segment());
    frame
}

fn v6() -> Vec<u8> {
    let mut frame = std::vec![2u8; 12];
    frame.extend([0x86, 0xdd, 0x6b, 0x81, 0x23, 0x45, 0, 37, 6, 63]);
    frame.extend([0xfd; 16]);
    frame.extend([0xfe; 16]);
    frame.extend(segment());
    frame
}

fn segment() -> Vec<u8> {
    let mut segment = std::vec![0x9c, 0x40, 0x23, 0x84, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x18, 0x01, 0xf5, 0, 0, 0, 0];
    segment.extend([1; 12]);
    segment.extend(*b"hello");
    segment
}

fn about(frame: &[u8]) -> Frame {
    let ethertype = if frame.len() < 14 { 0 } else { u16::from_be_bytes([frame[12], frame[13]]) };
    Frame { ethertype, tagged: false, ours: true, length: frame.len() as u32, merged: false }
}

fn find(frame: &[u8], about: &Frame) -> (Found, Headers) {
    let mut headers = Headers::default();
    (read(frame, about, &mut headers), headers)
}

fn plain(frame: &[u8]) -> Headers {
    let (found, headers) = find(frame, &about(frame));
    assert_eq!(found, Found::Plain);
    headers
}

#[test]
fn both_families_are_read_in_words_of_the_wire() {
    let h = plain(&v4());
    assert_eq!((h.source, h.destination), (Address::v4([10, 0, 0, 1]), Address::v4([10, 0, 0, 2])));
    assert_eq!((h.tcp_offset(), h.payload_offset(), h.tcp_length, h.payload), (34, 66, 32, 5));
    assert_eq!((h.flags(), h.window(), h.class(), h.hops), (0x18, 501, 0x28, 63));
    assert_eq!(h.tcp[1], 1u32.to_be());
    let h = plain(&v6());
    assert_eq!((h.source, h.destination), (Address::v6([0xfd; 16]), Address::v6([0xfe; 16])));
    assert_eq!((h.tcp_offset(), h.payload_offset(), h.payload), (54, 86, 5));
    assert_eq!((h.class(), h.flow_label(), h.hops), (0xb8, 0x1_2345, 63));
}

#[test]
fn padding_is_no_payload_and_a_merged_packet_may_not_say_its_length() {
    for mut frame in [v4(), v6()] {
        frame.extend([0; 9]);
        assert_eq!(plain(&frame).payload, 5, "padded");
        let merged = Frame { merged: true, ..about(&frame) };
        assert_eq!(find(&frame, &merged).0, Found::Odd, "merged packets have no padding");
        let at = if frame[12] == 8 { 16 } else { 18 };
        frame[at..at + 2].fill(0);
        let (found, headers) = find(&frame, &merged);
        assert_eq!((found, headers.payload), (Found::Plain, 14), "a large merged packet");
        assert_eq!(find(&frame, &about(&frame)).0, Found::Odd, "no single packet has the length 0");
    }
}

#[test]
fn what_deviates_from_the_form_is_odd() {
    let change = |frame: Vec<u8>, at: usize, to: u8| {
        let mut frame = frame;
        frame[at] = to;
        find(&frame, &about(&frame)).0
    };
    for (what, found) in [
        ("IP options", change(v4(), 14, 0x46)),
        ("a first fragment", change(v4(), 20, 0x20)),
        ("a later fragment", change(v4(), 21, 1)),
        ("longer than the frame", change(v4(), 17, 58)),
        ("shorter than its headers", change(v4(), 17, 51)),
        ("a TCP header of 16 bytes", change(v4(), 46, 0x40)),
        ("an extension header", change(v6(), 20, 0)),
        ("longer than the frame, IPv6", change(v6(), 19, 38)),
        ("a VLAN tag in the frame", change(change_bytes(v4(), 12, 0x81), 13, 0)),
    ] {
        assert_eq!(found, Found::Odd, "{what}");
    }
    for frame in [v4(), v6()] {
        assert_eq!(find(&frame, &Frame { tagged: true, ..about(&frame) }).0, Found::Odd, "a tag");
        assert_eq!(find(&frame, &Frame { ours: false, ..about(&frame) }).0, Found::Odd, "for another host");
    }
    assert_eq!(change(v4(), 23, 17), Found::Other, "UDP");
    assert_eq!(change(v4(), 13, 6), Found::Other, "ARP");
}

fn change_bytes(mut frame: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
    frame[at] = to;
    frame
}

proptest! {
    /// Whatever the bytes, headers and payload that are found lie within the frame.
    #[test]
    fn what_is_found_lies_within_the_frame(
        mut frame in prop_oneof![Just(v4()), Just(v6()), prop::collection::vec(any::<u8>(), 0..120)],
        changes in prop::collection::vec((12usize..60, any::<u8>()), 0..6),
        cut in 0usize..60,
        merged: bool,
    ) {
        for (at, to) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = to;
            }
        }
        frame.truncate(frame.len().saturating_sub(cut / 4));
        let about = Frame { merged, ..about(&frame) };
        let (found, headers) = find(&frame, &about);
        if found == Found::Plain {
            prop_assert!(headers.tcp_length >= TCP_LEN && headers.tcp_length <= 60);
            prop_assert!((headers.payload_offset() + headers.payload) as usize <= frame.len());
        }
    }
}
