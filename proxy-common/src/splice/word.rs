// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! A word of memory that the daemon and the kernel's programs share.

#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::{AtomicU32, Ordering};

/// 32 bits that are read and written whole. Stores of one side are seen by the other in their order on CPUs that keep
/// it (x86-64).
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(
    #[cfg(not(target_arch = "bpf"))] AtomicU32,
    // `core` has no 32-bit atomics for this target; a volatile access of an aligned word is one instruction.
    #[cfg(target_arch = "bpf")] core::cell::UnsafeCell<u32>,
);

#[cfg(not(target_arch = "bpf"))]
impl Word {
    /// A word of this value.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    /// Reads it.
    #[must_use]
    #[inline(always)]
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Writes it.
    #[inline(always)]
    pub fn store(&self, value: u32) {
        self.0.store(value, Ordering::SeqCst);
    }
}

// SAFETY: every access is volatile, of one aligned word, and so whole.
#[cfg(target_arch = "bpf")]
unsafe impl Sync for Word {}

#[cfg(target_arch = "bpf")]
impl Word {
    /// A word of this value.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Reads it.
    #[must_use]
    #[inline(always)]
    pub fn load(&self) -> u32 {
        // SAFETY: the pointer is that of a live, aligned word.
        unsafe { core::ptr::read_volatile(self.0.get()) }
    }

    /// Writes it.
    #[inline(always)]
    pub fn store(&self, value: u32) {
        // SAFETY: the pointer is that of a live, aligned word that nobody holds a reference into.
        unsafe { core::ptr::write_volatile(self.0.get(), value) }
    }
}
