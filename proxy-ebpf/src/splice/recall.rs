// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! `turnout_recall`: the daemon takes a direction back. Run by BPF_PROG_TEST_RUN, never attached.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use proxy_common::flows::Recalled;
use proxy_common::splice::switch::recall;

use crate::lock;
use crate::maps::SESSIONS;
use crate::packet::Skb;

/// Makes a direction LOCAL. The context's `cb` has the session, the direction (0: Q, 1: R) and the slot's generation;
/// the verdict is a [`Recalled`]. The daemon has taken the arm back before.
#[classifier]
pub fn turnout_recall(ctx: TcContext) -> i32 {
    let skb = Skb::of(&ctx);
    let (session, direction, generation) = (skb.argument::<0>(), skb.argument::<1>(), skb.argument::<2>());
    take_back(session, direction, generation) as i32
}

#[inline(always)]
fn take_back(session: u32, direction: u32, generation: u32) -> Recalled {
    let Some(slot) = SESSIONS.get_ptr_mut(session) else { return Recalled::Unknown };
    let Some(held) = lock::take(session) else { return Recalled::Busy };
    // SAFETY: the pointer is to a slot of the map, and under the lock nobody else has its directions.
    let slot = unsafe { &mut *slot };
    let recalled = if slot.generation != generation {
        Recalled::Unknown
    } else {
        match slot.session.dirs.get_mut(direction as usize) {
            Some(d) => {
                if recall(d) {
                    Recalled::WasPeer
                } else {
                    Recalled::WasLocal
                }
            }
            None => Recalled::Unknown,
        }
    };
    held.release();
    recalled
}
