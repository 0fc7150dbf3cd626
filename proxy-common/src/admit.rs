// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Admission: whether a packet may reach the host's sockets.
//!
//! ```text
//! TCP, and for a port of ours on an address of ours?   no → pass, untouched and uncounted
//!   from a denied prefix                                  → drop (every packet: a reload cuts live flows)
//!   contradicts itself (`packet`)                         → drop
//!   asks for a new connection (SYN without ACK)?       no → pass
//!     allow list in force, and not on it                  → drop
//!     above its source's rate                             → drop
//!     else                                                → pass, counted
//! ```
//! The exact address is looked up before the unspecified one of its family, as `bind` has it. An unspecified listen
//! address means addresses of this host only, so that traffic which is routed through it is never touched.

use crate::packet::{Packet, segment};
use crate::tables::{Address, PortEntry, PortKey, Reason, Settings};

/// What is to be known to judge a source. In the kernel these are map lookups; the daemon, which judges connections that
/// no program saw, has tables of its own.
pub trait Rules {
    /// Whether the address lies in a denied prefix.
    fn denies(&self, address: &Address) -> bool;
    /// Whether the address lies in an allowed prefix.
    fn allows(&self, address: &Address) -> bool;
    /// What holds for all ports; `None` is taken for [`Settings::open`].
    fn settings(&self) -> Option<Settings>;
    /// The state of a source's rate, 0 where it isn't remembered.
    fn bucket(&self, source: &Address) -> u64;
    /// Remembers it.
    fn set_bucket(&self, source: &Address, state_ns: u64);
    /// The monotonic clock.
    fn now_ns(&self) -> u64;
}

/// What is to be known to judge a packet. In tests it is what the test says.
pub trait Tables: Rules {
    /// The entry of exactly this address and port.
    fn port(&self, key: &PortKey) -> Option<PortEntry>;
    /// Whether this host has the address.
    fn is_host(&self, address: &Address) -> bool;
}

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not for us, or not known to be: pass.
    NotOurs,
    /// For a port of ours: pass.
    Pass {
        /// Whose port it is.
        slot: u16,
        /// It asks for a new connection.
        opens: bool,
    },
    /// Drop it.
    Drop {
        /// Whose port it is.
        slot: u16,
        /// Who sent it.
        source: Address,
        /// Why.
        reason: Reason,
    },
}

/// Judges a packet that begins with an Ethernet header.
#[inline(always)]
pub fn admit<P: Packet + ?Sized, T: Tables + ?Sized>(packet: &P, tables: &T) -> Verdict {
    let Ok(segment) = segment(packet) else { return Verdict::NotOurs };
    let key = PortKey { address: segment.destination, port: segment.destination_port as u32 };
    let Some(PortEntry { slot, .. }) = find(&key, tables) else { return Verdict::NotOurs };
    let source = segment.source;
    if tables.denies(&source) {
        return Verdict::Drop { slot, source, reason: Reason::Deny };
    }
    if !segment.well_formed {
        return Verdict::Drop { slot, source, reason: Reason::Malformed };
    }
    if !segment.opens() {
        return Verdict::Pass { slot, opens: false };
    }
    match refuse_new(&source, tables) {
        Some(reason) => Verdict::Drop { slot, source, reason },
        None => Verdict::Pass { slot, opens: true },
    }
}

#[inline(always)]
fn find<T: Tables + ?Sized>(key: &PortKey, tables: &T) -> Option<PortEntry> {
    if let Some(entry) = tables.port(key) {
        return Some(entry);
    }
    let entry = tables.port(&key.on_unspecified())?;
    if tables.is_host(&key.address) { Some(entry) } else { None }
}

/// Why a connection is refused, if it is, by who sees connections and no packets. An admitted one is charged to its
/// source.
pub fn refuse<R: Rules + ?Sized>(source: &Address, rules: &R) -> Option<Reason> {
    if rules.denies(source) { Some(Reason::Deny) } else { refuse_new(source, rules) }
}

/// Why a new connection of a source that isn't denied is refused, if it is. An admitted one is charged to its source.
#[inline(always)]
fn refuse_new<R: Rules + ?Sized>(source: &Address, rules: &R) -> Option<Reason> {
    let settings = rules.settings()?;
    if settings.allow_listed_only != 0 && !rules.allows(source) {
        return Some(Reason::NotAllowed);
    }
    if settings.limit_rate == 0 {
        return None;
    }
    let prefix = settings.source(source);
    match settings.rate().admit(rules.bucket(&prefix), rules.now_ns()) {
        Some(state) => {
            rules.set_bucket(&prefix, state);
            None
        }
        None => Some(Reason::Rate),
    }
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
