// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What routers say of a session's packets: that one is too large for the path, or that its host can't be reached. Who
//! sent the packet is told in its own terms, the daemon's socket or the other host; else nobody would learn of a smaller
//! path.

use aya_ebpf::bindings::BPF_F_PSEUDO_HDR;
use aya_ebpf::helpers::{bpf_csum_update, bpf_l4_csum_replace, bpf_redirect_neigh};
use proxy_common::checksum::{Sum, ipv4};
use proxy_common::flows::{Count, FlowEntry, FlowKey, Role};
use proxy_common::headers::{IPV4_LEN, IPV6_LEN};
use proxy_common::packet::ETHERNET_LEN;
use proxy_common::quote::{Quote, read};
use proxy_common::splice::quoted::{Quoted, quoted};
use proxy_common::splice::seq::OutWire;
use proxy_common::splice::state::{Leg, Side};

use crate::arriving::HOPS;
use crate::packet::Skb;
use crate::{DROP, NEXT, Refused, count, flow, lock};

/// A packet that is no TCP, arriving.
#[inline(never)]
pub fn arriving(skb: Skb, quote: &mut Quote) -> i32 {
    if !is_quotation(skb, quote) {
        return NEXT;
    }
    let key = FlowKey {
        source: quote.source,
        destination: quote.destination,
        ports: quote.ports,
        interface: skb.interface(),
    };
    let Some(flow) = flow::find(&key) else { return NEXT };
    pass_on(skb, quote, flow).unwrap_or_else(|Refused| {
        count(Count::Unchanged);
        DROP
    })
}

#[inline(never)]
fn is_quotation(skb: Skb, quote: &mut Quote) -> bool {
    read(&skb, &skb.arriving(), quote)
}

#[inline(always)]
fn pass_on(skb: Skb, quote: &mut Quote, flow: &FlowEntry) -> Result<i32, Refused> {
    // The packet left for this side.
    let side = match flow.role {
        2 => Side::Client,
        3 => Side::Broker,
        _ => return Ok(NEXT),
    };
    let Some(slot) = flow::slot(flow) else { return Ok(NEXT) };
    let Some(held) = lock::take(flow.session) else {
        count(Count::Busy);
        return Ok(DROP);
    };
    // SAFETY: the pointer is to a slot of the map, a side's index is 0 or 1, and the lock keeps others from writing.
    let whose = unsafe {
        let dirs = (*slot).session.dirs.as_ptr();
        quoted(&*dirs.wrapping_add(side.other().index()), OutWire(u32::from_be(quote.seq)))
    };
    held.release();
    match whose {
        Quoted::Local(seq) => {
            count(Count::PathTold);
            renumber(skb, quote, seq.0.to_be())?;
            Ok(NEXT)
        }
        Quoted::Peer(seq) => {
            count(Count::PathTold);
            // SAFETY: the pointer is to a slot of the map, and a side's index is 0 or 1.
            let leg = unsafe { &*(*slot).session.legs.as_ptr().wrapping_add(side.other().index()) };
            to_peer(skb, quote, seq.0.to_be(), leg)
        }
        Quoted::Nobody => {
            count(Count::PathUnknown);
            Ok(DROP)
        }
    }
}

/// Adds a difference to the message's checksum.
#[inline(always)]
fn adjust(skb: Skb, quote: &Quote, difference: Sum, flags: u64) -> Result<(), Refused> {
    // SAFETY: the context is the one this program was called with.
    match unsafe { bpf_l4_csum_replace(skb.0, quote.check(), 0, difference.partial().into(), flags) } {
        0 => Ok(()),
        error => Err(error.into()),
    }
}

/// Another sequence number in the quotation.
#[inline(always)]
fn renumber(skb: Skb, quote: &Quote, seq: u32) -> Result<(), Refused> {
    adjust(skb, quote, Sum(0).replaced(quote.seq, seq), 0)?;
    skb.store(quote.quoted_ports() + 4, &seq)
}

/// The message goes to the leg's host, who sent the packet, as of this gateway: it quotes the packet as it was before.
#[inline(never)]
fn to_peer(skb: Skb, quote: &Quote, seq: u32, leg: &Leg) -> Result<i32, Refused> {
    // The key is the same for either side.
    let sent = FlowKey::of(Role::From(Side::Client), leg);
    let ports = Sum(0).replaced(quote.ports, sent.ports).replaced(quote.seq, seq);
    skb.store(quote.quoted_ports(), &[sent.ports, seq])?;
    if quote.to.is_v4() {
        ends_v4(skb, quote, &sent, ports)?;
    } else {
        ends_v6(skb, quote, &sent, ports)?;
    }
    // SAFETY: no parameters are given: the route is looked up.
    Ok(unsafe { bpf_redirect_neigh(leg.interface, core::ptr::null_mut(), 0, 0) } as i32)
}

/// Addresses of the quotation and of the message. `sent`: the packet as it was.
#[inline(always)]
fn ends_v4(skb: Skb, quote: &Quote, sent: &FlowKey, changed: Sum) -> Result<(), Refused> {
    let (s, d) = (sent.source.words[0], sent.destination.words[0]);
    let ends = Sum(0).replaced(quote.source.words[0], s).replaced(quote.destination.words[0], d);
    // The quoted header's own checksum (RFC 1624, equation 3) is the second half of its third word as it lies in memory.
    let check = !ends.plus(!(quote.quoted_third >> 16) & 0xffff).folded();
    let third = quote.quoted_third & 0xffff | u32::from(check) << 16;
    let changed = Sum(changed.0 + ends.0).replaced(quote.quoted_third, third);
    adjust(skb, quote, changed, 0)?;
    skb.store(quote.quoted() + 8, &[third, s, d])?;
    let third = (HOPS << 24).to_be() | quote.ip[2] & 0x00ff_0000_u32.to_be();
    let mut words = [quote.ip[0], quote.ip[1], third, d, s];
    words[2] |= u32::from(ipv4(&words)) << 16;
    skb.store(ETHERNET_LEN as u32, &words)
}

/// The same for IPv6, whose header counts in the message's checksum and has none of its own.
#[inline(always)]
fn ends_v6(skb: Skb, quote: &Quote, sent: &FlowKey, changed: Sum) -> Result<(), Refused> {
    let (s, d) = (&sent.source.words, &sent.destination.words);
    let (mut inside, mut outside) = (changed, Sum(0));
    let mut i = 0;
    while i < 4 {
        inside = inside.replaced(quote.source.words[i], s[i]).replaced(quote.destination.words[i], d[i]);
        outside = outside.replaced(quote.from.words[i], d[i]).replaced(quote.to.words[i], s[i]);
        i += 1;
    }
    adjust(skb, quote, inside, 0)?;
    skb.store(quote.quoted() + 8, &[s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]])?;
    adjust(skb, quote, outside, BPF_F_PSEUDO_HDR as u64)?;
    let second = quote.ip[1] & !0xff_u32.to_be() | HOPS.to_be();
    skb.store(ETHERNET_LEN as u32 + 4, &[second, d[0], d[1], d[2], d[3], s[0], s[1], s[2], s[3]])?;
    // Where the card summed the whole packet, the sum covers this header as well.
    // SAFETY: the context is the one this program was called with. It refuses where there is no such sum.
    unsafe { bpf_csum_update(skb.0, outside.replaced(quote.ip[1], second).partial()) };
    Ok(())
}

const _: () = assert!(IPV6_LEN == 4 * 10 && IPV4_LEN == 4 * 5);
