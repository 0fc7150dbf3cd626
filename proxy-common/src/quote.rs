// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Error messages of ICMP (RFC 792) and ICMPv6 (RFC 4443) that quote the beginning of a TCP packet.
//!
//! A router that can't pass a packet on says so to who sent it, by its addresses on the wire. A spliced connection's
//! packets carry other numbers there than their sender knows, so the quotation has to be put into the sender's terms, as
//! address translators do (RFC 5508).

use crate::headers::{Frame, IPV4_LEN, IPV6_LEN};
use crate::packet::{ETHERNET_LEN, Packet};
use crate::tables::Address;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const TCP: u8 = 6;
/// Bytes of a message before what it quotes.
const MESSAGE_LEN: u32 = 8;
/// Of an IPv4 header's flags and fragment offset: more to come, or not the first.
const FRAGMENT: u16 = 0x3fff;

/// What a message quotes, in words as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quote {
    /// Whom the message is from.
    pub from: Address,
    /// Whom it is for: who sent the packet, as the wire knows him.
    pub to: Address,
    /// The packet's source address.
    pub source: Address,
    /// The packet's destination address.
    pub destination: Address,
    /// Its ports.
    pub ports: u32,
    /// Its sequence number.
    pub seq: u32,
    /// The message's IP header, first two words; of IPv4 the third as well.
    pub ip: [u32; 3],
    /// IPv4: the third word of the packet's IP header, with its checksum.
    pub quoted_third: u32,
}

impl Quote {
    /// Offset of the message in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn message(&self) -> u32 {
        ETHERNET_LEN as u32 + if self.to.is_v4() { IPV4_LEN } else { IPV6_LEN }
    }

    /// Offset of the message's checksum in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn check(&self) -> u32 {
        self.message() + 2
    }

    /// Offset of the quoted packet's IP header in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn quoted(&self) -> u32 {
        self.message() + MESSAGE_LEN
    }

    /// Offset of the quoted packet's ports in the frame; its sequence number follows.
    #[must_use]
    #[inline(always)]
    pub const fn quoted_ports(&self) -> u32 {
        self.quoted() + if self.to.is_v4() { IPV4_LEN } else { IPV6_LEN }
    }
}

#[inline(always)]
const fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Reads a message to `quote`, which means nothing unless this is true. Takes any bytes. What has IP options or extension
/// headers, outside or in the quotation, is none: no packet of a spliced connection has.
#[inline(always)]
pub fn read<P: Packet + ?Sized>(packet: &P, frame: &Frame, quote: &mut Quote) -> bool {
    if frame.tagged || !frame.ours {
        return false;
    }
    match frame.ethertype {
        ETHERTYPE_IPV4 => v4(packet, quote),
        ETHERTYPE_IPV6 => v6(packet, quote),
        _ => false,
    }
}

#[inline(never)]
fn v4<P: Packet + ?Sized>(packet: &P, quote: &mut Quote) -> bool {
    const OUTER: usize = ETHERNET_LEN;
    const INNER: usize = OUTER + (IPV4_LEN + MESSAGE_LEN) as usize;
    // Destination unreachable, time exceeded, parameter problem.
    let is_error = matches!(packet.read::<1>(OUTER + IPV4_LEN as usize), Some([3 | 11 | 12]));
    is_error
        && v4_header(packet, OUTER, ICMP, &mut quote.from, &mut quote.to, &mut quote.ip)
        && v4_quoted(packet, INNER, quote)
}

#[inline(always)]
fn v4_quoted<P: Packet + ?Sized>(packet: &P, at: usize, quote: &mut Quote) -> bool {
    let mut words = [0; 3];
    let is_tcp = v4_header(packet, at, TCP, &mut quote.source, &mut quote.destination, &mut words);
    quote.quoted_third = words[2];
    is_tcp && ports(packet, at + IPV4_LEN as usize, quote)
}

/// Reads a header without options, of a packet that is no fragment and carries `protocol`.
#[inline(always)]
fn v4_header<P: Packet + ?Sized>(
    packet: &P,
    at: usize,
    protocol: u8,
    source: &mut Address,
    destination: &mut Address,
    first: &mut [u32; 3],
) -> bool {
    let Some(h) = packet.read::<{ IPV4_LEN as usize }>(at) else { return false };
    let fragment = u16::from_be_bytes([h[6], h[7]]) & FRAGMENT;
    if h[0] != 0x45 || h[9] != protocol || fragment != 0 {
        return false;
    }
    *source = Address { words: [word(&h, 12), 0, 0, 0], family: 4 };
    *destination = Address { words: [word(&h, 16), 0, 0, 0], family: 4 };
    *first = [word(&h, 0), word(&h, 4), word(&h, 8)];
    true
}

#[inline(never)]
fn v6<P: Packet + ?Sized>(packet: &P, quote: &mut Quote) -> bool {
    const OUTER: usize = ETHERNET_LEN;
    const INNER: usize = OUTER + (IPV6_LEN + MESSAGE_LEN) as usize;
    // Destination unreachable, packet too big, time exceeded, parameter problem.
    let is_error = matches!(packet.read::<1>(OUTER + IPV6_LEN as usize), Some([1..=4]));
    is_error
        && v6_header(packet, OUTER, ICMPV6, Some(&mut quote.ip))
        && v6_header(packet, INNER, TCP, None)
        && v6_address(packet, OUTER + 8, &mut quote.from)
        && v6_address(packet, OUTER + 24, &mut quote.to)
        && v6_address(packet, INNER + 8, &mut quote.source)
        && v6_address(packet, INNER + 24, &mut quote.destination)
        && ports(packet, INNER + IPV6_LEN as usize, quote)
}

#[inline(always)]
fn v6_header<P: Packet + ?Sized>(packet: &P, at: usize, next: u8, first: Option<&mut [u32; 3]>) -> bool {
    let Some(h) = packet.read::<8>(at) else { return false };
    if let Some(first) = first {
        *first = [word(&h, 0), word(&h, 4), 0];
    }
    h[0] >> 4 == 6 && h[6] == next
}

#[inline(always)]
fn v6_address<P: Packet + ?Sized>(packet: &P, at: usize, address: &mut Address) -> bool {
    let Some(b) = packet.read::<16>(at) else { return false };
    *address = Address { words: [word(&b, 0), word(&b, 4), word(&b, 8), word(&b, 12)], family: 6 };
    true
}

#[inline(always)]
fn ports<P: Packet + ?Sized>(packet: &P, at: usize, quote: &mut Quote) -> bool {
    let Some(b) = packet.read::<8>(at) else { return false };
    (quote.ports, quote.seq) = (word(&b, 0), word(&b, 4));
    true
}

#[cfg(test)]
#[path = "quote_tests.rs"]
mod tests;
