// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! One direction of a wire.

use std::collections::BTreeMap;

use super::{Faults, Rng, merge, reshape, split};
use crate::tcp::{Micros, Segment};

/// Bytes of a packet beside its payload.
const HEADERS: u64 = 66;

/// One direction of a wire.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    rng: Rng,
    faults: Faults,
    delay: Micros,
    /// Bytes per millisecond; 0: unlimited.
    rate: u64,
    free_at: Micros,
    /// What is on the way, in the order of arrival.
    flying: BTreeMap<(Micros, u64), Segment>,
    sent: u64,
    faults_done: u32,
    calm: bool,
}

impl Link {
    /// A link that takes `delay`, and longer if its `rate` (bytes per millisecond, 0: unlimited) is exceeded.
    pub(crate) fn new(rng: Rng, faults: Faults, delay: Micros, rate: u64) -> Self {
        let flying = BTreeMap::new();
        Self { rng, faults, delay, rate, free_at: 0, flying, sent: 0, faults_done: 0, calm: false }
    }

    /// From now on nothing goes wrong; what is on the way arrives as it was fated to. Reshaping goes on.
    pub(crate) fn calm(&mut self) {
        self.calm = true;
    }

    /// Losses, doublings, damages and delays so far.
    pub(crate) fn faults_done(&self) -> u32 {
        self.faults_done
    }

    /// Sends a segment at `now`.
    pub(crate) fn send(&mut self, now: Micros, segment: Segment) {
        let whole = self.rng.chance(self.faults.whole);
        let packets = if whole { vec![segment] } else { reshape::packets(segment) };
        for mut packet in packets {
            let at = 1 + self.rng.below(packet.payload.len().saturating_sub(1) as u64) as usize;
            let rest = if self.rng.chance(self.faults.cutting) { split(&mut packet, at) } else { None };
            self.transmit(now, packet);
            if let Some(rest) = rest {
                self.transmit(now, rest);
            }
        }
    }

    fn transmit(&mut self, now: Micros, mut packet: Segment) {
        let bytes = packet.payload.len() as u64 + HEADERS;
        self.free_at = self.free_at.max(now) + (bytes * 1_000).checked_div(self.rate).unwrap_or(0);
        if self.befalls(self.faults.damage) {
            self.damage(&mut packet);
        }
        let doubled = self.befalls(self.faults.duplication);
        if doubled {
            self.fly(packet.clone());
        }
        if !self.befalls(self.faults.loss) {
            self.fly(packet);
        }
    }

    fn fly(&mut self, packet: Segment) {
        let held = if self.befalls(self.faults.reordering) { self.rng.below(self.faults.jitter) } else { 0 };
        let arrival = (self.free_at + self.delay + held).next_multiple_of(self.faults.coalescing.max(1));
        self.flying.insert((arrival, self.sent), packet);
        self.sent += 1;
    }

    /// Whether a fault of this rate happens now.
    fn befalls(&mut self, per_mille: u32) -> bool {
        let happens = self.rng.chance(per_mille) && !self.calm && self.faults_done < self.faults.budget;
        self.faults_done += u32::from(happens);
        happens
    }

    fn damage(&mut self, packet: &mut Segment) {
        packet.checksum_ok = false;
        let bit = self.rng.below(32) as u32;
        let at = self.rng.below(packet.payload.len() as u64) as usize;
        match (self.rng.below(4), packet.payload.get_mut(at)) {
            (0, _) => packet.seq ^= 1 << bit,
            (1, _) => packet.ack ^= 1 << bit,
            (2, Some(byte)) | (3, Some(byte)) => *byte ^= 1 << (bit % 8),
            _ => packet.window ^= 1 << (bit % 16),
        }
    }

    /// When the next segment arrives.
    pub(crate) fn next_arrival(&self) -> Option<Micros> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next segment that has arrived by `now`, perhaps joined with those that came right behind.
    pub(crate) fn receive(&mut self, now: Micros) -> Option<Segment> {
        let mut segment = self.pop(now)?;
        while self.rng.chance(self.faults.merging) {
            let Some(key) = self.flying.first_key_value().map(|(key, _)| *key).filter(|(at, _)| *at <= now) else {
                break;
            };
            let Some(next) = self.flying.remove(&key) else { break };
            if let Some(alone) = merge(&mut segment, next) {
                self.flying.insert(key, alone);
                break;
            }
        }
        Some(segment)
    }

    fn pop(&mut self, now: Micros) -> Option<Segment> {
        let first = self.flying.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
