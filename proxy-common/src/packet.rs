// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What a packet is, from its first headers: Ethernet, VLAN tags, IPv4 or IPv6, and TCP.
//!
//! Sources: IEEE 802.3 and 802.1Q, RFC 791, RFC 8200, RFC 9293, RFC 1858 (tiny fragments), RFC 5722.
//!
//! The parser never sees a whole packet: it asks a [`Packet`] for fixed-size pieces. On the host that is a byte
//! slice, in the kernel a pair of pointers, so the verifier checks the very code that is property-tested here.
//!
//! # Rules
//! A packet whose TCP ports can be read is a [`Segment`]; any other one is [`NotTcp`], and whoever asks must let it
//! pass, because it can't be known to be for a port of ours:
//! - VLAN tags (802.1Q, 802.1ad): up to two are looked through. Behind a third nothing is known.
//! - IPv4 options are skipped, whatever they are.
//! - IPv6 extension headers: up to four of hop-by-hop, routing, fragment and destination options are looked through.
//!   A routing header with segments left is on its way to somewhere else. Others (AH, ESP, unknown ones) end the search.
//! - Fragments: the first one has the ports and is judged like any packet; later ones have none and pass, which helps
//!   nobody whose first one was dropped. A first fragment too short for the whole TCP header counts as not well formed
//!   (RFC 1858, RFC 7112).
//! - Headers that end before the ports are no segment.
//!
//! A segment that isn't [`Segment::well_formed`] contradicts itself: source port 0; SYN with FIN or RST; no flag at
//! all; a header shorter than 20 bytes or longer than the packet; an IP length beyond the packet's end, or too short
//! for the headers. An IP length of 0 says nothing (packets merged by the kernel or the card, jumbograms) and is taken
//! for the packet's. Bytes behind the IP length are padding.

use crate::tables::Address;

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Bytes one VLAN tag adds.
pub const VLAN_LEN: usize = 4;
/// VLAN tags that are looked through: one, or two of them with 802.1ad.
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
const IPPROTO_HOP_BY_HOP: u8 = 0;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_DESTINATION: u8 = 60;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;

/// TCP's FIN flag.
pub const FIN: u8 = 0x01;
/// TCP's SYN flag.
pub const SYN: u8 = 0x02;
/// TCP's RST flag.
pub const RST: u8 = 0x04;
/// TCP's ACK flag.
pub const ACK: u8 = 0x10;
/// The six flags of RFC 793; those of congestion notification may come with any of them.
const FLAGS: u8 = 0x3f;

/// Where the bytes of a packet come from.
pub trait Packet {
    /// The `N` bytes that begin at `offset`, or `None` if the packet, or the part of it that can be read, ends before.
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;

    /// Bytes of the whole packet.
    fn length(&self) -> usize;
}

impl Packet for [u8] {
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk::<N>().copied()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// Why a packet is not a [`Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTcp {
    /// A header that was announced is cut short before the ports, or isn't what was announced.
    Cut,
    /// Neither IPv4 nor IPv6 (ARP, LLDP, more VLAN tags than are looked through).
    OtherLink,
    /// IP, but not TCP.
    OtherTransport,
    /// A fragment other than the first.
    Fragment,
    /// More or longer extension headers than are looked through.
    TooDeep,
    /// A routing header names further destinations.
    NotThereYet,
}

/// What the headers of a TCP packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// TCP's flags, 0 where the header is cut before them.
    pub flags: u8,
    /// Nothing contradicts itself, by the rules of this module.
    pub well_formed: bool,
}

impl Segment {
    /// Whether it asks for a new connection.
    #[must_use]
    #[inline(always)]
    pub const fn opens(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }
}

/// What the network header says.
struct Network {
    source: Address,
    destination: Address,
    /// Offset of the TCP header.
    transport: usize,
    /// Offset of the packet's end by its own account; 0: it gives none.
    end: usize,
}

/// Reads the headers of a packet that begins with an Ethernet header. Takes any bytes.
///
/// # Errors
/// Why it is not TCP, or can't be known to be.
#[inline(always)]
pub fn segment<P: Packet + ?Sized>(packet: &P) -> Result<Segment, NotTcp> {
    let (ethertype, offset) = link(packet)?;
    let network = match ethertype {
        ETHERTYPE_IPV4 => ipv4(packet, offset)?,
        ETHERTYPE_IPV6 => ipv6(packet, offset)?,
        _ => return Err(NotTcp::OtherLink),
    };
    tcp(packet, &network)
}

/// Ethertype behind the VLAN tags, and the offset of what follows it.
#[inline(always)]
fn link<P: Packet + ?Sized>(packet: &P) -> Result<(u16, usize), NotTcp> {
    let header: [u8; ETHERNET_LEN] = packet.read(0).ok_or(NotTcp::Cut)?;
    let mut ethertype = u16::from_be_bytes([header[12], header[13]]);
    let mut offset = ETHERNET_LEN;
    let mut tags = 0;
    while tags < MAX_VLAN_TAGS && (ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ) {
        let tag: [u8; VLAN_LEN] = packet.read(offset).ok_or(NotTcp::Cut)?;
        ethertype = u16::from_be_bytes([tag[2], tag[3]]);
        offset += VLAN_LEN;
        tags += 1;
    }
    Ok((ethertype, offset))
}

#[inline(always)]
fn ipv4<P: Packet + ?Sized>(packet: &P, offset: usize) -> Result<Network, NotTcp> {
    let h: [u8; IPV4_LEN] = packet.read(offset).ok_or(NotTcp::Cut)?;
    let words = h[0] & 0x0f;
    if h[0] >> 4 != 4 || words < 5 {
        return Err(NotTcp::Cut);
    }
    if h[9] != IPPROTO_TCP {
        return Err(NotTcp::OtherTransport);
    }
    if u16::from_be_bytes([h[6], h[7]]) & 0x1fff != 0 {
        return Err(NotTcp::Fragment);
    }
    let total = u16::from_be_bytes([h[2], h[3]]) as usize;
    Ok(Network {
        source: Address::v4([h[12], h[13], h[14], h[15]]),
        destination: Address::v4([h[16], h[17], h[18], h[19]]),
        transport: offset + words as usize * 4,
        end: if total == 0 { 0 } else { offset + total },
    })
}

#[inline(always)]
fn ipv6<P: Packet + ?Sized>(packet: &P, offset: usize) -> Result<Network, NotTcp> {
    let h: [u8; 8] = packet.read(offset).ok_or(NotTcp::Cut)?;
    let source: [u8; 16] = packet.read(offset + 8).ok_or(NotTcp::Cut)?;
    let destination: [u8; 16] = packet.read(offset + 24).ok_or(NotTcp::Cut)?;
    if h[0] >> 4 != 6 {
        return Err(NotTcp::Cut);
    }
    let payload = u16::from_be_bytes([h[4], h[5]]) as usize;
    let transport = extensions(packet, h[6], offset + IPV6_LEN)?;
    Ok(Network {
        source: Address::v6(source),
        destination: Address::v6(destination),
        transport,
        end: if payload == 0 { 0 } else { offset + IPV6_LEN + payload },
    })
}

/// Offset of the TCP header behind the extension headers.
#[inline(always)]
fn extensions<P: Packet + ?Sized>(packet: &P, first: u8, first_offset: usize) -> Result<usize, NotTcp> {
    let (mut next, mut offset, mut seen) = (first, first_offset, 0);
    loop {
        match next {
            IPPROTO_TCP => return Ok(offset),
            IPPROTO_HOP_BY_HOP | IPPROTO_ROUTING | IPPROTO_DESTINATION | IPPROTO_FRAGMENT => {}
            _ => return Err(NotTcp::OtherTransport),
        }
        if seen == MAX_EXTENSIONS {
            return Err(NotTcp::TooDeep);
        }
        let extension: [u8; 8] = packet.read(offset).ok_or(NotTcp::Cut)?;
        if next == IPPROTO_FRAGMENT {
            if u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 != 0 {
                return Err(NotTcp::Fragment);
            }
            offset += 8;
        } else {
            if next == IPPROTO_ROUTING && extension[3] != 0 {
                return Err(NotTcp::NotThereYet);
            }
            offset += (extension[1] as usize + 1) * 8;
        }
        if offset > MAX_OFFSET {
            return Err(NotTcp::TooDeep);
        }
        next = extension[0];
        seen += 1;
    }
}

#[inline(always)]
fn tcp<P: Packet + ?Sized>(packet: &P, network: &Network) -> Result<Segment, NotTcp> {
    let &Network { source, destination, transport, end } = network;
    let ports: [u8; 4] = packet.read(transport).ok_or(NotTcp::Cut)?;
    let source_port = u16::from_be_bytes([ports[0], ports[1]]);
    let destination_port = u16::from_be_bytes([ports[2], ports[3]]);
    let (flags, well_formed) = match packet.read::<2>(transport + 12) {
        Some([offset, flags]) => {
            let header = (offset >> 4) as usize * 4;
            (flags, agree(packet.length(), end, transport, header) && possible(flags) && source_port != 0)
        }
        None => (0, false),
    };
    Ok(Segment { source, destination, source_port, destination_port, flags, well_formed })
}

/// Whether the TCP header is whole and within the packet, and the packet within what arrived.
#[inline(always)]
const fn agree(length: usize, end: usize, transport: usize, header: usize) -> bool {
    let end = if end == 0 { length } else { end };
    header >= TCP_LEN && transport + header <= end && end <= length
}

/// Whether a packet may have these flags.
#[inline(always)]
const fn possible(flags: u8) -> bool {
    flags & FLAGS != 0 && !(flags & SYN != 0 && flags & (FIN | RST) != 0)
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
