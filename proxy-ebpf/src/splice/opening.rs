// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! SYNs of connections that may be spliced later: without timestamps and without congestion notification. SYN-ACKs are
//! never touched; they follow from the SYN.

use proxy_common::checksum::Sum;
use proxy_common::flows::Count;
use proxy_common::headers::{Headers, TCP_LEN};
use proxy_common::packet::{ACK, SYN};
use proxy_common::syn::{OPTION_WORDS, blanked, timestamp, without_congestion};
use proxy_common::tables::PortKey;

use crate::maps::{DIALING, LISTENERS};
use crate::packet::Skb;
use crate::rewrite::{adjust, set_tcp};
use crate::{DROP, NEXT, Refused, count};

#[inline(always)]
fn opens(h: &Headers) -> bool {
    h.flags() & (SYN | ACK) == SYN
}

/// A packet of no session, arriving.
#[inline(always)]
pub fn arriving(skb: Skb, h: &mut Headers) -> i32 {
    if !opens(h) {
        return NEXT;
    }
    let port = u32::from(u16::from_be((h.tcp[0] >> 16) as u16));
    let key = PortKey { address: h.destination, port };
    if LISTENERS.get_ptr(key).is_some() || LISTENERS.get_ptr(key.on_unspecified()).is_some() {
        prepare(skb, h)
    } else {
        NEXT
    }
}

/// A packet of no session, leaving.
#[inline(always)]
pub fn leaving(skb: Skb, h: &mut Headers) -> i32 {
    if !opens(h) {
        return NEXT;
    }
    match DIALING.get(0) {
        Some(dialing) if dialing.mark != 0 && dialing.mark == skb.mark() => prepare(skb, h),
        _ => NEXT,
    }
}

#[inline(never)]
fn prepare(skb: Skb, h: &mut Headers) -> i32 {
    match strip(skb, h) {
        Ok(()) => {
            count(Count::Opening);
            NEXT
        }
        // Half changed, its checksum may be wrong; SYNs come again.
        Err(Refused) => {
            count(Count::Unchanged);
            DROP
        }
    }
}

#[inline(always)]
fn strip(skb: Skb, h: &mut Headers) -> Result<(), Refused> {
    let tcp = [h.tcp[0], h.tcp[1], h.tcp[2], without_congestion(h.tcp[3])];
    if tcp[3] != h.tcp[3] {
        set_tcp(skb, h, tcp)?;
    }
    let (from, length) = (h.tcp_offset() + TCP_LEN, h.tcp_length - TCP_LEN);
    let mut options = [0u8; 4 * OPTION_WORDS];
    let mut nth = 0;
    while nth < OPTION_WORDS {
        if 4 * (nth as u32) < length {
            options.as_chunks_mut::<4>().0[nth] = skb.load(from + 4 * nth as u32)?;
        }
        nth += 1;
    }
    let Some(at) = timestamp(&options, length) else { return Ok(()) };
    let mut difference = Sum(0);
    nth = 0;
    while nth < OPTION_WORDS {
        let place = 4 * nth as u32;
        if place < length {
            let was = options.as_chunks::<4>().0[nth];
            let is = blanked(was, place, at);
            difference = difference.replaced(u32::from_ne_bytes(was), u32::from_ne_bytes(is));
            skb.store(from + place, &is)?;
        }
        nth += 1;
    }
    adjust(skb, h, difference, false)
}
