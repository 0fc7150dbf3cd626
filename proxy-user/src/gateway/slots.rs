//! Which place in the kernel's tables each virtual cluster has.

use std::collections::{BTreeMap, VecDeque};

use super::edge::{SLOTS, Slot};

/// Places, given out by name. One that becomes free is given out again last, so that what the kernel still counts for
/// the old name is counted by then.
#[derive(Debug)]
pub(crate) struct SlotBook {
    taken: BTreeMap<String, Slot>,
    free: VecDeque<Slot>,
}

impl SlotBook {
    /// As a predecessor left it; places that two names claim, or that don't exist, are left out.
    pub(crate) fn new(inherited: BTreeMap<String, Slot>) -> Self {
        let mut seen = std::collections::BTreeSet::new();
        let taken: BTreeMap<_, _> =
            inherited.into_iter().filter(|(_, slot)| slot.0 < SLOTS && seen.insert(*slot)).collect();
        let free = (0..SLOTS).map(Slot).filter(|slot| !seen.contains(slot)).collect();
        Self { taken, free }
    }

    /// The place of a name, and whether it is new to it; `None` when all are taken.
    pub(crate) fn take(&mut self, name: &str) -> Option<(Slot, bool)> {
        if let Some(slot) = self.taken.get(name) {
            return Some((*slot, false));
        }
        let slot = self.free.pop_front()?;
        self.taken.insert(name.to_owned(), slot);
        Some((slot, true))
    }

    /// Takes back the places of all names but these.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<_> = self.taken.keys().filter(|name| !keep(name)).cloned().collect();
        self.free.extend(gone.iter().filter_map(|name| self.taken.remove(name)));
    }

    /// All that are taken.
    pub(crate) fn taken(&self) -> &BTreeMap<String, Slot> {
        &self.taken
    }

    /// Whose place it is.
    pub(crate) fn name(&self, slot: Slot) -> Option<&str> {
        self.taken.iter().find(|(_, taken)| **taken == slot).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_keeps_its_place_and_a_free_one_is_given_out_last() {
        let mut book = SlotBook::new(BTreeMap::new());
        assert_eq!(book.take("a"), Some((Slot(0), true)));
        assert_eq!(book.take("b"), Some((Slot(1), true)));
        assert_eq!(book.take("a"), Some((Slot(0), false)));
        book.retain(|name| name == "b");
        assert_eq!(book.take("c"), Some((Slot(2), true)));
        for n in 3..SLOTS {
            assert_eq!(book.take(&format!("n{n}")), Some((Slot(n), true)));
        }
        assert_eq!(book.take("d"), Some((Slot(0), true)), "the last one left");
        assert_eq!(book.take("e"), None);
        assert_eq!(book.name(Slot(1)), Some("b"));
    }

    proptest! {
        #[test]
        fn no_two_names_share_a_place(
            inherited in prop::collection::btree_map("[a-f]", (0u16..SLOTS + 9).prop_map(Slot), 0..6),
            steps in prop::collection::vec(("[a-h]", any::<bool>()), 0..60),
        ) {
            let mut book = SlotBook::new(inherited);
            for (name, take) in steps {
                if take { book.take(&name); } else { book.retain(|kept| kept != name); }
                let slots: std::collections::BTreeSet<_> = book.taken().values().collect();
                prop_assert_eq!(slots.len(), book.taken().len());
                prop_assert!(slots.iter().all(|slot| !book.free.contains(slot)));
                prop_assert_eq!(slots.len() + book.free.len(), usize::from(SLOTS));
            }
        }
    }
}
