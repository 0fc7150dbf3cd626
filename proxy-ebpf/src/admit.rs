// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! `turnout_admit` (XDP): admission before there is a socket.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::xdp;
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::programs::XdpContext;
use proxy_common::admit::{Rules, Tables, Verdict, admit};
use proxy_common::tables::{Address, Count, PortEntry, PortKey, SETTINGS_KEY, Settings};

use crate::maps::{ALLOW_V4, ALLOW_V6, BUCKET_TABLE, DENY_V4, DENY_V6, HOST, SETTINGS};
use crate::packet::XdpPacket;
use crate::{count, find_port, refuse};

/// The maps, as admission asks for them.
struct Maps;

impl Rules for Maps {
    #[inline(always)]
    fn denies(&self, address: &Address) -> bool {
        if address.is_v4() {
            DENY_V4.get(Key::new(32, [address.words[0]])).is_some()
        } else {
            DENY_V6.get(Key::new(128, address.words)).is_some()
        }
    }

    #[inline(always)]
    fn allows(&self, address: &Address) -> bool {
        if address.is_v4() {
            ALLOW_V4.get(Key::new(32, [address.words[0]])).is_some()
        } else {
            ALLOW_V6.get(Key::new(128, address.words)).is_some()
        }
    }

    #[inline(always)]
    fn settings(&self) -> Option<Settings> {
        // SAFETY: the map is not preallocated, so an element that is replaced lives on until this program ends.
        unsafe { SETTINGS.get(SETTINGS_KEY) }.copied()
    }

    #[inline(always)]
    fn bucket(&self, source: &Address) -> u64 {
        match BUCKET_TABLE.get_ptr(source) {
            // SAFETY: the pointer is to an aligned u64 of the map. Its element may have been given to another source
            // meanwhile; the worst is one wrong judgement of one connection.
            Some(state) => unsafe { state.read_volatile() },
            None => 0,
        }
    }

    #[inline(always)]
    fn set_bucket(&self, source: &Address, state_ns: u64) {
        // Read and written in two steps: packets of one source that arrive on two CPUs at once may pay once. Where no
        // element can be had at all, the source is not remembered, and so not limited: nobody is locked out.
        if let Some(state) = BUCKET_TABLE.get_ptr_mut(source) {
            // SAFETY: as in `bucket`.
            unsafe { state.write_volatile(state_ns) };
        } else {
            let _ = BUCKET_TABLE.insert(source, state_ns, 0);
        }
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        // SAFETY: takes no argument.
        unsafe { bpf_ktime_get_ns() }
    }
}

impl Tables for Maps {
    #[inline(always)]
    fn port(&self, key: &PortKey) -> Option<PortEntry> {
        find_port(key)
    }

    #[inline(always)]
    fn is_host(&self, address: &Address) -> bool {
        HOST.get_ptr(address).is_some()
    }
}

/// Drops what must not reach a port of ours, passes everything else. `frags`: frames larger than a page, too.
#[xdp(frags)]
pub fn turnout_admit(ctx: XdpContext) -> u32 {
    match admit(&XdpPacket(&ctx), &Maps) {
        Verdict::NotOurs => XDP_PASS,
        Verdict::Pass { slot, opens } => {
            if opens {
                count(slot, Count::Admitted);
            }
            XDP_PASS
        }
        Verdict::Drop { slot, source, reason } => {
            #[cfg(feature = "log")]
            aya_log_ebpf::debug!(&ctx, "dropped: slot {} reason {} family {}", slot, reason as u16, source.family);
            refuse(slot, &source, reason);
            XDP_DROP
        }
    }
}
