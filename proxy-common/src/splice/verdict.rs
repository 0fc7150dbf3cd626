// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What is to be done with a packet: which copies go where, and what stands in their headers.

use super::sack;
use super::seq::{InLocal, InWire, OutLocal, OutWire};

/// Where an arriving packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Route {
    /// Nowhere.
    Drop,
    /// To the local socket as it is: no header value is changed.
    Untouched,
    /// To the local socket.
    Local,
    /// To the local socket without payload, as a bare ACK (flags: ACK alone).
    LocalBare,
    /// To the other host.
    Peer,
    /// A bare ACK, to both.
    Both,
    /// To the other host, and to the local socket as a bare ACK.
    Split,
    /// To the local socket, and to the other host as a bare ACK.
    Echo,
}

impl Route {
    /// A copy goes to the local socket with the header of [`Verdict::local`].
    #[must_use]
    #[inline(always)]
    pub const fn reaches_local(self) -> bool {
        matches!(self, Self::Local | Self::LocalBare | Self::Both | Self::Split | Self::Echo)
    }

    /// A copy goes to the other host with the header of [`Verdict::peer`].
    #[must_use]
    #[inline(always)]
    pub const fn reaches_peer(self) -> bool {
        matches!(self, Self::Peer | Self::Both | Self::Split | Self::Echo)
    }
}

/// Why; each is a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The usual way.
    Plain,
    /// An acceptable packet that opened a PEER segment by an arm.
    Opened,
    /// In PEER, a frame that is not the kernel's, or that it can't tell (`walk`).
    Frame,
    /// In PEER, a packet that left a hole.
    Hole,
    /// In PEER, a FIN.
    Fin,
    /// An RST that holds.
    Reset,
    /// In PEER, urgent data.
    Urgent,
    /// In PEER, a packet too large for the other host's path.
    TooLarge,
    /// In PEER, the walk found another state than the commit.
    Raced,
    /// A retransmission, to where its bytes went first or as a duplicate.
    Again,
    /// A retransmission of bytes of two receivers, trimmed.
    Straddling,
    /// A probe of a window, or a keepalive.
    Probe,
    /// Refused: form.
    BadForm,
    /// Refused: checksum.
    BadChecksum,
    /// Refused: a sequence number outside of what X may send.
    BadSequence,
    /// Refused: an acknowledgment of what nobody sent, or far too old.
    BadAck,
    /// Refused: an RST that does not hit.
    BadReset,
    /// Refused: flags that no established connection has.
    BadFlags,
    /// Of the local socket: an acknowledgment that would look like a duplicate.
    Withheld,
    /// Of the local socket: bytes while the direction is PEER, which the daemon must not write (it recalls first).
    Unannounced,
}

impl Reason {
    /// The gate's refusals, which leave the state as it was.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::BadForm | Self::BadChecksum | Self::BadSequence | Self::BadAck | Self::BadReset | Self::BadFlags
        )
    }
}

/// Header values of the copy for the local socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalHeader {
    /// In the L of the direction whose data the packet carries.
    pub seq: InLocal,
    /// In the S of the other direction.
    pub ack: OutLocal,
    /// The field.
    pub window: u32,
}

/// Header values of a copy for the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireHeader {
    /// In the V of the direction whose data the packet carries.
    pub seq: OutWire,
    /// In the W of the other direction.
    pub ack: InWire,
    /// The field.
    pub window: u32,
}

/// [`Verdict::keep`] and [`Departure::keep`]: all of the payload, and FIN if there is one.
pub const WHOLE: u32 = u32::MAX;

/// What is to be done with an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Where it goes.
    pub route: Route,
    /// Why.
    pub reason: Reason,
    /// Of the local copy, where there is one.
    pub local: LocalHeader,
    /// Of the other copy, where there is one. URG is always cleared on it.
    pub peer: WireHeader,
    /// Payload bytes that the other host's copy keeps, with FIN cleared, or [`WHOLE`]. What is less than the payload is
    /// not above `gso`, so that one packet is left; all of the payload may be kept and only FIN be cleared.
    pub keep: u32,
    /// For the SACK blocks.
    pub sack: sack::Map,
}

/// What is to be done with a packet of the local socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Whether it leaves.
    pub leaves: bool,
    /// Why, or why not.
    pub reason: Reason,
    /// Its header.
    pub wire: WireHeader,
    /// As in [`Verdict::keep`].
    pub keep: u32,
    /// For the SACK blocks.
    pub sack: sack::Map,
}
