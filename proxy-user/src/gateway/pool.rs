//! Lane buffers, shared by the connections of one worker thread.
//!
//! A buffer is borrowed while bytes are under way. Last in, first out, so that the one used next is still in cache.

use std::cell::RefCell;

use super::lane::CAPACITY;

/// Buffers a worker keeps for reuse (2 MiB); more are given back to the allocator.
const KEPT: usize = 16;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of [`CAPACITY`] bytes, contents unspecified.
pub(crate) fn take() -> Box<[u8]> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; CAPACITY].into_boxed_slice())
}

/// Gives a buffer back.
pub(crate) fn give(buffer: Box<[u8]>) {
    debug_assert_eq!(buffer.len(), CAPACITY);
    FREE.with_borrow_mut(|free| {
        if free.len() < KEPT {
            free.push(buffer);
        }
    });
}
