// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What the machine needs to know of a packet. The program fills it in; addresses and bytes stay with the program.

use super::seq::{InLocal, InWire, OutLocal, OutWire};
use crate::packet::{ACK, FIN, RST, SYN};

/// TCP's URG flag.
pub const URG: u8 = 0x20;

/// Whether a packet may be looked at further, by what the program found (rule 7: form and checksum).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Soundness {
    /// The form is right, and the checksum is verified, vouched for, or not yet made.
    Sound,
    /// VLAN tag, fragment, IP options, extension header, lengths that disagree, the wrong interface, not for this host.
    BadForm,
    /// The checksum was computed and is wrong.
    BadChecksum,
}

/// A packet in summary. `S` and `A` are the spaces of its sequence and acknowledgment number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<S, A> {
    /// Of the first byte, or of what would be the first.
    pub seq: S,
    /// Meaningless without the ACK flag.
    pub ack: A,
    /// The window field as it stands in the header.
    pub window: u32,
    /// Bytes of payload.
    pub length: u32,
    /// TCP's flags.
    pub flags: u8,
    /// SACK blocks in the layout that is translated (`sack`); the program makes NOPs of every other option.
    pub sack_blocks: u32,
    /// Payload bytes of each packet that this one was merged of or will be cut into, 0 if it is a single one.
    pub gso: u32,
    /// The most payload bytes that one packet can take to the other host (its MTU less the headers).
    pub room: u32,
    /// What the program found.
    pub soundness: Soundness,
}

/// A packet from X = Y of the other direction: sequence in the W of the direction whose data it carries, acknowledgment
/// in the V of the other.
pub type Arriving = Segment<InWire, OutWire>;

/// A packet of the local socket: sequence in the S of the direction it sends into, acknowledgment in the L of the other.
pub type Leaving = Segment<OutLocal, InLocal>;

impl<S, A> Segment<S, A> {
    /// Sequence numbers that payload and FIN take.
    #[must_use]
    #[inline(always)]
    pub const fn extent(&self) -> u32 {
        self.length.wrapping_add(self.fin() as u32)
    }

    /// Neither payload nor FIN.
    #[must_use]
    #[inline(always)]
    pub const fn is_bare(&self) -> bool {
        self.length == 0 && !self.fin()
    }

    /// FIN is set.
    #[must_use]
    #[inline(always)]
    pub const fn fin(&self) -> bool {
        self.flags & FIN != 0
    }

    /// RST is set.
    #[must_use]
    #[inline(always)]
    pub const fn rst(&self) -> bool {
        self.flags & RST != 0
    }

    /// SYN is set.
    #[must_use]
    #[inline(always)]
    pub const fn syn(&self) -> bool {
        self.flags & SYN != 0
    }

    /// ACK is set.
    #[must_use]
    #[inline(always)]
    pub const fn acks(&self) -> bool {
        self.flags & ACK != 0
    }

    /// URG is set.
    #[must_use]
    #[inline(always)]
    pub const fn urgent(&self) -> bool {
        self.flags & URG != 0
    }

    /// Payload bytes of the largest packet it becomes on the wire.
    #[must_use]
    #[inline(always)]
    pub const fn largest_piece(&self) -> u32 {
        if self.gso != 0 && self.gso < self.length { self.gso } else { self.length }
    }
}
