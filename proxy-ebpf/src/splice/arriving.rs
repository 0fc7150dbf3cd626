// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! `turnout_splice_in` (tcx ingress): packets from clients and brokers.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_check_mtu, bpf_clone_redirect, bpf_loop, bpf_redirect_neigh};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use proxy_common::flows::{Count, FlowEntry, Role, Slot};
use proxy_common::headers::{Found, Headers, IPV4_LEN, IPV6_LEN};
use proxy_common::splice::ingress::ingress;
use proxy_common::splice::mirror::Before;
use proxy_common::splice::notes::Notes;
use proxy_common::splice::policy::Policy;
use proxy_common::splice::segment::Arriving;
use proxy_common::splice::seq::{InWire, OutWire};
use proxy_common::splice::state::{Leg, Side};
use proxy_common::splice::verdict::{Reason, Route, WHOLE};
use proxy_common::splice::walk::Walk;
use proxy_common::tables::Address;

use crate::maps::{ARRIVING, POLICIES, SCRATCH, Scratch};
use crate::packet::{Skb, SkbPayload, classify};
use crate::rewrite::{Flags, Ip, flags_and_window, make_invalid, make_valid, set_ip, set_tcp, trim};
use crate::{DROP, NEXT, Refused, checksum, count, cut, flow, icmp, lock, mirror, opening, options, stamp};

/// Time to live of forwarded packets, as if the daemon's socket had sent them.
pub const HOPS: u32 = 64;
/// The two bits of the class that congestion notification has.
const ECN: u32 = 3;

/// Takes the packets of spliced connections; all others pass.
#[classifier]
pub fn turnout_splice_in(ctx: TcContext) -> i32 {
    let skb = Skb::of(&ctx);
    // Stamps are this program's to give, whoever sent the packet.
    if skb.stamp() == stamp() || skb.stamp() == cut() {
        skb.set_stamp(0);
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(ARRIVING) else { return NEXT };
    // SAFETY: the pointer is to this CPU's own memory, which the program at the way out does not use.
    let scratch = unsafe { &mut *scratch };
    match classify(skb, true, &mut scratch.headers) {
        Found::Odd if flow::is_odd_of_session(skb) => {
            count(Count::Judged(Reason::BadForm));
            return DROP;
        }
        Found::Other | Found::Odd => return icmp::arriving(skb, &mut scratch.quote),
        Found::Plain => {}
    }
    let Some(flow) = flow::of(skb, &scratch.headers) else { return opening::arriving(skb, &mut scratch.headers) };
    arrive(skb, scratch, flow).unwrap_or_else(|Refused| {
        count(Count::Unchanged);
        DROP
    })
}

#[inline(always)]
fn arrive(skb: Skb, scratch: &mut Scratch, flow: &FlowEntry) -> Result<i32, Refused> {
    let side = match flow.role {
        0 => Side::Client,
        1 => Side::Broker,
        _ => return Ok(NEXT),
    };
    let (Some(slot), Some(policy)) = (flow::slot(flow), POLICIES.get_ptr(flow.policy)) else { return Ok(NEXT) };
    // SAFETY: the pointers are to elements of maps. Until the lock is taken other CPUs may change the slot under our
    // eyes; what is read of it before is only taken if it still holds under the lock.
    let (slot, policy) = unsafe { (&mut *slot, &*policy) };
    summarize(skb, scratch, leg(slot, side.other()));
    look_ahead(skb, scratch, slot, policy, side);
    scratch.link = reversed(skb.load(0)?);

    let Some(held) = lock::take(flow.session) else {
        count(Count::Busy);
        return Ok(DROP);
    };
    decide(scratch, slot, side);
    let mirrors = policy.mirrors != 0;
    if mirrors {
        mirror::mark(scratch, slot, side);
    }
    held.release();

    count(Count::Judged(scratch.verdict.reason));
    if mirrors {
        mirror::copy(skb, scratch, flow.session, flow.generation);
    }
    carry_out(skb, scratch, leg(slot, side.other()))
}

#[inline(always)]
fn leg(slot: &Slot, side: Side) -> &Leg {
    // SAFETY: a side's index is 0 or 1.
    unsafe { &*slot.session.legs.as_ptr().wrapping_add(side.index()) }
}

/// Puts what the machine needs to know of the packet where it finds it.
#[inline(never)]
fn summarize(skb: Skb, scratch: &mut Scratch, onward: &Leg) {
    let h = &scratch.headers;
    scratch.came = h.tcp[3];
    scratch.arriving = Arriving {
        seq: InWire(u32::from_be(h.tcp[1])),
        ack: OutWire(u32::from_be(h.tcp[2])),
        window: h.window(),
        length: h.payload,
        flags: h.flags(),
        sack_blocks: options::sack_blocks(skb, h),
        gso: skb.gso(),
        room: if h.payload == 0 { 0 } else { room(skb, h, onward) },
        soundness: checksum::soundness(skb, h, &raw mut scratch.piece),
    };
}

/// Payload bytes that one packet can take to the other host.
#[inline(always)]
fn room(skb: Skb, h: &Headers, onward: &Leg) -> u32 {
    let mut mtu = 0u32;
    // SAFETY: the context is the one this program was called with. That the packet is too large is an answer as well:
    // the device's MTU is filled in.
    unsafe {
        bpf_check_mtu(skb.0.cast(), onward.interface, &raw mut mtu, 0, 0);
    }
    let headers = if h.source.is_v4() { IPV4_LEN } else { IPV6_LEN } + h.tcp_length;
    mtu.saturating_sub(headers)
}

/// What a step of the walk needs.
struct Steps<'a> {
    skb: Skb,
    scratch: &'a mut Scratch,
    notes: &'a Notes,
    policy: &'a Policy,
    side: Side,
}

/// Walks the packet's frames, before the lock is taken.
#[inline(never)]
fn look_ahead(skb: Skb, scratch: &mut Scratch, slot: &Slot, policy: &Policy, side: Side) {
    let session = &slot.session;
    // SAFETY: a side's index is 0 or 1.
    let (d, arm) = unsafe {
        let index = side.index();
        (&*session.dirs.as_ptr().wrapping_add(index), &*session.arms.as_ptr().wrapping_add(index))
    };
    scratch.walk = Walk::begin(d, &scratch.arriving, arm.read());
    if scratch.arriving.length == 0 {
        return;
    }
    let mut steps = Steps { skb, scratch, notes: &session.notes, policy, side };
    // SAFETY: the function has the signature that the helper calls, and what it is given outlives the call.
    unsafe { bpf_loop(Walk::STEPS, step as *mut c_void, (&raw mut steps).cast(), 0) };
}

/// One frame; other than 0 ends the walk.
extern "C" fn step(_: u64, steps: *mut Steps<'_>) -> i64 {
    // SAFETY: the pointer is the one that `look_ahead` gave.
    let Steps { skb, scratch, notes, policy, side } = unsafe { &mut *steps };
    let payload = SkbPayload::of(*skb, &scratch.headers);
    let Scratch { walk, arriving, .. } = &mut **scratch;
    i64::from(!walk.step(*side, arriving, &payload, policy, notes))
}

/// Under the lock: asks the machine, and notes what is to be noted.
#[inline(never)]
fn decide(scratch: &mut Scratch, slot: &mut Slot, side: Side) {
    let session = &mut slot.session;
    let p = &scratch.arriving;
    // SAFETY: a side's index is 0 or 1, the two directions are different ones, and the lock makes them ours.
    let (d, e, arm, leg, traffic) = unsafe {
        let (own, other) = (side.index(), side.other().index());
        let dirs = session.dirs.as_mut_ptr();
        (
            &mut *dirs.wrapping_add(own),
            &mut *dirs.wrapping_add(other),
            &*session.arms.as_ptr().wrapping_add(own),
            &mut *session.legs.as_mut_ptr().wrapping_add(own),
            &mut *slot.traffic.as_mut_ptr().wrapping_add(own),
        )
    };
    // By way of memory: of an arm that says nothing the words are undefined, and the verifier minds even their copies.
    // SAFETY: the place is this CPU's own.
    let armed = unsafe {
        (&raw mut scratch.armed).write_volatile(arm.read());
        (&raw const scratch.armed).read_volatile()
    };
    scratch.before = Before::of(side, d);
    let verdict = ingress(d, e, side, p, scratch.walk.found(p), armed, &session.notes);
    slot.seen |= 1 << Role::From(side).number();
    if verdict.route.reaches_peer() && p.length != 0 && !matches!(verdict.route, Route::Echo) {
        traffic.packets += 1;
        traffic.bytes += u64::from(if verdict.keep < p.length { verdict.keep } else { p.length });
    }
    if !verdict.reason.is_refusal() {
        leg.link = scratch.link;
        leg.link_known = 1;
    }
    scratch.verdict = verdict;
}

/// Destination and source of an Ethernet header, exchanged.
#[inline(always)]
const fn reversed(link: [u32; 3]) -> [u32; 3] {
    [link[1] >> 16 | link[2] << 16, link[2] >> 16 | link[0] << 16, link[0] >> 16 | link[1] << 16]
}

/// Does what the verdict says.
#[inline(never)]
fn carry_out(skb: Skb, scratch: &mut Scratch, onward: &Leg) -> Result<i32, Refused> {
    let route = scratch.verdict.route;
    match route {
        Route::Drop => return Ok(DROP),
        Route::Untouched => {
            skb.set_stamp(stamp());
            return Ok(NEXT);
        }
        _ => {}
    }
    let blocks = scratch.arriving.sack_blocks;
    options::clear(skb, &scratch.headers, blocks)?;
    options::remember(skb, &scratch.headers, blocks, &mut scratch.blocks)?;
    if route.reaches_peer() {
        if scratch.verdict.keep != WHOLE {
            trim(skb, &mut scratch.headers, &raw mut scratch.piece, scratch.verdict.keep)?;
        }
        let before = (scratch.headers.tcp[0], Ip::of(&scratch.headers));
        address_to_peer(skb, scratch, onward)?;
        if !route.reaches_local() {
            // SAFETY: no parameters are given: the route is looked up.
            return Ok(unsafe { bpf_redirect_neigh(onward.interface, core::ptr::null_mut(), 0, 0) } as i32);
        }
        copy(skb, &scratch.headers, route, onward)?;
        set_ip(skb, &mut scratch.headers, &before.1)?;
        address_to_local(skb, scratch, before.0)?;
    } else {
        let ports = scratch.headers.tcp[0];
        address_to_local(skb, scratch, ports)?;
    }
    skb.set_stamp(stamp());
    Ok(NEXT)
}

/// Headers of the copy for the other host.
#[inline(never)]
fn address_to_peer(skb: Skb, scratch: &mut Scratch, onward: &Leg) -> Result<(), Refused> {
    let Scratch { headers: h, blocks: arrived, verdict, arriving: p, came, .. } = scratch;
    let flags = match verdict.route {
        Route::Both | Route::Echo => Flags::Bare,
        _ if verdict.keep != WHOLE => Flags::PassedTrimmed,
        _ => Flags::Passed,
    };
    let to = &verdict.peer;
    options::translate(skb, h, p.sack_blocks, arrived, |l, r| {
        let (l, r) = verdict.sack.for_x(OutWire(l), OutWire(r), p.ack, to.ack);
        (l.0, r.0)
    })?;
    let word = flags_and_window(*came, flags, to.window);
    set_tcp(skb, h, [onward.ports, to.seq.0.to_be(), to.ack.0.to_be(), word])?;
    let family = h.source.family;
    let ip = Ip {
        source: Address { words: onward.ours, family },
        destination: Address { words: onward.theirs, family },
        class: onward.class & !ECN,
        flow_label: onward.flow_label,
        hops: HOPS,
    };
    set_ip(skb, h, &ip)
}

/// Headers of the copy for the local socket; its payload goes if it is to be a bare ACK.
#[inline(never)]
fn address_to_local(skb: Skb, scratch: &mut Scratch, ports: u32) -> Result<(), Refused> {
    let Scratch { headers: h, blocks: arrived, verdict, arriving: p, piece, came, .. } = scratch;
    let bare = matches!(verdict.route, Route::Both | Route::Split | Route::LocalBare);
    if bare {
        trim(skb, h, piece, 0)?;
    }
    let to = &verdict.local;
    options::translate(skb, h, p.sack_blocks, arrived, |l, r| {
        let (l, r) = verdict.sack.for_y(OutWire(l), OutWire(r), to.ack);
        (l.0, r.0)
    })?;
    let flags = if bare { Flags::Bare } else { Flags::Kept };
    let word = flags_and_window(*came, flags, to.window);
    set_tcp(skb, h, [ports, to.seq.0.to_be(), to.ack.0.to_be(), word])
}

/// Sends a copy of the packet as it is now to the other host. Without it the host misses an acknowledgment, which comes
/// again.
#[inline(always)]
fn copy(skb: Skb, h: &Headers, route: Route, onward: &Leg) -> Result<(), Refused> {
    if onward.link_known == 0 {
        count(Count::Unsent);
        return Ok(());
    }
    skb.store(0, &onward.link)?;
    let echo = matches!(route, Route::Echo);
    if echo {
        // Such a copy has the payload still, which the program at the way out cuts. Should it be missing there, the
        // bytes must not be taken for others.
        skb.set_stamp(cut());
        make_invalid(skb, h)?;
    }
    // SAFETY: the context is the one this program was called with.
    if unsafe { bpf_clone_redirect(skb.0, onward.interface, 0) } != 0 {
        count(Count::Unsent);
    }
    if echo { make_valid(skb, h) } else { Ok(()) }
}
