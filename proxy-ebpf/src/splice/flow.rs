// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! From a packet to its session.

use proxy_common::flows::{FlowEntry, FlowKey, Slot};
use proxy_common::headers::Headers;
use proxy_common::packet::segment;

use crate::maps::{FLOWS, SESSIONS};
use crate::packet::Skb;

/// Whose packet it is.
#[inline(always)]
pub fn find(key: &FlowKey) -> Option<&'static FlowEntry> {
    // SAFETY: the map is not preallocated, so an element that is removed lives on until this program ends.
    unsafe { FLOWS.get(key) }
}

/// Whose packet it is, by its headers.
#[inline(never)]
pub fn of(skb: Skb, h: &Headers) -> Option<&'static FlowEntry> {
    find(&FlowKey { source: h.source, destination: h.destination, ports: h.tcp[0], interface: skb.interface() })
}

/// The slot of a flow, while the flow is the slot's own.
#[inline(always)]
pub fn slot(flow: &FlowEntry) -> Option<*mut Slot> {
    let slot = SESSIONS.get_ptr_mut(flow.session)?;
    // SAFETY: the pointer is to a slot of the map. The daemon changes the generation only while no flow leads here; a
    // flow that was found before that is let go by this check.
    let generation = unsafe { (&raw const (*slot).generation).read_volatile() };
    (generation == flow.generation).then_some(slot)
}

/// Whether a packet that isn't in the form is a session's all the same; it is noted there.
#[inline(never)]
pub fn is_odd_of_session(skb: Skb) -> bool {
    let Ok(found) = segment(&skb) else { return false };
    let key = FlowKey {
        source: found.source,
        destination: found.destination,
        ports: u32::from(found.source_port.to_be()) | u32::from(found.destination_port.to_be()) << 16,
        interface: skb.interface(),
    };
    let Some(slot) = find(&key).and_then(slot) else { return false };
    // SAFETY: as in `slot`. Two CPUs at once may cost a count.
    unsafe { (*slot).malformed += 1 };
    true
}
