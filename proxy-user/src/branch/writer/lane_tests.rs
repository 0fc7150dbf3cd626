//! What a lane promises, step by step, and against a broker's rules under every kind of bad luck.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::branch::identity::{Anonymous, Bounds, Deriving, Owned, Preserving, Seed, Streams};
use crate::branch::ids::{PartitionId, ProducerEpoch, ProducerId, Sequence};
use crate::branch::produce::testing::{Draft, batch, by};
use crate::branch::writer::testing::{Broker, Incarnation};

const AGE: Duration = Duration::from_secs(30);
const CLIENT: i64 = 1000;

fn item(draft: &Draft, since: Instant) -> Item {
    Item::new("orders".into(), PartitionId(0), batch(draft), None, since)
}

/// A lane and its derived identity.
struct World {
    lane: Lane,
    seed: Seed,
    streams: Streams,
    now: Instant,
    effects: Effects,
}

impl World {
    /// The branch has taken batches of the client before, from sequence 0 on.
    fn new() -> Self {
        let mut world = Self::fresh();
        let key = StreamKey { topic: "orders".into(), partition: PartitionId(0), producer: ProducerId(CLIENT) };
        let generation = world.streams.generation(&key, world.now);
        world.streams.acknowledge(&key, generation, ProducerEpoch(0), Sequence(0));
        world
    }

    /// The branch has taken nothing so far.
    fn fresh() -> Self {
        Self {
            lane: Lane::new(5, AGE),
            seed: Seed { cluster: "c".into(), branch: "b".into() },
            streams: Streams::new(Bounds { streams: 100, idle: Duration::from_secs(86_400) }),
            now: Instant::now(),
            effects: Effects::default(),
        }
    }

    /// Pushes client batches of one record each, of these sequences.
    fn push(&mut self, sequences: std::ops::Range<i32>) {
        for sequence in sequences {
            self.lane.push(item(&by(CLIENT, 0, sequence, 1), self.now));
        }
    }

    /// Numbers, sequences and producers of all that is sent now.
    fn send(&mut self) -> Vec<(u64, i32, ProducerId)> {
        let mut sent = Vec::new();
        let mut stamper = Deriving { seed: &self.seed, streams: &mut self.streams };
        while let Some(Outgoing { number, batch }) = self.lane.next(&mut stamper, self.now, &mut self.effects) {
            sent.push((number, batch.stamp().sequence.0, batch.stamp().producer));
        }
        sent
    }

    fn answer(&mut self, number: u64, error: i16) {
        let mut stamper = Deriving { seed: &self.seed, streams: &mut self.streams };
        self.lane.answered(number, error, &mut stamper, self.now, &mut self.effects);
    }

    fn lose(&mut self, numbers: &[u64], sent: bool) {
        let mut stamper = Deriving { seed: &self.seed, streams: &mut self.streams };
        self.lane.lost(numbers, sent, &mut stamper, self.now, &mut self.effects);
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        self.lane.expire(self.now, &mut self.effects);
    }

    /// What became of each batch so far, by its sequence.
    fn done(&mut self) -> Vec<(i32, Outcome)> {
        std::mem::take(&mut self.effects.done).iter().map(|d| (d.item.seen.first.0, d.outcome)).collect()
    }

    fn doubled(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.effects.possible_duplicates).iter().map(|item| item.seen.first.0).collect()
    }
}

#[test]
fn five_batches_are_in_flight_and_the_sixth_follows_the_first_answer() {
    let mut world = World::new();
    world.push(0..7);
    assert_eq!(world.send().iter().map(|(_, sequence, _)| *sequence).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    world.answer(1, 0);
    assert!(world.send().is_empty() && world.done().is_empty(), "the first one's fate is open");
    world.answer(0, 0);
    assert_eq!(world.done(), [(0, Outcome::Written), (1, Outcome::Written)]);
    assert_eq!(world.send().iter().map(|(_, sequence, _)| *sequence).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn what_a_broker_cant_take_now_is_sent_again_in_order_after_a_pause() {
    let mut world = World::new();
    world.push(0..4);
    world.send();
    world.answer(0, 0);
    for number in [1, 2, 3] {
        assert!(world.send().is_empty(), "nothing overtakes what failed");
        world.answer(number, 6);
    }
    assert!(world.effects.refresh);
    world.wait(BACKOFF.0 / 2);
    assert!(world.send().is_empty(), "not at once");
    world.wait(BACKOFF.0 / 2);
    assert_eq!(world.send().iter().map(|(_, sequence, _)| *sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(world.doubled().is_empty());
}

#[test]
fn a_hole_starts_one_generation_for_all_that_found_it() {
    let mut world = World::new();
    world.push(0..1);
    let (_, _, first) = world.send()[0];
    world.answer(0, 0);
    world.push(5..8);
    assert!(world.send().iter().all(|(.., producer)| *producer == first));
    for number in [1, 2, 3] {
        world.answer(number, 45);
    }
    let again = world.send();
    let second = again[0].2;
    assert_eq!(again, [(1, 5, second)], "a generation's first batch goes alone");
    assert_ne!(second, first);
    world.answer(1, 0);
    assert_eq!(world.send(), [(2, 6, second), (3, 7, second)]);
    assert_eq!(world.doubled(), [5, 6, 7]);
    world.answer(2, 0);
    world.answer(3, 0);
    assert_eq!(world.done().len(), 4);
}

#[test]
fn the_first_batch_of_a_producer_goes_alone_and_other_producers_dont_wait_for_it() {
    let mut world = World::fresh();
    world.push(0..1);
    world.lane.push(item(&by(CLIENT + 1, 0, 0, 1), world.now));
    world.push(1..3);
    assert_eq!(world.send().iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [0, 1]);
    world.answer(0, 0);
    assert_eq!(world.send().iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn success_in_a_generation_proves_nothing_of_what_was_before_its_start() {
    let mut world = World::fresh();
    world.push(7..8);
    world.send();
    world.answer(0, 0);
    world.push(3..4);
    world.push(8..9);
    world.send();
    world.answer(1, 45);
    world.answer(2, 0);
    assert_eq!(world.done(), [(7, Outcome::Written), (8, Outcome::Written)]);
    assert_eq!(world.send().len(), 1);
    assert_eq!(world.doubled(), [3]);
}

#[test]
fn a_later_batch_that_was_taken_proves_those_before_it() {
    let mut world = World::new();
    world.push(0..3);
    world.send();
    // The answers are lost, the leader restarts, and knows the last batch only.
    world.lose(&[0, 1, 2], true);
    world.wait(BACKOFF.0);
    assert_eq!(world.send().len(), 3);
    world.answer(0, 45);
    world.answer(1, 45);
    world.answer(2, 0);
    assert_eq!(world.done(), [(0, Outcome::Found), (1, Outcome::Found), (2, Outcome::Written)]);
    assert!(world.doubled().is_empty() && world.lane.is_idle());
}

#[test]
fn another_producers_success_proves_nothing() {
    let mut world = World::new();
    world.push(4..5);
    world.lane.push(item(&by(CLIENT + 1, 0, 0, 1), world.now));
    let first = world.send()[0].2;
    world.answer(0, 45);
    world.answer(1, 0);
    assert_eq!(world.done(), [(0, Outcome::Written)]);
    assert_ne!(world.send()[0].2, first);
}

#[test]
fn an_answer_that_never_came_leaves_a_doubt_and_an_unsent_batch_none() {
    let mut world = World::new();
    world.push(0..2);
    world.send();
    world.lose(&[0], true);
    world.lose(&[1], false);
    world.wait(AGE);
    assert_eq!(world.done(), [(0, Outcome::Ambiguous(Cause::ConnectionLost)), (1, Outcome::Mia(Cause::QueueAge))]);
}

#[test]
fn a_batch_that_is_at_fault_is_not_sent_again() {
    let mut world = World::new();
    world.push(0..2);
    world.send();
    world.answer(0, 10);
    world.answer(1, 29);
    assert_eq!(world.done(), [(0, Outcome::Mia(Cause::TooLarge)), (1, Outcome::Mia(Cause::Unauthorized))]);
    assert!(world.lane.is_idle());
}

#[test]
fn an_identity_without_generations_gives_up() {
    let (mut lane, now) = (Lane::new(5, AGE), Instant::now());
    let mut effects = Effects::default();
    lane.push(item(&by(CLIENT, 0, 5, 1), now));
    lane.next(&mut Preserving, now, &mut effects).unwrap();
    lane.answered(0, 45, &mut Preserving, now, &mut effects);
    assert_eq!(effects.done[0].outcome, Outcome::Mia(Cause::Identity));
}

#[test]
fn a_batch_nobody_recognises_may_be_doubled_by_a_second_attempt() {
    let (mut lane, now) = (Lane::new(5, AGE), Instant::now());
    let mut effects = Effects::default();
    lane.push(item(&Draft::default(), now));
    lane.next(&mut Anonymous, now, &mut effects).unwrap();
    lane.lost(&[0], true, &mut Anonymous, now, &mut effects);
    assert!(effects.possible_duplicates.is_empty());
    lane.next(&mut Anonymous, now + BACKOFF.0, &mut effects).unwrap();
    assert_eq!(effects.possible_duplicates.len(), 1);
}

#[test]
fn answers_to_nothing_are_nothing() {
    let mut world = World::new();
    world.push(0..1);
    world.answer(0, 0);
    world.send();
    world.answer(7, 0);
    world.answer(0, 0);
    world.answer(0, 6);
    assert_eq!(world.done(), [(0, Outcome::Written)]);
}

#[test]
fn what_is_left_at_the_end_is_counted_by_its_cause() {
    let mut world = World::new();
    world.push(0..7);
    world.send();
    world.answer(1, 0);
    world.lane.end(Cause::Removed, &mut world.effects);
    let ambiguous = Outcome::Ambiguous(Cause::ConnectionLost);
    let missing = Outcome::Mia(Cause::Removed);
    assert_eq!(
        world.done(),
        [
            (0, ambiguous),
            (1, Outcome::Written),
            (2, ambiguous),
            (3, ambiguous),
            (4, ambiguous),
            (5, missing),
            (6, missing),
        ]
    );
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The client's next batch, of so many records.
    Push(u8),
    /// The client's next batch is lost on its way to the branch.
    Skip(u8),
    /// A batch of the past comes again, unrecognised.
    Repeat(prop::sample::Index),
    Send,
    /// The broker takes the next request.
    Serve,
    /// … and fails before the append, or behind it.
    Fail {
        appended: bool,
    },
    /// The next answer arrives.
    Hear,
    /// The connection ends. What the broker hasn't read is lost, or read later.
    Lose {
        late: bool,
    },
    /// A request of a connection that ended is served after all.
    ServeLate,
    /// The leader restarts.
    Restart,
    /// The broker refuses the next batch for good.
    Refuse,
    Wait(u16),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (1..4u8).prop_map(Event::Push),
        1 => (1..4u8).prop_map(Event::Skip),
        1 => any::<prop::sample::Index>().prop_map(Event::Repeat),
        8 => Just(Event::Send),
        10 => Just(Event::Serve),
        1 => any::<bool>().prop_map(|appended| Event::Fail { appended }),
        10 => Just(Event::Hear),
        1 => any::<bool>().prop_map(|late| Event::Lose { late }),
        1 => Just(Event::ServeLate),
        1 => Just(Event::Restart),
        1 => Just(Event::Refuse),
        2 => (0..2000u16).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..250)
}

/// Everything between a lane and its broker.
struct Simulation<'a> {
    lane: Lane,
    stamper: &'a mut dyn Stamper,
    broker: Broker<i32>,
    wire: VecDeque<(Outgoing, i32)>,
    answers: VecDeque<(u64, i16)>,
    late: VecDeque<(Outgoing, i32)>,
    effects: Effects,
    now: Instant,
    next: Sequence,
    pushed: Vec<Item>,
    /// Which push a number of the lane is: they count alike.
    was_pushed_again: bool,
}

impl<'a> Simulation<'a> {
    fn new(stamper: &'a mut dyn Stamper) -> Self {
        Self {
            lane: Lane::new(5, AGE),
            stamper,
            broker: Broker::default(),
            wire: VecDeque::new(),
            answers: VecDeque::new(),
            late: VecDeque::new(),
            effects: Effects::default(),
            now: Instant::now(),
            next: Sequence(i32::MAX - 60),
            pushed: Vec::new(),
            was_pushed_again: false,
        }
    }

    fn run(&mut self, event: Event) {
        match event {
            Event::Push(records) => {
                let item = item(&by(CLIENT, 0, self.next.0, i32::from(records)), self.now);
                self.next = self.next.plus(u32::from(records));
                self.push(item);
            }
            Event::Skip(records) => self.next = self.next.plus(u32::from(records)),
            Event::Repeat(which) => {
                if !self.pushed.is_empty() {
                    let again = Item { since: self.now, ..which.get(&self.pushed).clone() };
                    self.was_pushed_again = true;
                    self.push(again);
                }
            }
            Event::Send => {
                while let Some(outgoing) = self.lane.next(self.stamper, self.now, &mut self.effects) {
                    let payload = self.pushed[outgoing.number as usize].seen.first.0;
                    self.wire.push_back((outgoing, payload));
                }
                assert!(self.lane.sent.iter().filter(|task| task.state == State::InFlight).count() <= 5);
            }
            Event::Serve => {
                if let Some((outgoing, payload)) = self.wire.pop_front() {
                    let error = self.broker.append(&outgoing.batch, payload);
                    self.answers.push_back((outgoing.number, error));
                }
            }
            Event::Fail { appended } => {
                if let Some((outgoing, payload)) = self.wire.pop_front() {
                    let error = match appended {
                        true => self.broker.append(&outgoing.batch, payload),
                        false => 0,
                    };
                    let shown = if error != 0 {
                        error
                    } else if appended {
                        7
                    } else {
                        6
                    };
                    self.answers.push_back((outgoing.number, shown));
                }
            }
            Event::Refuse => {
                if let Some((outgoing, _)) = self.wire.pop_front() {
                    self.answers.push_back((outgoing.number, 10));
                }
            }
            Event::Hear => {
                if let Some((number, error)) = self.answers.pop_front() {
                    self.lane.answered(number, error, self.stamper, self.now, &mut self.effects);
                }
            }
            Event::Lose { late } => {
                let mut numbers: Vec<_> = self.answers.drain(..).map(|(number, _)| number).collect();
                numbers.extend(self.wire.iter().map(|(outgoing, _)| outgoing.number));
                let unread = std::mem::take(&mut self.wire);
                if late {
                    self.late.extend(unread);
                }
                self.lane.lost(&numbers, true, self.stamper, self.now, &mut self.effects);
            }
            Event::ServeLate => {
                if let Some((outgoing, payload)) = self.late.pop_front() {
                    self.broker.append(&outgoing.batch, payload);
                }
            }
            Event::Restart => self.broker.restart(),
            Event::Wait(ms) => {
                self.now += Duration::from_millis(u64::from(ms));
                self.lane.expire(self.now, &mut self.effects);
            }
        }
    }

    fn push(&mut self, item: Item) {
        self.pushed.push(item.clone());
        self.lane.push(item);
    }

    /// Good luck from now on, until nothing is left to do.
    fn finish(&mut self) {
        self.late.clear();
        for _ in 0..10_000 {
            if self.lane.is_idle() {
                return;
            }
            for event in [Event::Send, Event::Serve, Event::Hear, Event::Wait(50)] {
                self.run(event);
            }
        }
        panic!("still not idle");
    }

    fn copies(&self, payload: i32) -> usize {
        self.broker.log.iter().filter(|(_, other)| *other == payload).count()
    }

    /// What a lane promises whatever happens.
    fn check(&self) {
        assert_eq!(self.effects.done.len(), self.pushed.len(), "every batch comes out once");
        for done in &self.effects.done {
            let (payload, copies) = (done.item.seen.first.0, self.copies(done.item.seen.first.0));
            match done.outcome {
                Outcome::Written | Outcome::Found => assert!(copies >= 1, "{payload} is said to be there"),
                Outcome::Mia(cause) if !self.was_pushed_again => {
                    assert_eq!(copies, 0, "{payload} is said to miss: {cause:?}")
                }
                Outcome::Mia(_) | Outcome::Ambiguous(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let doubled = self.pushed.iter().filter(|item| self.copies(item.seen.first.0) > 1).count();
        assert!(doubled == 0 || !self.effects.possible_duplicates.is_empty(), "{doubled} doubled, none counted");
        if !self.was_pushed_again {
            let counted = self.effects.possible_duplicates.len();
            assert!(doubled <= counted, "{doubled} doubled, {counted} counted");
        }
        // Within a generation, nothing twice and all in the client's order.
        let mut last: HashMap<Incarnation, i32> = HashMap::new();
        for (incarnation, payload) in &self.broker.log {
            // The order of sequences, across the wrap-around.
            let place = payload.wrapping_sub(i32::MAX - 60) & i32::MAX;
            if !self.was_pushed_again {
                assert!(last.insert(*incarnation, place).is_none_or(|before| before < place), "out of order");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn derived_nothing_is_lost_or_doubled_uncounted(events in events()) {
        let seed = Seed { cluster: "c".into(), branch: "b".into() };
        let mut streams = Streams::new(Bounds { streams: 100, idle: Duration::from_secs(86_400) });
        let mut stamper = Deriving { seed: &seed, streams: &mut streams };
        let mut simulation = Simulation::new(&mut stamper);
        for event in events {
            simulation.run(event);
        }
        simulation.finish();
        simulation.check();
    }

    #[test]
    fn owned_nothing_is_lost_or_doubled_uncounted(events in events()) {
        let mut owned = Owned::new(ProducerId(4000), ProducerEpoch(0));
        let mut simulation = Simulation::new(&mut owned);
        // Without memory of clients' retries, which isn't the lane's to keep, a repeat is another batch.
        for event in events.into_iter().filter(|event| !matches!(event, Event::Repeat(_))) {
            simulation.run(event);
        }
        simulation.finish();
        simulation.check();
    }

    /// Without bad luck the branch's log is what was pushed, and nothing else is said.
    #[test]
    fn without_faults_the_log_is_what_was_pushed(counts in prop::collection::vec(1..4u8, 0..40)) {
        let mut owned = Owned::new(ProducerId(4000), ProducerEpoch(0));
        let mut simulation = Simulation::new(&mut owned);
        for records in counts {
            simulation.run(Event::Push(records));
        }
        simulation.finish();
        let log: Vec<_> = simulation.broker.log.iter().map(|(_, payload)| *payload).collect();
        let pushed: Vec<_> = simulation.pushed.iter().map(|item| item.seen.first.0).collect();
        prop_assert_eq!(log, pushed);
        prop_assert!(simulation.effects.done.iter().all(|done| done.outcome == Outcome::Written));
        prop_assert!(simulation.effects.possible_duplicates.is_empty());
    }
}
