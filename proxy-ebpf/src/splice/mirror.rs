// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Copies of what goes to the other host, into the ring that the daemon reads. A step of its own, after what happens to
//! the packet is decided and before the packet is changed; the packet goes on whatever comes of it.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::helpers::bpf_loop;
use proxy_common::flows::Slot;
use proxy_common::headers::Headers;
use proxy_common::splice::mirror::{CLASSES, Copies, Copying, PIECES, Piece};
use proxy_common::splice::state::Side;

use crate::maps::{COPIES, MIRROR, Scratch};
use crate::packet::Skb;

/// Under the lock: gives the packet its number if it was forwarded and something in it is mirrored.
#[inline(never)]
pub fn mark(scratch: &mut Scratch, slot: &mut Slot, side: Side) {
    let Scratch { copying, before, walk, arriving, .. } = scratch;
    // SAFETY: a side's index is 0 or 1, and the lock makes the tally ours.
    let (d, tally) = unsafe {
        let index = side.index();
        (&*slot.session.dirs.as_ptr().wrapping_add(index), &mut *slot.tallies.as_mut_ptr().wrapping_add(index))
    };
    copying.mark(*before, d, arriving, walk.found(arriving), &slot.session.notes, tally);
}

/// What a piece's copying needs.
struct Steps<'a> {
    skb: Skb,
    headers: &'a Headers,
    copying: &'a mut Copying,
}

/// Copies what was marked.
#[inline(never)]
pub fn copy(skb: Skb, scratch: &mut Scratch, session: u32, generation: u32) {
    let Scratch { headers, copying, .. } = scratch;
    if copying.left() == 0 {
        return;
    }
    (copying.head.session, copying.head.generation) = (session, generation);
    let mut steps = Steps { skb, headers, copying };
    // SAFETY: the function has the signature that the helper calls, and what it is given outlives the call.
    unsafe { bpf_loop(PIECES, piece as *mut c_void, (&raw mut steps).cast(), 0) };
    let lost = steps.copying.left();
    if lost != 0 {
        count(|copies| {
            copies.lost += 1;
            copies.lost_bytes += u64::from(lost);
        });
    }
}

/// One piece; other than 0 ends the packet.
extern "C" fn piece(_: u64, steps: *mut Steps<'_>) -> i64 {
    // SAFETY: the pointer is the one that `copy` gave.
    let Steps { skb, headers, copying } = unsafe { &mut *steps };
    let Some(offset) = copying.next_piece() else { return 1 };
    let from = headers.payload_offset().wrapping_add(offset);
    const N: [usize; 4] = [CLASSES[0] as usize, CLASSES[1] as usize, CLASSES[2] as usize, CLASSES[3] as usize];
    let length = copying.head.length;
    let is_copied = if length <= CLASSES[0] {
        put::<{ N[0] }>(*skb, copying, from)
    } else if length <= CLASSES[1] {
        put::<{ N[1] }>(*skb, copying, from)
    } else if length <= CLASSES[2] {
        put::<{ N[2] }>(*skb, copying, from)
    } else {
        put::<{ N[3] }>(*skb, copying, from)
    };
    if !is_copied {
        return 1;
    }
    copying.copied();
    count(|copies| {
        copies.pieces += 1;
        copies.bytes += u64::from(length);
    });
    0
}

/// Puts a piece of a class into the ring; false: there is no room.
#[inline(always)]
fn put<const N: usize>(skb: Skb, copying: &Copying, from: u32) -> bool {
    let Some(mut entry) = MIRROR.reserve::<Piece<N>>(0) else { return false };
    let place: *mut MaybeUninit<Piece<N>> = &raw mut *entry;
    let place = place.cast::<Piece<N>>();
    // SAFETY: a plain read of a live value. Volatile, so that the check below stays: the verifier does not know what the
    // compiler knows of the length.
    let length = unsafe { (&raw const copying.head.length).read_volatile() };
    if length == 0 || length > N as u32 {
        entry.discard(0);
        return false;
    }
    // SAFETY: the place is the entry's own, of this very type.
    let bytes = unsafe {
        (&raw mut (*place).head).write(copying.head);
        &raw mut (*place).bytes
    };
    if !skb.load_into(from, bytes, length) {
        entry.discard(0);
        return false;
    }
    entry.submit(0);
    true
}

/// Counts on this CPU.
#[inline(always)]
fn count(what: impl Fn(&mut Copies)) {
    if let Some(copies) = COPIES.get_ptr_mut(0) {
        // SAFETY: the pointer is to this CPU's own counters. A program that interrupts this one between the load and the
        // store may cost a count, never more.
        what(unsafe { &mut *copies });
    }
}
