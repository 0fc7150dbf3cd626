//! What a session starts from, asked of its sockets.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

use proxy_common::splice::state::Origin;

use crate::sys::{option, queued, set_option, tcp_info};

// include/uapi/linux/tcp.h
const TCP_REPAIR: libc::c_int = 19;
const TCP_REPAIR_QUEUE: libc::c_int = 20;
const TCP_QUEUE_SEQ: libc::c_int = 21;
const TCP_RECV_QUEUE: i32 = 1;
const TCP_SEND_QUEUE: i32 = 2;
const TCP_REPAIR_ON: i32 = 1;
/// Off without a window probe.
const TCP_REPAIR_OFF_NO_WP: i32 = -1;
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCPI_OPT_ECN: u8 = 8;
/// include/uapi/linux/sockios.h
const SIOCOUTQ: libc::Ioctl = 0x5411;

/// Where a socket's streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    rcv_nxt: u32,
    unread: u32,
    write_seq: u32,
    unacked: u32,
    /// Scale and size of its own window.
    scale: u32,
    window: u32,
    /// Scale and size of its host's window.
    host_scale: u32,
    host_window: u32,
    had_early: bool,
}

impl Place {
    /// Asks a socket that nobody writes to meanwhile; asked again while packets arrive.
    pub(super) fn of(socket: &TcpStream) -> io::Result<Self> {
        loop {
            let (before, after) = (Self::once(socket)?, Self::once(socket)?);
            if before == after {
                return Ok(after);
            }
        }
    }

    fn once(socket: &TcpStream) -> io::Result<Self> {
        let sequence = |queue| {
            set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)?;
            option(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)
        };
        set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON)?;
        let (rcv_nxt, write_seq) = (sequence(TCP_RECV_QUEUE)?, sequence(TCP_SEND_QUEUE)?);
        set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP)?;
        // Repair leaves the address forbidden for reuse.
        set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let info = tcp_info(socket)?;
        let word = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().expect("four bytes"));
        let (options, scales) = (info[5], info[6]);
        let wanted = TCPI_OPT_SACK | TCPI_OPT_WSCALE;
        assert_eq!(
            options & (wanted | TCPI_OPT_TIMESTAMPS | TCPI_OPT_ECN),
            wanted,
            "the connection can't be spliced: options {options:#x} of socket {}",
            socket.as_raw_fd()
        );
        Ok(Self {
            rcv_nxt,
            unread: queued(socket, libc::FIONREAD)?,
            write_seq,
            unacked: queued(socket, SIOCOUTQ)?,
            scale: u32::from(scales >> 4),
            window: word(232),
            host_scale: u32::from(scales & 15),
            host_window: word(228),
            had_early: word(224) != 0,
        })
    }

    /// The byte that is read next.
    pub(super) const fn reads(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(self.unread)
    }

    /// The byte that is written next.
    pub(super) const fn writes(&self) -> u32 {
        self.write_seq
    }
}

/// Of the direction from x's host to y's.
pub(super) const fn origin(x: &Place, y: &Place) -> Origin {
    Origin {
        rcv_nxt: x.rcv_nxt,
        unread: x.unread,
        write_seq: y.write_seq,
        unacked: y.unacked,
        x_scale: x.scale,
        y_scale: y.host_scale,
        x_window: x.window,
        x_had_early: x.had_early,
        y_window: y.host_window,
        y_wl: y.rcv_nxt,
    }
}
