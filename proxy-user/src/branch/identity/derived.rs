//! Producer ids that every gateway computes alike, with no store between them.

use ring::digest;

use super::streams::{Generation, StreamKey};
use crate::branch::ids::ProducerId;

/// The first derived producer id. Clusters count theirs up from 0, a block of 1000 at a time, and never get here.
pub const FIRST_DERIVED: ProducerId = ProducerId(1 << 62);

/// What all producers of one branch have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The mainline cluster's own id.
    pub cluster: String,
    /// The branch's name in the config.
    pub branch: String,
}

impl Seed {
    /// The producer that writes for one client's producer on one partition, in 2^62..2^63. The source partition is part
    /// of it because renames and partition policies can merge what the mainline keeps apart.
    #[must_use]
    pub fn producer(&self, stream: &StreamKey, generation: Generation) -> ProducerId {
        let mut context = digest::Context::new(&digest::SHA256);
        for text in [&*self.cluster, &*self.branch, &*stream.topic] {
            // A topic has 249 bytes, a name of the config is a line.
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text.as_bytes());
        }
        context.update(&stream.partition.0.to_be_bytes());
        context.update(&stream.producer.0.to_be_bytes());
        context.update(&generation.0.to_be_bytes());
        let digest = context.finish();
        let first = digest.as_ref().iter().take(8).fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        // 62 bits of the digest, so the sum is a positive i64.
        ProducerId(FIRST_DERIVED.0 | (first >> 2) as i64)
    }

    /// Whether a producer id is one that branches write under: no cluster has given it to a client.
    #[must_use]
    pub fn is_derived(producer: ProducerId) -> bool {
        producer >= FIRST_DERIVED
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::branch::ids::PartitionId;

    fn seed() -> Seed {
        Seed { cluster: "mk6u1T3xQZ".into(), branch: "staging".into() }
    }

    fn stream(topic: &str, partition: i32, producer: i64) -> StreamKey {
        StreamKey { topic: topic.into(), partition: PartitionId(partition), producer: ProducerId(producer) }
    }

    /// The value is part of the format: gateways of different versions run side by side. It was
    /// computed by other means (Python's hashlib).
    #[test]
    fn the_id_never_changes() {
        assert_eq!(seed().producer(&stream("orders", 3, 1000), Generation(0)), ProducerId(5_151_573_196_110_248_382));
    }

    #[test]
    fn whatever_differs_makes_another_producer() {
        let other_cluster = Seed { cluster: "other".into(), ..seed() };
        let other_branch = Seed { branch: "audit".into(), ..seed() };
        let shifted = Seed { cluster: "mk6u1T3xQZs".into(), branch: "taging".into() };
        let ids = [
            seed().producer(&stream("orders", 3, 1000), Generation(0)),
            seed().producer(&stream("orders", 3, 1000), Generation(1)),
            seed().producer(&stream("orders", 3, 1001), Generation(0)),
            seed().producer(&stream("orders", 4, 1000), Generation(0)),
            seed().producer(&stream("order", 3, 1000), Generation(0)),
            other_cluster.producer(&stream("orders", 3, 1000), Generation(0)),
            other_branch.producer(&stream("orders", 3, 1000), Generation(0)),
            shifted.producer(&stream("orders", 3, 1000), Generation(0)),
        ];
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    }

    proptest! {
        #[test]
        fn every_id_is_one_that_no_cluster_gives_to_clients(
            topic in "[a-z.]{1,12}", partition in 0..1000, producer in 0..i64::MAX, generation in any::<u32>(),
        ) {
            let id = seed().producer(&stream(&topic, partition, producer), Generation(generation));
            prop_assert!(id.0 >= 1 << 62 && Seed::is_derived(id));
        }
    }
}
