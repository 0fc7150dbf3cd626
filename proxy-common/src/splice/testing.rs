// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! A session on the bench: both directions at known numbers, packets made by offset, frames made by hand.

extern crate std;

use std::vec::Vec;

use super::arm::Armed;
use super::egress::egress;
use super::ingress::ingress;
use super::notes::{Kind, Note, Notes, RING};
use super::policy::{FORWARD, Policy, Rule, SMALL_ANSWERS_LOCAL};
use super::segment::{Arriving, Leaving, Segment, Soundness};
use super::seq::{InLocal, InWire, OutLocal, OutWire};
use super::state::{Dir, Origin, Side};
use super::verdict::{Departure, Verdict};
use super::walk::{Survey, survey};
use crate::packet::ACK;

/// Where the client's stream begins, in W and L.
pub(super) const CLIENT: u32 = u32::MAX - 99;
/// Where b's stream begins, in S and V.
pub(super) const TO_BROKER: u32 = 50_000;
/// Where the broker's stream begins.
pub(super) const BROKER: u32 = 9_000;
/// Where c's stream begins.
pub(super) const TO_CLIENT: u32 = 700_000;
/// Windows of the local sockets and of the hosts.
pub(super) const WINDOW: u32 = 40_000;

/// A session.
pub(super) struct Bench {
    pub(super) q: Dir,
    pub(super) r: Dir,
    pub(super) notes: Notes,
    pub(super) policy: Policy,
    pub(super) armed: [Option<Armed>; 2],
    /// Payload bytes that fit a packet to the other host.
    pub(super) room: u32,
}

fn origin(rcv_nxt: u32, write_seq: u32, y_wl: u32) -> Origin {
    Origin {
        rcv_nxt,
        unread: 0,
        write_seq,
        unacked: 0,
        x_scale: 0,
        y_scale: 0,
        x_window: WINDOW,
        x_had_early: false,
        y_window: WINDOW,
        y_wl,
    }
}

impl Bench {
    pub(super) fn new() -> Self {
        let mut policy = Policy { max_frame: 1 << 20, small_answer: 60, in_flight: RING, ..Policy::NOTHING };
        policy.rules[0] = Rule { flags: FORWARD, min_version: 3, max_version: 13 };
        policy.rules[1] = Rule { flags: FORWARD, min_version: 4, max_version: 15 };
        policy.rules[2] = Rule { flags: FORWARD | SMALL_ANSWERS_LOCAL, min_version: 0, max_version: 9 };
        Self {
            q: Dir::new(&origin(CLIENT, TO_BROKER, BROKER)),
            r: Dir::new(&origin(BROKER, TO_CLIENT, CLIENT)),
            notes: Notes::default(),
            policy,
            armed: [None; 2],
            room: u32::MAX,
        }
    }

    /// Requests PEER: a packet with so many bytes, the start of a frame of `frame` bytes, went to the broker.
    pub(super) fn opened(bytes: u32, frame: u32) -> Self {
        let mut bench = Self::new();
        bench.arm(0, 0);
        let payload = request(1, 4, frame);
        let verdict = bench.client(&bench.data(0, bytes), &payload[..bytes as usize]);
        assert!(bench.q.is_peer(), "{verdict:?}");
        bench
    }

    /// Requests LOCAL again after `bytes` went to the broker, who has acknowledged `acked` of them.
    pub(super) fn closed(bytes: u32, acked: u32) -> Self {
        let mut bench = Self::opened(bytes, bytes);
        bench.broker_acks(acked);
        super::switch::recall(&mut bench.q);
        bench
    }

    /// Arms requests where x stands, `remain` bytes before the start of frame `frames`.
    pub(super) fn arm(&mut self, frames: u32, remain: u32) {
        let at = self.q.l_max;
        self.armed[0] = Some(Armed { at, sent: self.q.s_max, frames, remain, epoch: self.q.epoch });
    }

    /// A packet of the client, `offset` bytes from its stream's begin.
    pub(super) fn data(&self, offset: i32, length: u32) -> Arriving {
        Segment {
            seq: InWire(CLIENT.wrapping_add_signed(offset)),
            ack: self.r.y_ack,
            window: WINDOW,
            length,
            flags: ACK,
            sack_blocks: 0,
            gso: 0,
            room: self.room,
            soundness: Soundness::Sound,
        }
    }

    /// A packet of the broker.
    pub(super) fn answer(&self, offset: i32, length: u32) -> Arriving {
        let seq = InWire(BROKER.wrapping_add_signed(offset));
        Segment { seq, ack: self.q.y_ack, ..self.data(0, length) }
    }

    /// A packet of the local socket to a side, at so many bytes of its stream, acknowledging so many.
    pub(super) fn leaving(&self, side: Side, sent: i32, length: u32, received: u32) -> Leaving {
        let (seq, ack) = match side {
            Side::Client => (TO_CLIENT, CLIENT),
            Side::Broker => (TO_BROKER, BROKER),
        };
        Segment {
            seq: OutLocal(seq.wrapping_add_signed(sent)),
            ack: InLocal(ack.wrapping_add(received)),
            window: WINDOW,
            length,
            flags: ACK,
            sack_blocks: 0,
            gso: 0,
            room: u32::MAX,
            soundness: Soundness::Sound,
        }
    }

    pub(super) fn survey(&self, side: Side, p: &Arriving, payload: &[u8]) -> Survey {
        let d = if side == Side::Client { &self.q } else { &self.r };
        survey(d, side, p, self.armed[side.index()], payload, &self.policy, &self.notes)
    }

    /// The client's packet arrives.
    pub(super) fn client(&mut self, p: &Arriving, payload: &[u8]) -> Verdict {
        let survey = self.survey(Side::Client, p, payload);
        ingress(&mut self.q, &mut self.r, Side::Client, p, &survey, self.armed[0], &self.notes)
    }

    /// The broker's packet arrives.
    pub(super) fn broker(&mut self, p: &Arriving, payload: &[u8]) -> Verdict {
        let survey = self.survey(Side::Broker, p, payload);
        ingress(&mut self.r, &mut self.q, Side::Broker, p, &survey, self.armed[1], &self.notes)
    }

    /// The broker acknowledges so many bytes of its stream, with a bare ACK.
    pub(super) fn broker_acks(&mut self, bytes: u32) -> Verdict {
        let p = Segment { ack: OutWire(TO_BROKER + bytes), ..self.answer(0, 0) };
        self.broker(&p, &[])
    }

    /// A local socket's packet leaves to a side.
    pub(super) fn leave(&mut self, side: Side, p: &Leaving) -> Departure {
        match side {
            Side::Client => egress(&mut self.q, &mut self.r, p),
            Side::Broker => egress(&mut self.r, &mut self.q, p),
        }
    }
}

/// A request of so many bytes, size field included, with what its header needs and zeros behind.
pub(super) fn request(api_key: u16, api_version: u16, length: u32) -> Vec<u8> {
    let mut frame = (length - 4).to_be_bytes().to_vec();
    frame.extend_from_slice(&api_key.to_be_bytes());
    frame.extend_from_slice(&api_version.to_be_bytes());
    frame.resize(length as usize, 0);
    frame
}

/// A note without mirror.
pub(super) const fn note(kind: Kind) -> Note {
    Note { kind, mirrored: false }
}
