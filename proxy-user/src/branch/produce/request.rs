//! A Produce request, v3 to v13: partitions and where their records lie.

use std::collections::HashMap;

use bytes::Bytes;

use super::batch::Batch;
use super::records::Records;
use crate::branch::ids::PartitionId;
use crate::kafka::Malformed;
use crate::kafka::api;
use crate::kafka::ids::{ApiKey, ApiVersion, TopicId};
use crate::kafka::wire::Reader;

/// First version with topic ids in place of names (KIP-516).
pub(super) const FIRST_TOPIC_IDS: ApiVersion = ApiVersion(13);

/// A topic as requests and answers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicRef<'a> {
    /// Up to v12.
    Name(&'a str),
    /// From v13 on.
    Id(TopicId),
}

impl<'a> TopicRef<'a> {
    pub(super) fn read(reader: &mut Reader<'a>, version: ApiVersion) -> Result<Self, Malformed> {
        match version < FIRST_TOPIC_IDS {
            true => reader.text().map(Self::Name),
            false => reader.array().map(|id| Self::Id(TopicId(id))),
        }
    }
}

/// How many copies the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// 0: no answer will come, ever.
    None,
    /// 1: the leader's.
    Leader,
    /// −1: those of all replicas in sync.
    All,
    /// Anything else: the broker refuses the whole request.
    Invalid(i16),
}

impl From<i16> for Acks {
    fn from(acks: i16) -> Self {
        match acks {
            0 => Self::None,
            1 => Self::Leader,
            -1 => Self::All,
            other => Self::Invalid(other),
        }
    }
}

/// What one partition is to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its topic.
    pub topic: TopicRef<'a>,
    /// Its number.
    pub partition: PartitionId,
    /// What the broker will try to append.
    pub records: Records,
    /// The request names this partition again with records that the broker refuses. Its answer is then about those,
    /// whatever became of these.
    pub answer_is_hidden: bool,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequest<'a> {
    /// The transaction it is part of. A batch is transactional by its own bit, not by this.
    pub transactional_id: Option<&'a str>,
    /// What the client waits for.
    pub acks: Acks,
    /// One for each partition.
    pub entries: Vec<Entry<'a>>,
}

impl<'a> ProduceRequest<'a> {
    /// Reads the bytes behind a frame's size field, header included.
    ///
    /// # Errors
    /// Bytes that don't follow the schema of `version`: the broker closes the connection.
    pub fn read(version: ApiVersion, frame: &'a Bytes) -> Result<Self, Malformed> {
        let flexible = api::spec(ApiKey::PRODUCE).is_some_and(|produce| produce.is_flexible(version));
        let mut reader = Reader::new(frame, flexible);
        if !(ApiVersion(3)..=ApiVersion(13)).contains(&version) {
            return reader.fail("Produce of a version that isn't served");
        }
        reader.skip_request_header()?;
        let transactional_id = match reader.nullable_string()? {
            None => None,
            Some(id) => match std::str::from_utf8(id) {
                Ok(id) => Some(id),
                Err(_) => return reader.fail("transactional id that isn't UTF-8"),
            },
        };
        let acks = Acks::from(reader.i16()?);
        reader.i32()?;
        let mut entries = Entries::default();
        for _ in 0..reader.count()? {
            let topic = TopicRef::read(&mut reader, version)?;
            for _ in 0..reader.count()? {
                let partition = PartitionId(reader.i32()?);
                let records = reader.nullable_bytes()?.map(|range| frame.slice(range));
                reader.skip_tags()?;
                entries.add(topic, partition, Records::judge(version, records.as_ref()));
            }
            reader.skip_tags()?;
        }
        reader.skip_tags()?;
        reader.end()?;
        Ok(Self { transactional_id, acks, entries: entries.list })
    }

    /// Whether the broker's handler will fail on it as a whole: nothing is written, and no answer will come.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.entries.iter().any(|entry| entry.records == Records::Null)
    }

    /// The batches that the broker will try to append.
    pub fn batches(&self) -> impl Iterator<Item = (&Entry<'a>, &Batch)> {
        let writes = !self.is_stuck() && !matches!(self.acks, Acks::Invalid(_));
        self.entries.iter().filter(move |_| writes).filter_map(|entry| match &entry.records {
            Records::Batch(batch) => Some((entry, batch)),
            Records::Null | Records::Refused(_) => None,
        })
    }
}

/// Entries as a broker collects them: of several good ones for a partition it keeps the last, and of the answers it
/// has for a partition the refusal. Source: `KafkaApis.handleProduceRequest`.
#[derive(Default)]
struct Entries<'a> {
    list: Vec<Entry<'a>>,
    places: HashMap<(TopicRef<'a>, PartitionId), usize>,
}

impl<'a> Entries<'a> {
    fn add(&mut self, topic: TopicRef<'a>, partition: PartitionId, records: Records) {
        // Most requests have one partition: no table for those.
        if self.list.len() == 1 && self.places.is_empty() {
            self.places.insert((self.list[0].topic, self.list[0].partition), 0);
        }
        let place = match self.list.is_empty() {
            true => None,
            false => self.places.get(&(topic, partition)),
        };
        match place.map(|at| &mut self.list[*at]) {
            None => {
                if !self.list.is_empty() {
                    self.places.insert((topic, partition), self.list.len());
                }
                self.list.push(Entry { topic, partition, records, answer_is_hidden: false });
            }
            Some(entry) => entry.merge(records),
        }
    }
}

impl Entry<'_> {
    fn merge(&mut self, records: Records) {
        match (&self.records, &records) {
            (Records::Null, _) => {}
            (_, Records::Null) | (Records::Batch(_), Records::Batch(_)) => self.records = records,
            (Records::Batch(_), Records::Refused(_)) => self.answer_is_hidden = true,
            (Records::Refused(_), Records::Batch(_)) => {
                self.records = records;
                self.answer_is_hidden = true;
            }
            (Records::Refused(_), Records::Refused(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
    use kafka_protocol::messages::{RequestHeader, TopicName, TransactionalId};
    use kafka_protocol::protocol::{Encodable, StrBytes};
    use proptest::prelude::*;

    use super::super::records::Refusal;
    use super::*;
    use crate::branch::produce::testing::{Draft, batch, batch_bytes};

    type Topics = Vec<(&'static str, Vec<(i32, Option<Bytes>)>)>;

    fn text(s: &str) -> StrBytes {
        StrBytes::from_string(s.to_owned())
    }

    /// A topic's id in these tests: its name, in bytes.
    fn id(name: &str) -> TopicId {
        let mut id = [0; 16];
        id[..name.len()].copy_from_slice(name.as_bytes());
        TopicId(id)
    }

    fn frame(version: i16, transactional: Option<&str>, acks: i16, topics: &Topics) -> Bytes {
        let mut frame = BytesMut::new();
        RequestHeader::default()
            .with_request_api_version(version)
            .with_client_id(Some(text("client")))
            .encode(&mut frame, if version >= 9 { 2 } else { 1 })
            .unwrap();
        let topics = topics.iter().map(|(name, partitions)| {
            let mut topic = TopicProduceData::default().with_partition_data(
                partitions
                    .iter()
                    .map(|(index, records)| {
                        PartitionProduceData::default().with_index(*index).with_records(records.clone())
                    })
                    .collect(),
            );
            if version >= 13 {
                topic.topic_id = id(name).to_string().parse().unwrap();
            } else {
                topic.name = TopicName(text(name));
            }
            topic
        });
        kafka_protocol::messages::ProduceRequest::default()
            .with_transactional_id(transactional.map(|id| TransactionalId(text(id))))
            .with_acks(acks)
            .with_topic_data(topics.collect())
            .encode(&mut frame, version)
            .unwrap();
        frame.freeze()
    }

    fn good(sequence: i32) -> Option<Bytes> {
        Some(batch_bytes(&Draft { sequence, ..Draft::default() }))
    }

    fn taken(sequence: i32) -> Records {
        Records::Batch(batch(&Draft { sequence, ..Draft::default() }))
    }

    fn of_orders(entries: &Topics, check: impl FnOnce(ProduceRequest<'_>)) {
        let frame = frame(9, None, -1, entries);
        check(ProduceRequest::read(ApiVersion(9), &frame).unwrap());
    }

    proptest! {
        #[test]
        fn every_version_is_read_and_no_record_is_copied(
            version in 3..=13i16, transactional in prop::option::of("[a-z]{0,5}"), acks in -1..=1i16,
            counts in prop::collection::vec(0..4i32, 0..3),
        ) {
            let names = ["orders", "payments", "clicks"];
            let topics: Topics = counts.iter().zip(names)
                .map(|(count, name)| (name, (0..*count).map(|n| (n, good(n))).collect())).collect();
            let frame = frame(version, transactional.as_deref(), acks, &topics);
            let request = ProduceRequest::read(ApiVersion(version), &frame).unwrap();
            prop_assert_eq!(request.transactional_id, transactional.as_deref());
            prop_assert_eq!(request.acks, Acks::from(acks));
            let mut expected = Vec::new();
            for (name, partitions) in &topics {
                let topic = if version >= 13 { TopicRef::Id(id(name)) } else { TopicRef::Name(name) };
                for (index, _) in partitions {
                    let (partition, records) = (PartitionId(*index), taken(*index));
                    expected.push(Entry { topic, partition, records, answer_is_hidden: false });
                }
            }
            let within = frame.as_ptr_range();
            prop_assert!(request.batches().all(|(_, batch)| within.contains(&batch.records().as_ptr())));
            prop_assert_eq!(request.entries, expected);
        }

        #[test]
        fn a_cut_or_longer_request_is_malformed(version in 3..=13i16) {
            let whole = frame(version, None, 1, &vec![("orders", vec![(0, good(0)), (1, None)])]);
            for cut in 0..whole.len() {
                prop_assert!(ProduceRequest::read(ApiVersion(version), &whole.slice(..cut)).is_err(), "cut at {}", cut);
            }
            let longer = Bytes::from([&whole[..], &[0]].concat());
            prop_assert!(ProduceRequest::read(ApiVersion(version), &longer).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(version in 0..=14i16, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ProduceRequest::read(ApiVersion(version), &bytes.into());
        }
    }

    #[test]
    fn of_a_partition_named_twice_the_last_batch_wins() {
        of_orders(
            &vec![("orders", vec![(0, good(1)), (1, good(5)), (0, good(2))]), ("orders", vec![(1, good(6))])],
            |r| {
                let seen: Vec<_> = r.entries.iter().map(|e| (e.partition.0, &e.records, e.answer_is_hidden)).collect();
                assert_eq!(seen, [(0, &taken(2), false), (1, &taken(6), false)]);
            },
        );
    }

    #[test]
    fn a_refused_entry_beside_a_good_one_of_its_partition_hides_the_answer() {
        for entries in [vec![(0, good(1)), (0, Some(Bytes::new()))], vec![(0, Some(Bytes::new())), (0, good(1))]] {
            of_orders(&vec![("orders", entries)], |request| {
                assert_eq!(request.entries.len(), 1);
                assert_eq!(request.entries[0].records, taken(1));
                assert!(request.entries[0].answer_is_hidden);
            });
        }
    }

    #[test]
    fn a_refused_partition_costs_the_others_nothing() {
        of_orders(&vec![("orders", vec![(0, Some(Bytes::new())), (1, good(1))])], |request| {
            assert_eq!(request.entries[0].records, Records::Refused(Refusal::Empty));
            let batches: Vec<_> = request.batches().map(|(entry, _)| entry.partition.0).collect();
            assert_eq!(batches, [1]);
        });
    }

    #[test]
    fn null_records_anywhere_mean_that_nothing_is_written() {
        for entries in [vec![(0, good(0)), (1, None)], vec![(0, good(0)), (0, None)], vec![(0, None), (0, good(0))]] {
            of_orders(&vec![("orders", entries)], |request| {
                assert!(request.is_stuck());
                assert_eq!(request.batches().count(), 0);
            });
        }
    }

    #[test]
    fn acks_that_dont_exist_mean_that_nothing_is_written() {
        let frame = frame(9, None, 7, &vec![("orders", vec![(0, good(0))])]);
        let request = ProduceRequest::read(ApiVersion(9), &frame).unwrap();
        assert_eq!(request.acks, Acks::Invalid(7));
        assert_eq!(request.batches().count(), 0);
    }
}
