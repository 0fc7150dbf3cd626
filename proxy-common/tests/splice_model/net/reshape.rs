// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Segments cut and joined, as offloads do it.

use crate::tcp::{ACK, FIN, PSH, Segment};

/// Most payload bytes of a joined segment: what IPv4's length allows.
const MAX_MERGED: usize = 65_535 - 60;

/// Cuts off everything from payload byte `at` on. FIN and PSH go with the rest.
pub(crate) fn split(first: &mut Segment, at: usize) -> Option<Segment> {
    if at == 0 || at >= first.payload.len() {
        return None;
    }
    let mut rest = first.clone();
    rest.payload = first.payload.split_off(at);
    rest.seq = first.seq.wrapping_add(at as u32);
    first.flags &= !(FIN | PSH);
    for part in [first, &mut rest] {
        if part.payload.len() <= part.gso_size {
            part.gso_size = 0;
        }
    }
    Some(rest)
}

/// The packets a segment stands for (`tcp_gso_segment`).
pub(super) fn packets(mut segment: Segment) -> Vec<Segment> {
    let mut packets = vec![];
    loop {
        let size = segment.gso_size;
        let Some(rest) = split(&mut segment, size) else { break };
        packets.push(std::mem::replace(&mut segment, rest));
    }
    packets.push(segment);
    packets
}

/// Appends the packet that follows in the same stream if GRO would (`tcp_gro_receive`), else gives it back: same
/// acknowledgment, window, options and flags but FIN and PSH, no packet shorter than the first but the last, and
/// nothing after FIN or PSH.
pub(crate) fn merge(into: &mut Segment, next: Segment) -> Option<Segment> {
    let size = if into.gso_size > 0 { into.gso_size } else { into.payload.len() };
    let fits = into.checksum_ok
        && next.checksum_ok
        && (into.src, into.dst, into.ack, into.window) == (next.src, next.dst, next.ack, next.window)
        && into.sack == next.sack
        && into.flags == ACK
        && next.flags & !(FIN | PSH) == ACK
        && next.seq == into.end()
        && next.gso_size == 0
        && (1..=size).contains(&next.payload.len())
        && into.payload.len().is_multiple_of(size)
        && into.payload.len() + next.payload.len() <= MAX_MERGED;
    if !fits {
        return Some(next);
    }
    into.payload.extend(next.payload);
    into.flags |= next.flags;
    into.gso_size = size;
    None
}

#[cfg(test)]
#[path = "reshape_tests.rs"]
mod tests;
