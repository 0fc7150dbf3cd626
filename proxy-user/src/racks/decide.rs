//! The decisions: where a consumer should read a partition, asked at the leader, and whether it should go back there,
//! asked at a replica.

use std::fmt;

use super::choice::choose;
use super::place::Rack;
use crate::config::{Racks, RacksMode};
use crate::kafka::ids::NodeId;
use crate::kafka::topics::SeenPartition;
use crate::upstream::topology::{Broker, Topology};

/// Errors of a replica that some client does not leave it for by itself: OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER,
/// REPLICA_NOT_AVAILABLE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE. franz-go stays on all of
/// them. Whether an offset is out of range, the leader will say.
pub const BOUNCED: [i16; 6] = [1, 6, 9, 74, 75, 78];

/// Errors that say that leaders or topics are not as they were: those of [`BOUNCED`] that do, and
/// UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID.
const DOUBTFUL: [i16; 7] = [3, 6, 9, 74, 75, 100, 103];

/// Whether an error says that the table of partitions is old.
#[must_use]
pub fn is_doubtful(error: i16) -> bool {
    DOUBTFUL.contains(&error)
}

/// How consumers are led from one broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The rack goes into requests, and the broker chooses.
    Stamp,
    /// The replica goes into answers.
    Patch,
}

/// How consumers are led from a broker, by the config and what is known of its selector; `None`: not at all.
#[must_use]
pub fn how(config: &Racks, rack_aware: Option<bool>) -> Option<How> {
    match config.mode {
        RacksMode::Off => None,
        RacksMode::Stamp => Some(How::Stamp),
        RacksMode::Patch => Some(How::Patch),
        RacksMode::Auto if rack_aware == Some(true) && !config.has_preferences() => Some(How::Stamp),
        RacksMode::Auto => Some(How::Patch),
    }
}

/// Why a consumer stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stay {
    /// Nothing says in which rack the client is.
    UnknownRack,
    /// `exclude_clients`.
    ExcludedClient,
    /// No answer has told of the partition yet.
    UnknownPartition,
    /// The leader is in the client's rack.
    LeaderInRack,
    /// No replica is in the client's rack.
    NoReplica,
    /// Those that are, aren't in sync, or are out of reach.
    NotInSync,
    /// Those that are, are excluded by the config or have no port.
    ExcludedBroker,
    /// Those that are, are held down.
    HeldDown,
    /// `redirects_per_minute`.
    TooOften,
    /// The broker's answer did not fit into `patch_buffer`.
    TooLarge,
    /// No more redirects can be remembered.
    Full,
}

impl Stay {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::UnknownRack,
        Self::ExcludedClient,
        Self::UnknownPartition,
        Self::LeaderInRack,
        Self::NoReplica,
        Self::NotInSync,
        Self::ExcludedBroker,
        Self::HeldDown,
        Self::TooOften,
        Self::TooLarge,
        Self::Full,
    ];

    /// Value of the label `reason`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownRack => "unknown_rack",
            Self::ExcludedClient => "excluded_client",
            Self::UnknownPartition => "unknown_partition",
            Self::LeaderInRack => "leader_in_rack",
            Self::NoReplica => "no_replica_in_rack",
            Self::NotInSync => "not_in_sync",
            Self::ExcludedBroker => "excluded_broker",
            Self::HeldDown => "held_down",
            Self::TooOften => "redirects_per_minute",
            Self::TooLarge => "patch_buffer",
            Self::Full => "book_full",
        }
    }
}

impl fmt::Display for Stay {
    /// Completes "it reads at the leader: …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownRack => "nothing says in which rack the client is",
            Self::ExcludedClient => "the client's software is excluded (racks.exclude_clients)",
            Self::UnknownPartition => "leader and replicas aren't known yet",
            Self::LeaderInRack => "the leader is in the client's rack",
            Self::NoReplica => "no replica is in the client's rack",
            Self::NotInSync => "no replica of the client's rack is in sync and alive",
            Self::ExcludedBroker => {
                "the replicas of the client's rack are excluded (racks.exclude_brokers) or have no port"
            }
            Self::HeldDown => "the replicas of the client's rack are held down after they could not serve",
            Self::TooOften => "it was sent away too often in this minute (racks.redirects_per_minute)",
            Self::TooLarge => "what the client is to keep of the answer is too large (racks.patch_buffer)",
            Self::Full => "no more redirects can be remembered",
        })
    }
}

/// What a decision is made by.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The config.
    pub config: &'a Racks,
    /// The brokers.
    pub topology: &'a Topology,
    /// Whether clients can dial a broker: it has a virtual one.
    pub has_port: &'a dyn Fn(NodeId) -> bool,
}

impl View<'_> {
    fn rack(&self, node: NodeId) -> Option<&str> {
        self.topology.brokers.get(&node)?.rack.as_deref()
    }
}

/// The replica that a consumer in `rack` should read a partition from; else why it should read at the leader. `client` and
/// `topic` spread readers, `is_held` says whom nobody is sent to now.
///
/// # Errors
/// See [`Stay`].
pub fn replica_for(
    view: View<'_>,
    rack: &Rack,
    client: &str,
    topic: &str,
    partition: &SeenPartition,
    is_held: impl Fn(NodeId) -> bool,
) -> Result<NodeId, Stay> {
    let leader = partition.leader.ok_or(Stay::UnknownPartition)?;
    if view.rack(leader) == Some(rack) {
        return Err(Stay::LeaderInRack);
    }
    // Each test takes some away; the first that leaves none is the reason.
    let in_rack: Vec<_> = partition.replicas.iter().copied().filter(|node| view.rack(*node) == Some(rack)).collect();
    let is_alive = |node: &NodeId| view.topology.brokers.get(node).is_some_and(Broker::is_present);
    let in_sync = |node: &NodeId| partition.in_sync.contains(node) && !partition.offline.contains(node);
    let left = narrow(in_rack, Stay::NoReplica, |_| true)?;
    let left = narrow(left, Stay::NotInSync, |node| is_alive(node) && in_sync(node))?;
    let excluded = |node: &NodeId| view.config.exclude_brokers.contains(&node.0) || !(view.has_port)(*node);
    let left = narrow(left, Stay::ExcludedBroker, |node| !excluded(node))?;
    let left = narrow(left, Stay::HeldDown, |node| !is_held(*node))?;
    let weighted = left.into_iter().map(|node| (node, view.config.weights.get(&node.0).copied().unwrap_or(1)));
    choose(client, topic, partition.index, weighted).ok_or(Stay::NoReplica)
}

fn narrow(mut nodes: Vec<NodeId>, reason: Stay, keep: impl Fn(&NodeId) -> bool) -> Result<Vec<NodeId>, Stay> {
    nodes.retain(keep);
    if nodes.is_empty() { Err(reason) } else { Ok(nodes) }
}

/// What a replica said of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Kafka's error code.
    pub error: i16,
    /// It has no records.
    pub is_empty: bool,
    /// The consumer was sent here, or has read here before: it does not take this broker for the leader.
    pub reads_here: bool,
}

/// The leader to which a consumer goes back from a replica: one that refuses, or that fell behind and has nothing to give.
/// `None`: it stays, or this broker is the leader.
#[must_use]
pub fn back_to_leader(here: NodeId, partition: &SeenPartition, said: Said) -> Option<NodeId> {
    let leader = partition.leader.filter(|leader| *leader != here)?;
    let refuses = BOUNCED.contains(&said.error);
    let is_behind = said.error == 0 && said.is_empty && is_out_of_sync(here, partition);
    (said.reads_here && (refuses || is_behind)).then_some(leader)
}

/// Whether a broker's copy is known to be incomplete.
#[must_use]
pub fn is_out_of_sync(here: NodeId, partition: &SeenPartition) -> bool {
    partition.leader.is_some_and(|leader| leader != here)
        && !partition.in_sync.is_empty()
        && !partition.in_sync.contains(&here)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Node n is in rack `az{n % 3}`; node 9 is gone.
    fn topology() -> Topology {
        let mut topology = Topology::default();
        for n in 0..10 {
            let absent_since = (n == 9).then_some(std::time::SystemTime::UNIX_EPOCH);
            let broker = Broker { rack: Some(format!("az{}", n % 3)), absent_since, ..Broker::default() };
            topology.brokers.insert(NodeId(n), broker);
        }
        topology
    }

    fn partition(leader: i32, replicas: &[i32], in_sync: &[i32]) -> SeenPartition {
        let nodes = |ids: &[i32]| ids.iter().map(|id| NodeId(*id)).collect();
        SeenPartition {
            index: 0,
            leader: (leader >= 0).then_some(NodeId(leader)),
            epoch: 1,
            replicas: nodes(replicas),
            in_sync: nodes(in_sync),
            offline: Vec::new(),
        }
    }

    fn decide(config: &Racks, partition: &SeenPartition, held: &[i32]) -> Result<i32, Stay> {
        let has_port = |node: NodeId| node.0 != 8;
        let view = View { config, topology: &topology(), has_port: &has_port };
        let rack = Rack::from("az2");
        replica_for(view, &rack, "app", "t", partition, |node| held.contains(&node.0)).map(|node| node.0)
    }

    #[test]
    fn a_consumer_is_sent_to_the_in_sync_replica_of_its_rack() {
        let config = Racks::default();
        assert_eq!(decide(&config, &partition(0, &[0, 1, 2], &[0, 1, 2]), &[]), Ok(2));
        assert_eq!(decide(&config, &partition(0, &[0, 2, 5], &[0, 5]), &[]), Ok(5), "2 is behind");
    }

    #[test]
    fn each_reason_to_stay_is_told() {
        let config = Racks { exclude_brokers: vec![5], ..Racks::default() };
        for (partition, held, reason) in [
            (partition(-1, &[0, 2], &[0, 2]), vec![], Stay::UnknownPartition),
            (partition(2, &[0, 2], &[0, 2]), vec![], Stay::LeaderInRack),
            (partition(0, &[0, 1], &[0, 1]), vec![], Stay::NoReplica),
            (partition(0, &[0, 2], &[0]), vec![], Stay::NotInSync),
            (partition(0, &[0, 5], &[0, 5]), vec![], Stay::ExcludedBroker),
            (partition(0, &[0, 8], &[0, 8]), vec![], Stay::ExcludedBroker),
            (partition(0, &[0, 2], &[0, 2]), vec![2], Stay::HeldDown),
        ] {
            assert_eq!(decide(&config, &partition, &held), Err(reason), "{partition:?}");
        }
        let offline = SeenPartition { offline: vec![NodeId(2)], ..partition(0, &[0, 2], &[0, 2]) };
        assert_eq!(decide(&config, &offline, &[]), Err(Stay::NotInSync));
        let rack = Rack::from("az0");
        let gone = partition(1, &[1, 9], &[1, 9]);
        let view = View { config: &config, topology: &topology(), has_port: &|_| true };
        assert_eq!(replica_for(view, &rack, "app", "t", &gone, |_| false), Err(Stay::NotInSync), "it is absent");
    }

    #[test]
    fn a_broker_without_a_rack_is_in_nobodys() {
        let mut topology = topology();
        topology.brokers.insert(NodeId(2), Broker::default());
        let config = Racks::default();
        let view = View { config: &config, topology: &topology, has_port: &|_| true };
        let at = |partition| replica_for(view, &Rack::from("az2"), "app", "t", &partition, |_| false);
        assert_eq!(at(partition(0, &[0, 2], &[0, 2])), Err(Stay::NoReplica));
        assert_eq!(at(partition(2, &[2, 5], &[2, 5])), Ok(NodeId(5)), "a leader nowhere is not in the rack");
    }

    #[test]
    fn the_selector_is_used_where_it_is_and_knows_all() {
        let auto = Racks::default();
        assert_eq!(how(&auto, Some(true)), Some(How::Stamp));
        assert_eq!((how(&auto, Some(false)), how(&auto, None)), (Some(How::Patch), Some(How::Patch)));
        let weighted = Racks { weights: [(1, 2)].into(), ..Racks::default() };
        assert_eq!(how(&weighted, Some(true)), Some(How::Patch));
        let of = |mode| how(&Racks { mode, ..Racks::default() }, Some(false));
        assert_eq!((of(RacksMode::Off), of(RacksMode::Stamp)), (None, Some(How::Stamp)));
    }

    #[test]
    fn a_replica_that_refuses_sends_its_readers_back() {
        let partition = partition(0, &[0, 2], &[0, 2]);
        let said = |error| Said { error, is_empty: true, reads_here: true };
        for error in BOUNCED {
            assert_eq!(back_to_leader(NodeId(2), &partition, said(error)), Some(NodeId(0)));
            assert_eq!(back_to_leader(NodeId(0), &partition, said(error)), None, "the leader's own word");
            let stranger = Said { reads_here: false, ..said(error) };
            assert_eq!(back_to_leader(NodeId(2), &partition, stranger), None, "it takes this one for the leader");
        }
        for error in [0, 2, 3, 29, 56, 100] {
            assert_eq!(back_to_leader(NodeId(2), &partition, said(error)), None, "{error}");
        }
    }

    #[test]
    fn a_replica_that_fell_behind_sends_back_those_who_wait_there() {
        let behind = partition(0, &[0, 2], &[0]);
        let said = |is_empty| Said { error: 0, is_empty, reads_here: true };
        assert_eq!(back_to_leader(NodeId(2), &behind, said(true)), Some(NodeId(0)));
        assert_eq!(back_to_leader(NodeId(2), &behind, said(false)), None, "it still has what they want");
        let unknown = partition(0, &[0, 2], &[]);
        assert_eq!(back_to_leader(NodeId(2), &unknown, said(true)), None);
    }

    proptest! {
        /// Whoever is chosen is an in-sync, live, permitted replica of the client's rack, and never the leader.
        #[test]
        fn nobody_is_sent_where_it_must_not_be(
            leader in -1i32..10, replicas in prop::collection::vec(0i32..10, 0..6), in_sync in prop::collection::vec(0i32..10, 0..6),
            offline in prop::collection::vec(0i32..10, 0..3), held in prop::collection::vec(0i32..10, 0..3),
            excluded in prop::collection::vec(0i32..10, 0..3), weights in prop::collection::btree_map(0i32..10, 1u16..9, 0..4),
        ) {
            let config = Racks { exclude_brokers: excluded.clone(), weights, ..Racks::default() };
            let mut partition = partition(leader, &replicas, &in_sync);
            partition.offline = offline.iter().map(|n| NodeId(*n)).collect();
            if let Ok(node) = decide(&config, &partition, &held) {
                prop_assert!(node % 3 == 2 && node != 8 && node != leader);
                prop_assert!(replicas.contains(&node) && in_sync.contains(&node));
                prop_assert!(![&offline, &held, &excluded].iter().any(|list| list.contains(&node)));
                prop_assert!(leader % 3 != 2);
            }
        }
    }
}
