// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The client's host: sends the script's requests, compares what it receives.

use std::rc::Rc;

use crate::GATEWAY;
use crate::net::{Host, Node, Rng};
use crate::script::Exchange;
use crate::tcp::{Endpoint, Micros, Segment, State};

/// How a host's application behaves.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// Requests that may be unanswered.
    pub(crate) depth: usize,
    /// Most bytes of one write.
    pub(crate) write: usize,
    /// Most bytes of one read.
    pub(crate) read: usize,
    /// Between two reads, and between writes at most.
    pub(crate) pause: Micros,
    /// Per mille of writes after which it pauses.
    pub(crate) hesitates: u32,
    /// When it ends the connection with RST, if it does.
    pub(crate) aborts_at: Option<Micros>,
    /// Exchanges after which it closes.
    pub(crate) closes_after: usize,
    /// It closes only when it has received everything.
    pub(crate) lingers: bool,
}

/// The client.
pub(crate) struct Client {
    pub(crate) endpoint: Endpoint,
    pub(crate) habits: Habits,
    send_buffer: usize,
    script: Rc<Vec<Exchange>>,
    rng: Rng,
    /// Exchanges whose request was begun, and what is left of the last one.
    begun: usize,
    rest: Vec<u8>,
    /// What it must receive, the borders of its frames, and how far it has come.
    expected: Vec<u8>,
    borders: Vec<usize>,
    received: usize,
    /// When it had received everything.
    pub(crate) satisfied_at: Micros,
    answered: usize,
    writes_at: Micros,
    reads_at: Micros,
    pub(crate) wrong: Option<String>,
}

impl Client {
    pub(crate) fn new(
        endpoint: Endpoint,
        habits: Habits,
        send_buffer: usize,
        script: Rc<Vec<Exchange>>,
        rng: Rng,
    ) -> Self {
        let mut expected = vec![];
        let mut borders = vec![];
        for exchange in script.iter() {
            expected.extend(exchange.for_client.iter().flatten());
            borders.push(expected.len());
        }
        let (rest, wrong) = (vec![], None);
        let (begun, received, answered, writes_at, reads_at) = (0, 0, 0, 0, 0);
        Self {
            endpoint,
            habits,
            send_buffer,
            script,
            rng,
            begun,
            rest,
            expected,
            borders,
            received,
            satisfied_at: 0,
            answered,
            writes_at,
            reads_at,
            wrong,
        }
    }

    /// Whether it has received everything.
    pub(crate) fn is_satisfied(&self) -> bool {
        self.received == self.expected.len()
    }

    pub(crate) fn progress(&self) -> String {
        let Self { begun, answered, received, .. } = self;
        format!("client: {begun} begun, {answered} answered, {received} of {} bytes", self.expected.len())
    }

    fn write(&mut self, now: Micros) {
        if self.rest.is_empty() && self.may_begin() {
            self.rest = self.script[self.begun].request.clone();
            self.begun += 1;
        }
        let some = 1 + self.rng.below(self.habits.write as u64) as usize;
        let written = self.endpoint.write(&self.rest[..some.min(self.rest.len())]);
        self.rest.drain(..written);
        if self.may_close() || self.endpoint.at_end() {
            self.endpoint.shutdown();
        }
        // Now and then it hesitates.
        if self.rng.chance(self.habits.hesitates) {
            self.writes_at = now + 1 + self.rng.below(self.habits.pause + 1);
        }
    }

    /// Whether the next request may begin: fewer are unanswered than the depth. One without an answer counts until a
    /// later one is answered.
    fn may_begin(&self) -> bool {
        self.begun < self.script.len().min(self.habits.closes_after)
            && (self.begun - self.answered < self.habits.depth
                || self.borders.get(self.begun - 1).is_some_and(|border| *border == self.received))
    }

    fn wants_write(&self) -> bool {
        let open = matches!(self.endpoint.state(), State::Established | State::CloseWait);
        let room = self.endpoint.unacked() < self.send_buffer;
        let writes = room && (!self.rest.is_empty() || self.may_begin());
        open && (writes || self.endpoint.at_end() || self.may_close())
    }

    fn may_close(&self) -> bool {
        let stays = self.habits.lingers && !self.is_satisfied();
        self.rest.is_empty() && self.begun >= self.script.len().min(self.habits.closes_after) && !stays
    }

    fn read(&mut self, now: Micros) {
        let bytes = self.endpoint.read(self.habits.read);
        let at = self.received;
        if self.expected.get(at..at + bytes.len()) != Some(&bytes[..]) && self.wrong.is_none() {
            let good = bytes.iter().zip(&self.expected[at..]).take_while(|(a, b)| a == b).count();
            self.wrong = Some(format!("the client received other bytes at {} (frame {})", at + good, self.answered));
        }
        self.received += bytes.len();
        if self.is_satisfied() {
            self.satisfied_at = now;
        }
        while self.answered < self.begun && self.borders[self.answered] <= self.received {
            self.answered += 1;
        }
        self.reads_at = now + self.rng.below(self.habits.pause + 1);
    }
}

impl Node for Client {
    fn receive(&mut self, now: Micros, _: Host, segment: Segment) {
        self.endpoint.on_segment(now, &segment);
    }

    fn poll(&mut self, now: Micros) -> Option<(Host, Segment)> {
        if self.habits.aborts_at.is_some_and(|at| at <= now) {
            self.habits.aborts_at = None;
            self.endpoint.abort();
        }
        if self.wants_write() && now >= self.writes_at {
            self.write(now);
        }
        if self.endpoint.unread() > 0 && now >= self.reads_at {
            self.read(now);
        }
        self.endpoint.poll(now).map(|segment| (GATEWAY, segment))
    }

    fn next_timer(&self) -> Option<Micros> {
        let writes = self.wants_write().then_some(self.writes_at);
        let reads = (self.endpoint.unread() > 0).then_some(self.reads_at);
        [writes, reads, self.endpoint.next_timer(), self.habits.aborts_at].into_iter().flatten().min()
    }
}
