//! When a connection has taken too long: pure decisions from the moments that were noted.

use std::time::{Duration, Instant};

use super::close::CloseReason;
use super::session::Arriving;
use crate::config::Limits;

/// A slow but honest client's pace: a begun frame has `incomplete_frame` plus its size at this many bytes a second.
const SLOWEST_PACE: u64 = 64 * 1024;

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// Requests without an answer.
    pub(crate) in_flight: usize,
    /// Bytes that the client has not taken.
    pub(crate) answers: bool,
    /// Bytes that the broker has not taken.
    pub(crate) requests: bool,
    /// Requests begun so far.
    pub(crate) begun: u64,
    /// The frame whose next bytes are the client's to send; `None` where it is the gateway that doesn't read.
    pub(crate) client: Option<Arriving>,
    /// When a drain's patience ends.
    pub(crate) drain: Option<Instant>,
}

/// The moments of one connection.
#[derive(Debug)]
pub(crate) struct Clock {
    accepted: Instant,
    /// Last byte either way.
    moved: Instant,
    /// When the client's FIN or reset was seen.
    client_ended: Option<Instant>,
    /// When the current wait for the rest of a frame began.
    waits_since: Option<Instant>,
    /// How long the current frame has been waited for, back-pressure left out.
    waited: Duration,
    /// Which frame `waited` counts for: requests begun, and whether it is one of them.
    frame: (u64, bool),
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            accepted: now,
            moved: now,
            client_ended: None,
            waits_since: None,
            waited: Duration::ZERO,
            frame: (0, false),
        }
    }

    /// Bytes moved.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// When bytes moved last.
    pub(crate) fn last_moved(&self) -> Instant {
        self.moved
    }

    /// The client will send nothing more.
    pub(crate) fn client_ended(&mut self, now: Instant) {
        self.client_ended.get_or_insert(now);
    }

    /// Whether that was noted.
    pub(crate) fn has_client_ended(&self) -> bool {
        self.client_ended.is_some()
    }

    /// The wait for the client is over: something happened.
    pub(crate) fn wake(&mut self, now: Instant) {
        if let Some(since) = self.waits_since.take() {
            self.waited += now.saturating_duration_since(since);
        }
    }

    /// From now on this is waited for. The next moment at which it is too late, and how the connection ends then.
    pub(crate) fn wait(&mut self, now: Instant, wait: &Wait, limits: &Limits) -> Option<(Instant, CloseReason)> {
        if let Some(arriving) = wait.client {
            let frame = (wait.begun, arriving.begun);
            if self.frame != frame {
                self.frame = frame;
                self.waited = Duration::ZERO;
            }
            self.waits_since = Some(now);
        }
        self.deadline(now, wait, limits)
    }

    fn deadline(&self, now: Instant, wait: &Wait, limits: &Limits) -> Option<(Instant, CloseReason)> {
        let Wait { in_flight, answers, requests, begun, client, drain } = *wait;
        let stalled = if answers {
            Some(CloseReason::Stalled)
        } else if requests {
            Some(CloseReason::BrokerStalled)
        } else if in_flight == 0 {
            Some(CloseReason::Idle)
        } else {
            // The broker may take as long as the client's request allows.
            None
        };
        let stalled = stalled.map(|reason| (self.moved + limits.idle.0, reason));
        let incomplete = if begun == 0 {
            Some((self.accepted + limits.first_byte.0, CloseReason::FirstByte))
        } else {
            client.map(|Arriving { size, .. }| {
                let allowed = limits.incomplete_frame.0 + Duration::from_secs(size / SLOWEST_PACE);
                (now + allowed.saturating_sub(self.waited), CloseReason::IncompleteFrame)
            })
        };
        // While its answers flow, a client that has said all is not gone.
        let gone =
            self.client_ended.map(|at| (at.max(self.moved) + limits.drain.0, CloseReason::ClientGone { in_flight }));
        let drained = drain.map(|until| (until, CloseReason::DrainTimeout { in_flight }));
        [drained, gone, incomplete, stalled].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn due(clock: &mut Clock, now: Instant, wait: Wait) -> (Duration, &'static str) {
        let (at, reason) = clock.wait(now, &wait, &Limits::default()).expect("a deadline");
        (at - now, reason.label())
    }

    #[test]
    fn each_wait_has_its_knob() {
        let now = Instant::now();
        let served = Wait { begun: 1, ..Wait::default() };
        for (wait, seconds, label) in [
            (Wait::default(), 10, "first_byte"),
            (served, 9 * 60, "idle"),
            (Wait { answers: true, in_flight: 3, ..served }, 9 * 60, "stalled"),
            (Wait { requests: true, in_flight: 3, ..served }, 9 * 60, "broker_stalled"),
            (Wait { client: Some(Arriving { begun: false, size: 0 }), ..served }, 30, "incomplete_frame"),
            (Wait { client: Some(Arriving { begun: true, size: 640 << 10 }), ..served }, 40, "incomplete_frame"),
            (Wait { drain: Some(now + SECOND), in_flight: 1, ..served }, 1, "drained"),
        ] {
            assert_eq!(due(&mut Clock::new(now), now, wait), (SECOND * seconds, label), "{wait:?}");
        }
    }

    #[test]
    fn a_broker_that_works_on_a_request_has_all_the_time() {
        let now = Instant::now();
        let wait = Wait { begun: 1, in_flight: 1, ..Wait::default() };
        assert!(Clock::new(now).wait(now, &wait, &Limits::default()).is_none());
    }

    #[test]
    fn time_that_the_gateway_does_not_read_is_not_the_clients() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        let frame = Wait { begun: 1, client: Some(Arriving { begun: true, size: 0 }), ..Wait::default() };
        assert_eq!(due(&mut clock, start, frame).0, SECOND * 30);
        let mut now = start + SECOND * 20;
        clock.wake(now);
        due(&mut clock, now, Wait { client: None, requests: true, ..frame });
        now += SECOND * 60;
        clock.wake(now);
        assert_eq!(due(&mut clock, now, frame).0, SECOND * 10);
    }

    #[test]
    fn the_header_of_the_next_frame_has_its_own_time() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        let frame = Wait { begun: 1, client: Some(Arriving { begun: true, size: 0 }), ..Wait::default() };
        due(&mut clock, start, frame);
        let now = start + SECOND * 20;
        clock.wake(now);
        let next = Wait { client: Some(Arriving { begun: false, size: 0 }), ..frame };
        assert_eq!(due(&mut clock, now, next).0, SECOND * 30);
    }

    #[test]
    fn a_client_that_has_said_all_is_gone_only_once_nothing_flows() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        clock.client_ended(start);
        let now = start + SECOND * 25;
        clock.moved(now);
        let wait = Wait { begun: 1, in_flight: 1, ..Wait::default() };
        assert_eq!(due(&mut clock, now, wait), (SECOND * 30, "client_gone"));
    }
}
