// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Keeps the verifier's work small.
//!
//! The verifier follows every path, and gives one up where it meets the state of another. It takes two numbers for the
//! same unless a branch was decided by one of them: a condition kept as 0 or 1 and asked later, or a 0 that one path
//! has for what the others compute, splits everything in between. What went through here is a number that it knows
//! nothing of, so it asks such a branch both ways, once.

#[cfg(target_arch = "bpf")]
use super::word::Word;

/// Always 0, which nobody can know: the map that it lies in is not frozen.
#[cfg(target_arch = "bpf")]
static NOTHING: Word = Word::new(0);

/// The same number.
#[must_use]
#[inline(always)]
pub fn number(value: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    let value = value ^ NOTHING.load();
    value
}

/// The same answer.
#[must_use]
#[inline(always)]
pub fn answer(value: bool) -> bool {
    number(value as u32) != 0
}
