// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! A packet of TC, for the pure functions of `proxy-common`.

use core::ffi::c_long;
use core::ptr::addr_of;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_skb_load_bytes;
use aya_ebpf::programs::TcContext;
use proxy_common::headers::{Found, Frame, Headers, read};
use proxy_common::packet::Packet;
use proxy_common::splice::payload::Payload;

use crate::Refused;

/// Reads one field of the context. Volatile, because the verifier takes loads of exactly the field's width only, and the
/// compiler would join them.
macro_rules! field {
    ($skb:expr, $($field:tt)+) => {
        // SAFETY: the context is the one this program was called with.
        unsafe { addr_of!((*$skb.0).$($field)+).read_volatile() }
    };
}

/// `pkt_type` of a packet addressed to this host.
const PACKET_HOST: u32 = 0;

/// The packet.
#[derive(Clone, Copy)]
pub struct Skb(pub *mut __sk_buff);

impl Skb {
    #[inline(always)]
    pub fn of(ctx: &TcContext) -> Self {
        Self(ctx.skb.skb)
    }

    /// What the kernel says of an arriving packet.
    #[inline(always)]
    pub fn arriving(self) -> Frame {
        Frame { ours: field!(self, pkt_type) == PACKET_HOST, ..self.leaving() }
    }

    /// What the kernel says of a leaving packet.
    #[inline(always)]
    pub fn leaving(self) -> Frame {
        Frame {
            ethertype: u16::from_be(field!(self, protocol) as u16),
            tagged: field!(self, vlan_present) != 0,
            ours: true,
            length: field!(self, len),
            merged: self.gso() != 0,
        }
    }

    /// The device that it came in by or leaves by.
    #[inline(always)]
    pub fn interface(self) -> u32 {
        field!(self, ifindex)
    }

    /// Whether it came from another host.
    #[inline(always)]
    pub fn is_forwarded(self) -> bool {
        field!(self, ingress_ifindex) != 0
    }

    /// Payload of each of the packets that it was merged from or is cut into, 0 for a single one.
    #[inline(always)]
    pub fn gso(self) -> u32 {
        field!(self, gso_size)
    }

    /// `SO_MARK` of the socket that sends it.
    #[inline(always)]
    pub fn mark(self) -> u32 {
        field!(self, mark)
    }

    /// A word of the caller's, where the program is run by hand.
    #[inline(always)]
    pub fn argument<const N: usize>(self) -> u32 {
        field!(self, cb[N])
    }

    /// The stamp.
    #[inline(always)]
    pub fn stamp(self) -> u16 {
        field!(self, tc_index) as u16
    }

    /// Stamps it.
    #[inline(always)]
    pub fn set_stamp(self, stamp: u16) {
        // SAFETY: the context is the one this program was called with; the field may be written.
        unsafe { (&raw mut (*self.0).tc_index).write_volatile(u32::from(stamp)) };
    }

    /// Reads a value of plain words or bytes.
    #[inline(always)]
    pub fn load<T: Copy>(self, offset: u32) -> Result<T, Refused> {
        TcContext::new(self.0).load(offset as usize).map_err(|e: c_long| e.into())
    }

    /// Writes a value of plain words or bytes.
    #[inline(always)]
    pub fn store<T: Copy>(self, offset: u32, value: &T) -> Result<(), Refused> {
        TcContext::new(self.0).store(offset as usize, value, 0).map_err(|e: c_long| e.into())
    }

    /// Reads `length` bytes to memory that has room for them; false: it could not.
    #[inline(always)]
    pub fn load_into<T>(self, offset: u32, to: *mut T, length: u32) -> bool {
        // SAFETY: the verifier checks that `to` has room for `length` bytes.
        unsafe { bpf_skb_load_bytes(self.0.cast_const().cast(), offset, to.cast(), length) == 0 }
    }
}

/// What a packet is; its headers are left in `headers` if they are in the form.
///
/// This and other parts of the programs are functions of their own, not inlined, because the compiler then needs less of
/// the stack: 512 bytes for all that are active at a time.
#[inline(never)]
pub fn classify(skb: Skb, arrives: bool, headers: &mut Headers) -> Found {
    let frame = if arrives { skb.arriving() } else { skb.leaving() };
    read(&skb, &frame, headers)
}

impl Packet for Skb {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.load(offset as u32).ok()
    }

    #[inline(always)]
    fn length(&self) -> usize {
        field!(self, len) as usize
    }
}

/// The bytes behind a packet's TCP header.
pub struct SkbPayload {
    skb: Skb,
    offset: u32,
}

impl SkbPayload {
    #[inline(always)]
    pub fn of(skb: Skb, headers: &Headers) -> Self {
        Self { skb, offset: headers.payload_offset() }
    }
}

impl Payload for SkbPayload {
    #[inline(always)]
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.skb.load(self.offset.wrapping_add(offset)).ok()
    }
}
