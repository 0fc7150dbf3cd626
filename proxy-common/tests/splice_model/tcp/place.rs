// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Places in a stream: sequence numbers that don't wrap.

/// The place at which a stream starts whose first sequence number is `seq`: far enough from zero to look back.
pub(super) fn first(seq: u32) -> u64 {
    (1 << 32) + u64::from(seq)
}

/// The place nearest to `near` whose sequence number is `seq`.
pub(super) fn find(near: u64, seq: u32) -> u64 {
    let distance = seq.wrapping_sub(near as u32).cast_signed();
    near.wrapping_add_signed(distance.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_again_across_every_wrap() {
        for at in [first(0), first(7), first(u32::MAX), first(0x8000_0000), first(9) + (3 << 32)] {
            for distance in [0, 1, 70_000, i64::from(i32::MAX)] {
                for place in [at.wrapping_add_signed(distance), at.wrapping_add_signed(-distance)] {
                    assert_eq!(find(at, place as u32), place, "{distance} from {at}");
                }
            }
        }
    }
}
