// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The one form of packet that is spliced: Ethernet, IPv4 without options or IPv6 without extension headers, TCP.
//!
//! Sources: RFC 791, RFC 8200, RFC 9293. Stricter than [`crate::packet`], which finds a connection's packets whatever
//! they look like: what is [`Found::Odd`] here may still be of a session, and must be looked for there.

use crate::packet::{ETHERNET_LEN, Packet};
use crate::tables::Address;

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: u32 = 20;
/// Bytes of an IPv6 header.
pub const IPV6_LEN: u32 = 40;
/// Bytes of a TCP header without options.
pub const TCP_LEN: u32 = 20;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const TCP: u8 = 6;
/// Of an IPv4 header's flags and fragment offset: all but "don't fragment" and the reserved bit.
const FRAGMENT: u16 = 0x3fff;

/// What the kernel says of a packet, beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type of what follows the Ethernet header.
    pub ethertype: u16,
    /// A VLAN tag was taken off by the card or the kernel.
    pub tagged: bool,
    /// It is addressed to this host (arriving), or comes from it (leaving).
    pub ours: bool,
    /// Bytes with the Ethernet header.
    pub length: u32,
    /// Merged from several packets, or to be cut into such.
    pub merged: bool,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No TCP, for sure.
    Other,
    /// Perhaps TCP, but not in the form.
    Odd,
    /// TCP in the form.
    Plain,
}

/// Headers in the form, in words as on the wire where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// The IP header's first word: version, class, and what follows.
    pub ip: u32,
    /// IPv4: identification, flags and fragment offset.
    pub id: u32,
    /// IPv4: time to live in the low byte. IPv6: hop limit.
    pub hops: u32,
    /// The TCP header's first four words: ports, sequence, acknowledgment, and offset with flags and window.
    pub tcp: [u32; 4],
    /// Bytes of the TCP header.
    pub tcp_length: u32,
    /// Bytes of payload.
    pub payload: u32,
}

impl Headers {
    /// Offset of the TCP header in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn tcp_offset(&self) -> u32 {
        ETHERNET_LEN as u32 + if self.source.is_v4() { IPV4_LEN } else { IPV6_LEN }
    }

    /// Offset of the payload in the frame.
    #[must_use]
    #[inline(always)]
    pub const fn payload_offset(&self) -> u32 {
        self.tcp_offset() + self.tcp_length
    }

    /// TCP's flags.
    #[must_use]
    #[inline(always)]
    pub const fn flags(&self) -> u8 {
        (u32::from_be(self.tcp[3]) >> 16) as u8
    }

    /// TCP's window field.
    #[must_use]
    #[inline(always)]
    pub const fn window(&self) -> u32 {
        u32::from_be(self.tcp[3]) & 0xffff
    }

    /// IPv4's DSCP and ECN field, or IPv6's traffic class.
    #[must_use]
    #[inline(always)]
    pub const fn class(&self) -> u32 {
        let word = u32::from_be(self.ip);
        if self.source.is_v4() { word >> 16 & 0xff } else { word >> 20 & 0xff }
    }

    /// IPv6's flow label.
    #[must_use]
    #[inline(always)]
    pub const fn flow_label(&self) -> u32 {
        if self.source.is_v4() { 0 } else { u32::from_be(self.ip) & 0x000f_ffff }
    }
}

#[inline(always)]
const fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Reads the headers of a packet to `headers`, which mean nothing unless it is [`Found::Plain`]. Takes any bytes.
#[inline(always)]
pub fn read<P: Packet + ?Sized>(packet: &P, frame: &Frame, headers: &mut Headers) -> Found {
    match frame.ethertype {
        ETHERTYPE_IPV4 => v4(packet, frame, headers),
        ETHERTYPE_IPV6 => v6(packet, frame, headers),
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => Found::Odd,
        _ => Found::Other,
    }
}

#[inline(always)]
fn v4<P: Packet + ?Sized>(packet: &P, frame: &Frame, headers: &mut Headers) -> Found {
    let Some(h) = packet.read::<{ IPV4_LEN as usize }>(ETHERNET_LEN) else { return Found::Other };
    if h[9] != TCP {
        return Found::Other;
    }
    let fragment = u16::from_be_bytes([h[6], h[7]]) & FRAGMENT;
    if h[0] != 0x45 || fragment != 0 {
        return Found::Odd;
    }
    let total = u32::from(u16::from_be_bytes([h[2], h[3]]));
    let Some(total) = length(frame, total) else { return Found::Odd };
    headers.source = Address { words: [word(&h, 12), 0, 0, 0], family: 4 };
    headers.destination = Address { words: [word(&h, 16), 0, 0, 0], family: 4 };
    headers.ip = word(&h, 0);
    headers.id = word(&h, 4);
    headers.hops = h[8] as u32;
    tcp(packet, frame, headers, total, IPV4_LEN)
}

#[inline(always)]
fn v6<P: Packet + ?Sized>(packet: &P, frame: &Frame, headers: &mut Headers) -> Found {
    let Some(h) = packet.read::<{ IPV6_LEN as usize }>(ETHERNET_LEN) else { return Found::Other };
    if h[6] != TCP || h[0] >> 4 != 6 {
        // Behind extension headers there may be anything.
        return Found::Odd;
    }
    let payload = u32::from(u16::from_be_bytes([h[4], h[5]]));
    let Some(total) = length(frame, if payload == 0 { 0 } else { payload + IPV6_LEN }) else { return Found::Odd };
    headers.source = Address { words: [word(&h, 8), word(&h, 12), word(&h, 16), word(&h, 20)], family: 6 };
    headers.destination = Address { words: [word(&h, 24), word(&h, 28), word(&h, 32), word(&h, 36)], family: 6 };
    headers.ip = word(&h, 0);
    headers.id = 0;
    headers.hops = h[7] as u32;
    tcp(packet, frame, headers, total, IPV6_LEN)
}

/// Bytes of the IP packet, by its own account: the frame's, or less where padding follows. A merged packet may be too
/// large to say (0), and has no padding.
#[inline(always)]
const fn length(frame: &Frame, said: u32) -> Option<u32> {
    let there = frame.length.wrapping_sub(ETHERNET_LEN as u32);
    if frame.merged {
        return if said == there || said == 0 { Some(there) } else { None };
    }
    if said <= there { Some(said) } else { None }
}

#[inline(always)]
fn tcp<P: Packet + ?Sized>(packet: &P, frame: &Frame, headers: &mut Headers, total: u32, ip: u32) -> Found {
    let Some(t) = packet.read::<16>(ETHERNET_LEN + ip as usize) else { return Found::Odd };
    headers.tcp = [word(&t, 0), word(&t, 4), word(&t, 8), word(&t, 12)];
    headers.tcp_length = (t[12] >> 4) as u32 * 4;
    let before = ip + headers.tcp_length;
    if headers.tcp_length < TCP_LEN || before > total || frame.tagged || !frame.ours {
        return Found::Odd;
    }
    headers.payload = total - before;
    Found::Plain
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
