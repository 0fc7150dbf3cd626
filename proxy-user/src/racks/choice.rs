//! Which of several replicas: a stable spread, so that replicas share the readers, and every gateway sends a reader to the
//! same one. Rendezvous hashing with weights: a replica that comes or goes moves only the readers that it gains or loses.

use crate::kafka::ids::NodeId;

/// The replica with the highest score, each with its weight. `client` is what readers have in common that belong
/// together: their client id.
#[must_use]
pub fn choose(
    client: &str,
    topic: &str,
    partition: i32,
    candidates: impl Iterator<Item = (NodeId, u16)>,
) -> Option<NodeId> {
    let reader = hash(hash(hash(SEED, client.as_bytes()), topic.as_bytes()), &partition.to_be_bytes());
    let scored = candidates.map(|(node, weight)| (score(reader, node, weight), node));
    scored.max_by(|(a, x), (b, y)| a.total_cmp(b).then(y.cmp(x))).map(|(_, node)| node)
}

/// FNV-1a, 64 bits.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let hashed = bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    // So that ("ab", "c") and ("a", "bc") differ.
    (hashed ^ bytes.len() as u64).wrapping_mul(PRIME)
}

/// −weight / ln(u), with u between 0 and 1 by hash: the share of readers is the share of the weight.
fn score(reader: u64, node: NodeId, weight: u16) -> f64 {
    let mut mixed = hash(reader, &node.0.to_be_bytes());
    // The finalizer of splitmix64: FNV alone leaves the upper bits too much alike.
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // 53 bits are what a double holds; the half keeps it from 0 and 1.
    let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -f64::from(weight) / unit.ln()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn pick(client: &str, partition: i32, nodes: &[(i32, u16)]) -> Option<i32> {
        choose(client, "orders", partition, nodes.iter().map(|(n, w)| (NodeId(*n), *w))).map(|node| node.0)
    }

    #[test]
    fn readers_spread_by_weight() {
        let mut counts: HashMap<i32, u32> = HashMap::new();
        for partition in 0..6000 {
            *counts.entry(pick("app", partition, &[(1, 1), (2, 1), (3, 4)]).expect("one")).or_default() += 1;
        }
        for (node, share) in [(1, 1000), (2, 1000), (3, 4000)] {
            assert!(counts[&node].abs_diff(share) < share / 8, "{counts:?}");
        }
        let of_clients = (0..600).filter(|n| pick(&format!("app-{n}"), 0, &[(1, 1), (2, 1)]) == Some(1)).count();
        assert!((240..=360).contains(&of_clients), "{of_clients}");
    }

    #[test]
    fn every_version_chooses_alike() {
        // Gateways of different versions run side by side in an upgrade.
        let picks: Vec<_> = (0..8).map(|p| pick("app", p, &[(1, 1), (2, 1), (3, 1)]).expect("one")).collect();
        assert_eq!(picks, PICKS);
    }

    const PICKS: [i32; 8] = [1, 1, 1, 3, 3, 2, 3, 2];

    proptest! {
        #[test]
        fn a_replica_that_goes_moves_its_own_readers_alone(
            nodes in prop::collection::btree_map(0i32..20, 1u16..1000, 1..8), gone: prop::sample::Index, partition: i32, client in "[a-z]{0,5}",
        ) {
            let nodes: Vec<_> = nodes.into_iter().collect();
            let before = pick(&client, partition, &nodes).expect("one");
            let gone = nodes[gone.index(nodes.len())].0;
            let rest: Vec<_> = nodes.iter().copied().filter(|(n, _)| *n != gone).collect();
            let after = pick(&client, partition, &rest);
            prop_assert!(before == gone || after == Some(before));
            let reversed: Vec<_> = nodes.iter().rev().copied().collect();
            prop_assert_eq!(pick(&client, partition, &reversed), Some(before), "the order doesn't matter");
        }
    }
}
