// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Changes of a packet. Each keeps the checksums right in all states that the kernel has them in: complete, verified by
//! the card, or still to be made. The helpers know which; that is why every change goes through them.

use aya_ebpf::bindings::BPF_F_PSEUDO_HDR;
use aya_ebpf::helpers::{bpf_csum_update, bpf_l4_csum_replace, bpf_skb_change_tail};
use proxy_common::checksum::{Sum, ipv4};
use proxy_common::headers::{Headers, IPV4_LEN, IPV6_LEN};
use proxy_common::packet::{ACK, ETHERNET_LEN, FIN};
use proxy_common::splice::segment::URG;
use proxy_common::tables::Address;

use crate::Refused;
use crate::checksum::{CHECK, Piece, tail};
use crate::packet::Skb;

const TCP: u32 = 6;
/// AE, CWR and ECE and the reserved bits, in the host's reading of the header's fourth word.
const NOT_FLAGS: u32 = 0x0fc0_0000;

/// What a checksum made wrong is wrong by.
const ERROR: u32 = 0x5a;

/// What a copy keeps of its flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    /// All.
    Kept,
    /// All but FIN, which was cut off with payload.
    Trimmed,
    /// All that may pass from one connection to another.
    Passed,
    /// The same without FIN.
    PassedTrimmed,
    /// ACK alone.
    Bare,
}

/// The header's fourth word with other flags and another window.
#[inline(always)]
pub fn flags_and_window(word: u32, flags: Flags, window: u32) -> u32 {
    let word = u32::from_be(word) & 0xffff_0000;
    let word = match flags {
        Flags::Kept => word,
        Flags::Trimmed => word & !((FIN as u32) << 16),
        Flags::Passed => word & !(NOT_FLAGS | (URG as u32) << 16),
        Flags::PassedTrimmed => word & !(NOT_FLAGS | ((URG | FIN) as u32) << 16),
        Flags::Bare => word & 0xf000_0000 | (ACK as u32) << 16,
    };
    (word | window & 0xffff).to_be()
}

/// Adds a difference to TCP's checksum.
#[inline(always)]
pub fn adjust(skb: Skb, h: &Headers, difference: Sum, pseudo: bool) -> Result<(), Refused> {
    let flags = if pseudo { BPF_F_PSEUDO_HDR as u64 } else { 0 };
    let offset = h.tcp_offset() + CHECK;
    // SAFETY: the context is the one this program was called with.
    match unsafe { bpf_l4_csum_replace(skb.0, offset, 0, difference.partial().into(), flags) } {
        0 => Ok(()),
        error => Err(error.into()),
    }
}

/// Writes the first four words of the TCP header.
#[inline(always)]
pub fn set_tcp(skb: Skb, h: &mut Headers, tcp: [u32; 4]) -> Result<(), Refused> {
    let difference = Sum(0)
        .replaced(h.tcp[0], tcp[0])
        .replaced(h.tcp[1], tcp[1])
        .replaced(h.tcp[2], tcp[2])
        .replaced(h.tcp[3], tcp[3]);
    adjust(skb, h, difference, false)?;
    skb.store(h.tcp_offset(), &tcp)?;
    h.tcp = tcp;
    Ok(())
}

/// What an IP header says, but for the length and what never changes.
#[derive(Clone, Copy)]
pub struct Ip {
    pub source: Address,
    pub destination: Address,
    /// DSCP and ECN field, or traffic class.
    pub class: u32,
    /// IPv6's flow label.
    pub flow_label: u32,
    /// Time to live, or hop limit.
    pub hops: u32,
}

impl Ip {
    #[inline(always)]
    pub fn of(h: &Headers) -> Self {
        Self {
            source: h.source,
            destination: h.destination,
            class: h.class(),
            flow_label: h.flow_label(),
            hops: h.hops,
        }
    }
}

/// Writes the IP header, with the length that `h` has now.
#[inline(always)]
pub fn set_ip(skb: Skb, h: &mut Headers, ip: &Ip) -> Result<(), Refused> {
    if h.source.is_v4() { set_ipv4(skb, h, ip) } else { set_ipv6(skb, h, ip) }
}

/// Bytes as a header says it; a merged packet too large to say so has 0.
#[inline(always)]
fn said(length: u32) -> u32 {
    if length > 0xffff { 0 } else { length }
}

#[inline(always)]
fn set_ipv4(skb: Skb, h: &mut Headers, ip: &Ip) -> Result<(), Refused> {
    let (s, d) = (ip.source.words[0], ip.destination.words[0]);
    if s != h.source.words[0] || d != h.destination.words[0] {
        adjust(skb, h, Sum(0).replaced(h.source.words[0], s).replaced(h.destination.words[0], d), true)?;
    }
    let first = (0x4500_0000 | (ip.class & 0xff) << 16 | said(IPV4_LEN + h.tcp_length + h.payload)).to_be();
    let mut words = [first, h.id, (ip.hops << 24 | TCP << 16).to_be(), s, d];
    // The checksum is the second half of the third word as it lies in memory.
    words[2] |= u32::from(ipv4(&words)) << 16;
    skb.store(ETHERNET_LEN as u32, &words)?;
    (h.ip, h.hops, h.source, h.destination) = (first, ip.hops, ip.source, ip.destination);
    Ok(())
}

#[inline(always)]
fn set_ipv6(skb: Skb, h: &mut Headers, ip: &Ip) -> Result<(), Refused> {
    let (s, d) = (&ip.source.words, &ip.destination.words);
    let mut addresses = Sum(0);
    let mut i = 0;
    while i < 4 {
        addresses = addresses.replaced(h.source.words[i], s[i]).replaced(h.destination.words[i], d[i]);
        i += 1;
    }
    adjust(skb, h, addresses, true)?;
    let first = (0x6000_0000 | (ip.class & 0xff) << 20 | ip.flow_label & 0x000f_ffff).to_be();
    let second = (said(h.tcp_length + h.payload) << 16 | TCP << 8 | ip.hops & 0xff).to_be();
    let was = skb.load::<u32>(ETHERNET_LEN as u32 + 4)?;
    skb.store(ETHERNET_LEN as u32, &[first, second, s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]])?;
    // Where the card summed the whole packet, the sum covers this header, which has no checksum of its own.
    // SAFETY: the context is the one this program was called with. It refuses where there is no such sum.
    unsafe { bpf_csum_update(skb.0, addresses.replaced(h.ip, first).replaced(was, second).partial()) };
    (h.ip, h.hops, h.source, h.destination) = (first, ip.hops, ip.source, ip.destination);
    Ok(())
}

const _: () = assert!(IPV6_LEN == 4 * 10 && IPV4_LEN == 4 * 5);

/// Makes the checksum wrong, in whatever state it is: nobody takes the packet until [`make_valid`].
#[inline(always)]
pub fn make_invalid(skb: Skb, h: &Headers) -> Result<(), Refused> {
    adjust(skb, h, Sum(0).plus(ERROR), true)
}

/// Undoes [`make_invalid`].
#[inline(always)]
pub fn make_valid(skb: Skb, h: &Headers) -> Result<(), Refused> {
    adjust(skb, h, Sum(0).minus(ERROR), true)
}

/// Cuts the payload to its first `keep` bytes; no more than its `gso` for a packet that is merged. Such a packet
/// becomes a single one.
#[inline(always)]
pub fn trim(skb: Skb, h: &mut Headers, piece: *mut Piece, keep: u32) -> Result<(), Refused> {
    if keep >= h.payload {
        return Ok(());
    }
    // A merged packet's checksum is still to be made, so nothing has to be taken out of it.
    let gone = if skb.gso() != 0 { 0 } else { tail(skb, h, piece, keep).ok_or(Refused)? };
    // SAFETY: the context is the one this program was called with.
    match unsafe { bpf_skb_change_tail(skb.0, h.payload_offset() + keep, 0) } {
        0 => {}
        error => return Err(error.into()),
    }
    if gone != 0 {
        adjust(skb, h, Sum(0).minus(gone), false)?;
        // Where the card summed the whole packet, the kernel has taken the payload out of that sum, but does not know
        // of the checksum's change.
        // SAFETY: as above. It refuses where there is no such sum.
        unsafe { bpf_csum_update(skb.0, gone) };
    }
    let (was, is) = ((h.tcp_length + h.payload).to_be(), (h.tcp_length + keep).to_be());
    adjust(skb, h, Sum(0).replaced(was, is), true)?;
    h.payload = keep;
    let ip = Ip::of(h);
    set_ip(skb, h, &ip)
}
