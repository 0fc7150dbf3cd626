// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What is settled before the first segment.

use super::{MILLI, Micros, Socket};

/// One side of a connection, as it would come out of the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Its own address.
    pub(crate) socket: Socket,
    /// Number of the first byte it sends.
    pub(crate) seq: u32,
    /// By how many bits the windows it advertises are shifted.
    pub(crate) scale: u8,
    /// Most payload bytes of a packet it sends.
    pub(crate) mss: usize,
    /// Most packets it sends as one segment (TSO, GSO); at least 1.
    pub(crate) gso: usize,
    /// Whether it offers SACK; used if both do.
    pub(crate) sack: bool,
    /// TCP_NODELAY.
    pub(crate) nodelay: bool,
    /// Bytes it has memory for before the application has to read.
    pub(crate) receive_buffer: usize,
    /// Largest window it advertises, in bytes (`rcv_ssthresh`). Memory beyond it lets the window keep up, and so two
    /// packets be acknowledged at once, while some bytes are unread. Without any, windows rounded up by the scale can
    /// promise more than there is memory for: then bytes are dropped and the window shrinks to zero.
    pub(crate) window: usize,
    /// Bytes the application may write before they are acknowledged.
    pub(crate) send_buffer: usize,
    /// Round trip measured by the handshake.
    pub(crate) rtt: Micros,
    /// Retransmissions or probes without any answer after which the connection has failed (net.ipv4.tcp_retries2).
    pub(crate) retries: u32,
    /// Acknowledgments that are sent at once before delaying begins.
    pub(crate) quick_acks: u32,
    /// Whether an acknowledgment of bytes never sent is answered in ESTABLISHED: RFC 5961 wants it, Linux does from
    /// 7.1 on.
    pub(crate) answers_unsent_acks: bool,
}

impl Config {
    /// Ethernet, a millisecond away, windows of 64 KiB.
    pub(crate) fn of(socket: Socket) -> Self {
        Self {
            socket,
            seq: 1,
            scale: 7,
            mss: 1_460,
            gso: 1,
            sack: true,
            nodelay: true,
            receive_buffer: 128 << 10,
            window: 64 << 10,
            send_buffer: 64 << 10,
            rtt: MILLI,
            retries: 15,
            quick_acks: 16,
            answers_unsent_acks: false,
        }
    }

    /// The largest window, rounded up to what the scale can tell.
    pub(super) fn largest_window(&self) -> u64 {
        (self.window as u64).next_multiple_of(1 << self.scale).min(u64::from(u16::MAX) << self.scale)
    }

    /// The window the other side knows of at the start.
    pub(super) fn first_window(&self) -> u64 {
        (self.receive_buffer as u64).next_multiple_of(1 << self.scale).min(self.largest_window())
    }
}
