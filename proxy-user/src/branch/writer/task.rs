//! The writer's task: carries out what its core says, and tells it what happened.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use super::admin;
use super::core::{Command, Core, Settings};
use super::lane::Item;
use super::link::{self, LinkEvent, LinkId, Outbound, Plan};
use crate::branch::account::{Cause, Ledger, Outcome};
use crate::branch::ids::{ProducerEpoch, ProducerId};
use crate::branch::queue::Budget;
use crate::kafka::ids::NodeId;
use crate::upstream::Door;

/// How often ages and pauses are looked at while there is something to do.
const TICK: Duration = Duration::from_millis(50);

/// Messages that are taken in one go.
const AT_ONCE: usize = 256;

/// Requests that a link's channel holds; the core has fewer in flight.
const CHANNEL: usize = 8;

/// The clusters of a branch.
#[derive(Clone)]
pub struct Clusters {
    /// Where it writes.
    pub target: Door,
    /// Where its batches come from: how many partitions a topic has there.
    pub mainline: Door,
}

enum Message {
    Batch(Item),
    /// Tells when nothing is on its way any more.
    Settle(oneshot::Sender<()>),
    End(Cause),
}

/// A branch's writer. Dropping it ends its tasks; [`Writer::end`] counts what is left.
#[derive(Debug)]
pub struct Writer {
    messages: mpsc::UnboundedSender<Message>,
    budget: Budget,
    ledger: Ledger,
    paused: AtomicBool,
    task: JoinHandle<()>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Writer {
    /// Starts one on the current tokio runtime. `name`: the branch's, for the log and as the client id's end; `bytes`:
    /// what it may hold; `patience`: how long a broker may take for an answer.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn spawn(
        name: &str,
        settings: Settings,
        clusters: Clusters,
        bytes: usize,
        patience: Duration,
        ledger: Ledger,
    ) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let budget = Budget::new(bytes);
        let core = Core::new(settings, ledger.clone(), budget.clone(), Instant::now());
        let task = Task::new(name, core, clusters, patience);
        Self { messages, budget, ledger, paused: AtomicBool::new(false), task: tokio::spawn(task.run(inbox)) }
    }

    /// Takes a batch, or counts it as missing. Never waits, whatever state the branch is in.
    pub fn offer(&self, item: Item) {
        let size = item.batch.size();
        if self.paused.load(Ordering::Relaxed) {
            return self.ledger.count(&item.topic, Outcome::Mia(Cause::Paused), &item.batch);
        }
        if !self.budget.take(size) {
            return self.ledger.count(&item.topic, Outcome::Mia(Cause::QueueFull), &item.batch);
        }
        if let Err(mpsc::error::SendError(Message::Batch(item))) = self.messages.send(Message::Batch(item)) {
            self.budget.give_back(size);
            self.ledger.count(&item.topic, Outcome::Mia(Cause::Shutdown), &item.batch);
        }
    }

    /// The kill switch: while it is on, batches are counted and dropped. What was taken before is written.
    pub fn pause(&self, on: bool) {
        self.paused.store(on, Ordering::Relaxed);
    }

    /// Whether the kill switch is on.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Bytes on their way.
    #[must_use]
    pub fn held(&self) -> usize {
        self.budget.used()
    }

    /// What became of the batches so far.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waits until what was offered so far is done, at most for `bound`. Returns whether it is.
    pub async fn settle(&self, bound: Duration) -> bool {
        let (settled, hear) = oneshot::channel();
        self.messages.send(Message::Settle(settled)).is_ok() && matches!(timeout(bound, hear).await, Ok(Ok(())))
    }

    /// Gives up what is left, counted by `cause`, and ends.
    pub async fn end(mut self, cause: Cause) {
        if self.messages.send(Message::End(cause)).is_ok() {
            // The task panicked or was aborted: it has nothing left to count then.
            let _ = (&mut self.task).await;
        }
    }
}

/// What questions come back with.
enum Answer {
    Topics(Result<Vec<admin::Topic>, admin::AskError>),
    Created(Arc<str>, Result<(), admin::AskError>),
    Producer(Result<(ProducerId, ProducerEpoch), admin::AskError>),
}

struct Link {
    requests: mpsc::Sender<Outbound>,
    task: AbortHandle,
    node: NodeId,
}

struct Task {
    name: String,
    client_id: Arc<str>,
    core: Core,
    clusters: Clusters,
    patience: Duration,
    links: HashMap<LinkId, Link>,
    events: mpsc::UnboundedSender<(LinkId, LinkEvent)>,
    heard: mpsc::UnboundedReceiver<(LinkId, LinkEvent)>,
    running: JoinSet<()>,
    questions: JoinSet<Answer>,
    settling: Vec<oneshot::Sender<()>>,
    /// Kind of the last trouble that was warned of, so that another is news.
    trouble: Option<String>,
}

impl Task {
    fn new(name: &str, core: Core, clusters: Clusters, patience: Duration) -> Self {
        let (events, heard) = mpsc::unbounded_channel();
        Self {
            name: name.to_owned(),
            client_id: format!("turnout-{name}").into(),
            core,
            clusters,
            patience,
            links: HashMap::new(),
            events,
            heard,
            running: JoinSet::new(),
            questions: JoinSet::new(),
            settling: Vec::new(),
            trouble: None,
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut messages = Vec::with_capacity(AT_ONCE);
        loop {
            for command in self.core.pump(Instant::now()) {
                self.carry_out(command);
            }
            if self.core.is_idle() {
                // Whoever asked may have stopped waiting.
                self.settling.drain(..).for_each(|settled| settled.send(()).unwrap_or_default());
            }
            tokio::select! {
                taken = inbox.recv_many(&mut messages, AT_ONCE) => {
                    if taken == 0 {
                        return self.core.end(Cause::Shutdown);
                    }
                    for message in messages.drain(..) {
                        match message {
                            Message::Batch(item) => self.core.accept(item, Instant::now()),
                            Message::Settle(settled) => self.settling.push(settled),
                            Message::End(cause) => return self.end(cause, &mut inbox),
                        }
                    }
                }
                // The sender is in `self`, so this never ends.
                Some((id, event)) = self.heard.recv() => self.on_event(id, event),
                Some(Ok(answer)) = self.questions.join_next() => self.on_answer(answer),
                Some(_) = self.running.join_next() => {}
                _ = ticks.tick(), if !self.core.is_idle() => self.core.tick(Instant::now()),
            }
        }
    }

    /// Counts what is left, also what is still in the inbox.
    fn end(mut self, cause: Cause, inbox: &mut mpsc::UnboundedReceiver<Message>) {
        inbox.close();
        while let Ok(message) = inbox.try_recv() {
            if let Message::Batch(item) = message {
                self.core.accept(item, Instant::now());
            }
        }
        self.core.end(cause);
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Connect { id, node } => {
                let (requests, inbox) = mpsc::channel(CHANNEL);
                let plan = Plan { id, node, client_id: self.client_id.clone(), patience: self.patience };
                let run = link::run(self.clusters.target.clone(), plan, inbox, self.events.clone());
                let task = self.running.spawn(run);
                self.links.insert(id, Link { requests, task, node });
            }
            Command::Send { id, outbound } => {
                // A link that has ended says so by an event, which takes the request back.
                if let Some(link) = self.links.get(&id)
                    && link.requests.try_send(outbound).is_err()
                {
                    debug!(branch = self.name, broker = link.node.0, "a link ended before its last request");
                }
            }
            Command::AskTopics(names) => {
                let door = self.clusters.target.clone();
                self.questions.spawn(async move { Answer::Topics(admin::topics(&door, &names).await) });
            }
            Command::Create { topic, source } => {
                let clusters = self.clusters.clone();
                self.questions.spawn(async move {
                    let outcome = create(&clusters, &topic, &source).await;
                    Answer::Created(topic, outcome)
                });
            }
            Command::AskProducer => {
                let door = self.clusters.target.clone();
                self.questions.spawn(async move { Answer::Producer(admin::producer(&door).await) });
            }
        }
    }

    fn on_event(&mut self, id: LinkId, event: LinkEvent) {
        let now = Instant::now();
        match event {
            LinkEvent::Up => {
                self.trouble = None;
                self.core.on_up(id);
            }
            LinkEvent::Answered { token, errors, throttle } => self.core.on_answer(id, token, &errors, throttle, now),
            LinkEvent::Down { why, is_final } => {
                if let Some(link) = self.links.remove(&id) {
                    link.task.abort();
                    self.warn(format!("broker {}: {why}", link.node));
                }
                // Its broker may lead elsewhere now.
                self.clusters.target.cluster().poke();
                self.core.on_down(id, is_final, now);
            }
        }
    }

    fn on_answer(&mut self, answer: Answer) {
        let now = Instant::now();
        match answer {
            Answer::Topics(Ok(topics)) => {
                /// UNKNOWN_TOPIC_OR_PARTITION
                const UNKNOWN: i16 = 3;
                let missing: Vec<_> = topics.iter().filter(|t| t.error == UNKNOWN).map(|t| t.name.clone()).collect();
                self.core.on_topics(Some(topics), now);
                for name in missing {
                    if let Some(command) = self.core.on_missing(&name) {
                        self.carry_out(command);
                    }
                }
            }
            Answer::Topics(Err(error)) => {
                self.warn(format!("topics can't be looked up: {error}"));
                self.core.on_topics(None, now);
            }
            Answer::Created(topic, outcome) => {
                match &outcome {
                    Ok(()) => info!(branch = self.name, "branch {}: created topic {topic}", self.name),
                    Err(error) => self.warn(format!("topic {topic} can't be created: {error}")),
                }
                self.core.on_created(&topic, outcome.is_ok(), now);
            }
            Answer::Producer(outcome) => {
                if let Err(error) = &outcome {
                    self.warn(format!("no producer id: {error}"));
                }
                self.core.on_producer(outcome.ok(), now);
            }
        }
    }

    /// One line for each kind of trouble in a row.
    fn warn(&mut self, what: String) {
        if self.trouble.as_ref() == Some(&what) {
            debug!(branch = self.name, "{what}");
        } else {
            warn!(branch = self.name, "branch {}: {what}", self.name);
            self.trouble = Some(what);
        }
    }
}

/// Creates a topic with as many partitions as its source has.
async fn create(clusters: &Clusters, topic: &Arc<str>, source: &Arc<str>) -> Result<(), admin::AskError> {
    let seen = admin::topics(&clusters.mainline, std::slice::from_ref(source)).await?;
    let partitions = match seen.first() {
        Some(topic) if topic.error == 0 => topic.leaders.len(),
        Some(topic) => return Err(admin::AskError::Broker(topic.error)),
        None => 0,
    };
    admin::create(&clusters.target, topic, u32::try_from(partitions).unwrap_or(1).max(1)).await
}
