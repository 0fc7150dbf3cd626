//! A connection and its session in the kernel: when one begins, when the kernel is given a direction, and how the daemon
//! finds its place again when it gets one back.
//!
//! ```text
//!  Untried ── can_splice ──► Refused (why; some are tried again)
//!     │                        ▲
//!     └────────► Live ─────────┘ something came past the programs while it began
//!                 │  each direction:  daemon's ── arm ──► either's ── bytes read, or recall ──► daemon's
//!                 └► stopped: both directions are the daemon's for good
//! ```

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use proxy_common::splice::arm::Armed;
use proxy_common::splice::notes::Notes;
use proxy_common::splice::seq::{InLocal, OutLocal};
use proxy_common::splice::state::Side;
use tokio::net::TcpStream;

use super::lane::Lane;
use super::session::Session;
use crate::metrics::VirtualClusterMetrics;
use crate::splice::eligible::Obstacle;
use crate::splice::session::{self as kernel, Refusal, Splicer};
use crate::splice::socket::let_grow;

/// Between two tries to begin a session where what is in the way may pass.
const AGAIN: Duration = Duration::from_secs(5);

/// Tries to begin one while packets come in past the programs at that very moment.
const TRIES: u32 = 3;

/// A turn of the kernel that forwarded less than this was not worth its two switches, bytes.
const WORTH: u64 = 2048;

/// So many turns in a row that were not worth it, and the daemon keeps the direction for a while.
const PATIENCE: u32 = 16;

/// How long that is at first and at most; it doubles.
const KEEP: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(2)];

/// What a virtual cluster's connections are spliced with.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) splicer: Arc<dyn Splicer>,
    /// By which frames go.
    pub(crate) policy: u16,
}

/// One direction, as far as the kernel is concerned.
#[derive(Debug)]
struct Way {
    /// Sequence numbers of the next byte that is read, and written.
    reads: u32,
    writes: u32,
    epoch: u32,
    armed: Option<Armed>,
    /// The last read found nothing more.
    is_drained: bool,
    /// Bytes that the kernel had forwarded when its last turn ended.
    forwarded: u64,
    /// Turns in a row that were not worth it.
    poor: u32,
    keep: Duration,
    /// The daemon keeps it until then.
    kept_until: Option<Instant>,
}

impl Way {
    fn new(reads: u32, writes: u32) -> Self {
        Self {
            reads,
            writes,
            epoch: 0,
            armed: None,
            is_drained: false,
            forwarded: 0,
            poor: 0,
            keep: KEEP[0],
            kept_until: None,
        }
    }

    /// A turn of the kernel has ended.
    fn judge(&mut self, forwarded: u64, now: Instant) {
        let worth = forwarded.wrapping_sub(self.forwarded) >= WORTH;
        self.forwarded = forwarded;
        if worth {
            (self.poor, self.keep) = (0, KEEP[0]);
            return;
        }
        self.poor += 1;
        if self.poor >= PATIENCE {
            self.poor = 0;
            self.kept_until = Some(now + self.keep);
            self.keep = (self.keep * 2).min(KEEP[1]);
        }
    }
}

struct Live {
    session: Arc<kernel::Session>,
    /// Requests and answers.
    ways: [Way; 2],
    /// Something was armed: the session is known to be whole.
    has_armed: bool,
    /// Both directions are the daemon's for good.
    is_stopped: bool,
    _spliced: SplicedGauge,
}

/// Counts down with the session.
struct SplicedGauge(Gauge);

impl Drop for SplicedGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Splicing {
    live: Option<Live>,
    /// Why there is none, once it was tried.
    why_not: Option<String>,
    tries: u32,
    again: Option<Instant>,
}

/// Both directions, by the side whose data they carry.
const SIDES: [Side; 2] = [Side::Client, Side::Broker];

impl Splicing {
    /// Where the kernel looks up what answers belong to.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.live.as_ref().map(|live| live.session.notes())
    }

    /// The session, for operators.
    pub(crate) fn session(&self) -> Option<&Arc<kernel::Session>> {
        self.live.as_ref().map(|live| &live.session)
    }

    /// Whether there is a session that the kernel may have a turn in.
    pub(crate) fn is_live(&self) -> bool {
        self.live.as_ref().is_some_and(|live| !live.is_stopped)
    }

    /// Whether the kernel has a side's data now, or had after the daemon's last read.
    pub(crate) fn has(&self, side: Side) -> bool {
        self.live.as_ref().is_some_and(|live| {
            let way = &live.ways[side.index()];
            way.armed.is_some() && live.session.turn(side).epoch != way.epoch
        })
    }

    /// Why there is none.
    pub(crate) fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Whether it is time to try to begin one.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.live.is_none() && (self.why_not.is_none() || self.again.is_some_and(|again| again <= now))
    }

    /// There will be none.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.why_not = Some(why.to_owned());
        self.again = None;
    }

    /// Tries to begin a session.
    pub(crate) fn begin(
        &mut self,
        access: &Access,
        client: &TcpStream,
        broker: &TcpStream,
        session: &mut Session,
        metrics: &VirtualClusterMetrics,
        now: Instant,
    ) {
        let sockets = [client, broker];
        match access.splicer.begin(client.as_fd(), broker.as_fd(), access.policy) {
            Ok(begun) => {
                let [client, broker] = SIDES.map(|side| begun.place(side));
                session.splice(begun.notes());
                session.splice_tap(&begun);
                metrics.spliced.inc();
                let spliced = SplicedGauge(metrics.spliced.clone());
                let ways = [Way::new(client.reads, broker.writes), Way::new(broker.reads, client.writes)];
                self.why_not = None;
                self.live = Some(Live {
                    session: Arc::new(begun),
                    ways,
                    has_armed: false,
                    is_stopped: false,
                    _spliced: spliced,
                });
            }
            Err(refusal) => {
                let passes = match &refusal {
                    Refusal::Obstacle(obstacle) => {
                        matches!(obstacle, Obstacle::Distance(_) | Obstacle::NotAttached(_))
                    }
                    Refusal::Full(_) | Refusal::System { .. } => true,
                };
                for socket in sockets {
                    // An older kernel leaves it as it is.
                    let _ = let_grow(socket.as_fd());
                }
                let why = refusal.to_string();
                if self.why_not.as_ref() != Some(&why) {
                    metrics.not_spliced.count(refusal.label());
                }
                self.why_not = Some(why);
                self.again = passes.then_some(now + AGAIN);
            }
        }
    }

    /// So many bytes were read of a side's socket; 0 for its end. The direction is the daemon's: finds out how that came.
    pub(crate) fn read(&mut self, side: Side, length: usize, session: &mut Session, now: Instant) {
        let Some(live) = &mut self.live else { return };
        if live.session.turn(side).is_peer() {
            // Not bytes: the socket failed by itself.
            let _ = live.recall(side, session, now);
        }
        live.sync(side, session, now);
        let way = &mut live.ways[side.index()];
        way.reads = way.reads.wrapping_add(length as u32);
        way.is_drained = false;
        // What was read may answer a request that the kernel has passed on since the last look.
        self.look(session);
    }

    /// A side's socket had nothing to read.
    pub(crate) fn drained(&mut self, side: Side) {
        self.live.iter_mut().for_each(|live| live.ways[side.index()].is_drained = true);
    }

    /// So many bytes of a side's data were written to the other one's socket.
    pub(crate) fn wrote(&mut self, side: Side, length: usize) {
        if let Some(live) = &mut self.live {
            let way = &mut live.ways[side.index()];
            way.writes = way.writes.wrapping_add(length as u32);
        }
    }

    /// Learns what the kernel has passed on meanwhile.
    pub(crate) fn look(&mut self, session: &mut Session) {
        for side in SIDES {
            // What it says of a direction that is the daemon's is old.
            if self.has(side)
                && let Some(live) = &self.live
            {
                let frames = live.session.turn(side).frames;
                match side {
                    Side::Client => session.requests_passed(frames),
                    Side::Broker => session.answers_passed(frames),
                }
            }
        }
    }

    /// Bytes that the kernel has passed on, both ways.
    pub(crate) fn forwarded(&self) -> u64 {
        let Some(live) = &self.live else { return 0 };
        SIDES.into_iter().map(|side| live.session.traffic(side).bytes).sum()
    }

    /// Takes both directions back for good. `false`: to be tried again.
    pub(crate) fn stop(&mut self, session: &mut Session, now: Instant) -> bool {
        let Some(live) = &mut self.live else { return true };
        if !live.is_stopped {
            live.is_stopped = SIDES.into_iter().all(|side| live.recall(side, session, now));
        }
        live.is_stopped
    }

    /// Takes the answers back, because the gateway has one of its own. `false`: to be tried again.
    pub(crate) fn recall_answers(&mut self, session: &mut Session, now: Instant) -> bool {
        self.live.as_mut().is_none_or(|live| live.recall(Side::Broker, session, now))
    }

    /// Gives the kernel what the daemon is done with. Called when nothing moves. A session that is not whole is given up.
    pub(crate) fn arm(
        &mut self,
        session: &mut Session,
        lanes: [&Lane; 2],
        client: &TcpStream,
        broker: &TcpStream,
        now: Instant,
    ) {
        let Some(live) = self.live.as_mut().filter(|live| !live.is_stopped && live.session.is_seen()) else { return };
        if !live.has_armed {
            if !live.session.is_whole(client.as_fd(), broker.as_fd()) {
                return self.give_up(session, now);
            }
            live.has_armed = true;
        }
        for side in SIDES {
            let way = &mut live.ways[side.index()];
            let kept = way.kept_until.is_some_and(|until| now < until);
            let at = match side {
                Side::Client => session.requests_at(lanes[0]),
                Side::Broker => session.answers_at(lanes[1]),
            };
            let Some((frames, remain)) = at.filter(|_| way.is_drained && !kept) else { continue };
            let armed = Armed { at: InLocal(way.reads), sent: OutLocal(way.writes), frames, remain, epoch: way.epoch };
            if way.armed != Some(armed) {
                live.session.arm(side, &armed);
                way.armed = Some(armed);
                if side == Side::Broker {
                    session.give_answers_away();
                }
            }
        }
    }

    /// The kernel has forwarded nothing yet, so that its programs can be forgotten about.
    fn give_up(&mut self, session: &mut Session, now: Instant) {
        self.live = None;
        session.unsplice();
        self.tries += 1;
        self.why_not = Some("packets came in past the programs when the session began".to_owned());
        self.again = (self.tries < TRIES).then_some(now + AGAIN);
    }
}

impl Live {
    /// Brings the daemon's books up to date where the kernel had a turn that has ended.
    fn sync(&mut self, side: Side, session: &mut Session, now: Instant) {
        let turn = self.session.turn(side);
        let way = &mut self.ways[side.index()];
        if turn.epoch == way.epoch {
            // What the arm named has passed by in the daemon's turn.
            return;
        }
        debug_assert_eq!(turn.epoch, way.epoch.wrapping_add(2), "one turn of the kernel's at a time");
        way.epoch = turn.epoch;
        way.armed = None;
        way.judge(self.session.traffic(side).bytes, now);
        match side {
            Side::Client => session.requests_resume(turn.prefix, turn.frames),
            Side::Broker => session.answers_resume(turn.prefix, turn.frames),
        }
        // The frame under way has its note still, unless 256 others were begun meanwhile.
        let is_mirrored = self.session.notes().get(turn.frames.wrapping_sub(1)).mirrored;
        session.tap_resumes(side, self.session.tally(side), turn.prefix, is_mirrored);
    }

    fn recall(&mut self, side: Side, session: &mut Session, now: Instant) -> bool {
        let way = &self.ways[side.index()];
        // Without leave the kernel can't have begun: no system call is needed to know.
        let has_leave = way.armed.is_some() || self.session.turn(side).is_peer();
        if has_leave && !self.session.recall(side) {
            return false;
        }
        self.sync(side, session, now);
        self.ways[side.index()].armed = None;
        if side == Side::Broker {
            session.take_answers_back();
        }
        true
    }
}
