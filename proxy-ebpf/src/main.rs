// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! turnout's kernel programs. Thin: a program reads bytes, asks a pure function of `proxy-common`, and does what it
//! says.
#![no_std]
#![no_main]

mod admit;
mod maps;
mod packet;
mod steer;

use aya_ebpf::helpers::bpf_ktime_get_ns;
use proxy_common::tables::{Address, Count, PortEntry, PortKey, Reason, RefusedEntry, RefusedKey};

/// The entry of exactly this address and port.
#[inline(always)]
fn find_port(key: &PortKey) -> Option<PortEntry> {
    // SAFETY: the map is not preallocated, so an element that is removed lives on until this program ends.
    unsafe { maps::PORT_TABLE.get(key) }.copied()
}

/// Counts one on this CPU.
#[inline(always)]
fn count(slot: u16, what: Count) {
    if let Some(counters) = maps::COUNTERS.get_ptr_mut(u32::from(slot)) {
        // SAFETY: the pointer is to this CPU's own counters. A program that interrupts this one between the load and
        // the store may cost a count, never more.
        unsafe { (*counters).counts[what.index()] += 1 };
    }
}

/// Counts a refusal and remembers whom it met.
#[inline(always)]
fn refuse(slot: u16, source: &Address, reason: Reason) {
    count(slot, Count::Refused(reason));
    let key = RefusedKey { address: *source, slot, reason: reason as u16 };
    // SAFETY: takes no argument.
    let last_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(entry) = maps::REFUSED_TABLE.get_ptr_mut(key) {
        // SAFETY: the pointer is to an element of the map. Another CPU may count the same source at the same time,
        // which costs a count, or have been given the element, whose owner then has one too many.
        unsafe {
            (*entry).packets += 1;
            (*entry).last_ns = last_ns;
        }
    } else {
        // Without room the refusal is counted, only not by whom.
        let _ = maps::REFUSED_TABLE.insert(key, RefusedEntry { packets: 1, last_ns }, 0);
    }
}

/// GPL-compatible in the kernel's eyes, because helpers and kernel functions that later programs need are open to such
/// only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never reached: a program in which the verifier finds a way here does not load, for it refuses endless loops.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
