//! Sessions by hand.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{Ordering, fence};

use proxy_common::flows::Slot;
use proxy_common::splice::notes::RING;
use proxy_common::splice::policy::{FORWARD, Policy, Rule};
use proxy_common::splice::state::{Dir, Leg, Origin, Session};
use proxy_common::tables::Address;

/// An API whose requests the kernel may forward.
pub(crate) const FORWARDED: u16 = 1;
/// One whose requests are the daemon's.
pub(crate) const LOCAL: u16 = 3;
/// Largest frame that is forwarded.
pub(crate) const MAX_FRAME: u32 = 64 << 20;

/// Forwards [`FORWARDED`] in versions 0 to 15, and nothing else.
pub(crate) fn policy() -> Policy {
    let mut policy = Policy { max_frame: MAX_FRAME, in_flight: RING, ..Policy::NOTHING };
    policy.rules[usize::from(FORWARDED)] = Rule { flags: FORWARD, min_version: 0, max_version: 15 };
    policy
}

/// A host, and this host's end of the connection to it.
pub(crate) fn leg(interface: u32, ours: SocketAddr, theirs: SocketAddr) -> Leg {
    let words = |address: IpAddr| Address::from(address).words;
    Leg {
        interface,
        family: if ours.is_ipv4() { 4 } else { 6 },
        ours: words(ours.ip()),
        theirs: words(theirs.ip()),
        ports: u32::from(ours.port().to_be()) | u32::from(theirs.port().to_be()) << 16,
        ..Leg::default()
    }
}

/// Puts a fresh session into a slot. No flow may lead there yet.
///
/// # Safety
/// The pointer is to a slot that nobody else uses.
pub(crate) unsafe fn begin(slot: *mut Slot, generation: u32, legs: [Leg; 2], origins: [Origin; 2]) {
    let session = Session { legs, dirs: origins.each_ref().map(Dir::new), ..Session::default() };
    // SAFETY: by the caller's promise.
    unsafe { slot.write(Slot { generation, session, ..Slot::default() }) };
    fence(Ordering::SeqCst);
}
