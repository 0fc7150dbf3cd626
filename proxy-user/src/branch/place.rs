//! Which partition of the branch's topic a batch goes to.

use super::ids::PartitionId;

/// How partitions of the mainline map to those of the branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The same number. A batch whose partition the branch lacks is missing there.
    #[default]
    Same,
    /// The number modulo the branch's count: streams may merge, none is lost.
    Modulo,
    /// The same number. Batches whose partition the branch lacks are left out on purpose.
    Drop,
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To this partition.
    To(PartitionId),
    /// Nowhere, and that is a loss.
    Lacking,
    /// Nowhere, as configured.
    LeftOut,
}

impl Policy {
    /// Where a batch of partition `source` goes on a topic with `count` partitions.
    #[must_use]
    pub fn place(self, source: PartitionId, count: u32) -> Placement {
        let Ok(number) = u32::try_from(source.0) else { return Placement::Lacking };
        match self {
            _ if number < count => Placement::To(source),
            Self::Same => Placement::Lacking,
            Self::Drop => Placement::LeftOut,
            // Below `number`, which is an i32.
            Self::Modulo => {
                number.checked_rem(count).map_or(Placement::Lacking, |n| Placement::To(PartitionId(n as i32)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_both_have_keeps_its_number() {
        for policy in [Policy::Same, Policy::Modulo, Policy::Drop] {
            assert_eq!(policy.place(PartitionId(2), 3), Placement::To(PartitionId(2)), "{policy:?}");
        }
    }

    #[test]
    fn a_partition_that_the_branch_lacks_goes_by_policy() {
        assert_eq!(Policy::Same.place(PartitionId(3), 3), Placement::Lacking);
        assert_eq!(Policy::Drop.place(PartitionId(3), 3), Placement::LeftOut);
        assert_eq!(Policy::Modulo.place(PartitionId(7), 3), Placement::To(PartitionId(1)));
    }

    #[test]
    fn a_topic_without_partitions_and_a_negative_number_have_no_place() {
        for policy in [Policy::Same, Policy::Modulo] {
            assert_eq!(policy.place(PartitionId(0), 0), Placement::Lacking, "{policy:?}");
            assert_eq!(policy.place(PartitionId(-1), 3), Placement::Lacking, "{policy:?}");
        }
        assert_eq!(Policy::Modulo.place(PartitionId(i32::MAX), u32::MAX), Placement::To(PartitionId(i32::MAX)));
    }
}
