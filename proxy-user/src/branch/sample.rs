//! Copying a share of the batches.

use super::hash;
use super::ids::PartitionId;
use super::produce::batch::Batch;

const WHOLE: u32 = 1_000_000;

/// A share of all batches, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// Every batch.
    pub const ALL: Self = Self(WHOLE);

    /// So many in a million; `None` above a million.
    #[must_use]
    pub fn of_million(millionths: u32) -> Option<Self> {
        (millionths <= WHOLE).then_some(Self(millionths))
    }

    /// Whether nothing is left out.
    #[must_use]
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }

    /// Whether this batch is among them. A client's retry of a batch meets the same fate on every gateway: the bytes
    /// that decide are those that a retry repeats. What a smaller share keeps a larger one keeps too.
    #[must_use]
    pub fn keeps(self, topic: &str, partition: PartitionId, batch: &Batch) -> bool {
        if self.is_all() {
            return true;
        }
        let stamp = batch.stamp();
        let partition = partition.0.to_be_bytes();
        let hash = if stamp.producer.is_idempotent() {
            let (producer, epoch) = (stamp.producer.0.to_be_bytes(), stamp.epoch.0.to_be_bytes());
            hash::stable(&[topic.as_bytes(), &partition, &producer, &epoch, &stamp.sequence.0.to_be_bytes()])
        } else {
            // Without a sequence the checksum tells batches apart, whose records have their times.
            let (crc, newest) = (batch.crc().to_be_bytes(), batch.max_timestamp().to_be_bytes());
            hash::stable(&[topic.as_bytes(), &partition, &crc, &newest])
        };
        (u128::from(hash) * u128::from(WHOLE)) >> 64 < u128::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::branch::produce::testing::{Draft, batch, by};

    fn kept(share: u32, batches: impl Iterator<Item = Draft>) -> usize {
        let share = Share::of_million(share).unwrap();
        batches.filter(|draft| share.keeps("orders", PartitionId(0), &batch(draft))).count()
    }

    #[test]
    fn about_the_share_is_kept_of_every_kind_of_producer() {
        let idempotent = || (0..20_000).map(|n| by(1000, 0, n, 1));
        let plain = || (0..20_000u32).map(|n| Draft { payload: n.to_be_bytes().to_vec(), ..Draft::default() });
        // 20 000 draws at a tenth: 2000, with a standard deviation of 42.
        assert!((1800..2200).contains(&kept(100_000, idempotent())));
        assert!((1800..2200).contains(&kept(100_000, plain())));
        assert_eq!(kept(0, idempotent()), 0);
        assert_eq!(kept(1_000_000, idempotent()), 20_000);
        assert_eq!(Share::of_million(1_000_001), None);
    }

    proptest! {
        #[test]
        fn a_retry_meets_the_same_fate_and_a_larger_share_keeps_more(
            producer in -1..50i64, sequence in 0..1000, small in 0..=WHOLE, large in 0..=WHOLE,
        ) {
            let draft = by(producer, 0, sequence, 3);
            let fate = |share: u32| Share(share).keeps("orders", PartitionId(1), &batch(&draft));
            prop_assert_eq!(fate(small), fate(small));
            prop_assert!(small > large || fate(large) || !fate(small));
        }
    }
}
