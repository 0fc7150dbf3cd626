//! Ids and numbers of producers and partitions, of spaces that must not mix.

use std::fmt;

use crate::kafka::ids::id;

id! {
    /// Who wrote a batch, as its header says; negative: nobody in particular, and the broker deduplicates nothing.
    ProducerId(i64)
}
id! {
    /// Fences older incarnations of a producer; a larger one starts its sequences at 0 again.
    ProducerEpoch(i16)
}
id! {
    /// Number of a partition within its topic.
    PartitionId(i32)
}
id! {
    /// A record's place in a partition of one cluster. Offsets of different clusters have nothing to do with each other.
    Offset(i64)
}

impl ProducerId {
    /// No producer id.
    pub const NONE: Self = Self(-1);

    /// Whether a broker deduplicates what this producer writes.
    #[must_use]
    pub fn is_idempotent(self) -> bool {
        self.0 >= 0
    }
}

impl ProducerEpoch {
    /// No epoch.
    pub const NONE: Self = Self(-1);
}

/// Number of a record among those of one producer, epoch and partition. Counts from 0 to 2 147 483 647, then from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(pub i32);

impl Sequence {
    /// No sequence.
    pub const NONE: Self = Self(-1);
    /// The first one of an epoch.
    pub const FIRST: Self = Self(0);

    /// The sequence `n` records further on. A batch may straddle the wrap-around.
    ///
    /// Only for sequences ≥ 0; others stay as they are, since they number nothing.
    #[must_use]
    pub fn plus(self, n: u32) -> Self {
        if self.0 < 0 {
            return self;
        }
        // Both terms are below 2^31 + 2^32, and the remainder is below 2^31.
        let wrapped = (i64::from(self.0) + i64::from(n)) % (i64::from(i32::MAX) + 1);
        Self(wrapped as i32)
    }

    /// Whether it comes before `other`, if they are less than half of all sequences apart.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        let ahead = (i64::from(other.0) - i64::from(self.0)).rem_euclid(i64::from(i32::MAX) + 1);
        (1..1 << 30).contains(&ahead)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_follows_the_highest_sequence() {
        assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
        assert_eq!(Sequence(i32::MAX - 2).plus(5), Sequence(2));
        assert_eq!(Sequence(7).plus(0), Sequence(7));
        assert_eq!(Sequence::NONE.plus(3), Sequence::NONE);
    }

    #[test]
    fn the_order_goes_on_across_the_wrap_around() {
        assert!(Sequence(3).is_before(Sequence(4)) && Sequence(i32::MAX).is_before(Sequence(2)));
        assert!(!Sequence(4).is_before(Sequence(4)) && !Sequence(2).is_before(Sequence(i32::MAX)));
    }

    proptest! {
        /// As Kafka's `DefaultRecordBatch.incrementSequence` has it.
        #[test]
        fn sequences_advance_as_a_broker_counts_them(sequence in 0..=i32::MAX, n in 0..=i32::MAX) {
            let expected = if sequence > i32::MAX - n { n - (i32::MAX - sequence) - 1 } else { sequence + n };
            prop_assert_eq!(Sequence(sequence).plus(n as u32), Sequence(expected));
        }
    }
}
