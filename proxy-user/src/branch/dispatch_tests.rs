//! The table of branching.md, cell by cell, with requests and answers as bytes.

use std::collections::HashMap;

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ProduceResponse, TopicName};
use kafka_protocol::protocol::{Encodable, StrBytes};

use super::*;
use crate::branch::produce::testing::{Draft, batch_bytes, by};

const V9: ApiVersion = ApiVersion(9);
const AGE: Duration = Duration::from_secs(30);
const HERE: ConnectionId = ConnectionId(1);

/// Keeps what it is offered.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Item>>);

impl Sink for Kept {
    fn offer(&self, item: Item) {
        self.0.lock().unwrap().push(item);
    }
}

struct Names(HashMap<TopicId, Arc<str>>);

impl TopicNames for Names {
    fn name(&self, id: TopicId) -> Option<Arc<str>> {
        self.0.get(&id).cloned()
    }
}

fn no_names() -> Names {
    Names(HashMap::new())
}

fn plan(when: When) -> Plan {
    let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Plan {
        selection: Selection { include: patterns(&["orders", "payments.*"]), exclude: patterns(&["*.internal"]) },
        share: Share::ALL,
        when,
        transactions: Transactions::Skip,
        purgatory: Bounds { bytes: 1 << 20, age: AGE },
        orphans: 100,
    }
}

struct World {
    branch: Dispatcher<Kept>,
    ledger: Ledger,
    now: Instant,
}

impl World {
    fn new(plan: Plan) -> Self {
        let (ledger, now) = (Ledger::default(), Instant::now());
        Self { branch: Dispatcher::new(plan, Kept::default(), ledger.clone(), 2, now), ledger, now }
    }

    fn request(&self, ordinal: u64, acks: i16, partitions: &[(&str, i32, Draft)]) {
        let frame = request(acks, partitions);
        self.branch.on_request(RequestKey { connection: HERE, ordinal }, V9, &frame, &no_names(), self.now);
    }

    fn answer(&self, ordinal: u64, partitions: &[(&str, i32, i16, i64)]) {
        let key = RequestKey { connection: HERE, ordinal };
        self.branch.on_answer(key, V9, &answer(partitions), self.now);
    }

    /// Topic, partition and offset of what was dispatched since the last time.
    fn dispatched(&self) -> Vec<(String, i32, Option<i64>)> {
        let items = std::mem::take(&mut *self.branch.sink().0.lock().unwrap());
        items.iter().map(|i| (i.topic.to_string(), i.partition.0, i.seen.offset.map(|o| o.0))).collect()
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.ledger.total(outcome).batches
    }

    /// Everything that was counted.
    fn counted(&self) -> Vec<(Outcome, u64)> {
        let mut all = std::collections::BTreeMap::new();
        for (outcome, amount) in self.ledger.snapshot().into_values().flatten() {
            *all.entry(outcome).or_insert(0) += amount.batches;
        }
        all.into_iter().collect()
    }
}

/// v9, written by hand: one topic entry for each partition.
fn request(acks: i16, partitions: &[(&str, i32, Draft)]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&[0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0, 0]);
    out.put_i16(acks);
    out.put_i32(30_000);
    out.put_u8(partitions.len() as u8 + 1);
    for (topic, partition, draft) in partitions {
        out.put_u8(topic.len() as u8 + 1);
        out.put_slice(topic.as_bytes());
        out.put_u8(2);
        out.put_i32(*partition);
        let records = batch_bytes(draft);
        assert!((64..0x3fff).contains(&records.len()), "a varint of two bytes");
        out.put_slice(&[(records.len() + 1) as u8 | 0x80, ((records.len() + 1) >> 7) as u8]);
        out.put_slice(&records);
        out.put_slice(&[0, 0]);
    }
    out.put_u8(0);
    // Shorter lengths than two bytes can't occur: a batch has 61 bytes and the tests' records more.
    out.freeze()
}

fn answer(partitions: &[(&str, i32, i16, i64)]) -> Vec<u8> {
    let topics = partitions.iter().map(|(topic, partition, error, offset)| {
        let partition = PartitionProduceResponse::default()
            .with_index(*partition)
            .with_error_code(*error)
            .with_base_offset(*offset);
        TopicProduceResponse::default()
            .with_name(TopicName(StrBytes::from_string((*topic).to_owned())))
            .with_partition_responses(vec![partition])
    });
    let mut frame = BytesMut::from(&[0, 0, 0, 1, 0][..]);
    ProduceResponse::default().with_responses(topics.collect()).encode(&mut frame, 9).unwrap();
    frame.to_vec()
}

/// The client's batch that begins with this sequence.
fn own(sequence: i32) -> Draft {
    Draft { payload: vec![7; 80], ..by(1000, 0, sequence, 1) }
}

fn nobodys() -> Draft {
    Draft { payload: vec![7; 80], ..Draft::default() }
}

fn to(topic: &str, partition: i32, offset: Option<i64>) -> (String, i32, Option<i64>) {
    (topic.to_owned(), partition, offset)
}

#[test]
fn on_ack_a_batch_goes_when_the_mainline_has_it_and_says_where() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 3, own(0))]);
    assert!(world.dispatched().is_empty() && world.branch.held() > 0);
    world.answer(0, &[("orders", 3, 0, 77)]);
    assert_eq!(world.dispatched(), [to("orders", 3, Some(77))]);
    assert_eq!((world.branch.held(), world.counted()), (0, vec![]));
}

#[test]
fn on_ack_what_the_mainline_refuses_is_never_dispatched() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 0, own(0)), ("orders", 1, own(0)), ("payments.eu", 0, own(0))]);
    world.answer(0, &[("orders", 0, 10, -1), ("orders", 1, 0, 5), ("payments.eu", 0, 0, 9)]);
    assert_eq!(world.dispatched(), [to("orders", 1, Some(5)), to("payments.eu", 0, Some(9))]);
    assert_eq!(world.counted(), []);
}

#[test]
fn on_ack_a_lost_answer_waits_for_the_retry() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 0, own(0))]);
    world.branch.on_connection_end(HERE, 1, world.now);
    assert_eq!((world.dispatched(), world.counted()), (vec![], vec![]));
    world.request(1, -1, &[("orders", 0, own(0))]);
    world.answer(1, &[("orders", 0, 0, 5)]);
    assert_eq!(world.dispatched(), [to("orders", 0, Some(5))]);
    world.branch.tick(world.now + AGE * 2);
    assert_eq!(world.counted(), []);
}

#[test]
fn on_ack_a_lost_answer_that_nobody_retries_is_ambiguous() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 0, own(0)), ("orders", 1, nobodys())]);
    world.branch.on_connection_end(HERE, 1, world.now);
    let ambiguous = Outcome::Ambiguous(Cause::ConnectionLost);
    assert_eq!(world.counted(), [(ambiguous, 1)], "without a producer no retry can be told");
    world.branch.tick(world.now + AGE);
    assert_eq!(world.counted(), [(ambiguous, 2)]);
}

#[test]
fn on_ack_an_error_that_leaves_it_open_waits_for_the_retry_too() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 0, own(0)), ("orders", 1, nobodys())]);
    world.answer(0, &[("orders", 0, 7, -1), ("orders", 1, 7, -1)]);
    assert_eq!(world.counted(), [(Outcome::Ambiguous(Cause::AnswerUnclear), 1)]);
    world.request(1, -1, &[("orders", 0, own(0))]);
    world.answer(1, &[("orders", 0, 0, 5)]);
    assert_eq!(world.dispatched(), [to("orders", 0, Some(5))]);
}

#[test]
fn a_request_that_the_broker_never_got_is_nothing_on_ack_and_a_ghost_otherwise() {
    for (when, counted) in [(When::OnAck, vec![]), (When::Concurrent, vec![(Outcome::Ghost, 1)])] {
        let world = World::new(plan(when));
        world.request(0, -1, &[("orders", 0, own(0))]);
        world.branch.on_connection_end(HERE, 0, world.now);
        assert_eq!(world.counted(), counted, "{when:?}");
    }
}

#[test]
fn concurrent_goes_at_once_and_what_the_mainline_refuses_is_a_ghost() {
    let world = World::new(plan(When::Concurrent));
    world.request(0, -1, &[("orders", 0, own(0)), ("orders", 1, own(0))]);
    assert_eq!(world.dispatched(), [to("orders", 0, None), to("orders", 1, None)]);
    world.answer(0, &[("orders", 0, 0, 5), ("orders", 1, 10, -1)]);
    assert_eq!((world.dispatched(), world.counted()), (vec![], vec![(Outcome::Ghost, 1)]));
}

#[test]
fn without_acks_it_goes_at_once_and_is_counted_apart() {
    let world = World::new(plan(When::OnAck));
    world.request(0, 0, &[("orders", 0, own(0))]);
    assert_eq!(world.dispatched(), [to("orders", 0, None)]);
    assert_eq!((world.counted(), world.branch.held()), (vec![(Outcome::Unanswered, 1)], 0));
}

#[test]
fn what_waits_too_long_or_finds_no_room_is_missing() {
    let world = World::new(Plan { purgatory: Bounds { bytes: 400, age: AGE }, ..plan(When::OnAck) });
    for ordinal in 0..3 {
        world.request(ordinal, -1, &[("orders", 0, own(ordinal as i32))]);
    }
    assert_eq!(world.counted(), [(Outcome::Mia(Cause::PurgatoryFull), 1)]);
    world.branch.tick(world.now + AGE * 2);
    assert_eq!(world.count(Outcome::Mia(Cause::PurgatoryAge)), 2);
    world.answer(0, &[("orders", 0, 0, 5)]);
    assert!(world.dispatched().is_empty());
}

#[test]
fn what_is_left_at_the_end_is_counted() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 0, own(0))]);
    world.branch.on_connection_end(HERE, 1, world.now);
    world.request(1, -1, &[("orders", 0, own(1))]);
    world.branch.end(Ending::Shutdown, world.now);
    assert_eq!(world.counted(), [(Outcome::Mia(Cause::Shutdown), 1), (Outcome::Ambiguous(Cause::ConnectionLost), 1)]);
}

#[test]
fn only_what_is_selected_is_copied() {
    let world = World::new(plan(When::Concurrent));
    world.request(0, -1, &[("clicks", 0, own(0)), ("payments.internal", 0, own(0)), ("payments.eu", 0, own(0))]);
    assert_eq!(world.dispatched(), [to("payments.eu", 0, None)]);
}

#[test]
fn what_a_branch_wrote_is_never_branched_again() {
    let world = World::new(plan(When::Concurrent));
    world.request(0, -1, &[("orders", 0, Draft { producer: (1 << 62) + 5, ..own(0) })]);
    assert_eq!((world.dispatched(), world.counted()), (vec![], vec![]));
}

#[test]
fn transactional_batches_are_skipped_or_written_as_plain_ones() {
    let transactional = || Draft { transactional: true, ..own(0) };
    let world = World::new(plan(When::Concurrent));
    world.request(0, -1, &[("orders", 0, transactional())]);
    assert_eq!((world.dispatched(), world.counted()), (vec![], vec![(Outcome::Skipped, 1)]));
    let world = World::new(Plan { transactions: Transactions::Plain, ..plan(When::Concurrent) });
    world.request(0, -1, &[("orders", 0, transactional())]);
    assert_eq!(world.dispatched(), [to("orders", 0, None)]);
}

#[test]
fn what_the_sample_leaves_out_is_counted() {
    let world = World::new(Plan { share: Share::of_million(0).unwrap(), ..plan(When::OnAck) });
    world.request(0, -1, &[("orders", 0, own(0))]);
    assert_eq!((world.branch.held(), world.counted()), (0, vec![(Outcome::Sampled, 1)]));
}

#[test]
fn a_few_bytes_of_a_large_frame_dont_keep_the_frame() {
    let world = World::new(plan(When::OnAck));
    let large = Draft { payload: vec![0; 10_000], ..own(0) };
    world.request(0, -1, &[("clicks", 0, large), ("orders", 0, own(0))]);
    assert_eq!(world.branch.held(), batch_bytes(&own(0)).len());
}

#[test]
fn a_request_that_no_broker_can_read_is_nobodys_business() {
    let world = World::new(plan(When::Concurrent));
    let key = RequestKey { connection: HERE, ordinal: 0 };
    let frame = request(-1, &[("orders", 0, own(0))]);
    world.branch.on_request(key, V9, &frame.slice(..frame.len() - 1), &no_names(), world.now);
    assert_eq!((world.dispatched(), world.counted()), (vec![], vec![]));
}

#[test]
fn an_answer_that_cant_be_read_is_a_lost_one() {
    let world = World::new(plan(When::OnAck));
    world.request(0, -1, &[("orders", 0, own(0))]);
    world.branch.on_answer(RequestKey { connection: HERE, ordinal: 0 }, V9, &[0; 6], world.now);
    world.branch.tick(world.now + AGE);
    assert_eq!(world.counted(), [(Outcome::Ambiguous(Cause::ConnectionLost), 1)]);
}

/// v13 names topics by ids: the request of v9 with the name replaced.
#[test]
fn a_topic_id_is_resolved_or_counted() {
    let world = World::new(plan(When::Concurrent));
    let by_name = request(-1, &[("orders", 0, own(0))]);
    let at = by_name.windows(7).position(|w| w == b"\x07orders").unwrap();
    let by_id = Bytes::from([&by_name[..at], &[5; 16], &by_name[at + 7..]].concat());
    let key = |ordinal| RequestKey { connection: HERE, ordinal };
    let names = Names(HashMap::from([(TopicId([5; 16]), "orders".into())]));
    world.branch.on_request(key(0), ApiVersion(13), &by_id, &names, world.now);
    assert_eq!(world.dispatched(), [to("orders", 0, None)]);
    world.branch.on_request(key(1), ApiVersion(13), &by_id, &no_names(), world.now);
    assert_eq!((world.dispatched(), world.counted()), (vec![], vec![(Outcome::Ambiguous(Cause::TopicId), 1)]));
}
