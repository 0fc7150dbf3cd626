// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Is a packet's checksum right? TC runs before TCP verifies, and a damaged header must not move the state.

use aya_ebpf::bindings::BPF_CSUM_LEVEL_QUERY;
use aya_ebpf::helpers::{bpf_csum_diff, bpf_csum_level};
use proxy_common::checksum::{Sum, pseudo};
use proxy_common::headers::Headers;
use proxy_common::splice::segment::Soundness;

use crate::maps::PIECE;
use crate::packet::Skb;

/// Memory for a piece of payload.
pub type Piece = [u64; PIECE / 8];

/// Offset of the checksum in a TCP header.
pub const CHECK: u32 = 16;

/// Pieces that are summed at most: the largest packet there is without segmentation.
const PIECES: u32 = 65_536 / PIECE as u32;

/// Whether the checksum is verified, vouched for, or not yet made; else it is computed.
#[inline(always)]
pub fn soundness(skb: Skb, h: &Headers, piece: *mut Piece) -> Soundness {
    // Segments were verified before they were merged, and packets to be segmented have no checksum yet.
    // SAFETY: the context is the one this program was called with.
    if skb.gso() != 0 || unsafe { bpf_csum_level(skb.0, BPF_CSUM_LEVEL_QUERY.into()) } >= 0 {
        return Soundness::Sound;
    }
    let Ok(check) = skb.load::<u16>(h.tcp_offset() + CHECK) else { return Soundness::BadForm };
    let pseudo = pseudo(h);
    // What the sender's kernel leaves there for the card to complete. A damaged packet has it once in 65536 times.
    if check == pseudo.folded() {
        return Soundness::Sound;
    }
    match sum(skb, piece, h.tcp_offset(), h.tcp_length + h.payload) {
        Some(sum) if pseudo.plus(sum).folded() == 0xffff => Soundness::Sound,
        _ => Soundness::BadChecksum,
    }
}

/// Sums bytes of the packet.
#[inline(always)]
pub fn sum(skb: Skb, piece: *mut Piece, offset: u32, length: u32) -> Option<u32> {
    let mut sum = 0;
    let mut at = 0;
    let mut pieces = 0;
    while pieces < PIECES {
        if length.wrapping_sub(at) < PIECE as u32 {
            break;
        }
        if !skb.load_into(offset + at, piece, PIECE as u32) {
            return None;
        }
        sum = add(piece, PIECE as u32, sum);
        at += PIECE as u32;
        pieces += 1;
    }
    let left = length.wrapping_sub(at);
    if left == 0 {
        return Some(sum);
    }
    // SAFETY: a plain read of a local. Volatile, or the compiler would see that the mask below changes nothing.
    let left = unsafe { (&raw const left).read_volatile() } & (PIECE as u32 - 1);
    if left == 0 {
        return None;
    }
    // The sum is of whole words: what follows the last byte in its word must be 0.
    let word = (left / 4) as usize;
    // SAFETY: `left` is below the size of the piece, so the word lies in it.
    unsafe { piece.cast::<u32>().add(word).write_volatile(0) };
    if !skb.load_into(offset + at, piece, left) {
        return None;
    }
    Some(add(piece, (left + 3) & !3, sum))
}

#[inline(always)]
fn add(piece: *mut Piece, length: u32, seed: u32) -> u32 {
    // SAFETY: the verifier checks that the piece has `length` bytes.
    unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, piece.cast(), length, seed) as u32 }
}

/// The sum of the payload from `keep` on, as it counts in the checksum.
#[inline(always)]
pub fn tail(skb: Skb, h: &Headers, piece: *mut Piece, keep: u32) -> Option<u32> {
    // Words begin at even offsets; the byte before an odd one is taken out again.
    let from = keep & !1;
    let whole = sum(skb, piece, h.payload_offset() + from, h.payload - from)?;
    if keep & 1 == 0 {
        return Some(whole);
    }
    let kept = skb.load::<u8>(h.payload_offset() + from).ok()?;
    Some(Sum(0).plus(whole).minus(u32::from_ne_bytes([kept, 0, 0, 0])).partial())
}
