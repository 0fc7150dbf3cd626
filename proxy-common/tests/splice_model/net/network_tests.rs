// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
use crate::net::{Arrival, Faults, Host, Link, Network, Node, Rng};
use crate::tcp::{ACK, Micros, Segment, Socket};

const A: Host = Host(0);
const B: Host = Host(1);

fn segment(seq: u32) -> Segment {
    Segment::bare(Socket::Client, Socket::Broker, ACK, seq, 0)
}

fn network() -> Network {
    let mut network = Network::default();
    for (from, to, delay) in [(A, B, 100), (B, A, 30)] {
        network.connect(from, to, Link::new(Rng::new(1), Faults::NONE, delay, 0));
    }
    network
}

#[test]
fn segments_arrive_in_order_of_time_whatever_link_they_take() {
    let mut network = network();
    network.send(A, B, segment(1));
    network.send(B, A, segment(2));
    network.send(A, Host(7), segment(3));
    assert_eq!((network.receive(), network.next_arrival()), (None, Some(30)));
    network.advance(200);
    network.advance(150);
    assert_eq!(network.now(), 200);
    let arrived: Vec<_> = std::iter::from_fn(|| network.receive()).collect();
    assert_eq!(
        arrived,
        [Arrival { from: B, to: A, segment: segment(2) }, Arrival { from: A, to: B, segment: segment(1) }]
    );
}

#[test]
fn calm_ends_the_faults_of_every_link() {
    let mut network = Network::default();
    for (from, to) in [(A, B), (B, A)] {
        network.connect(from, to, Link::new(Rng::new(1), Faults { loss: 1_000, ..Faults::NONE }, 10, 0));
    }
    let carried = |network: &mut Network| {
        network.send(A, B, segment(1));
        network.send(B, A, segment(2));
        network.advance(network.now() + 10);
        std::iter::from_fn(|| network.receive()).count()
    };
    assert_eq!((carried(&mut network), network.faults_done()), (0, 2));
    network.calm();
    assert_eq!((carried(&mut network), network.faults_done()), (2, 2));
}

/// Sends one segment at a time of its own, and another as answer to each it receives, up to a number.
struct Echo {
    peer: Host,
    starts_at: Option<Micros>,
    answers_left: u32,
    outgoing: Option<Segment>,
    log: Vec<(Micros, u32)>,
}

impl Node for Echo {
    fn receive(&mut self, now: Micros, from: Host, segment: Segment) {
        assert_eq!(from, self.peer);
        self.log.push((now, segment.seq));
        if self.answers_left > 0 {
            self.answers_left -= 1;
            self.outgoing = Some(Segment { seq: segment.seq + 1, ..segment });
        }
    }

    fn poll(&mut self, now: Micros) -> Option<(Host, Segment)> {
        if self.starts_at.take_if(|at| *at <= now).is_some() {
            self.outgoing = Some(segment(0));
        }
        self.outgoing.take().map(|segment| (self.peer, segment))
    }

    fn next_timer(&self) -> Option<Micros> {
        self.starts_at
    }
}

#[test]
fn a_step_is_a_timer_or_an_arrival_and_there_is_none_when_all_is_said() {
    let echo = |peer, starts_at, answers_left| Echo { peer, starts_at, answers_left, outgoing: None, log: vec![] };
    let (mut a, mut b, mut network) = (echo(B, Some(50), 1), echo(A, None, 2), network());
    let mut steps = 0;
    while network.step(&mut [&mut a, &mut b]) {
        steps += 1;
    }
    assert_eq!(steps, 5, "a timer and four arrivals");
    assert_eq!((b.log, a.log), (vec![(150, 0), (280, 2)], vec![(180, 1), (310, 3)]));
}
