// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Hosts, the links between them, and the time.

use std::collections::BTreeMap;

use super::Link;
use crate::tcp::{Micros, Segment};

/// Number of a host: its place among the nodes given to [`Network::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host(pub(crate) usize);

/// A segment that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) from: Host,
    pub(crate) to: Host,
    pub(crate) segment: Segment,
}

/// A host with whatever runs on it.
pub(crate) trait Node {
    /// Takes a segment that comes from `from`.
    fn receive(&mut self, now: Micros, from: Host, segment: Segment);
    /// The next segment to send, and to whom; called until there is none.
    fn poll(&mut self, now: Micros) -> Option<(Host, Segment)>;
    /// When to poll it again though nothing has arrived. Not in the past after a poll that gave nothing.
    fn next_timer(&self) -> Option<Micros>;
}

/// The links between hosts, and the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    now: Micros,
    links: BTreeMap<(Host, Host), Link>,
}

impl Network {
    /// Lays a link, one way.
    pub(crate) fn connect(&mut self, from: Host, to: Host, link: Link) {
        self.links.insert((from, to), link);
    }

    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm(&mut self) {
        self.links.values_mut().for_each(Link::calm);
    }

    /// Losses, doublings, damages and delays so far, of all links.
    pub(crate) fn faults_done(&self) -> u32 {
        self.links.values().map(Link::faults_done).sum()
    }

    /// Sends a segment. Without a link it is lost.
    pub(crate) fn send(&mut self, from: Host, to: Host, segment: Segment) {
        if let Some(link) = self.links.get_mut(&(from, to)) {
            link.send(self.now, segment);
        }
    }

    /// When the next segment arrives.
    pub(crate) fn next_arrival(&self) -> Option<Micros> {
        self.links.values().filter_map(Link::next_arrival).min()
    }

    /// Moves the time forward, never back.
    pub(crate) fn advance(&mut self, to: Micros) {
        self.now = self.now.max(to);
    }

    /// What has arrived by now and wasn't received: the earliest, and of those that arrived together the one of the
    /// first link.
    pub(crate) fn receive(&mut self) -> Option<Arrival> {
        let now = self.now;
        let arrived = self.links.iter_mut().filter(|(_, link)| link.next_arrival().is_some_and(|at| at <= now));
        let (&(from, to), link) = arrived.min_by_key(|(_, link)| link.next_arrival())?;
        link.receive(now).map(|segment| Arrival { from, to, segment })
    }

    /// Lets all nodes send, moves on to the next thing that happens, and delivers one segment if that is what it is.
    /// False if nothing will happen any more.
    pub(crate) fn step(&mut self, nodes: &mut [&mut dyn Node]) -> bool {
        for (i, node) in nodes.iter_mut().enumerate() {
            while let Some((to, segment)) = node.poll(self.now) {
                self.send(Host(i), to, segment);
            }
        }
        let timer = nodes.iter().filter_map(|node| node.next_timer()).min();
        let Some(next) = [timer, self.next_arrival()].into_iter().flatten().min() else { return false };
        self.advance(next);
        if let Some(Arrival { from, to, segment }) = self.receive()
            && let Some(node) = nodes.get_mut(to.0)
        {
            node.receive(self.now, from, segment);
        }
        true
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
