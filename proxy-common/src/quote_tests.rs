// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// "Fragmentation needed, MTU 1400" of 10.9.9.9 for 10.0.2.1, about 50000 → 9093, sequence number 0x01020304.
fn v4() -> Vec<u8> {
    let mut frame = std::vec![2u8; 12];
    frame.extend([8, 0, 0x45, 0, 0, 56, 0, 1, 0, 0, 63, 1, 0xab, 0xcd, 10, 9, 9, 9, 10, 0, 2, 1]);
    frame.extend([3, 4, 0x12, 0x34, 0, 0, 0x05, 0x78]);
    frame.extend([0x45, 0, 0x05, 0xdc, 0x12, 0x34, 0x40, 0, 63, 6, 0x77, 0x88, 10, 0, 2, 1, 10, 0, 2, 2]);
    frame.extend([0xc3, 0x50, 0x23, 0x85, 1, 2, 3, 4]);
    frame
}

fn v6() -> Vec<u8> {
    let mut frame = std::vec![2u8; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 56, 58, 63]);
    frame.extend([0xf9; 16]);
    frame.extend([0xf1; 16]);
    frame.extend([2, 0, 0x12, 0x34, 0, 0, 0x05, 0x78]);
    frame.extend([0x60, 0, 0, 0, 0x05, 0xb4, 6, 63]);
    frame.extend([0xf1; 16]);
    frame.extend([0xf2; 16]);
    frame.extend([0xc3, 0x50, 0x23, 0x85, 1, 2, 3, 4]);
    frame
}

fn about(frame: &[u8]) -> Frame {
    let ethertype = if frame.len() < 14 { 0 } else { u16::from_be_bytes([frame[12], frame[13]]) };
    Frame { ethertype, tagged: false, ours: true, length: frame.len() as u32, merged: false }
}

fn quoted(frame: &[u8]) -> Option<Quote> {
    let mut quote = Quote::default();
    read(frame, &about(frame), &mut quote).then_some(quote)
}

#[test]
fn what_a_router_quotes_is_read_and_its_places_are_known() {
    for (frame, family) in [(v4(), 4), (v6(), 6)] {
        let quote = quoted(&frame).expect("a quotation");
        assert_eq!((quote.to, quote.to.family), (quote.source, family), "it is for who sent the packet");
        assert_ne!(quote.from, quote.to);
        assert_eq!(quote.ports.to_ne_bytes(), [0xc3, 0x50, 0x23, 0x85]);
        assert_eq!(quote.seq.to_ne_bytes(), [1, 2, 3, 4]);
        let at = |offset: u32, length: usize| &frame[offset as usize..][..length];
        assert_eq!(at(quote.check(), 2), [0x12, 0x34]);
        assert_eq!(at(quote.quoted_ports(), 4), [0xc3, 0x50, 0x23, 0x85]);
        assert_eq!(at(quote.quoted(), 1)[0] >> 4, family as u8);
        assert_eq!(quote.ip[0].to_ne_bytes(), at(ETHERNET_LEN as u32, 4));
    }
    assert_eq!(quoted(&v4()).expect("one").quoted_third.to_ne_bytes(), [63, 6, 0x77, 0x88]);
}

#[test]
fn everything_else_is_no_quotation() {
    type Change = (usize, u8, &'static str);
    let v4_changes: [Change; 8] = [
        (14, 0x46, "options"),
        (20, 0x20, "a fragment"),
        (23, 6, "TCP itself"),
        (34, 8, "an echo"),
        (34, 5, "a redirect"),
        (42, 0x46, "options in the quotation"),
        (49, 1, "a later fragment in the quotation"),
        (51, 17, "UDP in the quotation"),
    ];
    let v6_changes: [Change; 5] = [
        (20, 0, "an extension header"),
        (54, 128, "an echo"),
        (54, 0, "reserved"),
        (62, 0x40, "another version in the quotation"),
        (68, 44, "a fragment in the quotation"),
    ];
    let all = v4_changes.map(|c| (v4(), c)).into_iter().chain(v6_changes.map(|c| (v6(), c)));
    for (mut frame, (at, value, what)) in all {
        frame[at] = value;
        assert_eq!(quoted(&frame), None, "{what}");
    }
    for frame in [v4(), v6()] {
        for length in 0..frame.len() {
            assert_eq!(quoted(&frame[..length]), None, "cut at {length}");
        }
        let about = about(&frame);
        assert!(!read(&frame[..], &Frame { tagged: true, ..about }, &mut Quote::default()));
        assert!(!read(&frame[..], &Frame { ours: false, ..about }, &mut Quote::default()));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..120), changes in prop::collection::vec((0usize..110, any::<u8>()), 0..4),
    ) {
        let _ = quoted(&bytes);
        for mut frame in [v4(), v6()] {
            for (at, value) in &changes {
                if let Some(byte) = frame.get_mut(*at) {
                    *byte = *value;
                }
            }
            let _ = quoted(&frame);
        }
    }
}
