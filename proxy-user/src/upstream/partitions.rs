//! Who leads which partition and who has a complete copy of it: a table that Metadata answers fill. Pure.
//!
//! An answer says nothing of topics that aren't in it. Of two answers about one partition, the one with the higher leader
//! epoch is right, whichever came later; with equal epochs the later one is.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kafka::fetch::Topic;
use crate::kafka::ids::TopicId;
use crate::kafka::topics::{SeenPartition, SeenTopic};

/// Partitions remembered: a bound for what passing answers teach, far above what one gateway's clients read.
const MAX_PARTITIONS: usize = 400_000;

/// UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID.
const UNKNOWN: [i16; 2] = [3, 100];

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicState {
    /// Its name.
    pub name: Arc<str>,
    /// Its id; none where no answer told.
    pub id: TopicId,
    partitions: HashMap<i32, SeenPartition>,
}

impl TopicState {
    /// A partition.
    #[must_use]
    pub fn partition(&self, index: i32) -> Option<&SeenPartition> {
        self.partitions.get(&index)
    }

    /// All of them, in no order.
    pub fn partitions(&self) -> impl Iterator<Item = &SeenPartition> {
        self.partitions.values()
    }
}

/// See the module. Cheap to share behind an `Arc`, replaced whole.
#[derive(Clone, Debug, Default)]
pub struct PartitionTable {
    topics: HashMap<Arc<str>, Arc<TopicState>>,
    by_id: HashMap<TopicId, Arc<str>>,
    partitions: usize,
    /// Changes so far.
    generation: u64,
}

impl PartitionTable {
    /// A topic, as a frame names it.
    #[must_use]
    pub fn topic(&self, topic: Topic<'_>) -> Option<&Arc<TopicState>> {
        match topic {
            Topic::Name(name) => self.topics.get(name),
            Topic::Id(id) => self.topics.get(self.by_id.get(&id)?),
        }
    }

    /// Every topic, in no order.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<TopicState>> {
        self.topics.values()
    }

    /// Grows with each change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The table after an answer; `None` where it says nothing new.
    #[must_use]
    pub fn learn(&self, seen: Vec<SeenTopic>) -> Option<Self> {
        let mut new: Option<Self> = None;
        for topic in seen {
            let now = new.as_ref().unwrap_or(self);
            if UNKNOWN.contains(&topic.error) {
                let gone = match &topic.name {
                    Some(name) => now.topics.get(name.as_str()).map(|known| Arc::clone(&known.name)),
                    None => now.by_id.get(&topic.id).cloned(),
                };
                if let Some(name) = gone {
                    new.get_or_insert_with(|| self.clone()).forget(&name);
                }
                continue;
            }
            let SeenTopic { error: 0, name: Some(name), id, partitions } = topic else { continue };
            let known = now.topics.get(name.as_str()).cloned();
            let merged = merge(known.as_deref(), name, id, partitions);
            if known.as_deref() != Some(&merged) {
                new.get_or_insert_with(|| self.clone()).insert(merged);
            }
        }
        let mut new = new?;
        new.generation += 1;
        Some(new)
    }

    fn forget(&mut self, name: &str) {
        if let Some(gone) = self.topics.remove(name) {
            self.partitions -= gone.partitions.len();
            self.by_id.remove(&gone.id);
        }
    }

    fn insert(&mut self, topic: TopicState) {
        self.forget(&topic.name);
        if self.partitions + topic.partitions.len() > MAX_PARTITIONS {
            return;
        }
        self.partitions += topic.partitions.len();
        if topic.id.is_some() {
            self.by_id.insert(topic.id, Arc::clone(&topic.name));
        }
        self.topics.insert(Arc::clone(&topic.name), Arc::new(topic));
    }
}

/// What is known of a topic after an answer about it.
fn merge(known: Option<&TopicState>, name: String, id: TopicId, partitions: Vec<SeenPartition>) -> TopicState {
    // Another id is another topic, which happens to have the name. Where no id was told, it is the known one's.
    let same = known.filter(|known| known.id == id || !id.is_some() || !known.id.is_some());
    let fresher = |seen: SeenPartition| match same.and_then(|known| known.partitions.get(&seen.index)) {
        Some(known) if seen.epoch >= 0 && known.epoch > seen.epoch => known.clone(),
        _ => seen,
    };
    TopicState {
        name: same.map_or_else(|| name.into(), |known| Arc::clone(&known.name)),
        id: if id.is_some() { id } else { same.map_or(id, |known| known.id) },
        partitions: partitions.into_iter().map(fresher).map(|partition| (partition.index, partition)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kafka::ids::NodeId;

    fn id(n: u8) -> TopicId {
        TopicId([n; 16])
    }

    fn led(index: i32, leader: i32, epoch: i32) -> SeenPartition {
        SeenPartition { index, leader: Some(NodeId(leader)), epoch, ..SeenPartition::default() }
    }

    fn topic(name: &str, n: u8, partitions: Vec<SeenPartition>) -> SeenTopic {
        SeenTopic { error: 0, name: Some(name.to_owned()), id: id(n), partitions }
    }

    fn leader(table: &PartitionTable, topic: Topic<'_>, index: i32) -> Option<i32> {
        table.topic(topic)?.partition(index)?.leader.map(|leader| leader.0)
    }

    #[test]
    fn a_topic_is_found_by_name_and_by_id() {
        let table = PartitionTable::default().learn(vec![topic("a", 1, vec![led(0, 7, 3)])]).expect("news");
        assert_eq!(leader(&table, Topic::Name("a"), 0), Some(7));
        assert_eq!(leader(&table, Topic::Id(id(1)), 0), Some(7));
        assert_eq!(leader(&table, Topic::Id(id(2)), 0), None);
        assert!(table.learn(vec![topic("a", 1, vec![led(0, 7, 3)])]).is_none(), "nothing new");
    }

    #[test]
    fn an_older_epoch_is_no_news_and_an_equal_one_is() {
        let table = PartitionTable::default().learn(vec![topic("a", 1, vec![led(0, 7, 3)])]).expect("news");
        assert!(table.learn(vec![topic("a", 1, vec![led(0, 8, 2)])]).is_none());
        let mut shrunk = led(0, 7, 3);
        shrunk.in_sync = vec![NodeId(7)];
        let table = table.learn(vec![topic("a", 1, vec![shrunk])]).expect("the replicas in sync changed");
        let table = table.learn(vec![topic("a", 1, vec![led(0, 8, 4)])]).expect("a new leader");
        assert_eq!(leader(&table, Topic::Name("a"), 0), Some(8));
    }

    #[test]
    fn a_topic_made_again_is_another_one_whatever_its_epochs() {
        let table = PartitionTable::default().learn(vec![topic("a", 1, vec![led(0, 7, 30)])]).expect("news");
        let table = table.learn(vec![topic("a", 2, vec![led(0, 8, 0)])]).expect("another topic");
        assert_eq!(leader(&table, Topic::Name("a"), 0), Some(8));
        assert_eq!(leader(&table, Topic::Id(id(1)), 0), None, "the old id is gone");
    }

    #[test]
    fn an_answer_without_ids_keeps_the_one_that_is_known() {
        let table = PartitionTable::default().learn(vec![topic("a", 1, vec![led(0, 7, 3)])]).expect("news");
        let nameless = SeenTopic { id: TopicId::default(), ..topic("a", 0, vec![led(0, 8, 4)]) };
        let table = table.learn(vec![nameless]).expect("news");
        assert_eq!(leader(&table, Topic::Id(id(1)), 0), Some(8));
    }

    #[test]
    fn a_topic_that_is_gone_is_forgotten_and_one_in_trouble_is_not() {
        let table = PartitionTable::default().learn(vec![topic("a", 1, vec![led(0, 7, 3)])]).expect("news");
        let failed = |error, name: Option<&str>, n| SeenTopic {
            error,
            name: name.map(str::to_owned),
            id: id(n),
            partitions: Vec::new(),
        };
        assert!(table.learn(vec![failed(29, Some("a"), 1)]).is_none(), "not authorized: says nothing of it");
        let gone = table.learn(vec![failed(3, Some("a"), 0)]).expect("it is gone");
        assert_eq!(gone.topics().count(), 0);
        let gone = table.learn(vec![failed(100, None, 1)]).expect("its id is unknown");
        assert_eq!((gone.topics().count(), gone.partitions), (0, 0));
    }

    proptest! {
        /// Whatever is learned in whatever order: ids and names agree, the count is right, and no epoch goes back within
        /// one topic id.
        #[test]
        fn the_table_stays_consistent(
            steps in prop::collection::vec((0u8..3, 1u8..5, prop::collection::vec((0i32..3, 0i32..4, 0i32..5), 0..3), any::<bool>()), 0..30),
        ) {
            let mut table = PartitionTable::default();
            for (name, n, partitions, gone) in steps {
                let name = ["a", "b", "c"][usize::from(name)];
                let mut seen = topic(name, n, partitions.iter().map(|(i, l, e)| led(*i, *l, *e)).collect());
                if gone {
                    seen = SeenTopic { error: 3, ..seen };
                }
                let before = table.topic(Topic::Name(name)).cloned();
                if let Some(new) = table.learn(vec![seen]) {
                    prop_assert!(new.generation() > table.generation());
                    table = new;
                }
                prop_assert_eq!(table.partitions, table.topics().map(|t| t.partitions.len()).sum::<usize>());
                for known in table.topics() {
                    prop_assert!(table.topic(Topic::Id(known.id)).is_none_or(|t| t.id == known.id));
                }
                if let (Some(before), Some(after)) = (before, table.topic(Topic::Name(name))) && before.id == after.id {
                    for partition in after.partitions() {
                        let was = before.partition(partition.index).map_or(-1, |p| p.epoch);
                        prop_assert!(partition.epoch >= was);
                    }
                }
            }
        }
    }
}
