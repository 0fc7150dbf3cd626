//! Topics as Metadata answers tell of them.

use super::ids::{NodeId, TopicId};

/// A topic in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenTopic {
    /// Kafka's error code.
    pub error: i16,
    /// Its name; none where it was asked for by an id that is unknown.
    pub name: Option<String>,
    /// Its id; none below v10.
    pub id: TopicId,
    /// Its partitions, those without a leader included.
    pub partitions: Vec<SeenPartition>,
}

/// A partition in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenPartition {
    /// Its index.
    pub index: i32,
    /// Who leads it, if anybody does.
    pub leader: Option<NodeId>,
    /// The leader's epoch; −1 below v7.
    pub epoch: i32,
    /// Who has a copy.
    pub replicas: Vec<NodeId>,
    /// Whose copy is complete.
    pub in_sync: Vec<NodeId>,
    /// Whose copy is out of reach; none below v5.
    pub offline: Vec<NodeId>,
}
