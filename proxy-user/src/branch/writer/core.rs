//! The writer without sockets: where batches go, what is asked, what is sent, and what becomes of it all.
//!
//! ```text
//!   accept ─► repeat? ─► topic known? ── no ──► parked until Metadata answers, or it is created
//!                            └── yes ──► placed ─► lane ─► pump ─► Command::Send ─► answered / down
//! ```
//!
//! Methods are of four kinds: `accept`, the `on_…` that take in what happened, [`Core::tick`], and [`Core::pump`], which
//! says what is to be done now. Time comes in as an argument.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admin::Topic as SeenTopic;
use super::encode::Part;
use super::lane::{Effects, Item, Lane};
use super::link::{LinkId, Outbound};
use crate::branch::account::{Cause, Ledger, Outcome};
use crate::branch::identity::{
    Admission, Anonymous, Bounds, Deriving, Mode, Owned, Preserving, Seed, Stamper, Streams,
};
use crate::branch::ids::{PartitionId, ProducerEpoch, ProducerId};
use crate::branch::place::{Placement, Policy};
use crate::branch::queue::Budget;
use crate::branch::rename::Template;
use crate::kafka::ids::NodeId;

/// What happens where the branch lacks a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// It is created, with as many partitions as the mainline's.
    #[default]
    LikeMainline,
    /// Its batches are missing on the branch, and counted so.
    Require,
    /// Its batches are left out on purpose.
    Drop,
}

/// How a branch writes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The identity.
    pub mode: Mode,
    /// Of `derived` producers.
    pub seed: Seed,
    /// Names of topics.
    pub rename: Template,
    /// Partitions.
    pub partitions: Policy,
    /// Topics that the branch lacks.
    pub creation: Creation,
    /// Batches of one partition in flight; more than 5 would defeat the broker's deduplication.
    pub in_flight: usize,
    /// Batches older than this are given up.
    pub age: Duration,
    /// What is remembered of clients' producers.
    pub streams: Bounds,
}

/// What the shell is to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Open a link.
    Connect { id: LinkId, node: NodeId },
    /// Send a request on it.
    Send { id: LinkId, outbound: Outbound },
    /// Ask the branch's cluster about these topics; the answer goes to [`Core::on_topics`].
    AskTopics(Vec<Arc<str>>),
    /// Create a topic with as many partitions as `source` has on the mainline; the outcome goes to [`Core::on_created`].
    Create { topic: Arc<str>, source: Arc<str> },
    /// Ask for a producer id; the answer goes to [`Core::on_producer`].
    AskProducer,
}

/// Questions about topics, and attempts to connect or create, are at least so far apart.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest pause between attempts that fail.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// After a definite "no" (no such topic, wrong credentials) this long passes before the question is put again.
const RESPITE: Duration = Duration::from_secs(5);

/// Requests in flight on one link.
const REQUESTS: usize = 5;

/// Bytes of batches that are put into one request, unless a single one is larger.
const REQUEST_BYTES: usize = 1 << 20;

/// Topics that are remembered although the branch doesn't have them, which clients may name as they like.
const TOPICS: usize = 10_000;

/// A partition of the branch.
type LaneKey = (Arc<str>, PartitionId);

struct LaneState {
    lane: Lane,
    owned: Option<Owned>,
    /// Where its batches in flight are.
    node: Option<NodeId>,
    in_flight: usize,
}

#[derive(Default)]
struct Topic {
    /// What it is called on the mainline, by the batch that came first.
    source: Option<Arc<str>>,
    /// Leaders by partition; none while it isn't known.
    leaders: Option<Vec<Option<NodeId>>>,
    parked: VecDeque<Item>,
    /// What happens to its batches until then.
    refused: Option<(Instant, Outcome)>,
    creating: bool,
}

struct Node {
    link: LinkId,
    is_up: bool,
    in_flight: VecDeque<InFlight>,
}

struct InFlight {
    token: u64,
    batches: Vec<(LaneKey, u64)>,
}

/// The writer's state.
pub(super) struct Core {
    settings: Settings,
    ledger: Ledger,
    budget: Budget,
    streams: Streams,
    producer: Option<(ProducerId, ProducerEpoch)>,
    names: HashMap<Arc<str>, Option<Arc<str>>>,
    topics: HashMap<Arc<str>, Topic>,
    lanes: HashMap<LaneKey, LaneState>,
    /// Lanes that aren't idle.
    active: BTreeSet<LaneKey>,
    /// Those of them for which something changed since they were looked at.
    ready: BTreeSet<LaneKey>,
    nodes: HashMap<NodeId, Node>,
    /// Nodes that aren't to be dialled or written to before.
    quiet: HashMap<NodeId, (Instant, u32)>,
    wanted: BTreeSet<Arc<str>>,
    asking: bool,
    ask_after: Instant,
    ask_failures: u32,
    asking_producer: bool,
    producer_after: Instant,
    next: u64,
}

impl Core {
    pub(super) fn new(settings: Settings, ledger: Ledger, budget: Budget, now: Instant) -> Self {
        Self {
            streams: Streams::new(settings.streams),
            settings,
            ledger,
            budget,
            producer: None,
            names: HashMap::new(),
            topics: HashMap::new(),
            lanes: HashMap::new(),
            active: BTreeSet::new(),
            ready: BTreeSet::new(),
            nodes: HashMap::new(),
            quiet: HashMap::new(),
            wanted: BTreeSet::new(),
            asking: false,
            ask_after: now,
            ask_failures: 0,
            asking_producer: false,
            producer_after: now,
            next: 0,
        }
    }

    /// Whether no batch is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty() && self.topics.values().all(|topic| topic.parked.is_empty())
    }

    /// Takes a batch over. Its bytes were taken from the budget.
    pub(super) fn accept(&mut self, item: Item, now: Instant) {
        if let (Mode::Derived | Mode::Owned, Some(stream)) = (self.settings.mode, &item.stream)
            && self.streams.admit(stream, item.seen, now) == Admission::Repeat
        {
            self.count(&item, Outcome::Repeat);
            return;
        }
        let Some(name) = self.name(&item.topic) else { return self.finish(item, Outcome::Mia(Cause::TopicName)) };
        let topic = self.topics.entry(name.clone()).or_default();
        topic.source.get_or_insert_with(|| item.topic.clone());
        if topic.leaders.is_some() {
            self.place(&name, item);
        } else if let Some((_, outcome)) = topic.refused.filter(|(until, _)| now < *until) {
            self.finish(item, outcome);
        } else {
            topic.parked.push_back(item);
            self.wanted.insert(name);
        }
    }

    fn name(&mut self, topic: &Arc<str>) -> Option<Arc<str>> {
        if self.names.len() >= TOPICS {
            self.names.clear();
        }
        if self.topics.len() >= TOPICS {
            self.topics.retain(|_, topic| topic.leaders.is_some() || topic.creating || !topic.parked.is_empty());
        }
        let rename = &self.settings.rename;
        let named = || rename.apply(topic).ok().map(Arc::from);
        self.names.entry(topic.clone()).or_insert_with(named).clone()
    }

    /// Puts a batch into the lane of its partition. Its topic's leaders are known.
    fn place(&mut self, name: &Arc<str>, item: Item) {
        let count = self.topics.get(name).and_then(|topic| topic.leaders.as_ref()).map_or(0, Vec::len);
        let placement = self.settings.partitions.place(item.partition, u32::try_from(count).unwrap_or(u32::MAX));
        match placement {
            Placement::Lacking => self.finish(item, Outcome::Mia(Cause::NoPartition)),
            Placement::LeftOut => self.finish(item, Outcome::LeftOut),
            Placement::To(partition) => {
                let key = (name.clone(), partition);
                let (in_flight, age) = (self.settings.in_flight, self.settings.age);
                let state = self.lanes.entry(key.clone()).or_insert_with(|| LaneState {
                    lane: Lane::new(in_flight, age),
                    owned: None,
                    node: None,
                    in_flight: 0,
                });
                state.lane.push(item);
                self.ready.insert(key.clone());
                self.active.insert(key);
            }
        }
    }

    /// What the branch's cluster says of topics.
    pub(super) fn on_topics(&mut self, answer: Option<Vec<SeenTopic>>, now: Instant) {
        self.asking = false;
        let Some(seen) = answer else {
            self.ask_after = now + pause(self.ask_failures);
            self.ask_failures = self.ask_failures.saturating_add(1);
            self.want_parked();
            return;
        };
        self.ask_failures = 0;
        self.ask_after = now + PAUSE;
        self.wake_all();
        for topic in seen {
            self.on_topic(topic, now);
        }
        self.want_parked();
    }

    fn on_topic(&mut self, seen: SeenTopic, now: Instant) {
        let Some(topic) = self.topics.get_mut(&seen.name) else { return };
        let refused = match seen.error {
            0 => {
                topic.leaders = Some(seen.leaders);
                for item in std::mem::take(&mut topic.parked) {
                    self.place(&seen.name, item);
                }
                return;
            }
            // UNKNOWN_TOPIC_OR_PARTITION
            3 => match self.settings.creation {
                // `want_parked` asks again, and creation goes first.
                Creation::LikeMainline => return topic.leaders = None,
                Creation::Require => Outcome::Mia(Cause::NoTopic),
                Creation::Drop => Outcome::LeftOut,
            },
            // INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED
            17 => Outcome::Mia(Cause::TopicName),
            29 => Outcome::Mia(Cause::Unauthorized),
            // Its leaders are being elected, or the like.
            _ => return,
        };
        topic.leaders = None;
        topic.refused = Some((now + RESPITE, refused));
        for item in std::mem::take(&mut topic.parked) {
            self.finish(item, refused);
        }
        if let Outcome::Mia(cause) = refused {
            self.end_lanes_of(&seen.name, cause);
        }
    }

    /// Gives up what waits in the lanes of a topic that the branch doesn't have any more.
    fn end_lanes_of(&mut self, name: &Arc<str>, cause: Cause) {
        let keys: Vec<_> = self.active.iter().filter(|(topic, _)| topic == name).cloned().collect();
        for key in keys {
            let mut effects = Effects::default();
            if let Some(state) = self.lanes.get_mut(&key) {
                state.lane.end(cause, &mut effects);
            }
            self.take_effect(&key, effects);
        }
    }

    /// Asks again about topics for which batches wait.
    fn want_parked(&mut self) {
        let parked = self.topics.iter().filter(|(_, topic)| !topic.parked.is_empty());
        self.wanted.extend(parked.map(|(name, _)| name.clone()));
    }

    /// An attempt to create a topic is over.
    pub(super) fn on_created(&mut self, name: &Arc<str>, done: bool, now: Instant) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        topic.creating = false;
        if !done {
            topic.refused = Some((now + RESPITE, Outcome::Mia(Cause::NoTopic)));
            for item in std::mem::take(&mut topic.parked) {
                self.finish(item, Outcome::Mia(Cause::NoTopic));
            }
            return self.end_lanes_of(name, Cause::NoTopic);
        }
        self.wanted.insert(name.clone());
    }

    /// A producer id of our own, or none for now.
    pub(super) fn on_producer(&mut self, producer: Option<(ProducerId, ProducerEpoch)>, now: Instant) {
        self.asking_producer = false;
        self.producer = producer;
        self.producer_after = now + RESPITE;
        self.wake_all();
    }

    pub(super) fn on_up(&mut self, id: LinkId) {
        if let Some((node, state)) = self.nodes.iter_mut().find(|(_, node)| node.link == id) {
            state.is_up = true;
            self.quiet.remove(node);
            self.wake_all();
        }
    }

    /// Looks at every lane again.
    fn wake_all(&mut self) {
        self.ready.clone_from(&self.active);
    }

    /// A broker answered: the error of each batch of the request.
    pub(super) fn on_answer(&mut self, id: LinkId, token: u64, errors: &[i16], throttle: Duration, now: Instant) {
        let Some((node, state)) = self.nodes.iter_mut().find(|(_, node)| node.link == id) else { return };
        let node = *node;
        let Some(at) = state.in_flight.iter().position(|request| request.token == token) else { return };
        let was_full = state.in_flight.len() >= REQUESTS;
        let Some(request) = state.in_flight.remove(at) else { return };
        if was_full {
            self.wake_all();
        }
        if !throttle.is_zero() {
            self.quiet.insert(node, (now + throttle, 0));
        }
        for ((key, number), error) in request.batches.into_iter().zip(errors) {
            let mut effects = Effects::default();
            self.with_lane(&key, |state, stamper| {
                state.in_flight = state.in_flight.saturating_sub(1);
                state.lane.answered(number, *error, stamper, now, &mut effects);
            });
            self.take_effect(&key, effects);
            self.ready.insert(key);
        }
    }

    /// A link ended.
    pub(super) fn on_down(&mut self, id: LinkId, is_final: bool, now: Instant) {
        let Some(node) = self.nodes.iter().find(|(_, node)| node.link == id).map(|(node, _)| *node) else { return };
        let Some(state) = self.nodes.remove(&node) else { return };
        let failures = self.quiet.get(&node).map_or(0, |(_, failures)| failures.saturating_add(1));
        let span = if is_final { RESPITE } else { pause(failures) };
        self.quiet.insert(node, (now + span, failures));
        for request in state.in_flight {
            for (key, number) in request.batches {
                let mut effects = Effects::default();
                self.with_lane(&key, |lane, stamper| {
                    lane.in_flight = lane.in_flight.saturating_sub(1);
                    lane.lane.lost(&[number], state.is_up, stamper, now, &mut effects);
                });
                self.take_effect(&key, effects);
            }
        }
        self.wake_all();
        // It may lead nothing any more.
        self.wanted.extend(self.active.iter().map(|(topic, _)| topic.clone()));
    }

    /// Gives up what is too old.
    pub(super) fn tick(&mut self, now: Instant) {
        for key in self.active.clone() {
            let mut effects = Effects::default();
            if let Some(state) = self.lanes.get_mut(&key) {
                state.lane.expire(now, &mut effects);
            }
            self.take_effect(&key, effects);
        }
        let age = self.settings.age;
        let mut old = Vec::new();
        for topic in self.topics.values_mut() {
            while topic.parked.front().is_some_and(|item| now.saturating_duration_since(item.since) >= age) {
                old.extend(topic.parked.pop_front());
            }
        }
        for item in old {
            self.finish(item, Outcome::Mia(Cause::QueueAge));
        }
        self.streams.expire(now);
        // A pause may be over.
        self.wake_all();
    }

    /// Gives up everything.
    pub(super) fn end(&mut self, cause: Cause) {
        let parked: Vec<_> = self.topics.values_mut().flat_map(|topic| std::mem::take(&mut topic.parked)).collect();
        for item in parked {
            self.finish(item, Outcome::Mia(cause));
        }
        for key in self.active.clone() {
            let mut effects = Effects::default();
            if let Some(state) = self.lanes.get_mut(&key) {
                state.lane.end(cause, &mut effects);
            }
            self.take_effect(&key, effects);
        }
    }

    /// What is to be done now.
    pub(super) fn pump(&mut self, now: Instant) -> Vec<Command> {
        let mut commands = Vec::new();
        self.ask(now, &mut commands);
        // Each round fills one request for each broker that can take one.
        loop {
            let mut requests: HashMap<NodeId, Request> = HashMap::new();
            for key in std::mem::take(&mut self.ready) {
                if self.fill(&key, &mut requests, &mut commands, now) {
                    self.ready.insert(key);
                }
            }
            if requests.is_empty() {
                return commands;
            }
            for (node, Request { parts, batches, .. }) in requests {
                self.next += 1;
                let token = self.next;
                let Some(state) = self.nodes.get_mut(&node) else { continue };
                state.in_flight.push_back(InFlight { token, batches });
                commands.push(Command::Send { id: state.link, outbound: Outbound { token, parts } });
            }
        }
    }

    fn ask(&mut self, now: Instant, commands: &mut Vec<Command>) {
        if !self.asking && now >= self.ask_after && !self.wanted.is_empty() {
            self.asking = true;
            commands.push(Command::AskTopics(std::mem::take(&mut self.wanted).into_iter().collect()));
        }
        let owned = self.settings.mode == Mode::Owned && self.producer.is_none();
        if owned && !self.asking_producer && now >= self.producer_after && !self.is_idle() {
            self.asking_producer = true;
            commands.push(Command::AskProducer);
        }
    }

    /// A topic that the branch lacks is created, once at a time.
    pub(super) fn on_missing(&mut self, name: &Arc<str>) -> Option<Command> {
        let topic = self.topics.get_mut(name)?;
        if self.settings.creation != Creation::LikeMainline || topic.creating {
            return None;
        }
        topic.creating = true;
        self.wanted.remove(name);
        Some(Command::Create { topic: name.clone(), source: topic.source.clone()? })
    }

    /// Adds the next batch of a lane to the request for its leader, if there may be one. Returns whether another one may
    /// follow at once; if not, whatever it waits for wakes the lane.
    fn fill(
        &mut self,
        key: &LaneKey,
        requests: &mut HashMap<NodeId, Request>,
        commands: &mut Vec<Command>,
        now: Instant,
    ) -> bool {
        let Some(state) = self.lanes.get(key) else { return false };
        if !state.lane.is_ready(now) {
            return false;
        }
        if self.settings.mode == Mode::Owned && state.owned.is_none() && self.producer.is_none() {
            return false;
        }
        let Some(leader) = self.leader(key) else {
            self.wanted.insert(key.0.clone());
            return false;
        };
        // What is in flight to a former leader is heard of first, or batches would overtake each other.
        if state.in_flight > 0 && state.node != Some(leader) {
            return false;
        }
        if self.quiet.get(&leader).is_some_and(|(until, _)| now < *until) {
            return false;
        }
        let Some(node) = self.nodes.get(&leader) else {
            self.next += 1;
            let link = LinkId(self.next);
            self.nodes.insert(leader, Node { link, is_up: false, in_flight: VecDeque::new() });
            commands.push(Command::Connect { id: link, node: leader });
            return false;
        };
        if !node.is_up || node.in_flight.len() >= REQUESTS {
            return false;
        }
        let size = state.lane.next_size();
        let request = requests.get(&leader);
        let taken = request.map_or(0, |request| request.bytes);
        if taken > 0 && taken + size > REQUEST_BYTES {
            return true;
        }
        let mut effects = Effects::default();
        let outgoing = self.with_lane(key, |state, stamper| {
            let outgoing = state.lane.next(stamper, now, &mut effects)?;
            state.node = Some(leader);
            state.in_flight += 1;
            Some(outgoing)
        });
        self.take_effect(key, effects);
        let Some(outgoing) = outgoing.flatten() else { return false };
        let request = requests.entry(leader).or_default();
        request.bytes += size;
        request.batches.push((key.clone(), outgoing.number));
        request.parts.push(Part { topic: key.0.clone(), partition: key.1, batch: outgoing.batch });
        true
    }

    fn leader(&self, (topic, partition): &LaneKey) -> Option<NodeId> {
        let leaders = self.topics.get(topic)?.leaders.as_ref()?;
        leaders.get(usize::try_from(partition.0).ok()?).copied().flatten()
    }

    /// Lends a lane together with its identity.
    fn with_lane<R>(&mut self, key: &LaneKey, f: impl FnOnce(&mut LaneState, &mut dyn Stamper) -> R) -> Option<R> {
        let state = self.lanes.get_mut(key)?;
        Some(match self.settings.mode {
            Mode::Derived => f(state, &mut Deriving { seed: &self.settings.seed, streams: &mut self.streams }),
            Mode::None => f(state, &mut Anonymous),
            Mode::Preserve => f(state, &mut Preserving),
            Mode::Owned => {
                let fresh = || self.producer.map(|(producer, epoch)| Owned::new(producer, epoch));
                let mut owned = state.owned.take().or_else(fresh)?;
                let result = f(state, &mut owned);
                state.owned = Some(owned);
                result
            }
        })
    }

    fn take_effect(&mut self, key: &LaneKey, effects: Effects) {
        for item in effects.possible_duplicates {
            self.ledger.count(&item.topic, Outcome::PossibleDuplicate, &item.batch);
        }
        for done in effects.done {
            self.finish(done.item, done.outcome);
        }
        if effects.refresh {
            self.wanted.insert(key.0.clone());
        }
        if self.lanes.get(key).is_some_and(|state| state.lane.is_idle()) {
            self.active.remove(key);
        }
    }

    /// A batch that was admitted is done.
    fn finish(&mut self, item: Item, outcome: Outcome) {
        let is_lost = match outcome {
            Outcome::Mia(_) | Outcome::LeftOut => true,
            // A retry under the same producer is recognised by the branch's broker, under an owned one by us alone.
            Outcome::Ambiguous(_) => self.settings.mode == Mode::Derived,
            _ => false,
        };
        if let (true, Some(stream)) = (is_lost, &item.stream) {
            self.streams.retract(stream, item.seen);
        }
        self.count(&item, outcome);
    }

    fn count(&self, item: &Item, outcome: Outcome) {
        self.ledger.count(&item.topic, outcome, &item.batch);
        self.budget.give_back(item.batch.size());
    }
}

#[derive(Default)]
struct Request {
    bytes: usize,
    parts: Vec<Part>,
    batches: Vec<(LaneKey, u64)>,
}

fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.min(10)).min(MAX_PAUSE)
}
