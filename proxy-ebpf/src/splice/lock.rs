// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The lock of a session: a word that is exchanged. Memory that the daemon maps may hold no lock of the kernel's.

use aya_ebpf::helpers::bpf_ktime_get_ns;

use crate::maps::LOCKS;

/// Tries before a packet is given up. With the pause in each some 40 µs: what the lock is held for is far shorter, and
/// a CPU that was taken away by a hypervisor comes back far later.
const TRIES: u32 = 1_000;

/// A lock that is held; it must be given back.
pub struct Held(*mut u64);

/// Takes the lock of a session.
#[inline(always)]
pub fn take(session: u32) -> Option<Held> {
    let word = LOCKS.get_ptr_mut(session)?;
    let mut tries = 0;
    while tries < TRIES {
        // SAFETY: the pointer is to an aligned word of the map, which nothing else than this module touches.
        if unsafe { exchange(word, 1) } == 0 {
            return Some(Held(word));
        }
        // SAFETY: takes no argument. The call is the pause.
        unsafe { bpf_ktime_get_ns() };
        tries += 1;
    }
    None
}

impl Held {
    /// Gives it back.
    #[inline(always)]
    pub fn release(self) {
        // SAFETY: as in `take`. An exchange and not a store: the instruction set has no ordered store everywhere.
        unsafe { exchange(self.0, 0) };
    }
}

/// Puts a value into a word and says what was there, in one step and with every access before and after it in its order.
///
/// # Safety
/// The pointer is to an aligned word that is only accessed by this function.
#[cfg(target_arch = "bpf")]
#[inline(always)]
unsafe fn exchange(word: *mut u64, value: u64) -> u64 {
    use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xchg};
    // SAFETY: by the caller's promise. `core` has the type for it on targets that can compare and swap in all widths.
    unsafe { atomic_xchg::<u64, { SeqCst }>(word, value) }
}

/// The same, for a check of the program on the host.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "bpf"))]
unsafe fn exchange(word: *mut u64, value: u64) -> u64 {
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
    // SAFETY: by the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }.swap(value, SeqCst)
}
