// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The broker's host: compares what it receives, answers in order.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::GATEWAY;
use crate::client::Habits;
use crate::net::{Host, Node, Rng};
use crate::script::{Exchange, OWN, own_answer};
use crate::tcp::{Endpoint, Micros, Segment, State};

/// The broker.
pub(crate) struct Broker {
    pub(crate) endpoint: Endpoint,
    habits: Habits,
    send_buffer: usize,
    /// It reads on only after an answer was written, as Kafka's brokers do.
    serial: bool,
    script: Rc<Vec<Exchange>>,
    rng: Rng,
    inbox: Vec<u8>,
    next: usize,
    answers: VecDeque<(Micros, Vec<u8>)>,
    served: usize,
    writes_at: Micros,
    reads_at: Micros,
    pub(crate) wrong: Option<String>,
}

impl Broker {
    pub(crate) fn new(
        endpoint: Endpoint,
        habits: Habits,
        send_buffer: usize,
        serial: bool,
        script: Rc<Vec<Exchange>>,
        rng: Rng,
    ) -> Self {
        let (inbox, answers, wrong) = (vec![], VecDeque::new(), None);
        let (next, served, writes_at, reads_at) = (0, 0, 0, 0);
        Self {
            endpoint,
            habits,
            send_buffer,
            serial,
            script,
            rng,
            inbox,
            next,
            answers,
            served,
            writes_at,
            reads_at,
            wrong,
        }
    }

    /// Whether it has received every request.
    pub(crate) fn is_satisfied(&self) -> bool {
        self.inbox.is_empty() && self.answers.is_empty() && self.upcoming().is_none()
    }

    pub(crate) fn progress(&self) -> String {
        let Self { next, inbox, answers, served, .. } = self;
        let (held, left) = (inbox.len(), answers.len());
        format!("broker: at request {next} with {held} bytes, {left} answers left, {served} served")
    }

    /// The next exchange that reaches the broker.
    fn upcoming(&self) -> Option<(usize, &Exchange)> {
        self.script.iter().enumerate().skip(self.next).find(|(_, exchange)| exchange.for_broker.is_some())
    }

    fn read(&mut self, now: Micros) {
        let bytes = self.endpoint.read(self.habits.read);
        self.inbox.extend(bytes);
        self.reads_at = now + self.rng.below(self.habits.pause + 1);
        while self.wrong.is_none() && self.take_frame(now) {}
    }

    /// Takes a whole frame from the inbox, and compares what is there of a partial one.
    fn take_frame(&mut self, now: Micros) -> bool {
        if self.inbox.len() < 6 {
            return false;
        }
        if self.inbox[4..6] == OWN.to_be_bytes() {
            let length = 4 + u32::from_be_bytes([self.inbox[0], self.inbox[1], self.inbox[2], self.inbox[3]]) as usize;
            if self.inbox.len() < length {
                return false;
            }
            let request: Vec<u8> = self.inbox.drain(..length).collect();
            self.answer(now, own_answer(&request));
            return true;
        }
        let Some((at, exchange)) = self.upcoming() else {
            self.wrong = Some("the broker received more than was sent".into());
            return false;
        };
        let expected = exchange.for_broker.as_deref().unwrap_or_default();
        let answer = exchange.answer.clone();
        let shared = self.inbox.len().min(expected.len());
        if self.inbox[..shared] != expected[..shared] {
            let good = self.inbox.iter().zip(expected).take_while(|(a, b)| a == b).count();
            self.wrong = Some(format!("the broker received other bytes at {good} of request {at}"));
            return false;
        }
        if shared < expected.len() {
            return false;
        }
        self.inbox.drain(..shared);
        self.next = at + 1;
        if let Some(answer) = answer {
            self.answer(now, answer);
        }
        true
    }

    fn answer(&mut self, now: Micros, answer: Vec<u8>) {
        let due = now + self.rng.below(self.habits.pause + 1);
        let due = self.answers.back().map_or(due, |(before, _)| due.max(*before));
        self.answers.push_back((due, answer));
    }

    fn write(&mut self, now: Micros) {
        if self.served >= self.habits.closes_after {
            self.answers.clear();
            self.endpoint.shutdown();
            return;
        }
        if let Some((_, answer)) = self.answers.front_mut().filter(|(due, _)| *due <= now) {
            let some = 1 + self.rng.below(self.habits.write as u64) as usize;
            let written = self.endpoint.write(&answer[..some.min(answer.len())]);
            answer.drain(..written);
            if answer.is_empty() {
                self.answers.pop_front();
                self.served += 1;
            }
        }
        if self.endpoint.at_end() && self.answers.is_empty() {
            self.endpoint.shutdown();
        }
        if self.rng.chance(self.habits.hesitates) {
            self.writes_at = now + 1 + self.rng.below(self.habits.pause + 1);
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.endpoint.state(), State::Established | State::CloseWait)
    }

    fn writes_next_at(&self) -> Option<Micros> {
        if !self.is_open() {
            return None;
        }
        let closes = self.served >= self.habits.closes_after || self.endpoint.at_end() && self.answers.is_empty();
        let room = self.endpoint.unacked() < self.send_buffer;
        let answer = self.answers.front().filter(|_| room).map(|(due, _)| *due);
        let due = if closes { Some(0) } else { answer };
        due.map(|due| due.max(self.writes_at))
    }

    fn reads_next_at(&self) -> Option<Micros> {
        // Once it has closed a window that it had promised, it must read on: its peer can say nothing from beyond the
        // window, and of what it says from before, the window is old news to this host (SND.WL1). If that host now
        // waits for room to send, two plain TCP connections stand still as well.
        let waits = self.serial && !self.answers.is_empty() && self.is_open() && !self.endpoint.broke_promise();
        (self.endpoint.unread() > 0 && !waits).then_some(self.reads_at)
    }
}

impl Node for Broker {
    fn receive(&mut self, now: Micros, _: Host, segment: Segment) {
        self.endpoint.on_segment(now, &segment);
    }

    fn poll(&mut self, now: Micros) -> Option<(Host, Segment)> {
        if self.habits.aborts_at.is_some_and(|at| at <= now) {
            self.habits.aborts_at = None;
            self.endpoint.abort();
        }
        if self.reads_next_at().is_some_and(|at| at <= now) {
            self.read(now);
        }
        if self.writes_next_at().is_some_and(|at| at <= now) {
            self.write(now);
        }
        self.endpoint.poll(now).map(|segment| (GATEWAY, segment))
    }

    fn next_timer(&self) -> Option<Micros> {
        [self.writes_next_at(), self.reads_next_at(), self.endpoint.next_timer(), self.habits.aborts_at]
            .into_iter()
            .flatten()
            .min()
    }
}
