//! Replica routing on one connection: what its consumer is told about each partition it reads.
//!
//! The session asks, for each Fetch and for each partition in the answer; the decisions are those of [`crate::racks`].

use std::cell::{RefCell, RefMut};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::mapping::port_of;
use super::shared::Shared;
use crate::config::BrokerPorts;
use crate::kafka::fetch::answer::{Decide, Partition};
use crate::kafka::fetch::{AnswerPatcher, FetchRequest, Topic, Word};
use crate::kafka::ids::NodeId;
use crate::racks::decide::{self, How, Said, Stay, View};
use crate::racks::tally::Counts;
use crate::racks::{Client, Rack, Reader, Runtime, Settings, Spot};
use crate::upstream::Cluster;
use crate::upstream::partitions::{PartitionTable, TopicState};
use crate::upstream::topology::Topology;

/// A minute, as `redirects_per_minute` has it.
const MINUTE: Duration = Duration::from_secs(60);

/// Between two notes that a topic is read.
const NOTE: Duration = Duration::from_secs(60);

/// Partitions of which a connection remembers something: a bound for its memory. Beyond it nobody is sent away.
const MAX_SPOTS: usize = 20_000;

/// A Fetch of a consumer that is under way.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The request, as the client sent it.
    pub(crate) body: Bytes,
    /// It names only what changed.
    pub(crate) is_incremental: bool,
    /// The rack to put into the request.
    pub(crate) stamp: Option<Rack>,
    /// The answer's size may change.
    pub(crate) collects: bool,
    /// `patch_buffer`, in bytes.
    pub(crate) bound: usize,
    /// When it is time to ask whether the broker is dead.
    pub(crate) look: Instant,
    /// When it is, whatever else is known.
    due: Instant,
    /// Where the client is.
    rack: Option<Rack>,
    /// The client named its rack by itself.
    own_rack: bool,
}

/// What the session asks.
pub(crate) trait Reads {
    /// A consumer's Fetch arrived.
    fn asked(&self, request: &FetchRequest<'_>, body: Bytes) -> Asked;

    /// Who decides about its answer, or a part of it.
    fn decide<'a>(&'a self, asked: &'a Asked) -> Box<dyn Decide + 'a>;

    /// An answer came to its end.
    fn answered(&self, patcher: &AnswerPatcher);

    /// When a broker that does not even tell its versions to a client that came now is taken for dead. `None`: never, for
    /// the client was not sent here to read.
    fn patience(&self) -> Option<Instant>;

    /// Whether nobody may be told anything before a broker has taken his credentials.
    fn needs_authentication(&self) -> bool;

    /// Whether a broker that has not answered this Fetch yet is taken for dead.
    fn is_dead(&self, asked: &Asked, now: Instant) -> bool;

    /// Whether the gateway may answer this Fetch in the broker's place: the broker does not lead some of its partitions.
    fn may_stand_in(&self, request: &FetchRequest<'_>) -> bool;

    /// What a consumer is told about a partition in the place of its broker.
    fn word(&self, topic: Topic<'_>, partition: i32) -> Word;
}

/// See the module.
pub(crate) struct ConnectionReads {
    node: Option<NodeId>,
    peer: IpAddr,
    local: IpAddr,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    client_id: Option<Arc<str>>,
    software: Option<String>,
    /// Redirects of this minute.
    minutes: HashMap<Spot, Minute>,
    /// Partitions that were read here, though this broker does not lead them.
    reads_here: HashSet<Spot>,
    /// When it was last noted that a topic is read.
    noted: HashMap<Arc<str>, Instant>,
    /// The state of the table in which the replicas here were last looked over.
    looked_over: u64,
    /// Partitions are read here that this replica fell behind in; the next full answer turns them over.
    is_stuck: bool,
}

#[derive(Clone, Copy)]
struct Minute {
    began: Instant,
    times: u32,
}

impl ConnectionReads {
    /// `node`: which broker the connection leads to; `None`: whatever answers, and nothing is routed.
    pub(crate) fn new(node: Option<NodeId>, peer: IpAddr, local: IpAddr) -> Self {
        Self { node, peer: peer.to_canonical(), local: local.to_canonical(), state: RefCell::default() }
    }

    pub(crate) fn set_client_id(&self, id: &str) {
        self.state.borrow_mut().client_id = Some(id.into());
    }

    pub(crate) fn set_software(&self, name: &str) {
        self.state.borrow_mut().software = Some(name.to_owned());
    }

    /// As the session asks it; `None` where nothing is routed.
    pub(crate) fn on<'a>(&'a self, shared: &'a Shared, ports: BrokerPorts) -> Option<OnConnection<'a>> {
        let node = self.node?;
        let settings = shared.racks.settings()?;
        Some(OnConnection { reads: self, node, settings, shared, ports })
    }
}

/// [`Reads`] at this moment.
pub(crate) struct OnConnection<'a> {
    reads: &'a ConnectionReads,
    node: NodeId,
    settings: Arc<Settings>,
    shared: &'a Shared,
    ports: BrokerPorts,
}

impl OnConnection<'_> {
    fn reader(&self) -> Reader {
        let client_id = self.reads.state.borrow().client_id.clone();
        Reader { address: self.reads.peer, client_id: client_id.unwrap_or_else(|| "".into()) }
    }

    fn racks(&self) -> &Runtime {
        &self.shared.racks
    }

    fn is_excluded(&self) -> bool {
        let state = self.reads.state.borrow();
        let excluded = &self.settings.config.exclude_clients;
        state.software.as_deref().is_some_and(|name| excluded.iter().any(|pattern| pattern.fits(name)))
    }

    /// Whether partitions are read here that this replica fell behind in. Looked at once for each change of the table.
    fn look_over(&self, table: &PartitionTable, reader: &Reader, now: Instant) {
        let mut state = self.reads.state.borrow_mut();
        if state.looked_over == table.generation() {
            return;
        }
        state.looked_over = table.generation();
        let is_behind = |spot: &Spot| {
            let topic = table.topic(Topic::Name(&spot.topic));
            topic
                .and_then(|topic| topic.partition(spot.partition))
                .is_some_and(|p| decide::is_out_of_sync(self.node, p))
        };
        state.is_stuck = self.racks().book().sent_to(reader, self.node, now).any(is_behind)
            || state.reads_here.iter().any(is_behind);
    }
}

impl Reads for OnConnection<'_> {
    fn asked(&self, request: &FetchRequest<'_>, body: Bytes) -> Asked {
        let now = Instant::now();
        let config = &self.settings.config;
        let reader = self.reader();
        let client = Client { address: self.reads.peer, listener: self.reads.local, id: Some(&reader.client_id) };
        let own = Some(request.rack).filter(|rack| !rack.is_empty());
        let by_rule = || self.settings.places.rack_of(client).map(|(rack, _)| rack);
        let by_itself = own.filter(|_| config.respect_client_rack);
        let rack = by_itself.map(Rack::from).or_else(by_rule).or_else(|| own.map(Rack::from));

        let topology = self.shared.cluster().topology();
        let broker = topology.brokers.get(&self.node);
        let rack_aware = broker.and_then(|broker| broker.rack_aware);
        let rack_aware = rack_aware.or_else(|| self.racks().has_chosen(self.node).then_some(true));
        let how = decide::how(config, rack_aware).filter(|_| !self.is_excluded());
        let in_rack = |node: NodeId| {
            rack.is_some() && topology.brokers.get(&node).and_then(|broker| broker.rack.as_deref()) == rack.as_deref()
        };
        let stamp = match (how, &rack) {
            // A selector knows nothing of holds: while one is in force in the rack, the leader is not told of the rack.
            (Some(How::Stamp), Some(rack)) if own != Some(rack) => {
                (!self.racks().book().is_any_held(in_rack, now)).then(|| rack.clone())
            }
            _ => None,
        };
        let collects = how == Some(How::Patch) && rack.is_some() && !in_rack(self.node);

        self.look_over(&self.shared.cluster().partitions(), &reader, now);
        if !request.is_incremental {
            // Whatever is read here will be in the answer, and is looked at there.
            self.reads.state.borrow_mut().is_stuck = false;
        }
        Asked {
            body,
            is_incremental: request.is_incremental,
            stamp,
            collects,
            bound: usize::try_from(config.patch_buffer.0).unwrap_or(usize::MAX),
            look: now + config.silence.0,
            due: now + request.max_wait + config.silence.0,
            rack,
            own_rack: own.is_some(),
        }
    }

    fn decide<'a>(&'a self, asked: &'a Asked) -> Box<dyn Decide + 'a> {
        let cluster = self.shared.cluster();
        Box::new(Decision {
            on: self,
            asked,
            how_is_on: !self.is_excluded(),
            reader: self.reader(),
            table: cluster.partitions(),
            topology: cluster.topology(),
            state: self.reads.state.borrow_mut(),
            counted: Vec::new(),
            doubts: false,
            now: Instant::now(),
        })
    }

    fn answered(&self, patcher: &AnswerPatcher) {
        if patcher.overflowed() {
            self.racks().overflowed();
            if let Some(suppressed) = self.shared.may_log("patch_buffer") {
                let bound = self.settings.config.patch_buffer;
                tracing::warn!(
                    virtual_cluster = self.shared.name,
                    suppressed,
                    "a Fetch answer holds more than {bound} (racks.patch_buffer) that its consumer is to read here: the \
                     rest of it passed, and consumers were sent nowhere from it"
                );
            }
        }
    }

    fn patience(&self) -> Option<Instant> {
        let (reader, now) = (self.reader(), Instant::now());
        let was_sent = self.racks().book().sent_to(&reader, self.node, now).next().is_some();
        was_sent.then(|| now + self.settings.config.silence.0)
    }

    fn needs_authentication(&self) -> bool {
        self.shared.cluster().wants_authentication()
    }

    fn is_dead(&self, asked: &Asked, now: Instant) -> bool {
        if now >= asked.due {
            return true;
        }
        // It may only wait for records. The cluster knows better, if it is asked.
        let cluster = self.shared.cluster();
        cluster.doubt_partitions();
        let table = cluster.partitions();
        let is_behind = |topic: Topic<'_>, index| {
            let partition = table.topic(topic).and_then(|topic| topic.partition(index));
            partition.is_some_and(|partition| decide::is_out_of_sync(self.node, partition))
        };
        if asked.is_incremental {
            self.look_over(&table, &self.reader(), now);
            return self.reads.state.borrow().is_stuck;
        }
        FetchRequest::read_again(&asked.body).is_ok_and(|request| request.names(is_behind))
    }

    fn may_stand_in(&self, request: &FetchRequest<'_>) -> bool {
        if request.is_incremental {
            let reader = self.reader();
            let is_sent = self.racks().book().sent_to(&reader, self.node, Instant::now()).next().is_some();
            return is_sent || !self.reads.state.borrow().reads_here.is_empty();
        }
        request.names(|topic, partition| self.leader(topic, partition).is_some())
    }

    fn word(&self, topic: Topic<'_>, partition: i32) -> Word {
        let cluster = self.shared.cluster();
        cluster.watch_topic(topic);
        let Some((leader, spot)) = self.leader(topic, partition) else { return Word::NotHere };
        let (reader, now) = (self.reader(), Instant::now());
        let mut book = self.racks().book();
        book.recall(&reader, &spot);
        book.hold(self.node, Some(&spot), self.settings.hold_rules(), now);
        drop(book);
        let broker = cluster.topology().brokers.get(&self.node).and_then(|broker| broker.rack.clone());
        let client = Client { address: self.reads.peer, listener: self.reads.local, id: Some(&reader.client_id) };
        let rack = self.settings.places.rack_of(client).map(|(rack, _)| rack);
        let counts = Counts { bounces: 1, ..Counts::default() };
        self.racks().tally().count(rack.as_ref(), broker.as_deref(), &spot.topic, &counts);
        Word::ReadFrom(leader)
    }
}

impl OnConnection<'_> {
    /// The leader of a partition that this broker is known not to lead.
    fn leader(&self, topic: Topic<'_>, partition: i32) -> Option<(NodeId, Spot)> {
        let table = self.shared.cluster().partitions();
        let topic = table.topic(topic)?;
        let leader = topic.partition(partition)?.leader.filter(|leader| *leader != self.node)?;
        Some((leader, Spot { topic: Arc::clone(&topic.name), partition }))
    }
}

/// Decides about an answer, or a part of it; counts when it is done.
struct Decision<'a> {
    on: &'a OnConnection<'a>,
    asked: &'a Asked,
    /// The client is not excluded.
    how_is_on: bool,
    reader: Reader,
    table: Arc<PartitionTable>,
    topology: Arc<Topology>,
    state: RefMut<'a, State>,
    counted: Vec<(Arc<str>, Counts)>,
    doubts: bool,
    now: Instant,
}

impl Decide for Decision<'_> {
    fn ends_session(&mut self, error: i16) -> bool {
        error == 0 && self.asked.is_incremental && self.state.is_stuck
    }

    fn turn_over(&mut self, partition: &Partition<'_>) -> Option<NodeId> {
        self.doubts |= decide::is_doubtful(partition.error);
        let Some(topic) = self.table.topic(partition.topic).cloned() else {
            self.on.shared.cluster().watch_topic(partition.topic);
            return None;
        };
        self.note(&topic);
        let known = topic.partition(partition.index)?;
        let spot = Spot { topic: Arc::clone(&topic.name), partition: partition.index };
        let here = self.on.node;
        let mut counts = Counts::default();
        let mut to = None;
        if let Some(replica) = partition.preferred {
            self.broker_chose(&spot, replica, &mut counts);
        } else if known.leader == Some(here) {
            if partition.error == 0 {
                to = self.send(&topic, known, partition, &spot, &mut counts);
            }
        } else {
            let reads_here = self.state.reads_here.contains(&spot)
                || self.on.racks().book().was_sent(&self.reader, &spot, here, self.now);
            let said = Said { error: partition.error, is_empty: partition.records == 0, reads_here };
            if let Some(leader) = decide::back_to_leader(here, known, said).filter(|_| partition.is_free) {
                self.bounce(&spot, &mut counts);
                to = Some(leader);
            } else if partition.error == 0 && self.state.reads_here.len() < MAX_SPOTS {
                self.state.reads_here.insert(spot);
            }
            self.bytes(known.leader, partition.records, false, &mut counts);
        }
        if counts != Counts::default() {
            self.counted.push((Arc::clone(&topic.name), counts));
        }
        to
    }
}

impl Decision<'_> {
    /// A topic is read: what is known of it stays fresh.
    fn note(&mut self, topic: &TopicState) {
        let noted = &mut self.state.noted;
        let is_full = noted.len() >= MAX_SPOTS;
        match noted.get_mut(&topic.name) {
            Some(at) if self.now.saturating_duration_since(*at) < NOTE => return,
            Some(at) => *at = self.now,
            None if is_full => {}
            None => {
                noted.insert(Arc::clone(&topic.name), self.now);
            }
        }
        self.on.shared.cluster().watch_topic(Topic::Name(&topic.name));
    }

    /// The broker's own selector names a replica.
    fn broker_chose(&mut self, spot: &Spot, replica: NodeId, counts: &mut Counts) {
        counts.redirects = 1;
        self.on.racks().book().send(&self.reader, spot, replica, self.now);
        if self.asked.own_rack || self.asked.stamp.is_some() {
            self.on.racks().note_choice(self.on.node);
        }
    }

    /// At the leader: to the replica in the client's rack, if there is one to be sent to.
    fn send(
        &mut self,
        topic: &TopicState,
        known: &crate::kafka::topics::SeenPartition,
        partition: &Partition<'_>,
        spot: &Spot,
        counts: &mut Counts,
    ) -> Option<NodeId> {
        let on = self.on;
        let has_port = |node: NodeId| port_of(&on.ports, node.to_virtual()).is_some();
        let view = View { config: &on.settings.config, topology: &self.topology, has_port: &has_port };
        let book = || on.racks().book();
        let outcome = match &self.asked.rack {
            _ if !self.how_is_on => Err(Stay::ExcludedClient),
            None => Err(Stay::UnknownRack),
            Some(rack) => {
                let is_held = |node| book().is_held(node, spot, self.now);
                decide::replica_for(view, rack, &self.reader.client_id, &topic.name, known, is_held)
            }
        };
        let replica = match outcome {
            Ok(replica) => replica,
            Err(reason) => {
                if partition.records > 0 {
                    on.racks().stayed(reason);
                }
                self.bytes(known.leader, partition.records, false, counts);
                return None;
            }
        };
        let stay = if !self.asked.collects {
            // By stamping: this broker's selector did not choose yet.
            None
        } else if !partition.is_free {
            Some(Stay::TooLarge)
        } else if !self.may_send(spot) {
            Some(Stay::TooOften)
        } else if !book().send(&self.reader, spot, replica, self.now) {
            Some(Stay::Full)
        } else {
            counts.redirects = 1;
            return Some(replica);
        };
        stay.filter(|_| partition.records > 0).into_iter().for_each(|reason| on.racks().stayed(reason));
        self.bytes(known.leader, partition.records, true, counts);
        None
    }

    /// Within `redirects_per_minute`. Counts.
    fn may_send(&mut self, spot: &Spot) -> bool {
        let most = self.on.settings.config.redirects_per_minute;
        let now = self.now;
        let minutes = &mut self.state.minutes;
        if minutes.len() >= MAX_SPOTS {
            minutes.retain(|_, minute| now.saturating_duration_since(minute.began) < MINUTE);
            if minutes.len() >= MAX_SPOTS {
                return false;
            }
        }
        let minute = minutes.entry(spot.clone()).or_insert(Minute { began: self.now, times: 0 });
        if self.now.saturating_duration_since(minute.began) >= MINUTE {
            *minute = Minute { began: self.now, times: 0 };
        }
        minute.times = minute.times.saturating_add(1);
        minute.times <= most
    }

    fn bounce(&mut self, spot: &Spot, counts: &mut Counts) {
        counts.bounces = 1;
        self.state.reads_here.remove(spot);
        let mut book = self.on.racks().book();
        book.recall(&self.reader, spot);
        book.hold(self.on.node, Some(spot), self.on.settings.hold_rules(), self.now);
    }

    /// Counts what was read here; `avoidable`: a replica in the client's rack could have served it.
    fn bytes(&self, leader: Option<NodeId>, records: u64, avoidable: bool, counts: &mut Counts) {
        let rack = |node| self.topology.brokers.get(&node).and_then(|broker| broker.rack.as_deref());
        match (self.asked.rack.as_deref(), rack(self.on.node)) {
            (Some(client), Some(broker)) if client == broker => {
                counts.in_rack_bytes = records;
                let leader = leader.filter(|leader| *leader != self.on.node).and_then(rack);
                if leader.is_some_and(|leader| leader != client) {
                    counts.saved_bytes = records;
                }
            }
            (Some(_), Some(_)) => {
                counts.across_bytes = records;
                if avoidable {
                    counts.avoidable_bytes = records;
                }
            }
            _ => counts.unknown_bytes = records,
        }
    }
}

impl Drop for Decision<'_> {
    fn drop(&mut self) {
        if self.doubts {
            self.on.shared.cluster().doubt_partitions();
        }
        if self.counted.is_empty() {
            return;
        }
        let broker = self.topology.brokers.get(&self.on.node).and_then(|broker| broker.rack.as_deref());
        let mut tally = self.on.racks().tally();
        for (topic, counts) in &self.counted {
            tally.count(self.asked.rack.as_ref(), broker, topic, counts);
        }
    }
}

/// A replica that can't be reached: nobody is sent there for a while.
pub(crate) fn hold_broker(shared: &Shared, cluster: &Cluster, node: NodeId) {
    if let Some(settings) = shared.racks.settings() {
        shared.racks.stands_in();
        shared.racks.book().hold(node, None, settings.hold_rules(), Instant::now());
        cluster.doubt_partitions();
    }
}
