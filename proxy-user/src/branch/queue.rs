//! How much a branch may hold, in bytes: taken when a batch is dispatched, given back when it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that is shared by everyone who hands batches over. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    used: AtomicUsize,
    most: AtomicUsize,
}

impl Budget {
    /// So many bytes.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner { used: AtomicUsize::new(0), most: AtomicUsize::new(most) }))
    }

    /// Takes `bytes`; `false` when they aren't there. Never waits.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let most = self.0.most.load(Ordering::Relaxed);
        let room = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// Gives back what was taken.
    pub fn give_back(&self, bytes: usize) {
        let before = self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more is given back than was taken");
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Another bound, from a reload. What is in use stays.
    pub fn resize(&self, most: usize) {
        self.0.most.store(most, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let budget = Budget::new(100);
        assert!(budget.take(60) && !budget.take(41) && budget.take(40));
        assert!(!budget.take(usize::MAX));
        budget.give_back(60);
        assert_eq!(budget.used(), 40);
        assert!(budget.take(60));
    }

    #[test]
    fn a_smaller_bound_lets_nothing_in_until_enough_is_out() {
        let budget = Budget::new(100);
        assert!(budget.take(80));
        budget.resize(50);
        assert!(!budget.take(1));
        budget.give_back(40);
        assert!(budget.take(10));
    }
}
