//! One connection to one broker of the branch: requests go out as they come, answers come back in order.
//!
//! A link tells what happens on it by [`LinkEvent`]s and ends with [`LinkEvent::Down`], whatever happens: a peer that
//! reads slowly, that answers late or never, that closes. It keeps nothing but the names of what is in flight.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval};

use super::admin::{AskError, common, read_frame};
use super::encode::{self, Envelope, Part};
use crate::branch::ids::PartitionId;
use crate::branch::produce::answer::ProduceAnswer;
use crate::branch::produce::request::TopicRef;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId, NodeId};
use crate::upstream::client::Stream;
use crate::upstream::{Door, Target};

/// The largest answer to a Produce that is read.
const FRAME: usize = 4 << 20;

/// UNKNOWN_SERVER_ERROR, for a partition that an answer leaves out.
const UNKNOWN: i16 = -1;

/// A connection, among all that the writer ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LinkId(pub(super) u64);

/// A request.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Names it in its answer.
    pub(super) token: u64,
    /// One for each partition.
    pub(super) parts: Vec<Part>,
}

/// What happens on a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// The broker is connected and logged in to.
    Up,
    /// An answer: the error of each part of the request, in its order.
    Answered {
        /// Of the request.
        token: u64,
        /// Kafka's error codes.
        errors: Vec<i16>,
        /// The broker reads nothing more for so long.
        throttle: Duration,
    },
    /// The end.
    Down {
        /// Why, in a sentence.
        why: String,
        /// Trying again soon does harm: wrong credentials may lock the account.
        is_final: bool,
    },
}

/// What a link needs.
pub(super) struct Plan {
    pub(super) id: LinkId,
    pub(super) node: NodeId,
    pub(super) client_id: Arc<str>,
    /// An answer takes longer than this only from a peer that is gone.
    pub(super) patience: Duration,
}

/// Runs a link to its end.
pub(super) async fn run(
    door: Door,
    plan: Plan,
    requests: mpsc::Receiver<Outbound>,
    events: mpsc::UnboundedSender<(LinkId, LinkEvent)>,
) {
    let down = match door.open(Target::Node(plan.node)).await {
        Err(error) => LinkEvent::Down { why: error.to_string(), is_final: error.is_final() },
        Ok(opened) => match common(&opened, ApiKey::PRODUCE, &encode::VERSIONS) {
            None => LinkEvent::Down { why: AskError::Version("Produce").to_string(), is_final: true },
            Some(version) => {
                // The writer may be gone: then there is nobody to tell.
                let _ = events.send((plan.id, LinkEvent::Up));
                let (reader, writer) = split(opened.stream);
                let why = serve(&plan, version, reader, writer, requests, &events).await;
                LinkEvent::Down { why, is_final: false }
            }
        },
    };
    let _ = events.send((plan.id, down));
}

/// A request whose answer is awaited.
struct Pending {
    id: CorrelationId,
    token: u64,
    parts: Vec<(Arc<str>, PartitionId)>,
    since: Instant,
}

type InFlight = Mutex<VecDeque<Pending>>;

fn lock(in_flight: &InFlight) -> std::sync::MutexGuard<'_, VecDeque<Pending>> {
    in_flight.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    plan: &Plan,
    version: ApiVersion,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    requests: mpsc::Receiver<Outbound>,
    events: &mpsc::UnboundedSender<(LinkId, LinkEvent)>,
) -> String {
    let in_flight = InFlight::default();
    tokio::select! {
        why = write(plan, version, writer, requests, &in_flight) => why,
        why = read(plan, version, reader, events, &in_flight) => why,
        () = watch(plan, &in_flight) => format!("no answer within {:?}", plan.patience),
    }
}

async fn write<W: AsyncWrite + Unpin>(
    plan: &Plan,
    version: ApiVersion,
    writer: W,
    mut requests: mpsc::Receiver<Outbound>,
    in_flight: &InFlight,
) -> String {
    let mut writer = BufWriter::new(writer);
    let mut next = 0i32;
    while let Some(Outbound { token, parts }) = requests.recv().await {
        let id = CorrelationId(next);
        next = next.wrapping_add(1);
        let envelope = Envelope { version, id, client_id: &plan.client_id };
        let Some(pieces) = encode::request(envelope, &parts) else { return "a request above 2 GiB".into() };
        let parts = parts.into_iter().map(|part| (part.topic, part.partition)).collect();
        lock(in_flight).push_back(Pending { id, token, parts, since: Instant::now() });
        for piece in pieces {
            if let Err(error) = writer.write_all(&piece).await {
                return format!("the connection failed: {error}");
            }
        }
        if requests.is_empty()
            && let Err(error) = writer.flush().await
        {
            return format!("the connection failed: {error}");
        }
    }
    "it is not needed any more".into()
}

async fn read(
    plan: &Plan,
    version: ApiVersion,
    mut reader: ReadHalf<Box<dyn Stream>>,
    events: &mpsc::UnboundedSender<(LinkId, LinkEvent)>,
    in_flight: &InFlight,
) -> String {
    loop {
        let frame = match read_frame(&mut reader, FRAME).await {
            Ok(frame) => frame,
            Err(error) => return error.to_string(),
        };
        let Some(pending) = lock(in_flight).pop_front() else { return "an answer to nothing".into() };
        if !frame.starts_with(&pending.id.0.to_be_bytes()) {
            return "an answer to another request".into();
        }
        let answer = match ProduceAnswer::read(version, &frame) {
            Ok(answer) => answer,
            Err(error) => return format!("an answer that can't be read: {error}"),
        };
        let errors = pending.parts.iter().map(|part| error_of(&answer, part)).collect();
        let throttle = Duration::from_millis(u64::try_from(answer.throttle_ms).unwrap_or(0));
        let answered = LinkEvent::Answered { token: pending.token, errors, throttle };
        if events.send((plan.id, answered)).is_err() {
            return "it is not needed any more".into();
        }
    }
}

fn error_of(answer: &ProduceAnswer<'_>, (topic, partition): &(Arc<str>, PartitionId)) -> i16 {
    let mine = |p: &&crate::branch::produce::answer::PartitionAnswer<'_>| {
        p.partition == *partition && p.topic == TopicRef::Name(topic)
    };
    answer.partitions.iter().find(mine).map_or(UNKNOWN, |p| p.error)
}

/// Ends when an answer is overdue, whether the peer doesn't answer or doesn't read.
async fn watch(plan: &Plan, in_flight: &InFlight) {
    let mut ticks = interval((plan.patience / 8).max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        let oldest = lock(in_flight).front().map(|pending| pending.since);
        if oldest.is_some_and(|since| since.elapsed() > plan.patience) {
            return;
        }
    }
}
