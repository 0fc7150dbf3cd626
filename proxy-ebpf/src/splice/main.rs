// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! turnout's splice, in TC: packets of spliced connections go straight to the other host, or to the daemon's sockets in
//! numbers that these understand. What happens to a packet is decided by `proxy_common::splice`; here it is read,
//! and what was decided is done.
#![no_std]
#![no_main]
// The lock's exchange; see `lock`.
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics), expect(internal_features))]

mod arriving;
mod checksum;
mod flow;
mod icmp;
mod leaving;
mod lock;
mod maps;
mod mirror;
mod opening;
mod options;
mod packet;
mod recall;
mod rewrite;
mod stamped;

use proxy_common::flows::{self, COUNTS, Count};

const _: () = assert!(flows::CUT == flows::STAMP + 1, "see `cut`");
const _: () = assert!(COUNTS.is_power_of_two(), "an index can be masked");

/// tcx: the next program decides; without one the packet goes on. 0 would end the chain.
const NEXT: i32 = -1;
/// tcx: dropped.
const DROP: i32 = 2;

/// [`flows::STAMP`] of this set of programs; who loads them puts another value here. Each set in a chain has its own, or
/// the second one would take off what the first has given. The value above it is this set's [`flows::CUT`].
#[unsafe(no_mangle)]
static SET_STAMP: u16 = flows::STAMP;

/// The stamp of a packet for a local socket.
#[inline(always)]
fn stamp() -> u16 {
    // SAFETY: a plain read. Volatile, because the loader may have put another value there.
    unsafe { (&raw const SET_STAMP).read_volatile() }
}

/// The stamp of a copy that must lose its payload.
#[inline(always)]
fn cut() -> u16 {
    stamp().wrapping_add(1)
}

/// The kernel refused to read or change a packet; it must be dropped, for it may be half changed.
struct Refused;

impl From<core::ffi::c_long> for Refused {
    #[inline(always)]
    fn from(_: core::ffi::c_long) -> Self {
        Self
    }
}

/// Counts one on this CPU.
#[inline(always)]
fn count(what: Count) {
    let index = what.index();
    // SAFETY: a plain read of a local. Volatile, because the verifier does not know what the compiler knows of the
    // index: that it is in bounds.
    let index = unsafe { (&raw const index).read_volatile() } & (COUNTS - 1);
    if let Some(counts) = maps::COUNTERS.get_ptr_mut(0) {
        // SAFETY: the pointer is to this CPU's own counters, and the index is within them. A program that interrupts
        // this one between the load and the store may cost a count, never more.
        unsafe { *(&raw mut (*counts).counts).cast::<u64>().add(index) += 1 };
    }
}

/// GPL-compatible in the kernel's eyes, because some helpers are open to such programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never reached: a program in which the verifier finds a way here does not load, for it refuses endless loops.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
