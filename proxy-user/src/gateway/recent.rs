//! A map of bounded size that forgets what was not used for longest, for tables that strangers fill.

use std::collections::HashMap;
use std::hash::Hash;

/// See the module. Two generations: what is used lives in the young one, and when that is full it becomes the old one
/// and what was old is forgotten. So every use costs a look or two, and what was used within the last `capacity / 2`
/// new keys is still there.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V: Default> Recent<K, V> {
    /// At most `capacity` entries, at least 2.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    /// The value of a key, which counts as used; a default where it was never seen or is forgotten.
    pub(crate) fn entry(&mut self, key: K) -> &mut V {
        if !self.young.contains_key(&key) && self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        let aged = self.old.remove(&key);
        self.young.entry(key).or_insert_with(|| aged.unwrap_or_default())
    }

    /// All that is remembered, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever comes, the bound holds, and what was used within the last half of the capacity is remembered.
        #[test]
        fn the_bound_holds_and_what_is_used_stays(capacity in 2usize..40, keys in prop::collection::vec(0u32..60, 1..400)) {
            let mut recent = Recent::new(capacity);
            for (i, &key) in keys.iter().enumerate() {
                let last = keys[..i].iter().rposition(|k| *k == key);
                let since: std::collections::HashSet<_> = last.map(|l| keys[l + 1..i].iter().collect()).unwrap_or_default();
                let times: &mut u32 = recent.entry(key);
                if last.is_some() && since.len() < capacity / 2 {
                    prop_assert!(*times > 0, "{key} was forgotten");
                }
                *times += 1;
                prop_assert!(recent.iter().count() <= capacity);
            }
        }
    }
}
