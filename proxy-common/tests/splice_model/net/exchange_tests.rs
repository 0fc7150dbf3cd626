// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Two endpoints exchange bytes over links with faults: what a connection owes whatever happens on the way.

use proptest::prelude::*;

use super::{Faults, Host, Link, Network, Node, Rng};
use crate::tcp::{Config, Endpoint, Failure, MILLI, Micros, Outcome, Segment, Socket, State};

/// Events that an exchange may take after the last fault.
const MAX_STEPS: usize = 50_000;

/// A host with one socket and an application that writes, reads at its pace, and closes when all is written.
struct Peer {
    next_hop: Host,
    endpoint: Endpoint,
    outgoing: Vec<u8>,
    written: usize,
    incoming: Vec<u8>,
    chunk: usize,
    pause: Micros,
    reads_at: Micros,
    outcomes: Vec<Outcome>,
}

impl Node for Peer {
    fn receive(&mut self, now: Micros, _: Host, segment: Segment) {
        let damaged = !segment.checksum_ok;
        let outcome = self.endpoint.on_segment(now, &segment);
        assert_eq!(damaged, outcome == Outcome::Damaged);
        self.outcomes.push(outcome);
    }

    fn poll(&mut self, now: Micros) -> Option<(Host, Segment)> {
        self.written += self.endpoint.write(&self.outgoing[self.written..]);
        if self.written == self.outgoing.len() {
            self.endpoint.shutdown();
        }
        if self.endpoint.unread() > 0 && now >= self.reads_at {
            self.incoming.extend(self.endpoint.read(self.chunk));
            self.reads_at = now + self.pause;
        }
        self.endpoint.poll(now).map(|segment| (self.next_hop, segment))
    }

    fn next_timer(&self) -> Option<Micros> {
        let reads_at = (self.endpoint.unread() > 0).then_some(self.reads_at);
        [reads_at, self.endpoint.next_timer()].into_iter().flatten().min()
    }
}

/// Passes everything on to the other side.
#[derive(Default)]
struct Router {
    passing: std::collections::VecDeque<(Host, Segment)>,
}

impl Node for Router {
    fn receive(&mut self, _: Micros, from: Host, segment: Segment) {
        self.passing.push_back((if from == LEFT { RIGHT } else { LEFT }, segment));
    }

    fn poll(&mut self, _: Micros) -> Option<(Host, Segment)> {
        self.passing.pop_front()
    }

    fn next_timer(&self) -> Option<Micros> {
        None
    }
}

const LEFT: Host = Host(0);
const RIGHT: Host = Host(1);
const ROUTER: Host = Host(2);

/// One side of an exchange.
#[derive(Clone, Debug)]
struct Side {
    config: Config,
    bytes: usize,
    chunk: usize,
    pause: Micros,
    faults: Faults,
}

fn faults() -> impl Strategy<Value = Faults> {
    let rate = || prop_oneof![Just(0_u32), 0..150_u32];
    let harm = (rate(), rate(), rate(), rate(), 1..20 * MILLI);
    let shape = (rate(), prop_oneof![Just(0_u32), Just(500), Just(1_000)], 0..1_000_u32, 0..300_u64);
    (harm, shape).prop_map(
        |((loss, duplication, damage, reordering, jitter), (cutting, whole, merging, coalescing))| {
            let budget = u32::MAX;
            Faults { loss, duplication, damage, reordering, jitter, cutting, whole, merging, coalescing, budget }
        },
    )
}

fn side(socket: Socket) -> impl Strategy<Value = Side> {
    let near_wrap = prop_oneof![any::<u32>(), (u32::MAX - 9_000)..u32::MAX];
    let link = (near_wrap, prop_oneof![Just(0_u8), Just(7)], 40..1_460_usize, 1..45_usize);
    let sizes = (500..70_000_usize, 500..70_000_usize, 500..70_000_usize);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    let application = (0..60_000_usize, 20..20_000_usize, 0..30 * MILLI);
    (link, sizes, switches, application, faults()).prop_map(move |(link, sizes, switches, application, faults)| {
        let (seq, scale, mss, gso) = link;
        let (receive_buffer, window, send_buffer) = sizes;
        let (sack, nodelay, answers_unsent_acks) = switches;
        let (bytes, chunk, pause) = application;
        let config = Config { seq, scale, mss, gso, receive_buffer, window, send_buffer, ..Config::of(socket) };
        // Two links that lose a third each way can swallow fifteen retransmissions in a row.
        let config = Config { sack, nodelay, answers_unsent_acks, retries: 200, ..config };
        Side { config, bytes, chunk, pause, faults }
    })
}

fn peer(own: &Side, other: &Side, next_hop: Host, seed: u64) -> Peer {
    let mut rng = Rng::new(seed);
    Peer {
        next_hop,
        endpoint: Endpoint::new(&own.config, &other.config),
        outgoing: (0..own.bytes).map(|_| rng.next() as u8).collect(),
        written: 0,
        incoming: vec![],
        chunk: own.chunk,
        // A buffer's worth takes a second at most, so that a slow reader is no dead one.
        pause: own.pause.min(1_000 * MILLI * own.chunk as Micros / own.config.receive_buffer as Micros),
        reads_at: 0,
        outcomes: vec![],
    }
}

/// No acknowledgment is ahead of what was received, and nothing received of what was sent.
fn assert_acknowledged_is_received(from: &Peer, to: &Peer) {
    let received = to.endpoint.rcv_nxt();
    assert!((received.wrapping_sub(from.endpoint.snd_una()) as i32) >= 0, "acknowledged and not received");
    assert!((from.endpoint.snd_nxt().wrapping_sub(received) as i32) >= 0, "received and not sent");
}

/// Runs an exchange whose faults end after `storm` events; gives the time it took and the faults that happened.
fn exchange(left: &Side, right: &Side, routed: bool, seed: u64, storm: usize) -> (Micros, u32) {
    let mut rng = Rng::new(seed);
    let mut network = Network::default();
    let hops: &[_] = if routed { &[(LEFT, ROUTER), (ROUTER, RIGHT)] } else { &[(LEFT, RIGHT)] };
    for &(near, far) in hops {
        network.connect(near, far, Link::new(rng.fork(), left.faults.clone(), 500, 20_000));
        network.connect(far, near, Link::new(rng.fork(), right.faults.clone(), 500, 20_000));
    }
    let mut a = peer(left, right, if routed { ROUTER } else { RIGHT }, rng.next());
    let mut b = peer(right, left, if routed { ROUTER } else { LEFT }, rng.next());
    let mut router = Router::default();
    let mut steps = 0;
    while network.step(&mut [&mut a, &mut b, &mut router]) {
        assert_acknowledged_is_received(&a, &b);
        assert_acknowledged_is_received(&b, &a);
        steps += 1;
        if steps == storm {
            network.calm();
        }
        assert!(steps < storm + MAX_STEPS, "no end after {} s of virtual time", network.now() / 1_000_000);
    }
    for (from, to) in [(&a, &b), (&b, &a)] {
        assert!(matches!(from.endpoint.state(), State::TimeWait | State::Closed), "{:?}", from.endpoint.state());
        assert!(to.incoming == from.outgoing, "received {} bytes of {}", to.incoming.len(), from.outgoing.len());
        assert!(from.endpoint.at_end());
        assert_eq!(from.endpoint.unacked(), 0);
    }
    if network.faults_done() == 0 {
        let mut all = a.outcomes.iter().chain(&b.outcomes);
        assert!(all.all(|outcome| *outcome != Outcome::Challenged), "without faults nothing is odd");
    }
    (network.now(), network.faults_done())
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order_and_both_sides_end(
        left in side(Socket::Client),
        right in side(Socket::Broker),
        routed: bool,
        seed: u64,
        storm in 1..5_000_usize,
    ) {
        exchange(&left, &right, routed, seed, storm);
    }
}

fn megabyte(faults: Faults) -> Side {
    let config = Config {
        gso: 44,
        receive_buffer: 2 << 20,
        window: 1 << 20,
        send_buffer: 1 << 20,
        ..Config::of(Socket::Client)
    };
    Side { config, bytes: 1 << 20, chunk: 1 << 16, pause: 0, faults }
}

#[test]
fn without_faults_a_megabyte_takes_what_the_link_needs() {
    let sender = megabyte(Faults::NONE);
    let reader = Side {
        bytes: 0,
        config: Config { seq: 77, socket: Socket::Broker, ..sender.config.clone() },
        ..sender.clone()
    };
    let (took, faults) = exchange(&sender, &reader, false, 1, 1);
    // 20 bytes per microsecond: 55 ms with headers, and slow start at a millisecond per round trip.
    assert!((55 * MILLI..75 * MILLI).contains(&took), "{took} µs");
    assert_eq!(faults, 0);
}

#[test]
fn scattered_loss_is_repaired_without_waiting_for_timers() {
    let lossy = Faults { loss: 5, ..Faults::NONE };
    let sender = megabyte(lossy);
    let config = Config { seq: 77, socket: Socket::Broker, ..sender.config.clone() };
    let reader = Side { bytes: 0, config, faults: Faults::NONE, ..sender.clone() };
    let times: Vec<_> = (0..10).map(|seed| exchange(&sender, &reader, false, seed, MAX_STEPS).0).collect();
    let quick = times.iter().filter(|took| **took < 200 * MILLI).count();
    assert!(quick >= 5, "{times:?}");
}

#[test]
fn a_link_that_carries_nothing_times_both_sides_out() {
    let cut = Faults { loss: 1_000, ..Faults::NONE };
    let mut network = Network::default();
    let left = megabyte(cut.clone());
    let right = Side { config: Config { socket: Socket::Broker, ..left.config.clone() }, ..left.clone() };
    network.connect(LEFT, RIGHT, Link::new(Rng::new(1), cut.clone(), 500, 0));
    network.connect(RIGHT, LEFT, Link::new(Rng::new(2), cut, 500, 0));
    let (mut a, mut b) = (peer(&left, &right, RIGHT, 1), peer(&right, &left, LEFT, 2));
    let steps = (0..MAX_STEPS).take_while(|_| network.step(&mut [&mut a, &mut b])).count();
    assert!(steps < 100, "{steps}");
    for peer in [a, b] {
        assert_eq!(peer.endpoint.state(), State::Failed(Failure::TimedOut));
    }
}

#[test]
fn an_exchange_is_a_function_of_its_seed() {
    let storm = Faults { loss: 50, duplication: 50, reordering: 100, jitter: MILLI, damage: 20, ..Faults::NONE };
    let left = Side { bytes: 100_000, ..megabyte(storm) };
    let config = Config { seq: 77, socket: Socket::Broker, ..left.config.clone() };
    let right = Side { config, ..left.clone() };
    let run = |seed| exchange(&left, &right, true, seed, 3_000);
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
