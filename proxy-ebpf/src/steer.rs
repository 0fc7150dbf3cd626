// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! `turnout_steer` (sk_lookup): one listening socket for every port of ours.

use core::ptr::addr_of;

use aya_ebpf::bindings::bpf_sk_lookup;
use aya_ebpf::bindings::sk_action::{SK_DROP, SK_PASS};
use aya_ebpf::macros::sk_lookup;
use aya_ebpf::programs::SkLookupContext;
use proxy_common::steer::{Attempt, Tables, Verdict, steer};
use proxy_common::tables::{Address, Count, PortEntry, PortKey, Reason, family_index, first_socket};

use crate::maps::{SOCKET_COUNTS, SOCKETS};
use crate::{count, find_port, refuse};

const IPPROTO_TCP: u32 = 6;
const AF_INET: u32 = 2;

/// The maps, as steering asks for them.
struct Maps;

impl Tables for Maps {
    #[inline(always)]
    fn port(&self, key: &PortKey) -> Option<PortEntry> {
        find_port(key)
    }

    #[inline(always)]
    fn sockets(&self, v4: bool) -> u32 {
        SOCKET_COUNTS.get(family_index(v4)).map_or(0, |count| count.sockets)
    }
}

/// Gives connections to ports of ours to the daemon's sockets, refuses those to ports of ours without a broker, and
/// lets everything else alone. Refused: the kernel answers as if nobody listened, with RST.
#[sk_lookup]
pub fn turnout_steer(ctx: SkLookupContext) -> u32 {
    let Some(attempt) = attempt(&ctx) else { return SK_PASS };
    match steer(&attempt, &Maps) {
        Verdict::Pass => SK_PASS,
        Verdict::Refuse { slot, reason } => {
            refuse(slot, &attempt.source, reason);
            SK_DROP
        }
        Verdict::Assign { slot, socket } => {
            let first = first_socket(attempt.destination.address.is_v4());
            // One that was taken out just now is stood in for by the first.
            let assigned = SOCKETS.redirect_sk_lookup(&ctx, first + socket, 0).is_ok()
                || SOCKETS.redirect_sk_lookup(&ctx, first, 0).is_ok();
            if assigned {
                count(slot, Count::Steered);
                SK_PASS
            } else {
                #[cfg(feature = "log")]
                aya_log_ebpf::debug!(&ctx, "no socket: slot {} family {}", slot, attempt.source.family);
                refuse(slot, &attempt.source, Reason::NoSocket);
                SK_DROP
            }
        }
    }
}

/// Reads one field of the context.
macro_rules! field {
    ($ctx:expr, $($field:tt)+) => {
        // SAFETY: the context is the one this program was called with. Volatile, because the verifier takes loads of
        // exactly the field's width only, and the compiler would join them.
        unsafe { addr_of!((*$ctx).$($field)+).read_volatile() }
    };
}

/// `None`: not TCP.
#[inline(always)]
fn attempt(ctx: &SkLookupContext) -> Option<Attempt> {
    let raw: *const bpf_sk_lookup = ctx.lookup;
    if field!(raw, protocol) != IPPROTO_TCP {
        return None;
    }
    let (source, destination) = if field!(raw, family) == AF_INET {
        (v4(field!(raw, remote_ip4)), v4(field!(raw, local_ip4)))
    } else {
        let remote = [
            field!(raw, remote_ip6[0]),
            field!(raw, remote_ip6[1]),
            field!(raw, remote_ip6[2]),
            field!(raw, remote_ip6[3]),
        ];
        let local = [
            field!(raw, local_ip6[0]),
            field!(raw, local_ip6[1]),
            field!(raw, local_ip6[2]),
            field!(raw, local_ip6[3]),
        ];
        (Address { words: remote, family: 6 }, Address { words: local, family: 6 })
    };
    Some(Attempt {
        source,
        source_port: field!(raw, remote_port) as u32,
        destination: PortKey { address: destination, port: field!(raw, local_port) },
    })
}

#[inline(always)]
fn v4(word: u32) -> Address {
    Address { words: [word, 0, 0, 0], family: 4 }
}
