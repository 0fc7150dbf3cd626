//! What was read, by where the client is and where it was served, and by topic. Bounded: racks and topics beyond the
//! bounds are counted together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::place::Rack;

/// Racks that are counted apart: the bound of the labels.
pub const MAX_RACKS: usize = 32;
/// Topics that are counted apart.
pub const MAX_TOPICS: usize = 1000;

/// Where nothing says in which rack somebody is.
pub const UNKNOWN: &str = "unknown";
/// Whatever is beyond the bounds.
pub const OTHER: &str = "other";

/// Numbers of one combination of client rack, broker rack and topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Bytes of records that were read in the client's own rack.
    pub in_rack_bytes: u64,
    /// Those of them that came from a replica, whose leader is in another rack: what routing saved.
    pub saved_bytes: u64,
    /// Bytes that crossed racks.
    pub across_bytes: u64,
    /// Those of them for which the client's rack has a replica that could have served.
    pub avoidable_bytes: u64,
    /// Bytes that were read where one of the racks is not known.
    pub unknown_bytes: u64,
    /// Times that a client was told to read a partition from a replica.
    pub redirects: u64,
    /// Times that a client was told to go back to the leader.
    pub bounces: u64,
}

impl Counts {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        let Self { in_rack_bytes, saved_bytes, across_bytes, avoidable_bytes, unknown_bytes, redirects, bounces } =
            other;
        self.in_rack_bytes += in_rack_bytes;
        self.saved_bytes += saved_bytes;
        self.across_bytes += across_bytes;
        self.avoidable_bytes += avoidable_bytes;
        self.unknown_bytes += unknown_bytes;
        self.redirects += redirects;
        self.bounces += bounces;
    }

    /// All bytes of records.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.in_rack_bytes + self.across_bytes + self.unknown_bytes
    }
}

/// A client's rack, a broker's rack and a topic.
type Key = (Rack, Rack, Arc<str>);

/// See the module.
#[derive(Debug, Default)]
pub struct Tally {
    counts: HashMap<Key, Counts>,
    racks: HashSet<Rack>,
    topics: HashSet<Arc<str>>,
}

impl Tally {
    /// Counts what one answer brought.
    pub fn count(&mut self, client: Option<&Rack>, broker: Option<&str>, topic: &Arc<str>, counts: &Counts) {
        let client = self.rack(client.map_or(UNKNOWN, |rack| rack));
        let broker = self.rack(broker.unwrap_or(UNKNOWN));
        let topic = bounded(&mut self.topics, topic, MAX_TOPICS, || Arc::clone(topic));
        self.counts.entry((client, broker, topic)).or_default().add(counts);
    }

    fn rack(&mut self, name: &str) -> Rack {
        bounded(&mut self.racks, name, MAX_RACKS, || name.into())
    }

    /// By client rack and broker rack.
    #[must_use]
    pub fn by_racks(&self) -> BTreeMap<(Rack, Rack), Counts> {
        let mut sums: BTreeMap<_, Counts> = BTreeMap::new();
        for ((client, broker, _), counts) in &self.counts {
            sums.entry((client.clone(), broker.clone())).or_default().add(counts);
        }
        sums
    }

    /// Every combination.
    #[must_use]
    pub fn all(&self) -> BTreeMap<(Rack, Rack, Arc<str>), Counts> {
        self.counts.iter().map(|(key, counts)| (key.clone(), *counts)).collect()
    }
}

/// A name as it is counted: itself, or [`OTHER`] once there are too many.
fn bounded(known: &mut HashSet<Arc<str>>, name: &str, most: usize, own: impl FnOnce() -> Arc<str>) -> Arc<str> {
    match known.get(name) {
        Some(known) => Arc::clone(known),
        None if known.len() < most => {
            let name = own();
            known.insert(Arc::clone(&name));
            name
        }
        None => OTHER.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bounds_is_counted_together_and_nothing_is_lost() {
        let mut tally = Tally::default();
        let one = Counts { across_bytes: 1, redirects: 1, ..Counts::default() };
        let n = MAX_TOPICS + 50;
        for n in 0..n {
            let rack: Rack = format!("rack{n}").into();
            tally.count(Some(&rack), None, &format!("topic{n}").into(), &one);
        }
        let racks: HashSet<_> = tally.by_racks().into_keys().map(|(client, _)| client).collect();
        assert_eq!(racks.len(), MAX_RACKS + 1 - 1, "`unknown` is one of them, `other` comes on top");
        let topics: HashSet<_> = tally.all().into_keys().map(|(.., topic)| topic).collect();
        assert_eq!(topics.len(), MAX_TOPICS + 1);
        assert_eq!(tally.by_racks().values().map(Counts::bytes).sum::<u64>(), n as u64);
        assert_eq!(tally.all().values().map(|counts| counts.redirects).sum::<u64>(), n as u64);
    }
}
