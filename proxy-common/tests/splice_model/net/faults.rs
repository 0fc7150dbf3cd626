// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What may happen to segments on the way.

use crate::tcp::Micros;

/// Rates are in thousandths, of segments as they are on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    /// A byte of the payload or a bit of the header is flipped, and the checksum doesn't fit any more.
    pub(crate) damage: u32,
    /// Held back by up to `jitter`, while others pass.
    pub(crate) reordering: u32,
    pub(crate) jitter: Micros,
    /// Cut in two at any byte.
    pub(crate) cutting: u32,
    /// A segment of many packets goes through whole, as between two virtual interfaces; else it is cut into them.
    pub(crate) whole: u32,
    /// Neighbours that arrive together are joined, as a receiver's GRO does.
    pub(crate) merging: u32,
    /// Arrivals are noticed at multiples of this (interrupt coalescing), which is what lets them arrive together;
    /// 0 or 1: at once.
    pub(crate) coalescing: Micros,
    /// How many losses, doublings, damages and delays happen at most; then they end.
    pub(crate) budget: u32,
}

impl Faults {
    /// A link that only takes time.
    pub(crate) const NONE: Self = Self {
        loss: 0,
        duplication: 0,
        damage: 0,
        reordering: 0,
        jitter: 0,
        cutting: 0,
        whole: 0,
        merging: 0,
        coalescing: 0,
        budget: u32::MAX,
    };
}
