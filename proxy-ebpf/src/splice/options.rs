// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! TCP options of spliced connections: SACK blocks in the layout that is translated, and NOPs for all the rest.

use proxy_common::checksum::Sum;
use proxy_common::headers::{Headers, TCP_LEN};
use proxy_common::syn::OPTION_WORDS;

use crate::Refused;
use crate::packet::Skb;
use crate::rewrite::adjust;

/// NOP, NOP, SACK: what Linux writes without timestamps. The fourth byte is the option's length.
const SACK: u32 = u32::from_ne_bytes([1, 1, 5, 0]);
const SACK_MASK: u32 = u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
const NOPS: u32 = 0x0101_0101;
/// Blocks that fit.
const BLOCKS: u32 = 4;

/// Memory for the blocks as they arrived.
pub type Blocks = [u32; 2 * BLOCKS as usize];

/// How many SACK blocks the options begin with, in the layout.
#[inline(always)]
pub fn sack_blocks(skb: Skb, h: &Headers) -> u32 {
    if h.tcp_length < TCP_LEN + 4 + 8 {
        return 0;
    }
    let Ok(word) = skb.load::<u32>(h.tcp_offset() + TCP_LEN) else { return 0 };
    if word & SACK_MASK != SACK {
        return 0;
    }
    let bytes = u32::from_be(word) & 0xff;
    let blocks = bytes.wrapping_sub(2) / 8;
    let fits = (1..=BLOCKS).contains(&blocks) && bytes == 2 + 8 * blocks && TCP_LEN + 4 + 8 * blocks <= h.tcp_length;
    if fits { blocks } else { 0 }
}

/// Puts NOPs in the place of every option but those blocks.
#[inline(always)]
pub fn clear(skb: Skb, h: &Headers, blocks: u32) -> Result<(), Refused> {
    let first = if blocks == 0 { TCP_LEN } else { TCP_LEN + 4 + 8 * blocks };
    if first >= h.tcp_length {
        return Ok(());
    }
    let nops = NOPS;
    let mut difference = Sum(0);
    let mut nth = 0;
    while nth < OPTION_WORDS as u32 {
        let at = TCP_LEN + 4 * nth;
        if at >= first && at < h.tcp_length {
            let word = skb.load::<u32>(h.tcp_offset() + at)?;
            difference = difference.replaced(word, nops);
            skb.store(h.tcp_offset() + at, &nops)?;
        }
        nth += 1;
    }
    adjust(skb, h, difference, false)
}

/// Remembers the blocks as they arrived.
#[inline(always)]
pub fn remember(skb: Skb, h: &Headers, count: u32, blocks: &mut Blocks) -> Result<(), Refused> {
    let mut nth = 0;
    while nth < BLOCKS {
        if nth < count {
            let [left, right] = skb.load::<[u32; 2]>(h.tcp_offset() + TCP_LEN + 4 + 8 * nth)?;
            blocks[2 * nth as usize] = left;
            blocks[2 * nth as usize + 1] = right;
        }
        nth += 1;
    }
    Ok(())
}

/// Writes the blocks as `map` has them; each call begins from what they were when they came.
#[inline(always)]
pub fn translate(
    skb: Skb,
    h: &Headers,
    count: u32,
    blocks: &Blocks,
    map: impl Fn(u32, u32) -> (u32, u32),
) -> Result<(), Refused> {
    let mut nth = 0;
    while nth < BLOCKS {
        if nth < count {
            let at = h.tcp_offset() + TCP_LEN + 4 + 8 * nth;
            let now = skb.load::<[u32; 2]>(at)?;
            let i = 2 * nth as usize;
            let (left, right) = map(u32::from_be(blocks[i]), u32::from_be(blocks[i + 1]));
            let then = [left.to_be(), right.to_be()];
            adjust(skb, h, Sum(0).replaced(now[0], then[0]).replaced(now[1], then[1]), false)?;
            skb.store(at, &then)?;
        }
        nth += 1;
    }
    Ok(())
}
