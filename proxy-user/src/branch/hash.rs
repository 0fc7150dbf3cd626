//! A hash that is the same in every process, version and host: other gateways must come to the same decisions.
//!
//! FNV-1a over the fields, each with its length, and the finaliser of SplitMix64, which spreads what FNV leaves in the
//! low bits. It is no defence against chosen input, and nothing here needs one.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The hash of some fields, in order.
pub(super) fn stable(fields: &[&[u8]]) -> u64 {
    let mut hash = OFFSET;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    };
    for field in fields {
        add(&(field.len() as u64).to_be_bytes());
        add(field);
    }
    finish(hash)
}

fn finish(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_never_changes() {
        assert_eq!(stable(&[]), finish(OFFSET));
        assert_eq!(stable(&[b"orders", &7i64.to_be_bytes()]), 0xfbdf_bfe7_a3bc_b858);
    }

    #[test]
    fn where_a_field_ends_matters() {
        assert_ne!(stable(&[b"ab", b"c"]), stable(&[b"a", b"bc"]));
        assert_ne!(stable(&[b"", b"a"]), stable(&[b"a", b""]));
    }
}
