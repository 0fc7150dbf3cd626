//! How a new view of a cluster changes what is known of it: pure functions, no clock, no sockets.
//!
//! A broker's life:
//!
//! ```text
//!   unknown ──listed──► present ──not in a complete view──► absent ──forget_after──► unknown
//!                          ▲                                  │
//!                          └───────────── listed ─────────────┘
//! ```
//!
//! Invariants: a view never removes a broker at once; an incomplete or empty view makes nobody absent; `absent_since`
//! is the first time it was missed, not the last; `address`, `own_address` and `rack` are functions of `advertised` and
//! the [`Rules`] alone, so that a changed config applies to what is known already.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, SystemTime};

use super::endpoint::Endpoint;
use super::topology::{Advertised, Broker, Topology};
use crate::kafka::ids::NodeId;

/// What one Metadata or DescribeCluster answer said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Brokers as advertised, before `address_map`.
    pub brokers: Vec<ObservedBroker>,
    /// The cluster's id, if the answer's version has it.
    pub cluster_id: Option<String>,
    /// The controller, if there is one and the answer's version has it.
    pub controller: Option<NodeId>,
    /// The answer lists every live broker, so one that isn't in it is absent.
    pub complete: bool,
    /// The answer's version carries racks and the controller (all but Metadata v0), so that `None` means there is none.
    pub detailed: bool,
}

/// A broker in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedBroker {
    /// Node id; negative ones are skipped.
    pub id: NodeId,
    /// Advertised address.
    pub address: Endpoint,
    /// `broker.rack`.
    pub rack: Option<String>,
}

/// Whose address book a view belongs to (module docs of `upstream`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Book {
    /// The mainline's listener.
    Mainline,
    /// The listener of the gateway's own client, which isn't the mainline's.
    Own,
    /// One listener for both.
    Both,
}

/// The config's say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Advertised → dialled; keys in [`Endpoint::key`] spelling.
    pub(super) address_map: HashMap<Endpoint, Endpoint>,
    /// Completes or overrides `broker.rack`.
    pub(super) racks: BTreeMap<i32, String>,
    /// How long an absent broker is remembered.
    pub(super) forget_after: Duration,
    /// The cluster runs on this very host, so loopback addresses are right.
    pub(super) local: bool,
}

impl Rules {
    /// Where to dial what is advertised as `advertised`; `None` when that would reach this very host and not the broker.
    pub(super) fn dialled(&self, advertised: &Endpoint) -> Option<Endpoint> {
        if let Some(mapped) = self.address_map.get(&advertised.key()) {
            return Some(mapped.clone());
        }
        let elsewhere = advertised.port == 0 || advertised.host.is_empty();
        let here = advertised.is_unspecified() || advertised.is_loopback();
        (!elsewhere && (!here || self.local)).then(|| advertised.clone())
    }

    fn apply(&self, id: NodeId, broker: &mut Broker) {
        broker.address = broker.advertised.address.as_ref().and_then(|a| self.dialled(a));
        broker.own_address = broker.advertised.own_address.as_ref().and_then(|a| self.dialled(a));
        broker.rack = self.racks.get(&id.0).cloned().or_else(|| broker.advertised.rack.clone());
    }
}

/// `old` after a view: pure.
pub(super) fn merge(old: &Topology, view: &Observed, book: Book, rules: &Rules, now: SystemTime) -> Topology {
    let mut new = old.clone();
    let listed: BTreeMap<NodeId, &ObservedBroker> =
        view.brokers.iter().filter(|b| b.id.0 >= 0).map(|b| (b.id, b)).collect();

    if is_another(old, view) && !listed.is_empty() {
        // What was learned of the other cluster's brokers would send requests there. Their ids stay, as ports hang on them.
        for broker in new.brokers.values_mut() {
            broker.advertised = Advertised::default();
            broker.versions = None;
        }
    }
    for (id, seen) in &listed {
        let broker = new.brokers.entry(*id).or_default();
        let before = broker.advertised.clone();
        if book != Book::Own {
            broker.advertised.address = Some(seen.address.clone());
        }
        if book != Book::Mainline {
            broker.advertised.own_address = Some(seen.address.clone());
        }
        if view.detailed {
            broker.advertised.rack.clone_from(&seen.rack);
        }
        let moved = |was: &Option<Endpoint>, is: &Option<Endpoint>| was.is_some() && was != is;
        if moved(&before.address, &broker.advertised.address)
            || moved(&before.own_address, &broker.advertised.own_address)
        {
            // Maybe another machine under a reused id: what the old one spoke says nothing about it.
            broker.versions = None;
        }
        broker.absent_since = None;
    }

    // A broker that has just started may answer with no brokers at all: that is no news of anybody.
    if view.complete && !listed.is_empty() {
        for (id, broker) in &mut new.brokers {
            if !listed.contains_key(id) {
                broker.absent_since.get_or_insert(now);
            }
        }
    }
    if view.detailed && !listed.is_empty() {
        new.controller = view.controller.filter(|c| c.0 >= 0);
    }
    if let Some(id) = &view.cluster_id {
        new.cluster_id = Some(id.clone());
    }
    settle(new, rules, now)
}

/// The view is of a cluster with another id than the one known.
pub(super) fn is_another(known: &Topology, view: &Observed) -> bool {
    matches!((&known.cluster_id, &view.cluster_id), (Some(known), Some(seen)) if known != seen)
}

/// `old` under (perhaps new) rules at `now`: addresses and racks derived again, brokers absent for too long forgotten.
pub(super) fn settle(mut old: Topology, rules: &Rules, now: SystemTime) -> Topology {
    // An `absent_since` in the future (the clock was set back) is "not long enough".
    let gone = |since: SystemTime| now.duration_since(since).is_ok_and(|absent| absent >= rules.forget_after);
    old.brokers.retain(|_, b| !b.absent_since.is_some_and(gone));
    for (id, broker) in &mut old.brokers {
        rules.apply(*id, broker);
    }
    old
}

/// What an operator wants to read about the difference of two topologies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) joined: Vec<NodeId>,
    pub(super) left: Vec<NodeId>,
    pub(super) returned: Vec<NodeId>,
    pub(super) moved: Vec<NodeId>,
    pub(super) forgotten: Vec<NodeId>,
    /// Advertised at an address that can't be dialled from here, and was not before.
    pub(super) unreachable: Vec<(NodeId, Endpoint)>,
    /// The cluster's id before and after, where it had one.
    pub(super) renamed: Option<(String, String)>,
}

impl Changes {
    pub(super) fn between(old: &Topology, new: &Topology) -> Self {
        let mut changes = Self::default();
        for (id, is) in &new.brokers {
            let was = old.brokers.get(id);
            match was {
                None => changes.joined.push(*id),
                Some(was) if was.is_present() && !is.is_present() => changes.left.push(*id),
                Some(was) if !was.is_present() && is.is_present() => changes.returned.push(*id),
                Some(was) if was.address.is_some() && was.address != is.address => changes.moved.push(*id),
                Some(_) => {}
            }
            for (address, advertised, before) in [
                (&is.address, &is.advertised.address, was.and_then(|w| w.advertised.address.as_ref())),
                (&is.own_address, &is.advertised.own_address, was.and_then(|w| w.advertised.own_address.as_ref())),
            ] {
                if let (None, Some(now)) = (address, advertised)
                    && before != Some(now)
                    && !changes.unreachable.iter().any(|(i, a)| i == id && a == now)
                {
                    changes.unreachable.push((*id, now.clone()));
                }
            }
        }
        changes.forgotten = old.brokers.keys().filter(|id| !new.brokers.contains_key(id)).copied().collect();
        if let (Some(was), Some(is)) = (&old.cluster_id, &new.cluster_id)
            && was != is
        {
            changes.renamed = Some((was.clone(), is.clone()));
        }
        changes
    }

    /// Brokers came, went or moved.
    pub(super) fn any_broker(&self) -> bool {
        let Self { joined, left, returned, moved, forgotten, unreachable: _, renamed: _ } = self;
        [joined, left, returned, moved, forgotten].iter().any(|ids| !ids.is_empty())
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { joined, left, returned, moved, forgotten, unreachable: _, renamed: _ } = self;
        let mut first = true;
        for (word, ids) in [
            ("joined", joined),
            ("left", left),
            ("returned", returned),
            ("changed address", moved),
            ("forgotten", forgotten),
        ] {
            if !ids.is_empty() {
                let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
                write!(f, "{}{word}: {}", if first { "" } else { "; " }, ids.join(", "))?;
                first = false;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
