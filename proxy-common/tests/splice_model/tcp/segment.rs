// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What travels.

pub(crate) use proxy_common::packet::{ACK, FIN, RST, SYN};

/// Everything before it goes to the application at once.
pub(crate) const PSH: u8 = 0x08;
/// The urgent pointer counts.
pub(crate) const URG: u8 = 0x20;

/// A socket by its place in the splice; a pair of them stands for the addresses and ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Socket {
    /// The client's.
    Client,
    /// The gateway's, towards the client: `c`.
    ToClient,
    /// The gateway's, towards the broker: `b`.
    ToBroker,
    /// The broker's.
    Broker,
}

/// A TCP segment: one packet, or one of many MSS as the offloads of sender and receiver make them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) src: Socket,
    pub(crate) dst: Socket,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// [`ACK`], [`FIN`] and so on, as on the wire.
    pub(crate) flags: u8,
    /// As on the wire, unscaled.
    pub(crate) window: u16,
    /// Blocks `[start, end)` of the SACK option, laid out as NOP NOP 5 length; no option if empty.
    pub(crate) sack: Vec<(u32, u32)>,
    pub(crate) payload: Vec<u8>,
    /// Whether the checksum is right. An [`super::Endpoint`] drops what is damaged, a gateway may not have looked.
    pub(crate) checksum_ok: bool,
    /// Payload bytes of each packet that this one stands for (the last may have fewer); 0 if it is a single packet.
    pub(crate) gso_size: usize,
}

impl Segment {
    /// A segment without payload.
    pub(crate) fn bare(src: Socket, dst: Socket, flags: u8, seq: u32, ack: u32) -> Self {
        let (window, gso_size) = (0, 0);
        Self { src, dst, seq, ack, flags, window, sack: vec![], payload: vec![], checksum_ok: true, gso_size }
    }

    /// Whether one of these flags is set.
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// How much of the sequence space it takes: the payload, SYN and FIN.
    pub(crate) fn len(&self) -> usize {
        self.payload.len() + usize::from(self.has(SYN)) + usize::from(self.has(FIN))
    }

    /// The sequence number after its last.
    pub(crate) fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len() as u32)
    }
}
