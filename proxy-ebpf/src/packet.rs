// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Packet bytes for the pure functions of `proxy-common`.

use aya_ebpf::helpers::bpf_xdp_get_buff_len;
use aya_ebpf::programs::XdpContext;
use proxy_common::packet::{MAX_OFFSET, Packet};

/// The linear part of a packet in an XDP program. Headers lie there; the payload of a jumbo frame may not.
pub struct XdpPacket<'a>(pub &'a XdpContext);

impl Packet for XdpPacket<'_> {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        // The verifier accepts a packet pointer only with a variable part it can bound.
        if offset > MAX_OFFSET {
            return None;
        }
        let start = self.0.data() + offset;
        if start + N > self.0.data_end() {
            return None;
        }
        // SAFETY: `start..start + N` lies within `data..data_end` by the check above, and `[u8; N]` has no alignment.
        Some(unsafe { *(start as *const [u8; N]) })
    }

    #[inline(always)]
    fn length(&self) -> usize {
        // SAFETY: the context is the one this program was called with.
        unsafe { bpf_xdp_get_buff_len(self.0.ctx) as usize }
    }
}
