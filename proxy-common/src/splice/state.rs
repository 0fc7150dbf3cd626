// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The state of a session, as it lies in memory that the kernel's programs and the daemon share.
//!
//! A [`Dir`] is written by the kernel alone, under the session's lock, which lies elsewhere (memory that can be mapped
//! may hold none). The daemon writes [`super::arm::Arm`] and, for its own frames, [`super::notes::Notes`].

use super::arm::Arm;
use super::notes::Notes;
use super::seq::{InLocal, InWire, OutLocal, OutWire};

/// Which host a packet comes from, and so which direction its data belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// The client; its data are requests (Q).
    Client,
    /// The broker; its data are answers (R).
    Broker,
}

impl Side {
    /// Its place in pairs.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The other one.
    #[must_use]
    #[inline(always)]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Broker,
            Self::Broker => Self::Client,
        }
    }
}

/// One direction: bytes from host X to the local socket x (LOCAL) or straight to host Y (PEER), who also gets what the
/// local socket y sends. See the module's head for the spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dir {
    /// One more with every switch; odd: PEER, even: LOCAL.
    pub epoch: u32,
    /// Start of the last PEER segment, W.
    pub pw: InWire,
    /// Its end, W; meaningless while it is open.
    pub w0: InWire,
    /// Its start, V.
    pub pv: OutWire,
    /// Its end, V; meaningless while it is open.
    pub v0: OutWire,
    /// The point that it is in S.
    pub s0: OutLocal,
    /// The point that it is in L.
    pub lpos: InLocal,
    /// Bytes of PEER segments before it.
    pub k_old: u32,
    /// Bytes of PEER segments with it; while it is open, without it.
    pub k: u32,
    /// From W to V within it.
    pub fwd: u32,
    /// In PEER the next byte in order, W.
    pub exp: InWire,
    /// Bytes left of the frame at `exp`.
    pub remain: u32,
    /// Frames begun before `exp`: the index of the next one.
    pub frames: u32,
    /// At the last switch to LOCAL: bytes that the daemon relays as they are before the next frame starts.
    pub prefix: u32,
    /// Highest end passed to x.
    pub l_max: InLocal,
    /// Highest acknowledgment x sent.
    pub x_lack: InLocal,
    /// Its window, bytes.
    pub x_lwin: u32,
    /// Scale of windows told to X.
    pub x_scale: u32,
    /// Highest right edge ever told to X.
    pub x_edge: InWire,
    /// Highest acknowledgment from Y.
    pub y_ack: OutWire,
    /// Its window, bytes.
    pub y_win: u32,
    /// Scale of windows that Y tells.
    pub y_scale: u32,
    /// Sequence number of the packet that told Y's window last, in the W of the other direction (SND.WL1).
    pub y_wl: InWire,
    /// Highest acknowledgment given to y.
    pub y_lacked: OutLocal,
    /// Highest right edge given to y.
    pub y_told: OutLocal,
    /// Highest end y sent.
    pub s_max: OutLocal,
    /// Highest end anybody sent to Y.
    pub v_max: OutWire,
}

/// What a direction starts from; read from the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The next byte that x expects (TCP_REPAIR's receive queue). This and `x_had_early` are read after the flows were
    /// entered, or bytes that arrived in between are unknown to `l_max`.
    pub rcv_nxt: u32,
    /// Of these, bytes that the daemon has not read yet (FIONREAD).
    pub unread: u32,
    /// What y has been given to send (TCP_REPAIR's send queue).
    pub write_seq: u32,
    /// Of these, bytes that Y has not acknowledged (SIOCOUTQ).
    pub unacked: u32,
    /// Scale of x's windows.
    pub x_scale: u32,
    /// Scale of Y's windows.
    pub y_scale: u32,
    /// x's receive window (`tcpi_rcv_wnd`), bytes: what X was told of it ends there.
    pub x_window: u32,
    /// x has received something out of order (`tcpi_rcv_ooopack`), and may hold it still. Then nobody knows how far it
    /// reaches: the direction can't become PEER before a window's worth was relayed.
    pub x_had_early: bool,
    /// Y's window as y knows it, bytes.
    pub y_window: u32,
    /// The next byte that y's socket expects of Y: a window told by anything before it is old news.
    pub y_wl: u32,
}

impl Dir {
    /// A direction that has been LOCAL all along: its PEER segment is empty and in the past.
    #[must_use]
    pub const fn new(o: &Origin) -> Self {
        let read = o.rcv_nxt.wrapping_sub(o.unread);
        let (w, l) = (InWire(read), InLocal(read));
        let (s, v) = (OutLocal(o.write_seq), OutWire(o.write_seq));
        let acked = o.write_seq.wrapping_sub(o.unacked);
        Self {
            epoch: 0,
            pw: w,
            w0: w,
            pv: v,
            v0: v,
            s0: s,
            lpos: l,
            k_old: 0,
            k: 0,
            fwd: v.0.wrapping_sub(w.0),
            exp: w,
            remain: 0,
            frames: 0,
            prefix: 0,
            l_max: InLocal(o.rcv_nxt).plus(if o.x_had_early { o.x_window } else { 0 }),
            // Not what was read: X has been acknowledged the rest, and takes no segment that acknowledges a window less.
            x_lack: InLocal(o.rcv_nxt),
            x_lwin: o.x_window,
            x_scale: o.x_scale,
            x_edge: InWire(o.rcv_nxt).plus(o.x_window),
            y_ack: OutWire(acked),
            y_win: o.y_window,
            y_scale: o.y_scale,
            y_wl: InWire(o.y_wl),
            y_lacked: OutLocal(acked),
            y_told: OutLocal(acked).plus(o.y_window),
            s_max: s,
            v_max: v,
        }
    }

    /// The last PEER segment is open.
    #[must_use]
    #[inline(always)]
    pub const fn is_peer(&self) -> bool {
        self.epoch & 1 == 1
    }

    /// Whether X waits for Y: the last PEER segment is open, or closed and Y lacks part of it.
    #[must_use]
    #[inline(always)]
    pub const fn awaits_peer(&self) -> bool {
        self.is_peer() || self.is_clamped()
    }

    /// LOCAL, and Y lacks part of the last PEER segment: what x acknowledges is not told to X yet.
    #[must_use]
    #[inline(always)]
    pub const fn is_clamped(&self) -> bool {
        !self.is_peer() && self.pw.0 != self.w0.0 && self.y_ack.before(self.v0)
    }

    /// The end of the last PEER segment in V, so far.
    #[must_use]
    #[inline(always)]
    pub const fn peer_end(&self) -> OutWire {
        if self.is_peer() { OutWire(self.exp.0.wrapping_add(self.fwd)) } else { self.v0 }
    }

    /// Highest byte seen from X, W.
    #[must_use]
    #[inline(always)]
    pub const fn reached(&self) -> InWire {
        if self.is_peer() { self.exp } else { InWire(self.l_max.0.wrapping_add(self.k)) }
    }

    /// From W to V within the last PEER segment.
    #[must_use]
    #[inline(always)]
    pub const fn forwarded(&self, w: InWire) -> OutWire {
        OutWire(w.0.wrapping_add(self.fwd))
    }

    /// From V to W within the last PEER segment.
    #[must_use]
    #[inline(always)]
    pub const fn original(&self, v: OutWire) -> InWire {
        InWire(v.0.wrapping_sub(self.fwd))
    }
}

/// One of the two hosts, for the program. The machine does not look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Leg {
    /// Interface that its packets arrive at and leave by.
    pub interface: u32,
    /// 4 or 6.
    pub family: u32,
    /// This host's address, as on the wire; IPv4 takes the first word.
    pub ours: [u32; 4],
    /// Its address.
    pub theirs: [u32; 4],
    /// This host's port in the low half, its port in the high half, each as on the wire.
    pub ports: u32,
    /// 1: `link` was learnt.
    pub link_known: u32,
    /// Destination and source address of the Ethernet header of packets to it.
    pub link: [u32; 3],
    /// Traffic class (IPv6) or DSCP and ECN field (IPv4) of the local socket's own packets.
    pub class: u32,
    /// Flow label of the local socket's own packets (IPv6).
    pub flow_label: u32,
    /// 0.
    pub reserved: u32,
}

/// A session. The slot's lock lies in another map at the same index.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Session {
    /// The client's and the broker's side.
    pub legs: [Leg; 2],
    /// Requests (Q) and answers (R), by the side that sends them.
    pub dirs: [Dir; 2],
    /// The daemon's arms, by direction.
    pub arms: [Arm; 2],
    /// What answers belong to.
    pub notes: Notes,
}

const _: () = {
    assert!(size_of::<Dir>() == 27 * 4);
    assert!(size_of::<Leg>() == 18 * 4);
    assert!(size_of::<Session>() == 2 * 72 + 2 * 108 + 2 * 24 + 1032);
    assert!(size_of::<Session>().is_multiple_of(8));
    assert!(core::mem::offset_of!(Session, legs) == 0);
    assert!(core::mem::offset_of!(Session, dirs) == 144);
    assert!(core::mem::offset_of!(Session, arms) == 360);
    assert!(core::mem::offset_of!(Session, notes) == 408);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splice::acks::{ack_x, win_x};

    const ORIGIN: Origin = Origin {
        rcv_nxt: 90_000,
        unread: 70_000,
        write_seq: 5_000,
        unacked: 300,
        x_scale: 0,
        y_scale: 0,
        x_window: 10_000,
        x_had_early: false,
        y_window: 40_000,
        y_wl: 1,
    };

    #[test]
    fn a_new_direction_goes_on_where_the_sockets_are() {
        let d = Dir::new(&ORIGIN);
        assert!(!d.is_peer() && !d.is_clamped());
        assert_eq!(ack_x(&d), InWire(90_000), "what x has received, read or not");
        assert_eq!(win_x(&d), 10_000);
        assert_eq!(d.reached(), InWire(90_000));
        assert_eq!((d.y_ack, d.y_lacked, d.s_max), (OutWire(4_700), OutLocal(4_700), OutLocal(5_000)));
    }

    #[test]
    fn a_socket_that_received_out_of_order_may_hold_a_window_more() {
        let d = Dir::new(&Origin { x_had_early: true, ..ORIGIN });
        assert_eq!(d.l_max, InLocal(100_000));
        assert_eq!(ack_x(&d), InWire(90_000));
    }
}
