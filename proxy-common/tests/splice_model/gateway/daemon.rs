// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The daemon: relays what reaches the local sockets, changes what is its own, gives and takes back the kernel's leave.
//!
//! One step at a time: read from c, read from b, write to b, write to c, close, arm. What a step saw may have changed
//! when the next one acts on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proxy_common::request::{Partial, produce_acks};
use proxy_common::splice::arm::Armed;
use proxy_common::splice::notes::{Kind, Note, Notes, RING};
use proxy_common::splice::seq::{InLocal, OutLocal};
use proxy_common::splice::state::Side;

use super::Gateway;
use crate::net::Rng;
use crate::script::{
    API_VERSIONS, FETCH, FETCH_CAP, METADATA, OWN, PRODUCE, SMALL_ANSWER, frame, own_answer, request_header,
    rewritten_answer, rewritten_request,
};
use crate::tcp::{Micros, State};

/// What the daemon knows of a direction.
#[derive(Clone, Debug)]
struct Lane {
    /// Where it reads next, and where it writes next.
    reads: u32,
    writes: u32,
    /// The epoch it knows of.
    epoch: u32,
    /// Bytes to be relayed before the next frame starts.
    raw: usize,
    /// Read and not looked at; the start of a frame that can't be judged yet.
    inbox: VecDeque<u8>,
    held: Vec<u8>,
    /// Index of the next frame.
    index: u32,
    /// To be written.
    out: VecDeque<u8>,
    /// The last read found nothing.
    drained: bool,
    ended: bool,
    armed: Option<Armed>,
}

/// The daemon's side of a session.
#[derive(Debug)]
pub(super) struct Daemon {
    lanes: [Lane; 2],
    rng: Rng,
    step: usize,
    wakes_at: Micros,
    notes: BTreeMap<u32, Note>,
    /// Answers it gives itself, before the answer of that index.
    own_answers: VecDeque<(u32, Vec<u8>)>,
    /// Indexes of requests of its own, and whether it wants to send another.
    own_requests: BTreeSet<u32>,
    wants_own: bool,
}

impl Daemon {
    /// `starts` are, for each direction, where x's stream and y's stream begin.
    pub(super) fn new(starts: [(u32, u32); 2], index: u32, rng: Rng) -> Self {
        let lanes = [0, 1].map(|lane: usize| Lane {
            reads: starts[lane].0,
            writes: starts[lane].1,
            epoch: 0,
            raw: 0,
            inbox: VecDeque::new(),
            held: vec![],
            index,
            out: VecDeque::new(),
            drained: false,
            ended: false,
            armed: None,
        });
        Self {
            lanes,
            rng,
            step: 0,
            wakes_at: 0,
            notes: BTreeMap::new(),
            own_answers: VecDeque::new(),
            own_requests: BTreeSet::new(),
            wants_own: false,
        }
    }

    pub(super) fn answered(&self) -> u32 {
        self.lanes[1].index
    }

    pub(super) fn unanswered(&self) -> u32 {
        self.lanes[0].index.wrapping_sub(self.lanes[1].index)
    }

    /// Notes what is known of unanswered requests.
    pub(super) fn note_all(&self, notes: &Notes) {
        for nth in 0..self.unanswered() {
            let index = self.answered().wrapping_add(nth);
            notes.set(index, self.notes.get(&index).copied().unwrap_or(Note::UNKNOWN));
        }
    }
}

const SIDES: [Side; 2] = [Side::Client, Side::Broker];

impl Gateway {
    pub(super) fn daemon_wakes_at(&self) -> Option<Micros> {
        self.has_work().then_some(self.daemon.wakes_at)
    }

    fn has_work(&self) -> bool {
        let lanes = SIDES.into_iter().any(|side| {
            self.reads(side)
                || self.writes(side)
                || self.may_parse(side)
                || self.closes(side)
                || self.arm_for(side).is_some()
        });
        lanes || self.fails().is_some() || self.may_send_own()
    }

    fn lane(&self, side: Side) -> &Lane {
        &self.daemon.lanes[side.index()]
    }

    fn reads(&self, side: Side) -> bool {
        let (lane, socket) = (self.lane(side), &self.sockets[side.index()]);
        let room = lane.out.len() < self.manner.backlog && lane.inbox.is_empty();
        room && (socket.unread() > 0 || socket.at_end() && !lane.ended || !lane.drained)
    }

    /// y of the direction.
    fn writes(&self, side: Side) -> bool {
        let socket = &self.sockets[side.other().index()];
        let open = matches!(socket.state(), State::Established | State::CloseWait);
        let room = socket.unacked() < self.send_buffer(side.other());
        open && !self.lane(side).out.is_empty() && room
    }

    fn send_buffer(&self, side: Side) -> usize {
        self.configs[side.index()][0].send_buffer
    }

    /// Whether y is to be closed.
    fn closes(&self, side: Side) -> bool {
        let lane = self.lane(side);
        let done = lane.ended && lane.out.is_empty() && lane.inbox.is_empty();
        let open = matches!(self.sockets[side.other().index()].state(), State::Established | State::CloseWait);
        done && open && !(side == Side::Broker && self.own_answer_is_due())
    }

    /// A side whose other side failed.
    fn fails(&self) -> Option<Side> {
        let failed = |side: Side| matches!(self.sockets[side.index()].state(), State::Failed(_));
        let alive = |side: Side| !matches!(self.sockets[side.index()].state(), State::Failed(_) | State::Closed);
        SIDES.into_iter().find(|side| failed(side.other()) && alive(*side))
    }

    /// The arm that a direction could get and hasn't.
    fn arm_for(&self, side: Side) -> Option<Armed> {
        let lane = self.lane(side);
        let session = self.session.as_ref()?;
        let even = lane.out.is_empty() && lane.inbox.is_empty() && lane.held.is_empty();
        let waits = side == Side::Client && self.daemon.wants_own
            || side == Side::Broker && !self.daemon.own_answers.is_empty();
        if !even || !lane.drained || lane.ended || waits || lane.epoch != session.dirs[side.index()].epoch {
            return None;
        }
        let armed = Armed {
            at: InLocal(lane.reads),
            sent: OutLocal(lane.writes),
            frames: lane.index,
            remain: lane.raw as u32,
            epoch: lane.epoch,
        };
        (lane.armed != Some(armed)).then_some(armed)
    }

    /// Lets the daemon do a step if it is time.
    pub(super) fn run_daemon(&mut self, now: Micros) {
        if self.daemon.wakes_at > now || !self.has_work() {
            return;
        }
        let manner = self.manner.clone();
        let stalls = self.daemon.rng.chance(manner.stalls) && !self.calm;
        let pause = if stalls { manner.stall } else { manner.step };
        self.daemon.wakes_at = now + 1 + self.daemon.rng.below(pause);
        if let Some(side) = self.fails() {
            self.sockets[side.index()].abort();
            return;
        }
        self.want_something(&manner);
        self.daemon.step = (self.daemon.step + 1) % 8;
        match self.daemon.step {
            0 => self.read(Side::Client),
            1 => self.read(Side::Broker),
            2 => self.write(Side::Client),
            3 => self.write(Side::Broker),
            4 => self.close(),
            5 => self.arm(Side::Client),
            6 => self.arm(Side::Broker),
            _ => self.send_own(),
        }
    }

    /// Now and then it takes a direction back, or wants to ask the broker something itself.
    fn want_something(&mut self, manner: &super::Manner) {
        if self.session.is_none() || self.calm {
            return;
        }
        if self.daemon.rng.chance(manner.recalls) {
            let side = SIDES[self.daemon.rng.below(2) as usize];
            self.take_back(side);
        }
        let few = self.daemon.own_requests.len() < manner.most_own_requests as usize;
        if few && self.daemon.rng.chance(manner.own_requests) && !self.lane(Side::Client).ended {
            self.daemon.wants_own = true;
        }
    }

    /// Disarms and recalls: from here on the direction is LOCAL.
    fn take_back(&mut self, side: Side) {
        if let Some(session) = &self.session {
            session.arms[side.index()].disarm();
        }
        self.daemon.lanes[side.index()].armed = None;
        self.recall(side);
        self.catch_up(side);
    }

    /// If the kernel forwarded since the last look, it did so once and before anything that can now be read.
    fn catch_up(&mut self, side: Side) {
        let Some(session) = &self.session else { return };
        let dir = session.dirs[side.index()];
        let lane = &mut self.daemon.lanes[side.index()];
        if dir.epoch == lane.epoch {
            return;
        }
        let regular = dir.epoch == lane.epoch.wrapping_add(2) && lane.held.is_empty() && lane.inbox.is_empty();
        (lane.epoch, lane.raw, lane.index, lane.armed) = (dir.epoch, dir.prefix as usize, dir.frames, None);
        if !regular {
            self.fail(format!("{side:?}: a switch in the middle of what the daemon holds"));
        }
    }

    fn read(&mut self, side: Side) {
        if self.reads(side) {
            let socket = &mut self.sockets[side.index()];
            let bytes = socket.read(self.manner.read);
            let ended = socket.at_end();
            let lane = &mut self.daemon.lanes[side.index()];
            lane.reads = lane.reads.wrapping_add(bytes.len() as u32);
            lane.drained = bytes.is_empty();
            if !bytes.is_empty() || ended {
                self.catch_up(side);
            }
            let lane = &mut self.daemon.lanes[side.index()];
            lane.inbox.extend(bytes);
            lane.ended |= ended;
        }
        self.parse(side);
    }

    fn may_parse(&self, side: Side) -> bool {
        let lane = self.lane(side);
        let blocked = side == Side::Client && !self.has_room(lane.index);
        !lane.inbox.is_empty() && !blocked || side == Side::Broker && self.own_answer_is_due()
    }

    fn own_answer_is_due(&self) -> bool {
        let lane = self.lane(Side::Broker);
        let next = self.daemon.own_answers.front().is_some_and(|(index, _)| *index == lane.index);
        next && lane.raw == 0 && lane.held.is_empty()
    }

    /// A request of its own can be sent now, or it isn't known whether it can.
    fn may_send_own(&self) -> bool {
        let lane = self.lane(Side::Client);
        let at_start = lane.raw == 0 && lane.held.is_empty() && lane.inbox.is_empty() && self.has_room(lane.index);
        let unknown = self.session.as_ref().is_some_and(|session| session.dirs[0].epoch != lane.epoch);
        self.daemon.wants_own && (at_start || unknown || lane.ended)
    }

    /// A place in the ring is free, or no answer will come any more.
    fn has_room(&self, index: u32) -> bool {
        self.lane(Side::Broker).ended || self.session.as_ref().is_none_or(|session| session.notes.has_room(index, RING))
    }

    fn parse(&mut self, side: Side) {
        loop {
            if side == Side::Broker {
                self.give_own_answers();
            }
            let blocked = side == Side::Client && !self.has_room(self.lane(side).index);
            let lane = &mut self.daemon.lanes[side.index()];
            if lane.inbox.is_empty() || blocked && lane.raw == 0 {
                return;
            }
            if lane.raw > 0 {
                let some = lane.raw.min(lane.inbox.len());
                lane.out.extend(lane.inbox.drain(..some));
                lane.raw -= some;
                continue;
            }
            if let Some(byte) = lane.inbox.pop_front() {
                lane.held.push(byte);
            }
            match side {
                Side::Client => self.judge_request(),
                Side::Broker => self.judge_answer(),
            }
        }
    }

    /// Relays what is held, and the rest of the frame as it comes.
    fn relay(&mut self, side: Side, length: usize) {
        let lane = &mut self.daemon.lanes[side.index()];
        lane.raw = length - lane.held.len();
        lane.out.extend(lane.held.drain(..));
    }

    fn note(&mut self, kind: Kind) {
        let note = Note { kind, mirrored: false };
        let index = self.lane(Side::Client).index;
        let kept = self.daemon.rng.chance(self.manner.unnoted);
        if let Some(session) = self.session.as_ref().filter(|_| !kept) {
            session.notes.set(index, note);
        }
        self.daemon.notes.insert(index, note);
        self.daemon.lanes[0].index = index.wrapping_add(1);
    }

    fn judge_request(&mut self) {
        let held = &self.lane(Side::Client).held;
        let Some(head) = held.first_chunk::<8>() else { return };
        let length = 4 + u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (key, version) = (u16::from_be_bytes([head[4], head[5]]), u16::from_be_bytes([head[6], head[7]]));
        let small = self.policy.rules[usize::from(FETCH)].flags & proxy_common::splice::policy::SMALL_ANSWERS_LOCAL;
        match key {
            FETCH if version > FETCH_CAP => self.note(Kind::Local),
            FETCH if small != 0 => self.note(Kind::LocalIfSmaller),
            FETCH => self.note(Kind::Plain),
            PRODUCE => {
                let acks = match produce_acks(version as i16, &held[4..]) {
                    Partial::Done(acks) => acks,
                    Partial::NeedMore => return,
                    Partial::Malformed(why) => return self.fail(format!("the daemon read a Produce: {why}")),
                };
                match (acks, version) {
                    (0, _) => {}
                    (_, ..10) => self.note(Kind::Plain),
                    (_, 10..13) => self.note(Kind::Produce),
                    _ => self.note(Kind::ProduceIds),
                }
            }
            METADATA if held.len() < length => return,
            METADATA => {
                let lane = &mut self.daemon.lanes[0];
                let request = std::mem::take(&mut lane.held);
                lane.out.extend(rewritten_request(&request));
                return self.note(Kind::Local);
            }
            API_VERSIONS if held.len() < length => return,
            API_VERSIONS => {
                let lane = &mut self.daemon.lanes[0];
                let request = std::mem::take(&mut lane.held);
                let place = (lane.index, own_answer(&request));
                self.daemon.own_answers.push_back(place);
                // Before any later request is written: its answer must not pass this one.
                self.take_back(Side::Broker);
                return;
            }
            _ => return self.fail(format!("the daemon read api key {key} at the start of a frame")),
        }
        self.relay(Side::Client, length);
    }

    fn give_own_answers(&mut self) {
        let lane = &mut self.daemon.lanes[1];
        while lane.raw == 0 && lane.held.is_empty() {
            let due = self.daemon.own_answers.front().is_some_and(|(index, _)| *index == lane.index);
            let Some((_, answer)) = due.then(|| self.daemon.own_answers.pop_front()).flatten() else { return };
            lane.out.extend(answer);
        }
    }

    fn judge_answer(&mut self) {
        let lane = self.lane(Side::Broker);
        let Some(head) = lane.held.first_chunk::<4>() else { return };
        let size = u32::from_be_bytes(*head);
        let (length, index) = (4 + size as usize, lane.index);
        let shared = self.session.as_ref().map_or(Note::UNKNOWN, |session| session.notes.get(index));
        let own_note = self.daemon.notes.get(&index).copied().unwrap_or(Note::UNKNOWN);
        let note = if shared == Note::UNKNOWN { own_note } else { shared };
        let own = self.daemon.own_requests.contains(&index);
        let passes = match note.kind {
            Kind::Plain => true,
            Kind::LocalIfSmaller => size >= SMALL_ANSWER,
            Kind::Produce | Kind::ProduceIds | Kind::Local => false,
            Kind::Unknown => return self.fail(format!("no note for answer {index}")),
        };
        if !passes && lane.held.len() < length {
            return;
        }
        let lane = &mut self.daemon.lanes[1];
        lane.index = index.wrapping_add(1);
        if let Some(session) = &self.session {
            session.notes.set_answered(lane.index);
        }
        if passes {
            return self.relay(Side::Broker, length);
        }
        let answer = std::mem::take(&mut lane.held);
        let version = match note.kind {
            Kind::Produce => 12,
            Kind::ProduceIds => 13,
            _ => 0,
        };
        if version != 0 && proxy_common::produce::is_clean_answer(version, &answer[4..]) {
            lane.out.extend(answer);
        } else if !own {
            lane.out.extend(rewritten_answer(&answer));
        }
    }

    fn write(&mut self, side: Side) {
        if !self.writes(side) {
            return;
        }
        let socket = &mut self.sockets[side.other().index()];
        let lane = &mut self.daemon.lanes[side.index()];
        let taken = socket.write(lane.out.make_contiguous());
        lane.out.drain(..taken);
        lane.writes = lane.writes.wrapping_add(taken as u32);
    }

    fn close(&mut self) {
        for side in SIDES {
            if self.closes(side) {
                self.sockets[side.other().index()].shutdown();
            }
        }
    }

    fn arm(&mut self, side: Side) {
        // Chosen by what was seen; the kernel may have moved on.
        let Some(armed) = self.arm_for(side) else { return };
        if !self.daemon.rng.chance(self.manner.arms) && !self.calm {
            return;
        }
        if let Some(session) = &self.session {
            session.arms[side.index()].arm(&armed);
            self.daemon.lanes[side.index()].armed = Some(armed);
            self.counts.count("armed");
        }
    }

    /// Sends a request of its own, at the next frame's start.
    fn send_own(&mut self) {
        if !self.daemon.wants_own {
            return;
        }
        self.take_back(Side::Client);
        let lane = self.lane(Side::Client);
        let at_start = lane.raw == 0 && lane.held.is_empty() && lane.inbox.is_empty();
        let (index, ended) = (lane.index, lane.ended);
        if !ended && (!at_start || !self.has_room(index)) {
            return;
        }
        self.daemon.wants_own = false;
        if ended {
            return;
        }
        self.daemon.own_requests.insert(index);
        let request = frame(&request_header(OWN, 0, index, Some(3)), &[7; 9]);
        self.daemon.lanes[0].out.extend(request);
        self.note(Kind::Local);
        self.counts.count("own request");
    }
}
