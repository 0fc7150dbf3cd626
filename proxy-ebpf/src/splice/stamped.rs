// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! `turnout_stamped` (socket filter): what a spliced socket may receive. A packet that came past the program at the way
//! in has the wire's numbers, and would be taken for other bytes of the stream.

use aya_ebpf::macros::socket_filter;
use aya_ebpf::programs::SkBuffContext;

use crate::stamp;

/// Takes stamped packets, all of them.
#[socket_filter]
pub fn turnout_stamped(ctx: SkBuffContext) -> i64 {
    // SAFETY: the context is the one this program was called with.
    let found = unsafe { (&raw const (*ctx.skb.skb).tc_index).read_volatile() };
    if found == u32::from(stamp()) { i64::from(u32::MAX) } else { 0 }
}
