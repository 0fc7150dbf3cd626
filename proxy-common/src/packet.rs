//! What a packet is, from its first headers: Ethernet, VLAN tags, IPv4 or IPv6, and the ports of TCP and UDP.
//!
//! Sources: IEEE 802.3 and 802.1Q, RFC 791, RFC 8200, RFC 9293, RFC 768.
//!
//! The parser never sees a whole packet: it asks a [`Packet`] for fixed-size pieces. On the host that is a byte
//! slice, in the kernel a pair of pointers, so the verifier checks the very code that is property-tested here.

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Bytes one VLAN tag adds.
pub const VLAN_LEN: usize = 4;
/// VLAN tags that are looked through: one, or two of them with 802.1ad. A third makes the packet [`Class::Other`].
pub const MAX_VLAN_TAGS: u8 = 2;
/// IPv6 extension headers that are looked through. RFC 8200 defines four worth having in front of TCP.
pub const MAX_EXTENSIONS: u8 = 4;

/// No header that is looked at begins behind this offset; it keeps the arithmetic bounded for the verifier.
pub const MAX_OFFSET: usize = 4095;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_HOP_BY_HOP: u8 = 0;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_DESTINATION: u8 = 60;

/// Where the bytes of a packet come from.
pub trait Packet {
    /// The `N` bytes that begin at `offset`, or `None` if the packet ends before them.
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;
}

impl Packet for [u8] {
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk::<N>().copied()
    }
}

/// What is counted apart. The values are indices of the kernel's counter map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Class {
    /// A header that was announced is cut short or contradicts itself.
    Malformed = 0,
    /// Neither IPv4 nor IPv6 (ARP, LLDP, more VLAN tags than are looked through).
    Other = 1,
    /// TCP over IPv4.
    Tcp4 = 2,
    /// UDP over IPv4.
    Udp4 = 3,
    /// Anything else over IPv4.
    Other4 = 4,
    /// TCP over IPv6.
    Tcp6 = 5,
    /// UDP over IPv6.
    Udp6 = 6,
    /// Anything else over IPv6, or more extension headers than are looked through.
    Other6 = 7,
    /// A fragment other than the first: it carries no ports.
    Fragment = 8,
}

impl Class {
    /// Every class, in the order of its value.
    pub const ALL: [Self; 9] = [
        Self::Malformed,
        Self::Other,
        Self::Tcp4,
        Self::Udp4,
        Self::Other4,
        Self::Tcp6,
        Self::Udp6,
        Self::Other6,
        Self::Fragment,
    ];

    /// Index in the counter map.
    #[must_use]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Name for people and labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Other => "other",
            Self::Tcp4 => "tcp4",
            Self::Udp4 => "udp4",
            Self::Other4 => "other4",
            Self::Tcp6 => "tcp6",
            Self::Udp6 => "udp6",
            Self::Other6 => "other6",
            Self::Fragment => "fragment",
        }
    }
}

/// Source and destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// What the first headers of a packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What it is counted as.
    pub class: Class,
    /// VLAN tags in front of the network header.
    pub vlan_tags: u8,
    /// Ports, where the class is TCP or UDP.
    pub ports: Option<Ports>,
}

/// One class's counter, as it lies in the kernel's per-CPU map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes, link header included.
    pub bytes: u64,
}

/// Reads the first headers of a packet that begins with an Ethernet header. Takes any bytes.
#[inline(always)]
pub fn summarize<P: Packet + ?Sized>(packet: &P) -> Summary {
    let (ethertype, network, vlan_tags) = match link(packet) {
        Some(link) => link,
        None => return Summary { class: Class::Malformed, vlan_tags: 0, ports: None },
    };
    let (class, transport) = match ethertype {
        ETHERTYPE_IPV4 => ipv4(packet, network),
        ETHERTYPE_IPV6 => ipv6(packet, network),
        _ => (Class::Other, 0),
    };
    let ports = match class {
        Class::Tcp4 | Class::Udp4 | Class::Tcp6 | Class::Udp6 => match ports(packet, transport) {
            Some(ports) => Some(ports),
            None => return Summary { class: Class::Malformed, vlan_tags, ports: None },
        },
        _ => None,
    };
    Summary { class, vlan_tags, ports }
}

/// Ethertype behind the VLAN tags, offset of what follows it, and the number of tags.
#[inline(always)]
fn link<P: Packet + ?Sized>(packet: &P) -> Option<(u16, usize, u8)> {
    let header: [u8; ETHERNET_LEN] = packet.read(0)?;
    let mut ethertype = u16::from_be_bytes([header[12], header[13]]);
    let mut offset = ETHERNET_LEN;
    let mut tags = 0;
    while tags < MAX_VLAN_TAGS && (ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ) {
        let tag: [u8; VLAN_LEN] = packet.read(offset)?;
        ethertype = u16::from_be_bytes([tag[2], tag[3]]);
        offset += VLAN_LEN;
        tags += 1;
    }
    Some((ethertype, offset, tags))
}

/// Class, and the offset of the transport header where there is one.
#[inline(always)]
fn ipv4<P: Packet + ?Sized>(packet: &P, offset: usize) -> (Class, usize) {
    let Some(header) = packet.read::<20>(offset) else { return (Class::Malformed, 0) };
    let words = header[0] & 0x0f;
    if header[0] >> 4 != 4 || words < 5 {
        return (Class::Malformed, 0);
    }
    if u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0 {
        return (Class::Fragment, 0);
    }
    let class = match header[9] {
        IPPROTO_TCP => Class::Tcp4,
        IPPROTO_UDP => Class::Udp4,
        _ => Class::Other4,
    };
    (class, offset + words as usize * 4)
}

/// Class, and the offset of the transport header where there is one.
#[inline(always)]
fn ipv6<P: Packet + ?Sized>(packet: &P, offset: usize) -> (Class, usize) {
    let Some(header) = packet.read::<40>(offset) else { return (Class::Malformed, 0) };
    if header[0] >> 4 != 6 {
        return (Class::Malformed, 0);
    }
    let mut next = header[6];
    let mut offset = offset + 40;
    let mut extensions = 0;
    loop {
        match next {
            IPPROTO_TCP => return (Class::Tcp6, offset),
            IPPROTO_UDP => return (Class::Udp6, offset),
            IPPROTO_HOP_BY_HOP | IPPROTO_ROUTING | IPPROTO_DESTINATION | IPPROTO_FRAGMENT => {}
            _ => return (Class::Other6, 0),
        }
        if extensions == MAX_EXTENSIONS {
            return (Class::Other6, 0);
        }
        let Some(extension) = packet.read::<8>(offset) else { return (Class::Malformed, 0) };
        if next == IPPROTO_FRAGMENT {
            if u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 != 0 {
                return (Class::Fragment, 0);
            }
            offset += 8;
        } else {
            offset += (extension[1] as usize + 1) * 8;
        }
        if offset > MAX_OFFSET {
            return (Class::Other6, 0);
        }
        next = extension[0];
        extensions += 1;
    }
}

/// TCP and UDP both begin with their ports.
#[inline(always)]
fn ports<P: Packet + ?Sized>(packet: &P, offset: usize) -> Option<Ports> {
    let b: [u8; 4] = packet.read(offset)?;
    Some(Ports { source: u16::from_be_bytes([b[0], b[1]]), destination: u16::from_be_bytes([b[2], b[3]]) })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const CLIENT: u16 = 40_000;
    const BROKER: u16 = 9092;

    fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
        let mut bytes = vec![0x02; 12];
        for tag in tags {
            bytes.extend(tag.to_be_bytes());
            bytes.extend(7u16.to_be_bytes());
        }
        bytes.extend(ethertype.to_be_bytes());
        bytes
    }

    fn ipv4(protocol: u8, option_words: u8, fragment_offset: u16) -> Vec<u8> {
        let mut header = vec![0u8; 20 + usize::from(option_words) * 4];
        header[0] = 0x40 | (5 + option_words);
        header[6..8].copy_from_slice(&fragment_offset.to_be_bytes());
        header[9] = protocol;
        header
    }

    fn ipv6(next: u8) -> Vec<u8> {
        let mut header = vec![0u8; 40];
        header[0] = 0x60;
        header[6] = next;
        header
    }

    fn port_bytes() -> Vec<u8> {
        [CLIENT.to_be_bytes(), BROKER.to_be_bytes()].concat()
    }

    fn expect(packet: &[u8], class: Class, vlan_tags: u8, with_ports: bool) {
        let ports = with_ports.then_some(Ports { source: CLIENT, destination: BROKER });
        assert_eq!(summarize(packet), Summary { class, vlan_tags, ports });
    }

    #[test]
    fn tcp_and_udp_are_told_apart_over_both_families() {
        for (protocol, v4, v6) in [(6, Class::Tcp4, Class::Tcp6), (17, Class::Udp4, Class::Udp6)] {
            expect(&[ethernet(&[], 0x0800), ipv4(protocol, 0, 0), port_bytes()].concat(), v4, 0, true);
            expect(&[ethernet(&[], 0x86dd), ipv6(protocol), port_bytes()].concat(), v6, 0, true);
        }
    }

    #[test]
    fn ipv4_options_move_the_ports() {
        expect(&[ethernet(&[], 0x0800), ipv4(6, 10, 0), port_bytes()].concat(), Class::Tcp4, 0, true);
    }

    #[test]
    fn one_or_two_vlan_tags_are_looked_through_and_a_third_is_not() {
        let rest = [ipv4(6, 0, 0), port_bytes()].concat();
        expect(&[ethernet(&[0x8100], 0x0800), rest.clone()].concat(), Class::Tcp4, 1, true);
        expect(&[ethernet(&[0x88a8, 0x8100], 0x0800), rest.clone()].concat(), Class::Tcp4, 2, true);
        expect(&[ethernet(&[0x88a8, 0x8100, 0x8100], 0x0800), rest].concat(), Class::Other, 2, false);
    }

    #[test]
    fn a_later_fragment_has_no_ports_and_the_first_one_has() {
        expect(&[ethernet(&[], 0x0800), ipv4(6, 0, 1), port_bytes()].concat(), Class::Fragment, 0, false);
        let more_fragments = 0x2000;
        expect(&[ethernet(&[], 0x0800), ipv4(6, 0, more_fragments), port_bytes()].concat(), Class::Tcp4, 0, true);

        let fragment = |offset: u16| [vec![6, 0], (offset << 3).to_be_bytes().to_vec(), vec![0; 4]].concat();
        expect(&[ethernet(&[], 0x86dd), ipv6(44), fragment(3), port_bytes()].concat(), Class::Fragment, 0, false);
        expect(&[ethernet(&[], 0x86dd), ipv6(44), fragment(0), port_bytes()].concat(), Class::Tcp6, 0, true);
    }

    #[test]
    fn ipv6_extension_headers_are_looked_through_up_to_the_bound() {
        let chain = |extensions: u8| {
            let mut packet = ethernet(&[], 0x86dd);
            packet.extend(ipv6(if extensions == 0 { 6 } else { 60 }));
            for left in (0..extensions).rev() {
                packet.extend([if left == 0 { 6 } else { 60 }, 1]);
                packet.extend([0; 14]);
            }
            packet.extend(port_bytes());
            packet
        };
        expect(&chain(MAX_EXTENSIONS), Class::Tcp6, 0, true);
        expect(&chain(MAX_EXTENSIONS + 1), Class::Other6, 0, false);
    }

    #[test]
    fn headers_that_contradict_themselves_are_malformed() {
        let mut wrong_version = [ethernet(&[], 0x0800), ipv4(6, 0, 0), port_bytes()].concat();
        wrong_version[ETHERNET_LEN] = 0x65;
        expect(&wrong_version, Class::Malformed, 0, false);
        let mut short_header = [ethernet(&[], 0x0800), ipv4(6, 0, 0), port_bytes()].concat();
        short_header[ETHERNET_LEN] = 0x44;
        expect(&short_header, Class::Malformed, 0, false);
    }

    #[test]
    fn arp_and_icmp_are_counted_apart() {
        expect(&ethernet(&[], 0x0806), Class::Other, 0, false);
        expect(&[ethernet(&[], 0x0800), ipv4(1, 0, 0)].concat(), Class::Other4, 0, false);
        expect(&[ethernet(&[], 0x86dd), ipv6(58)].concat(), Class::Other6, 0, false);
    }

    #[test]
    fn a_class_is_its_own_place_in_the_list() {
        for (i, class) in Class::ALL.iter().enumerate() {
            assert_eq!(class.index() as usize, i);
        }
    }

    proptest! {
        /// Ports are reported exactly for the classes that have them, whatever the bytes.
        #[test]
        fn any_bytes_have_a_class(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let summary = summarize(bytes.as_slice());
            let has_ports = matches!(summary.class, Class::Tcp4 | Class::Udp4 | Class::Tcp6 | Class::Udp6);
            prop_assert_eq!(summary.ports.is_some(), has_ports);
            prop_assert!(summary.vlan_tags <= MAX_VLAN_TAGS);
        }

        /// Every cut of a good packet before its ports is malformed, and no byte behind them matters.
        #[test]
        fn a_cut_packet_is_malformed(
            tags in 0usize..=2, options in 0u8..=10, v6: bool, udp: bool, tail in proptest::collection::vec(any::<u8>(), 0..64)
        ) {
            let protocol = if udp { 17 } else { 6 };
            let mut packet = ethernet(&[0x8100, 0x8100][..tags], if v6 { 0x86dd } else { 0x0800 });
            packet.extend(if v6 { ipv6(protocol) } else { ipv4(protocol, options, 0) });
            packet.extend(port_bytes());
            for cut in 0..packet.len() {
                prop_assert_eq!(summarize(&packet[..cut]).class, Class::Malformed);
            }
            let whole = summarize(packet.as_slice());
            prop_assert_eq!(whole.ports, Some(Ports { source: CLIENT, destination: BROKER }));
            packet.extend(tail);
            prop_assert_eq!(summarize(packet.as_slice()), whole);
        }
    }
}
