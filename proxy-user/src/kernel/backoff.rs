//! When what failed is worth another try: at the next turn, then after two, four …, at most [`LONGEST`] turns. A turn is
//! one call of the upkeep, which comes every second. Pure: no clock.

use std::collections::BTreeMap;

/// Turns between two tries at most: about a minute.
const LONGEST: u32 = 60;

/// What failed lately, by what it was tried on.
#[derive(Debug)]
pub(super) struct Backoff<K>(BTreeMap<K, Wait>);

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Turns that remain.
    left: u32,
    /// Turns of the whole wait.
    whole: u32,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Backoff<K> {
    /// Another turn: whether to try now.
    pub(super) fn is_due(&mut self, key: &K) -> bool {
        let Some(wait) = self.0.get_mut(key) else { return true };
        wait.left = wait.left.saturating_sub(1);
        wait.left == 0
    }

    /// It failed: the next try is further away than the last one was.
    pub(super) fn failed(&mut self, key: K) {
        let wait = self.0.entry(key).or_insert(Wait { left: 0, whole: 0 });
        wait.whole = (wait.whole * 2).clamp(1, LONGEST);
        wait.left = wait.whole;
    }

    /// Forgets what is not in the world any more, or worked.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&K) -> bool) {
        self.0.retain(|key, _| stays(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_further_and_further_apart_up_to_the_longest_wait() {
        let mut backoff = Backoff::default();
        let mut tries = Vec::new();
        for turn in 0..300u32 {
            if backoff.is_due(&7) {
                tries.push(turn);
                backoff.failed(7);
            }
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert!(backoff.is_due(&8), "another one is not held back");
    }

    #[test]
    fn what_worked_once_begins_anew() {
        let mut backoff = Backoff::default();
        for _ in 0..5 {
            backoff.failed(7);
        }
        backoff.retain(|key| *key != 7);
        assert!(backoff.is_due(&7));
        backoff.failed(7);
        assert!(backoff.is_due(&7), "the first wait is one turn");
    }
}
