//! What is remembered of redirects: who was sent where, and which replicas nobody is sent to for a while.
//!
//! ```text
//!   a replica for a partition:  free ──could not serve──► held ──hold_down, doubled each time──► free
//!                                 ▲                                                               │
//!                                 └──────── served for hold_down_max: counted anew ◄──────────────┘
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kafka::ids::NodeId;

/// Longest that a client keeps to what it was told (franz-go: 30 min), and some.
const LEASE: Duration = Duration::from_secs(35 * 60);

/// Entries of each kind: a bound for memory, some hundred bytes each.
const MAX_ENTRIES: usize = 200_000;

/// Consumers that can't be told apart from outside: one host, one client id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    /// Where they dial from.
    pub address: IpAddr,
    /// Their client id.
    pub client_id: Arc<str>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its index.
    pub partition: i32,
}

/// How long replicas are held down.
#[derive(Clone, Copy, Debug)]
pub struct HoldRules {
    /// The first time.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    span: Duration,
}

/// A hold, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The replica.
    pub node: NodeId,
    /// For which partition; `None`: for all, it is out of reach.
    pub spot: Option<Spot>,
    /// For how long from now.
    pub left: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    to: NodeId,
    at: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Book {
    sent: HashMap<Reader, HashMap<Spot, Sent>>,
    sent_count: usize,
    holds: HashMap<(NodeId, Option<Spot>), Hold>,
}

impl Book {
    /// Notes that a reader is sent to a replica. `false`: the book is full, and nobody may be sent.
    pub fn send(&mut self, reader: &Reader, spot: &Spot, to: NodeId, now: Instant) -> bool {
        if self.sent_count >= MAX_ENTRIES {
            self.expire(now);
            if self.sent_count >= MAX_ENTRIES {
                return false;
            }
        }
        let of_reader = match self.sent.get_mut(reader) {
            Some(spots) => spots,
            None => self.sent.entry(reader.clone()).or_default(),
        };
        if of_reader.insert(spot.clone(), Sent { to, at: now }).is_none() {
            self.sent_count += 1;
        }
        true
    }

    /// Whether a reader was sent to this replica and may still be there.
    #[must_use]
    pub fn was_sent(&self, reader: &Reader, spot: &Spot, to: NodeId, now: Instant) -> bool {
        let sent = self.sent.get(reader).and_then(|spots| spots.get(spot));
        sent.is_some_and(|sent| sent.to == to && !is_over(sent, now))
    }

    /// The partitions for which a reader was sent to this replica.
    pub fn sent_to<'a>(&'a self, reader: &Reader, to: NodeId, now: Instant) -> impl Iterator<Item = &'a Spot> {
        let spots = self.sent.get(reader).into_iter().flatten();
        spots.filter(move |(_, sent)| sent.to == to && !is_over(sent, now)).map(|(spot, _)| spot)
    }

    /// A reader goes back to the leader.
    pub fn recall(&mut self, reader: &Reader, spot: &Spot) {
        let Some(spots) = self.sent.get_mut(reader) else { return };
        if spots.remove(spot).is_some() {
            self.sent_count -= 1;
        }
        if spots.is_empty() {
            self.sent.remove(reader);
        }
    }

    /// Redirects that may be in force.
    #[must_use]
    pub fn redirected(&self) -> usize {
        self.sent_count
    }

    /// A replica could not serve a partition, or nothing at all: nobody is sent there for a while. Readers that come back
    /// while it is held already don't make it longer; nor do holds for all partitions grow, for whether a broker is alive
    /// the cluster tells.
    pub fn hold(&mut self, node: NodeId, spot: Option<&Spot>, rules: HoldRules, now: Instant) {
        if self.holds.len() >= MAX_ENTRIES {
            self.expire_holds(rules, now);
        }
        let is_full = self.holds.len() >= MAX_ENTRIES;
        let first = rules.first.min(rules.longest);
        match self.holds.get_mut(&(node, spot.cloned())) {
            Some(hold) if now < hold.until => {}
            Some(hold) => {
                let served = now.saturating_duration_since(hold.until);
                let anew = served >= rules.longest || spot.is_none();
                let span = if anew { first } else { (hold.span * 2).min(rules.longest) };
                *hold = Hold { until: now + span, span };
            }
            // A hold that isn't noted costs a redirect too many, which the bound of each minute limits.
            None if is_full => {}
            None => {
                self.holds.insert((node, spot.cloned()), Hold { until: now + first, span: first });
            }
        }
    }

    /// Whether nobody is sent to a replica for a partition now.
    #[must_use]
    pub fn is_held(&self, node: NodeId, spot: &Spot, now: Instant) -> bool {
        let holds = |spot| self.holds.get(&(node, spot)).is_some_and(|hold| now < hold.until);
        !self.holds.is_empty() && (holds(None) || holds(Some(spot.clone())))
    }

    /// Whether a replica of which `which` is true is held for any partition.
    #[must_use]
    pub fn is_any_held(&self, which: impl Fn(NodeId) -> bool, now: Instant) -> bool {
        self.holds.iter().any(|((node, _), hold)| now < hold.until && which(*node))
    }

    /// All that is held, in order.
    #[must_use]
    pub fn held(&self, now: Instant) -> Vec<Held> {
        let live = self.holds.iter().filter(|(_, hold)| now < hold.until);
        let mut held: Vec<_> =
            live.map(|((node, spot), hold)| Held { node: *node, spot: spot.clone(), left: hold.until - now }).collect();
        held.sort_by(|a, b| (a.node, &a.spot).cmp(&(b.node, &b.spot)));
        held
    }

    fn expire(&mut self, now: Instant) {
        self.sent.retain(|_, spots| {
            spots.retain(|_, sent| !is_over(sent, now));
            !spots.is_empty()
        });
        self.sent_count = self.sent.values().map(HashMap::len).sum();
    }

    fn expire_holds(&mut self, rules: HoldRules, now: Instant) {
        self.holds.retain(|_, hold| now.saturating_duration_since(hold.until) < rules.longest);
    }
}

fn is_over(sent: &Sent, now: Instant) -> bool {
    now.saturating_duration_since(sent.at) >= LEASE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: HoldRules = HoldRules { first: Duration::from_secs(10), longest: Duration::from_secs(60) };

    fn spot(partition: i32) -> Spot {
        Spot { topic: "t".into(), partition }
    }

    fn reader(id: &str) -> Reader {
        Reader { address: [127, 0, 0, 1].into(), client_id: id.into() }
    }

    #[test]
    fn a_hold_doubles_up_to_the_longest_and_starts_anew_after_a_good_time() {
        let (mut book, start) = (Book::default(), Instant::now());
        let mut now = start;
        for expected in [10, 20, 40, 60, 60] {
            book.hold(NodeId(1), Some(&spot(0)), RULES, now);
            // Others that come back from there meanwhile.
            book.hold(NodeId(1), Some(&spot(0)), RULES, now + Duration::from_secs(5));
            let span = Duration::from_secs(expected);
            assert!(book.is_held(NodeId(1), &spot(0), now + span - Duration::from_millis(1)));
            assert!(!book.is_held(NodeId(1), &spot(0), now + span));
            now += span + Duration::from_secs(1);
        }
        now += RULES.longest;
        book.hold(NodeId(1), Some(&spot(0)), RULES, now);
        assert!(!book.is_held(NodeId(1), &spot(0), now + RULES.first));
    }

    #[test]
    fn a_replica_out_of_reach_is_held_for_every_partition() {
        let (mut book, now) = (Book::default(), Instant::now());
        book.hold(NodeId(1), Some(&spot(0)), RULES, now);
        assert!(!book.is_held(NodeId(1), &spot(1), now) && !book.is_held(NodeId(2), &spot(0), now));
        book.hold(NodeId(1), None, RULES, now);
        assert!(book.is_held(NodeId(1), &spot(1), now));
        assert!(book.is_any_held(|node| node == NodeId(1), now) && !book.is_any_held(|node| node == NodeId(2), now));
        assert_eq!(book.held(now).len(), 2);
        assert_eq!(book.held(now + RULES.first), []);
        book.hold(NodeId(1), None, RULES, now + RULES.first);
        assert_eq!(book.held(now + RULES.first * 2), [], "it does not grow");
    }

    #[test]
    fn readers_are_known_where_they_were_sent_last_until_their_lease_ends() {
        let (mut book, now) = (Book::default(), Instant::now());
        assert!(book.send(&reader("a"), &spot(0), NodeId(1), now));
        assert!(book.send(&reader("a"), &spot(0), NodeId(2), now));
        assert!(!book.was_sent(&reader("a"), &spot(0), NodeId(1), now));
        assert!(book.was_sent(&reader("a"), &spot(0), NodeId(2), now));
        assert!(!book.was_sent(&reader("b"), &spot(0), NodeId(2), now));
        assert_eq!(book.sent_to(&reader("a"), NodeId(2), now).count(), 1);
        assert!(!book.was_sent(&reader("a"), &spot(0), NodeId(2), now + LEASE));
        book.recall(&reader("a"), &spot(0));
        assert_eq!((book.redirected(), book.sent.len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded_and_what_is_over_makes_room() {
        let (mut book, now) = (Book::default(), Instant::now());
        for partition in 0..MAX_ENTRIES as i32 {
            assert!(book.send(&reader("a"), &spot(partition), NodeId(1), now));
        }
        assert!(!book.send(&reader("b"), &spot(0), NodeId(1), now));
        assert!(book.send(&reader("b"), &spot(0), NodeId(1), now + LEASE));
        assert_eq!(book.redirected(), 1);
    }

    proptest! {
        /// However readers come back: a replica is never held longer than the longest, and while it is held no reader
        /// makes it longer.
        #[test]
        fn a_hold_is_bounded(steps in prop::collection::vec(0u64..90, 1..60)) {
            let (mut book, mut now) = (Book::default(), Instant::now());
            for step in steps {
                now += Duration::from_secs(step);
                let before = book.held(now).first().map(|held| held.left);
                book.hold(NodeId(1), Some(&spot(0)), RULES, now);
                let after = book.held(now)[0].left;
                prop_assert!(after <= RULES.longest && after > Duration::ZERO);
                prop_assert!(before.is_none_or(|before| before == after));
            }
        }

        #[test]
        fn the_count_is_right(steps in prop::collection::vec((0u8..3, 0i32..4, any::<bool>()), 0..60)) {
            let (mut book, now) = (Book::default(), Instant::now());
            for (id, partition, send) in steps {
                let who = reader(&id.to_string());
                if send { book.send(&who, &spot(partition), NodeId(1), now); } else { book.recall(&who, &spot(partition)); }
                prop_assert_eq!(book.redirected(), book.sent.values().map(HashMap::len).sum::<usize>());
            }
        }
    }
}
