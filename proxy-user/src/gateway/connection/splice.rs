//! What a connection does for its session in the kernel, at the moments of its own life.

use std::io;
use std::task::{Context, Poll};
use std::time::Instant;

use proxy_common::splice::state::Side;

use super::{Broker, Connection};
use crate::config;
use crate::gateway::door::keep_alive;
use crate::gateway::session::Pause;
use crate::gateway::shared::Phase;

impl Connection {
    /// Notes what the kernel has passed on. Where that is nothing for as long as an idle connection may be, and an answer
    /// is owed, the connection is the daemon's from now on, where keepalive tells a dead client from a slow broker.
    pub(super) fn look_at_splice(&mut self, now: Instant, limits: &config::Limits) {
        if !self.splicing.is_live() {
            return;
        }
        self.splicing.look(&mut self.session);
        let forwarded = self.splicing.forwarded();
        if forwarded != self.forwarded {
            self.forwarded = forwarded;
            self.clock.moved(now);
        } else if self.session.in_flight() > 0
            && now >= self.clock.last_moved() + limits.idle.0
            && self.splicing.stop(&mut self.session, now)
        {
            let _ = keep_alive(&self.client);
            self.clock.moved(now);
        }
    }

    /// Both ends are there, and nothing is about to end.
    pub(super) fn may_splice(&self) -> bool {
        matches!(self.phase, Phase::Serve)
            && !(self.client_eof || self.client_dead || self.broker_shut || self.broker_eof || self.broker_deaf)
            && !(self.stands_in || self.provisional)
            && self.ending.is_none()
            && self.fault.is_none()
    }

    /// Gives the kernel what it may have, or takes it back. `false`: to be tried again at once.
    pub(super) fn splice(&mut self, in_flight: usize, now: Instant) -> bool {
        let Broker::Open(broker) = &self.broker else { return true };
        if self.splicing.is_live() {
            if !self.may_splice() || self.shared.splice().is_err() {
                let stopped = self.splicing.stop(&mut self.session, now);
                self.session.say_own(&mut self.answers);
                return stopped;
            }
        } else if self.may_splice() && self.splicing.is_due(now) && self.session.can_splice() {
            match &**self.shared.splice() {
                Ok(access) => {
                    let (client, session) = (&self.client, &mut self.session);
                    self.splicing.begin(access, client, broker, session, &self.shared.metrics, now);
                }
                Err(why) => self.splicing.refuse(why),
            }
            self.record.set_splice(self.splicing.session(), self.splicing.why_not());
        }
        if self.session.pause(&self.answers, in_flight) == Some(Pause::InFlight) {
            // The client is read again when an answer comes, so the answers must come by here.
            return self.splicing.recall_answers(&mut self.session, now);
        }
        if self.ports.is_none() && self.splicing.is_live() {
            let lanes = [&self.requests, &self.answers];
            self.splicing.arm(&mut self.session, lanes, &self.client, broker, now);
            if !self.splicing.is_live() {
                self.record.set_splice(None, self.splicing.why_not());
            }
        }
        true
    }

    /// The gateway has answers of its own: the kernel must not pass others on meanwhile.
    pub(super) fn say_own_answers(&mut self, cx: &mut Context<'_>) {
        if self.session.owes() && self.splicing.is_live() {
            if !self.splicing.recall_answers(&mut self.session, Instant::now()) {
                cx.waker().wake_by_ref();
            }
            self.session.say_own(&mut self.answers);
        }
    }

    pub(super) fn note_read(&mut self, side: Side, read: &Poll<io::Result<usize>>) {
        match read {
            Poll::Pending => self.splicing.drained(side),
            Poll::Ready(_) if self.splicing.session().is_none() => {}
            Poll::Ready(read) => {
                let length = *read.as_ref().unwrap_or(&0);
                self.splicing.read(side, length, &mut self.session, Instant::now());
            }
        }
    }
}
