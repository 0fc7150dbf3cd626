// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! `turnout_splice_out` (tcx egress): packets of the daemon's sockets.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use proxy_common::flows::{Count, FlowEntry, FlowKey, Role, Slot};
use proxy_common::headers::Found;
use proxy_common::packet::{ACK, SYN};
use proxy_common::splice::egress::egress;
use proxy_common::splice::segment::{Leaving, Soundness};
use proxy_common::splice::seq::{InLocal, OutLocal};
use proxy_common::splice::state::Side;
use proxy_common::splice::verdict::WHOLE;

use crate::maps::{FLOWS, LEAVING, SCRATCH, Scratch};
use crate::packet::{Skb, classify};
use crate::rewrite::{Flags, flags_and_window, make_valid, set_tcp, trim};
use crate::{DROP, NEXT, Refused, count, cut, flow, lock, opening, options};

/// Puts the daemon's packets of spliced connections into the wire's numbers; all others pass.
#[classifier]
pub fn turnout_splice_out(ctx: TcContext) -> i32 {
    let skb = Skb::of(&ctx);
    // What the program at the way in has forwarded is translated already.
    if skb.is_forwarded() && skb.stamp() != cut() {
        return NEXT;
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(LEAVING) else { return NEXT };
    // SAFETY: the pointer is to this CPU's own memory, which the program at the way in does not use.
    let scratch = unsafe { &mut *scratch };
    match classify(skb, false, &mut scratch.headers) {
        Found::Other => return NEXT,
        // Of a session it must not leave untranslated.
        Found::Odd if flow::is_odd_of_session(skb) => {
            count(Count::Unreadable);
            return DROP;
        }
        Found::Odd => return NEXT,
        Found::Plain => {}
    }
    let Some(flow) = flow::of(skb, &scratch.headers) else {
        return if skb.is_forwarded() { NEXT } else { opening::leaving(skb, &mut scratch.headers) };
    };
    leave(skb, scratch, flow).unwrap_or_else(|Refused| {
        count(Count::Unchanged);
        DROP
    })
}

#[inline(always)]
fn leave(skb: Skb, scratch: &mut Scratch, flow: &FlowEntry) -> Result<i32, Refused> {
    let side = match flow.role {
        2 => Side::Client,
        3 => Side::Broker,
        _ => return Ok(NEXT),
    };
    let Some(slot) = flow::slot(flow) else { return Ok(NEXT) };
    if skb.is_forwarded() {
        skb.set_stamp(0);
        trim(skb, &mut scratch.headers, &raw mut scratch.piece, 0)?;
        make_valid(skb, &scratch.headers)?;
        return Ok(NEXT);
    }
    let flags = scratch.headers.flags();
    if flags & SYN != 0 {
        forget(flow, slot);
        return Ok(if flags & ACK == 0 { opening::leaving(skb, &mut scratch.headers) } else { NEXT });
    }
    summarize(skb, scratch);

    let Some(held) = lock::take(flow.session) else {
        count(Count::Busy);
        return Ok(DROP);
    };
    // SAFETY: the pointer is to a slot of the map.
    decide(scratch, unsafe { &mut *slot }, side);
    held.release();

    count(Count::Judged(scratch.departure.reason));
    if !scratch.departure.leaves {
        return Ok(DROP);
    }
    carry_out(skb, scratch)?;
    Ok(NEXT)
}

/// Puts what the machine needs to know of the packet where it finds it.
#[inline(never)]
fn summarize(skb: Skb, scratch: &mut Scratch) {
    let h = &scratch.headers;
    scratch.came = h.tcp[3];
    scratch.leaving = Leaving {
        seq: OutLocal(u32::from_be(h.tcp[1])),
        ack: InLocal(u32::from_be(h.tcp[2])),
        window: h.window(),
        length: h.payload,
        flags: h.flags(),
        sack_blocks: options::sack_blocks(skb, h),
        gso: skb.gso(),
        room: u32::MAX,
        soundness: Soundness::Sound,
    };
}

/// Under the lock: asks the machine, and notes what is to be noted.
#[inline(never)]
fn decide(scratch: &mut Scratch, slot: &mut Slot, side: Side) {
    let session = &mut slot.session;
    // SAFETY: a side's index is 0 or 1, the two directions are different ones, and the lock makes them ours.
    let (d, e, leg) = unsafe {
        let (own, other) = (side.index(), side.other().index());
        let dirs = session.dirs.as_mut_ptr();
        let leg = &mut *session.legs.as_mut_ptr().wrapping_add(own);
        (&mut *dirs.wrapping_add(own), &mut *dirs.wrapping_add(other), leg)
    };
    scratch.departure = egress(d, e, &scratch.leaving);
    slot.seen |= 1 << Role::To(side).number();
    leg.class = scratch.headers.class();
    leg.flow_label = scratch.headers.flow_label();
}

/// Does what the machine says.
#[inline(never)]
fn carry_out(skb: Skb, scratch: &mut Scratch) -> Result<(), Refused> {
    let Scratch { headers: h, blocks: came_blocks, departure, leaving: p, piece, came, .. } = scratch;
    let mut flags = Flags::Kept;
    if departure.keep != WHOLE {
        trim(skb, h, piece, departure.keep)?;
        flags = Flags::Trimmed;
    }
    options::clear(skb, h, p.sack_blocks)?;
    options::remember(skb, h, p.sack_blocks, came_blocks)?;
    let to = &departure.wire;
    options::translate(skb, h, p.sack_blocks, came_blocks, |l, r| {
        let (l, r) = departure.sack.of_x(InLocal(l), InLocal(r), p.ack, to.ack);
        (l.0, r.0)
    })?;
    let word = flags_and_window(*came, flags, to.window);
    let ports = h.tcp[0];
    set_tcp(skb, h, [ports, to.seq.0.to_be(), to.ack.0.to_be(), word])
}

/// The addresses begin another connection: the session's packets are no longer its own.
#[inline(never)]
fn forget(flow: &FlowEntry, slot: *const Slot) {
    count(Count::Forgotten);
    let mut number = 0;
    while number < 4 {
        let role = Role::ALL[number];
        // SAFETY: the pointer is to a slot of the map; of the leg, what was written at its setup is read.
        let key = FlowKey::of(role, unsafe { &(*slot).session.legs[role.side().index()] });
        if flow::find(&key).is_some_and(|f| f.session == flow.session && f.generation == flow.generation) {
            // One that is gone already is as well.
            let _ = FLOWS.remove(key);
        }
        number += 1;
    }
}
