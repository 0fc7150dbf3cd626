//! Where a socket's streams are, asked of TCP.

use std::io;
use std::os::fd::BorrowedFd;

use proxy_common::splice::state::Origin;

use super::sys::{option, queued, set_option, tcp_info};
use crate::splice::eligible::TcpInfo;

// include/uapi/linux/tcp.h
const TCP_REPAIR: libc::c_int = 19;
const TCP_REPAIR_QUEUE: libc::c_int = 20;
const TCP_QUEUE_SEQ: libc::c_int = 21;
const TCP_RECV_QUEUE: i32 = 1;
const TCP_SEND_QUEUE: i32 = 2;
const TCP_REPAIR_ON: i32 = 1;
/// Off without a window probe.
const TCP_REPAIR_OFF_NO_WP: i32 = -1;
/// include/uapi/linux/sockios.h
const SIOCOUTQ: libc::Ioctl = 0x5411;
// Of `struct tcp_info`.
const OUT_OF_ORDER: usize = 224;
const PEER_WINDOW: usize = 228;
const OWN_WINDOW: usize = 232;

/// How often a socket is asked until two answers in a row are the same.
const TRIES: u32 = 32;

/// Where a socket's streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The next byte that is expected.
    pub(super) rcv_nxt: u32,
    /// Of those before it, bytes that were not read yet.
    pub(super) unread: u32,
    /// The next byte that is written.
    pub(super) write_seq: u32,
    /// Of those before it, bytes that the peer has not acknowledged.
    pub(super) unacked: u32,
    /// Its own window, bytes.
    pub(super) window: u32,
    /// The peer's window, bytes.
    pub(super) peer_window: u32,
    /// Packets that came out of order, so far.
    pub(super) out_of_order: u32,
    /// What was agreed on.
    pub(super) scales: [u8; 2],
    /// `tcpi_state`.
    pub(super) state: u8,
}

impl Place {
    /// Asks a socket that nobody reads or writes meanwhile; asked again while packets arrive.
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut before = Self::once(socket)?;
        for _ in 0..TRIES {
            let now = Self::once(socket)?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "packets arrive too fast to tell where its streams are"))
    }

    fn once(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let [write_seq, rcv_nxt] = sequences(socket)?;
        let info = tcp_info(socket)?;
        let tcp = TcpInfo::read(&info).ok_or_else(short)?;
        Ok(Self {
            rcv_nxt,
            unread: queued(socket, libc::FIONREAD)?,
            write_seq,
            unacked: queued(socket, SIOCOUTQ)?,
            window: word(&info, OWN_WINDOW)?,
            peer_window: word(&info, PEER_WINDOW)?,
            out_of_order: word(&info, OUT_OF_ORDER)?,
            scales: [tcp.own_scale, tcp.peer_scale],
            state: tcp.state,
        })
    }

    /// Packets that came out of order, so far.
    pub(super) fn out_of_order(socket: BorrowedFd<'_>) -> io::Result<u32> {
        word(&tcp_info(socket)?, OUT_OF_ORDER)
    }

    /// The byte that is read next.
    pub(super) const fn reads(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(self.unread)
    }

    /// The right edge of its window.
    pub(super) const fn edge(&self) -> u32 {
        self.rcv_nxt.wrapping_add(self.window)
    }

    /// It may hold bytes behind a hole.
    pub(super) const fn had_early(&self) -> bool {
        self.out_of_order != 0
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this kernel says too little of a connection")
}

fn word(info: &[u8], at: usize) -> io::Result<u32> {
    let bytes = info.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.map(|bytes| u32::from_ne_bytes(*bytes)).ok_or_else(short)
}

/// The next bytes of what is sent and of what is received.
///
/// The queue to send is asked for first and left at once: a socket in repair that has it chosen takes what it sends for
/// sent, and would have to find out by its timer.
fn sequences(socket: BorrowedFd<'_>) -> io::Result<[u32; 2]> {
    set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON)?;
    let sequence = |queue| {
        set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)?;
        option(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)
    };
    let found = sequence(TCP_SEND_QUEUE).and_then(|sent| Ok([sent, sequence(TCP_RECV_QUEUE)?]));
    set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP)?;
    // Repair leaves the address forbidden for reuse.
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    found
}

/// Of the direction from x's host to y's.
pub(super) fn origin(x: &Place, y: &Place) -> Origin {
    Origin {
        rcv_nxt: x.rcv_nxt,
        unread: x.unread,
        write_seq: y.write_seq,
        unacked: y.unacked,
        x_scale: x.scales[0].into(),
        y_scale: y.scales[1].into(),
        x_window: x.window,
        x_had_early: x.had_early(),
        y_window: y.peer_window,
        y_wl: y.rcv_nxt,
    }
}
