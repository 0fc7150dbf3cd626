// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The gateway's host: the kernel's part (the splice's functions, used unchanged), two local sockets, and a daemon.
//!
//! ```text
//!   client ◄──► kernel ◄──► c ◄──► daemon ◄──► b ◄──► kernel ◄──► broker
//!                  └──────────────────────────────────────┘
//! ```
//! The kernel's part runs on two CPUs: a packet's frames are walked when it arrives, and its state is committed when it
//! is that CPU's turn, so packets, recalls and arms come in between. The daemon does one small step at a time, with
//! pauses, so that what it saw may be out of date when it acts.
//!
//! Not modelled: the lock itself and its failure, the program's rewriting of bytes and checksums, urgent data, a path
//! whose MTU changes, ICMP, the mirror, what a foreign program in front could do, and runs of gigabytes (aging has tests
//! of its own). A stranger injects only what no TCP is harmed by: an exact RST, or bytes within the window, would end or
//! falsify any plain connection too; exact RSTs come from the hosts themselves.

mod attack;
mod daemon;
mod kernel;
mod ledger;

pub(crate) use kernel::Counts;

use std::collections::VecDeque;

use proxy_common::splice::notes::RING;
use proxy_common::splice::policy::Policy;
use proxy_common::splice::segment::Arriving;
use proxy_common::splice::state::{Origin, Session, Side};
use proxy_common::splice::walk::Survey;

use crate::net::{Host, Node, Rng};
use crate::tcp::{Config, Endpoint, MILLI, Micros, Segment, Socket};
use crate::{BROKER, CLIENT};
use daemon::Daemon;
use ledger::Ledger;

/// How the gateway behaves.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// When the session is entered; before that the sockets are ordinary ones.
    pub(crate) splices_at: Micros,
    /// Longest time between a packet's walk and its commit.
    pub(crate) cpu_delay: Micros,
    /// Longest time between two steps of the daemon.
    pub(crate) step: Micros,
    /// Per mille of the daemon's steps that are followed by a stall, and how long at most.
    pub(crate) stalls: u32,
    pub(crate) stall: Micros,
    /// Most bytes of one read.
    pub(crate) read: usize,
    /// Most bytes that wait to be written.
    pub(crate) backlog: usize,
    /// Per mille of chances to arm that are taken.
    pub(crate) arms: u32,
    /// Per mille of steps at which the daemon takes a direction back for no reason.
    pub(crate) recalls: u32,
    /// Per mille of steps at which it wants to send a request of its own, and how many at most.
    pub(crate) own_requests: u32,
    pub(crate) most_own_requests: u32,
    /// Per mille of requests whose note it keeps to itself: the kernel meets an answer that it knows nothing of.
    pub(crate) unnoted: u32,
    /// Per mille of packets for a local socket that it never sees, and how many at most.
    pub(crate) local_loss: u32,
    pub(crate) most_local_losses: u32,
    /// Index of the first frame.
    pub(crate) first_index: u32,
    /// Payload that fits a packet on either path, and from when on.
    pub(crate) room: u32,
    /// Injected packets, at most one in so much time, and how many.
    pub(crate) attack_interval: Micros,
    pub(crate) attacks: u32,
}

/// A packet whose frames were walked and whose state was not committed.
#[derive(Clone, Debug)]
struct Held {
    at: Micros,
    cpu: usize,
    side: Side,
    segment: Segment,
    arriving: Arriving,
    survey: Survey,
    injected: bool,
}

/// The gateway.
pub(crate) struct Gateway {
    pub(crate) sockets: [Endpoint; 2],
    configs: [[Config; 2]; 2],
    manner: Manner,
    rng: Rng,
    policy: Policy,
    pub(crate) session: Option<Session>,
    daemon: Daemon,
    ledger: Ledger,
    held: Vec<Held>,
    /// Whether a local socket received something out of order before the session began.
    had_early: [bool; 2],
    /// The right edges that the local sockets told before it began.
    promised: [u32; 2],
    outgoing: VecDeque<(Host, Segment)>,
    attacks_at: Option<Micros>,
    pub(crate) counts: Counts,
    pub(crate) wrong: Option<String>,
    trace: bool,
    calm: bool,
}

/// What a handshake tells of a socket's window.
fn first_window(config: &Config) -> u32 {
    let unit = 1 << config.scale;
    let least = config.receive_buffer.min(config.window).next_multiple_of(unit);
    (least as u32).min(u32::from(u16::MAX) << config.scale)
}

/// The local socket that faces a side.
pub(crate) fn local(side: Side) -> Socket {
    match side {
        Side::Client => Socket::ToClient,
        Side::Broker => Socket::ToBroker,
    }
}

/// The host of a side.
pub(crate) fn host(side: Side) -> Host {
    match side {
        Side::Client => CLIENT,
        Side::Broker => BROKER,
    }
}

/// The socket of a side's host.
pub(crate) fn remote(side: Side) -> Socket {
    match side {
        Side::Client => Socket::Client,
        Side::Broker => Socket::Broker,
    }
}

impl Gateway {
    /// `configs` are, for each side, the local socket's and its host's.
    pub(crate) fn new(configs: [[Config; 2]; 2], manner: Manner, policy: Policy, mut rng: Rng, trace: bool) -> Self {
        let sockets = [0, 1].map(|side| Endpoint::new(&configs[side][0], &configs[side][1]));
        let starts = [0, 1].map(|side: usize| (configs[side][1].seq, configs[1 - side][0].seq));
        let daemon = Daemon::new(starts, manner.first_index, rng.fork());
        let promised = configs.each_ref().map(|[own, host]| host.seq.wrapping_add(first_window(own)));
        let attacks_at = (manner.attacks > 0).then_some(manner.attack_interval);
        Self {
            sockets,
            configs,
            rng,
            policy,
            session: None,
            daemon,
            ledger: Ledger::default(),
            held: vec![],
            had_early: [false; 2],
            promised,
            outgoing: VecDeque::new(),
            attacks_at,
            counts: Counts::default(),
            wrong: None,
            trace,
            calm: false,
            manner,
        }
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm(&mut self) {
        self.calm = true;
        self.attacks_at = None;
    }

    /// Holds what both hosts and both local sockets were acknowledged against what their receivers have.
    pub(crate) fn check_acknowledgments(&mut self, client: &Endpoint, broker: &Endpoint) {
        if self.session.is_none() {
            return;
        }
        let hosts = [client, broker];
        for side in [0, 1] {
            let (x_host, y_host) = (hosts[side], hosts[1 - side]);
            let x = &self.sockets[side];
            if !self.ledger.is_true(side, x_host.snd_una(), x.rcv_nxt(), y_host.rcv_nxt()) {
                self.fail(format!("direction {side}: a host was acknowledged what nobody has"));
            }
            if !self.ledger.is_true_of_y(side, self.sockets[1 - side].snd_una(), y_host.rcv_nxt()) {
                self.fail(format!("direction {side}: a local socket was acknowledged what its host does not have"));
            }
        }
    }

    pub(crate) fn progress(&self) -> String {
        let sockets = self.sockets.each_ref().map(|socket| (socket.state(), socket.unread(), socket.unacked()));
        format!(
            "gateway: (state, unread, unacked) {sockets:?}\n{:?}\n{:#?}",
            self.daemon,
            self.session.as_ref().map(|s| s.dirs)
        )
    }

    fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn splice(&mut self) {
        let origin = |side: usize| {
            let (x, y) = (&self.sockets[side], &self.sockets[1 - side]);
            let ([x_own, _], [_, y_peer]) = (&self.configs[side], &self.configs[1 - side]);
            Origin {
                rcv_nxt: x.rcv_nxt(),
                unread: x.unread() as u32,
                write_seq: y.write_seq(),
                unacked: y.unacked() as u32,
                x_scale: u32::from(x_own.scale),
                y_scale: u32::from(y_peer.scale),
                x_window: self.promised[side].wrapping_sub(x.rcv_nxt()),
                x_had_early: self.had_early[side],
                y_window: y.snd_wnd() as u32,
                y_wl: y.rcv_nxt(),
            }
        };
        let origins = [origin(0), origin(1)];
        let session = Session {
            dirs: [0, 1].map(|side| proxy_common::splice::state::Dir::new(&origins[side])),
            ..Session::default()
        };
        session.notes.set_answered(self.daemon.answered());
        self.daemon.note_all(&session.notes);
        self.ledger.begin(&session.dirs);
        self.session = Some(session);
    }
}

impl Node for Gateway {
    fn receive(&mut self, now: Micros, from: Host, segment: Segment) {
        let side = if from == CLIENT { Side::Client } else { Side::Broker };
        self.arrive(now, side, segment, false);
    }

    fn poll(&mut self, now: Micros) -> Option<(Host, Segment)> {
        if self.session.is_none() && now >= self.manner.splices_at {
            // With more unanswered requests than the ring has places some answers would be without a note.
            if self.daemon.unanswered() < RING {
                self.splice();
            } else {
                self.manner.splices_at = now + MILLI;
            }
        }
        if self.attacks_at.is_some_and(|at| at <= now) {
            self.attack(now);
        }
        self.commit_due(now);
        self.run_daemon(now);
        if let Some(sent) = self.outgoing.pop_front() {
            return Some(sent);
        }
        for side in [Side::Client, Side::Broker] {
            while let Some(segment) = self.sockets[side.index()].poll(now) {
                if let Some(sent) = self.leave(side, segment) {
                    return Some(sent);
                }
            }
        }
        None
    }

    fn next_timer(&self) -> Option<Micros> {
        let sockets = self.sockets.iter().filter_map(Endpoint::next_timer).min();
        let held = self.held.iter().map(|held| held.at).min();
        let splices = self.session.is_none().then_some(self.manner.splices_at);
        let daemon = self.daemon_wakes_at();
        [sockets, held, splices, daemon, self.attacks_at].into_iter().flatten().min()
    }
}
