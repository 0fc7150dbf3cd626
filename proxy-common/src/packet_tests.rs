// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
extern crate std;

use core::net::IpAddr;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const CLIENT: u16 = 40_000;
const BROKER: u16 = 9092;
const SOURCE_V4: [u8; 4] = [192, 0, 2, 7];
const DESTINATION_V4: [u8; 4] = [10, 0, 0, 1];
const SOURCE_V6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const DESTINATION_V6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
    let mut bytes = vec![0x02; 12];
    for tag in tags {
        bytes.extend(tag.to_be_bytes());
        bytes.extend(7u16.to_be_bytes());
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes
}

fn ipv4(protocol: u8, option_words: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let header = 20 + usize::from(option_words) * 4;
    let mut bytes = vec![0u8; header];
    bytes[0] = 0x40 | (5 + option_words);
    bytes[2..4].copy_from_slice(&((header + payload.len()) as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
    bytes[9] = protocol;
    bytes[12..16].copy_from_slice(&SOURCE_V4);
    bytes[16..20].copy_from_slice(&DESTINATION_V4);
    bytes.extend(payload);
    bytes
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([next, 64]);
    bytes.extend(SOURCE_V6);
    bytes.extend(DESTINATION_V6);
    bytes.extend(payload);
    bytes
}

fn tcp(flags: u8) -> Vec<u8> {
    let mut bytes = [CLIENT.to_be_bytes(), BROKER.to_be_bytes()].concat();
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

fn over_v4(tcp: &[u8]) -> Vec<u8> {
    [ethernet(&[], 0x0800), ipv4(6, 0, 0, tcp)].concat()
}

fn over_v6(tcp: &[u8]) -> Vec<u8> {
    [ethernet(&[], 0x86dd), ipv6(6, tcp)].concat()
}

/// One extension header of 16 bytes that `next` follows; the byte that is 0 in it counts a routing header's segments.
fn extension(next: u8) -> Vec<u8> {
    [vec![next, 1], vec![0; 14]].concat()
}

fn expect(packet: &[u8], v4: bool, flags: u8) -> Segment {
    let (source, destination) = if v4 {
        (Address::v4(SOURCE_V4), Address::v4(DESTINATION_V4))
    } else {
        (Address::v6(SOURCE_V6), Address::v6(DESTINATION_V6))
    };
    let got = segment(packet).expect("a segment");
    let well_formed = got.well_formed;
    assert_eq!(got, Segment { source, destination, source_port: CLIENT, destination_port: BROKER, flags, well_formed });
    got
}

#[test]
fn addresses_ports_and_flags_are_read_over_both_families() {
    assert!(expect(&over_v4(&tcp(SYN)), true, SYN).well_formed);
    assert!(expect(&over_v6(&tcp(ACK)), false, ACK).well_formed);
}

#[test]
fn only_a_syn_without_ack_opens_a_connection() {
    let opens = |flags| segment(over_v4(&tcp(flags)).as_slice()).unwrap().opens();
    assert!(opens(SYN) && opens(SYN | 0xc0), "with or without congestion notification");
    assert!(!opens(SYN | ACK) && !opens(ACK) && !opens(RST) && !opens(FIN | ACK));
}

#[test]
fn ipv4_options_move_the_ports() {
    let packet = [ethernet(&[], 0x0800), ipv4(6, 10, 0, &tcp(SYN))].concat();
    assert!(expect(&packet, true, SYN).well_formed);
}

#[test]
fn one_or_two_vlan_tags_are_looked_through_and_a_third_is_not() {
    let rest = ipv4(6, 0, 0, &tcp(SYN));
    for tags in [&[0x8100u16][..], &[0x88a8, 0x8100]] {
        assert!(expect(&[ethernet(tags, 0x0800), rest.clone()].concat(), true, SYN).well_formed);
    }
    let three = [ethernet(&[0x88a8, 0x8100, 0x8100], 0x0800), rest].concat();
    assert_eq!(segment(three.as_slice()), Err(NotTcp::OtherLink));
}

#[test]
fn a_later_fragment_has_no_ports_and_the_first_one_has() {
    let more_fragments = 0x2000;
    let first = [ethernet(&[], 0x0800), ipv4(6, 0, more_fragments, &tcp(SYN))].concat();
    assert!(expect(&first, true, SYN).well_formed);
    let later = [ethernet(&[], 0x0800), ipv4(6, 0, 1, &tcp(SYN))].concat();
    assert_eq!(segment(later.as_slice()), Err(NotTcp::Fragment));

    let fragment = |offset: u16| [vec![6, 0], (offset << 3 | 1).to_be_bytes().to_vec(), vec![0; 4], tcp(SYN)].concat();
    assert!(expect(&[ethernet(&[], 0x86dd), ipv6(44, &fragment(0))].concat(), false, SYN).well_formed);
    let later = [ethernet(&[], 0x86dd), ipv6(44, &fragment(3))].concat();
    assert_eq!(segment(later.as_slice()), Err(NotTcp::Fragment));
}

#[test]
fn a_first_fragment_without_the_whole_tcp_header_is_not_well_formed() {
    for kept in [4, 8, 13, 14, 19] {
        let packet = [ethernet(&[], 0x0800), ipv4(6, 0, 0x2000, &tcp(SYN)[..kept])].concat();
        let flags = if kept >= 14 { SYN } else { 0 };
        assert!(!expect(&packet, true, flags).well_formed, "{kept} bytes");
    }
}

#[test]
fn ipv6_extension_headers_are_looked_through_up_to_the_bound() {
    let chain = |extensions: u8| {
        let mut payload = Vec::new();
        for left in (0..extensions).rev() {
            payload.extend(extension(if left == 0 { 6 } else { 60 }));
        }
        payload.extend(tcp(SYN));
        [ethernet(&[], 0x86dd), ipv6(if extensions == 0 { 6 } else { 60 }, &payload)].concat()
    };
    assert!(expect(&chain(MAX_EXTENSIONS), false, SYN).well_formed);
    assert_eq!(segment(chain(MAX_EXTENSIONS + 1).as_slice()), Err(NotTcp::TooDeep));
}

#[test]
fn a_routing_header_counts_only_where_the_packet_has_arrived() {
    let mut routing = extension(6);
    let packet = |routing: &[u8]| [ethernet(&[], 0x86dd), ipv6(43, &[routing, &tcp(SYN)].concat())].concat();
    assert!(expect(&packet(&routing), false, SYN).well_formed);
    routing[3] = 1;
    assert_eq!(segment(packet(&routing).as_slice()), Err(NotTcp::NotThereYet));
}

#[test]
fn other_protocols_are_told_apart() {
    assert_eq!(segment(ethernet(&[], 0x0806).as_slice()), Err(NotTcp::OtherLink));
    for protocol in [1, 17, 50] {
        let packet = [ethernet(&[], 0x0800), ipv4(protocol, 0, 0, &tcp(SYN))].concat();
        assert_eq!(segment(packet.as_slice()), Err(NotTcp::OtherTransport));
        let packet = [ethernet(&[], 0x86dd), ipv6(protocol, &tcp(SYN))].concat();
        assert_eq!(segment(packet.as_slice()), Err(NotTcp::OtherTransport));
    }
}

#[test]
fn a_header_that_is_not_what_was_announced_is_no_segment() {
    let mut wrong_version = over_v4(&tcp(SYN));
    wrong_version[ETHERNET_LEN] = 0x65;
    assert_eq!(segment(wrong_version.as_slice()), Err(NotTcp::Cut));
    let mut short_header = over_v4(&tcp(SYN));
    short_header[ETHERNET_LEN] = 0x44;
    assert_eq!(segment(short_header.as_slice()), Err(NotTcp::Cut));
}

#[test]
fn what_contradicts_itself_is_not_well_formed() {
    type Damage = fn(&mut Vec<u8>);
    let tcp_at = ETHERNET_LEN + 20;
    let whole = over_v4(&tcp(SYN));
    assert_eq!(whole.len(), tcp_at + 20);
    let damages: [(&str, Damage); 11] = [
        ("source port 0", |p| p[34..36].fill(0)),
        ("SYN and FIN", |p| p[47] = SYN | FIN),
        ("SYN and RST", |p| p[47] = SYN | RST),
        ("no flags", |p| p[47] = 0),
        ("only flags of congestion notification", |p| p[47] = 0xc0),
        ("header of 16 bytes", |p| p[46] = 0x40),
        ("header beyond the packet", |p| p[46] = 0x60),
        ("IP length beyond the packet", |p| p[17] = 41),
        ("IP length short of the TCP header", |p| p[17] = 39),
        ("IP length short of its own header", |p| p[17] = 19),
        ("cut behind the ports", |p| p.truncate(40)),
    ];
    for (what, damage) in damages {
        let mut packet = whole.clone();
        damage(&mut packet);
        assert!(!segment(packet.as_slice()).expect("the ports are there").well_formed, "{what}");
    }
    let mut long = over_v6(&tcp(SYN));
    long[ETHERNET_LEN + 5] += 1;
    assert!(!segment(long.as_slice()).unwrap().well_formed, "IPv6 length beyond the packet");
}

#[test]
fn padding_and_an_unknown_length_contradict_nothing() {
    let mut padded = over_v4(&tcp(ACK));
    padded.resize(60, 0);
    assert!(segment(padded.as_slice()).unwrap().well_formed);
    for at in [over_v4(&tcp(ACK)), over_v6(&tcp(ACK))] {
        let mut unknown = at;
        let length = if unknown[12] == 8 { ETHERNET_LEN + 2 } else { ETHERNET_LEN + 4 };
        unknown[length..length + 2].fill(0);
        assert!(segment(unknown.as_slice()).unwrap().well_formed);
    }
}

proptest! {
    /// Whatever the bytes, there is an answer; a well-formed segment has what the rules ask for.
    #[test]
    fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(segment) = segment(bytes.as_slice()) && segment.well_formed {
            prop_assert!(segment.source_port != 0 && segment.flags & FLAGS != 0);
            prop_assert!(segment.flags & SYN == 0 || segment.flags & (FIN | RST) == 0);
        }
    }

    /// A packet cut before its ports is no segment, cut behind them it isn't well formed, and padding changes nothing.
    #[test]
    fn a_cut_packet_is_never_well_formed(
        tags in 0usize..=2, options in 0u8..=10, v6: bool, extensions in 0usize..=4,
        tail in proptest::collection::vec(any::<u8>(), 0..64)
    ) {
        let mut packet = ethernet(&[0x8100, 0x8100][..tags], if v6 { 0x86dd } else { 0x0800 });
        if v6 {
            let mut payload = Vec::new();
            for left in (0..extensions).rev() {
                payload.extend(extension(if left == 0 { 6 } else { 60 }));
            }
            payload.extend(tcp(SYN));
            packet.extend(ipv6(if extensions == 0 { 6 } else { 60 }, &payload));
        } else {
            packet.extend(ipv4(6, options, 0, &tcp(SYN)));
        }
        let ports_end = packet.len() - 16;
        for cut in 0..packet.len() {
            match segment(&packet[..cut]) {
                Ok(segment) => prop_assert!(cut >= ports_end && !segment.well_formed),
                Err(why) => prop_assert!(cut < ports_end && why == NotTcp::Cut),
            }
        }
        let whole = segment(packet.as_slice()).unwrap();
        prop_assert!(whole.well_formed);
        prop_assert!(matches!(whole.source.to_ip(), IpAddr::V6(_)) == v6);
        packet.extend(tail);
        prop_assert_eq!(segment(packet.as_slice()), Ok(whole));
    }
}
