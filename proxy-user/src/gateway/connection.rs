//! One client connection's life: the sockets and timers around a [`Session`].
//!
//! ```text
//!            first bytes                 answers due = 0, client's EOF
//!  accepted ────────────► dialling ─► open ────────────────────────────► closing (FIN, drain, close)
//!      │                     │          │ broker's EOF: what came is delivered first
//!      └── first_byte        └── unreachable        └── limits, faults
//! ```
//!
//! Both directions run in one task that owns both sockets, so that nothing is shared and back-pressure is simply
//! not reading: a lane that is full of bytes the other side has not taken is not read into.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::close::CloseReason;
use super::lane::{Lane, MAX_SLICES};
use super::mapping::Mapping;
use super::registry::ConnectionRecord;
use super::session::{Event, Session, View};
use super::shared::{Phase, Shared};
use crate::config;
use crate::kafka::rewrite::{Seen, SeenBroker};
use crate::metrics::Limit;
use crate::upstream::{self, DialError, Endpoint, Observed, ObservedBroker, Target};

/// A slow but honest client's pace: a begun frame has `incomplete_frame` plus its size at this many bytes a second.
const SLOWEST_PACE: u64 = 64 * 1024;

/// How long a closed connection waits for the client's FIN, so that answers just sent aren't lost to a reset.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes thrown away while lingering.
const LINGER_BYTES: usize = 1024 * 1024;

/// A dial may take this many times `connect_timeout` over all its candidates: two black holes, within the 30 s that
/// clients wait for a request by default.
const PATIENCE: u32 = 2;

/// Reads and writes of one poll before other connections of the worker get their turn.
const ROUNDS: u32 = 32;

type Dial = Pin<Box<dyn Future<Output = Result<(TcpStream, Endpoint), DialError>> + Send>>;

enum Broker {
    Idle,
    Dialling(Dial),
    Open(TcpStream),
}

/// What a connection is made with.
pub(crate) struct Accepted {
    pub(crate) client: TcpStream,
    pub(crate) peer: SocketAddr,
    /// The address the client dialled.
    pub(crate) local: SocketAddr,
    pub(crate) target: Target,
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) record: Arc<ConnectionRecord>,
}

struct Connection {
    client: TcpStream,
    broker: Broker,
    session: Session,
    requests: Lane,
    answers: Lane,

    target: Target,
    dialled: Option<Endpoint>,
    /// The node's address is not known: a bootstrap broker stands in until a Metadata answer tells.
    provisional: bool,

    /// The client will send nothing more.
    client_eof: bool,
    /// The client can't be written to any more.
    client_dead: bool,
    /// Our FIN to the broker is out.
    broker_shut: bool,
    /// The broker will send nothing more.
    broker_eof: bool,
    /// The broker takes nothing more; what it sent is still delivered.
    broker_deaf: bool,

    /// The client sent what can't be passed on: the connection ends when its earlier requests are answered.
    ending: Option<CloseReason>,

    /// Reading is paused because the other side takes no more.
    client_paused: bool,
    broker_paused: bool,
    share: Share,

    phase: Phase,
    clock: Clock,
    timer: Pin<Box<Sleep>>,
    armed: Instant,

    host: String,
    shared: Arc<Shared>,
    record: Arc<ConnectionRecord>,
}

/// What this connection adds to the gauges.
#[derive(Clone, Copy, Default)]
struct Share {
    in_flight: usize,
    held: usize,
}

fn difference(was: usize, now: usize) -> i64 {
    i64::try_from(now).unwrap_or(i64::MAX) - i64::try_from(was).unwrap_or(i64::MAX)
}

/// Times that decide over timeouts.
struct Clock {
    accepted: Instant,
    /// Last byte either way.
    moved: Instant,
    /// When the client's FIN or reset was seen.
    client_ended: Option<Instant>,
    /// When the current wait for the rest of a frame began.
    waits_since: Option<Instant>,
    /// How long the current frame has been waited for, back-pressure left out.
    waited: Duration,
    /// Which frame `waited` counts for.
    frame: u64,
}

/// Serves a connection to its end.
pub(crate) async fn serve(accepted: Accepted) {
    let Accepted { client, peer, local, target, shared, mut phase, record } = accepted;
    let now = Instant::now();
    let host = local.ip().to_canonical().to_string();
    let armed = now + Duration::from_secs(1);
    let mut connection = Connection {
        client,
        broker: Broker::Idle,
        session: Session::new(),
        requests: Lane::default(),
        answers: Lane::default(),
        target,
        dialled: None,
        provisional: false,
        client_eof: false,
        client_dead: false,
        broker_shut: false,
        broker_eof: false,
        broker_deaf: false,
        ending: None,
        client_paused: false,
        broker_paused: false,
        share: Share::default(),
        phase: phase.borrow_and_update().clone(),
        clock: Clock {
            accepted: now,
            moved: now,
            client_ended: None,
            waits_since: None,
            waited: Duration::ZERO,
            frame: 0,
        },
        timer: Box::pin(tokio::time::sleep_until(armed.into())),
        armed,
        host,
        shared,
        record,
    };
    let reason = loop {
        tokio::select! {
            biased;
            reason = poll_fn(|cx| connection.poll(cx)) => break reason,
            changed = phase.changed() => {
                if changed.is_err() {
                    break CloseReason::Stopped;
                }
                connection.phase = phase.borrow_and_update().clone();
            }
        }
    };
    connection.finish(&reason, peer).await;
}

impl Connection {
    /// Moves bytes until nothing moves any more. Ready with the reason when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let now = Instant::now();
        if let Some(since) = self.clock.waits_since.take() {
            self.clock.waited += now.saturating_duration_since(since);
        }
        let config = self.shared.config();
        let mut rounds = 0;
        loop {
            let moved = match self.round(cx, &config) {
                Ok(moved) => moved,
                Err(reason) => return Poll::Ready(reason),
            };
            if let Some(reason) = self.over() {
                return Poll::Ready(reason);
            }
            if !moved {
                break;
            }
            self.clock.moved = now;
            rounds += 1;
            if rounds == ROUNDS {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        self.requests.release();
        self.answers.release();
        self.gauge();
        self.poll_timers(cx, now, &config.limits)
    }

    /// Brings the gauges up to date with this connection's share.
    fn gauge(&mut self) {
        let metrics = &self.shared.metrics;
        let now = Share { in_flight: self.session.in_flight(), held: self.session.held() };
        let was = std::mem::replace(&mut self.share, now);
        self.record.set_in_flight(now.in_flight);
        metrics.in_flight.inc_by(difference(was.in_flight, now.in_flight));
        metrics.held_bytes.inc_by(difference(was.held, now.held));

        let client_paused = !self.client_eof && (self.session.throttled() || !self.requests.has_space());
        let broker_paused = !self.broker_eof && !self.answers.has_space();
        if client_paused && !self.client_paused {
            metrics.client_read_pauses.inc();
            if self.session.throttled() {
                metrics.limit_hits.hit(Limit::InFlight);
            }
        }
        if broker_paused && !self.broker_paused {
            metrics.broker_read_pauses.inc();
        }
        self.client_paused = client_paused;
        self.broker_paused = broker_paused;
    }

    /// One go at each socket. Whether any byte moved.
    fn round(&mut self, cx: &mut Context<'_>, config: &config::VirtualCluster) -> Result<bool, CloseReason> {
        let mut moved = self.read_client(cx)?;
        self.parse(config, Side::Requests)?;
        self.reach_broker(cx)?;
        moved |= self.write_broker(cx);
        moved |= self.read_broker(cx)?;
        self.parse(config, Side::Answers)?;
        moved |= self.write_client(cx);
        // An answer that left may have made room for the next request.
        if self.session.throttled() {
            self.parse(config, Side::Requests)?;
            moved |= self.write_broker(cx);
        }
        Ok(moved)
    }

    fn wants_client(&self) -> bool {
        !self.client_eof
            && self.ending.is_none()
            && !self.session.throttled()
            && !self.resting()
            && self.requests.has_space()
    }

    /// A drain keeps the connection from beginning anything new.
    fn resting(&self) -> bool {
        !matches!(self.phase, Phase::Serve) && self.session.arriving(&self.requests).is_none()
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool, CloseReason> {
        if !self.wants_client() {
            return Ok(false);
        }
        match poll_read(&mut self.client, cx, self.requests.space()) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                self.client_ended();
                Ok(true)
            }
            Poll::Ready(Ok(n)) => {
                self.requests.filled(n);
                self.record.count_request_bytes(n as u64);
                self.shared.metrics.request_bytes.inc_by(n as u64);
                Ok(true)
            }
            Poll::Ready(Err(error)) => self.client_failed(error),
        }
    }

    /// The client is gone: what it sent is still passed on (it may be acks=0), what it was owed is dropped.
    fn client_failed(&mut self, error: io::Error) -> Result<bool, CloseReason> {
        if self.requests.waiting() == 0 || !matches!(self.broker, Broker::Open(_)) {
            return Err(CloseReason::ClientError(error));
        }
        self.client_ended();
        self.client_dead = true;
        Ok(true)
    }

    fn client_ended(&mut self) {
        self.client_eof = true;
        self.clock.client_ended.get_or_insert_with(Instant::now);
    }

    fn read_broker(&mut self, cx: &mut Context<'_>) -> Result<bool, CloseReason> {
        let Broker::Open(broker) = &mut self.broker else { return Ok(false) };
        if self.broker_eof || !self.answers.has_space() {
            return Ok(false);
        }
        match poll_read(broker, cx, self.answers.space()) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                self.broker_eof = true;
                Ok(true)
            }
            Poll::Ready(Ok(n)) => {
                self.answers.filled(n);
                Ok(true)
            }
            Poll::Ready(Err(error)) if self.answers.waiting() == 0 => Err(CloseReason::BrokerError(error)),
            Poll::Ready(Err(_)) => {
                self.broker_eof = true;
                Ok(true)
            }
        }
    }

    fn parse(&mut self, config: &config::VirtualCluster, side: Side) -> Result<(), CloseReason> {
        let nothing_new = match side {
            Side::Requests => self.requests.unparsed().is_empty() || self.ending.is_some(),
            Side::Answers => self.answers.unparsed().is_empty(),
        };
        if nothing_new {
            return Ok(());
        }
        let view = View {
            policy: config.versions,
            frame: config.limits.frame.0,
            rewrite_frame: config.limits.rewrite_frame.0,
            in_flight: config.limits.in_flight as usize,
            world: &Mapping::new(config, &self.host, &self.shared),
            draining: !matches!(self.phase, Phase::Serve),
        };
        match side {
            Side::Requests => {
                if let Err(reason) = self.session.on_request_bytes(&mut self.requests, &mut self.answers, &view) {
                    // As at a broker, which would not have read this far: what was asked before is answered first.
                    self.ending = Some(reason);
                }
            }
            Side::Answers => self.session.on_answer_bytes(&mut self.answers, &view)?,
        }
        for event in self.session.take_events() {
            match event {
                Event::Request(key) => {
                    self.shared.metrics.requests.count(key.0);
                    self.record.count_request();
                }
                Event::Rewritten => {
                    self.shared.metrics.rewritten.inc();
                }
                Event::Answered => {
                    self.shared.metrics.answered.inc();
                }
                Event::ClientId(id) => self.record.set_client_id(id),
                Event::Software(name, version) => self.record.set_software(&name, &version),
                Event::Seen(seen) => {
                    let cluster = self.shared.cluster();
                    cluster.observe(observed(seen));
                    if self.provisional {
                        let told = cluster.candidates(self.target);
                        if told.first().is_some_and(|told| self.dialled.as_ref() != Some(told)) {
                            // The stand-in isn't the node: this connection ends after its answer, the next finds it.
                            self.phase = Phase::Drain { until: Instant::now() + config.limits.drain.0 };
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Dials once there is something to send.
    fn reach_broker(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        if matches!(self.broker, Broker::Idle) && self.requests.waiting() > 0 {
            let cluster = self.shared.cluster();
            let mut candidates = cluster.candidates(self.target);
            if candidates.is_empty() {
                self.provisional = self.target != Target::Bootstrap;
                candidates = cluster.candidates(Target::Bootstrap);
            }
            let timeout = cluster.connect_timeout();
            let seconds = self.shared.metrics.dial_seconds.clone();
            self.broker = Broker::Dialling(Box::pin(async move {
                let began = Instant::now();
                let dialled = upstream::dial(&candidates, timeout, timeout * PATIENCE).await;
                seconds.observe(began.elapsed().as_secs_f64());
                dialled
            }));
        }
        if let Broker::Dialling(dial) = &mut self.broker
            && let Poll::Ready(result) = dial.as_mut().poll(cx)
        {
            match result {
                Ok((stream, endpoint)) => {
                    self.shared.cluster().report(&endpoint, true);
                    self.record.set_broker(&endpoint);
                    self.dialled = Some(endpoint);
                    self.broker = Broker::Open(stream);
                }
                Err(error) => {
                    self.shared.metrics.dial_failures.inc();
                    self.shared.cluster().poke();
                    return Err(CloseReason::Unreachable(error));
                }
            }
        }
        Ok(())
    }

    fn write_broker(&mut self, cx: &mut Context<'_>) -> bool {
        let Broker::Open(broker) = &mut self.broker else { return false };
        if self.broker_deaf {
            let waiting = self.requests.waiting();
            self.requests.wrote(waiting);
            return false;
        }
        match poll_write(broker, cx, &mut self.requests) {
            Poll::Ready(Ok(0)) | Poll::Pending => {}
            Poll::Ready(Ok(_)) => return true,
            Poll::Ready(Err(_)) => {
                self.broker_deaf = true;
                return true;
            }
        }
        // Whole frames may still wait behind `limits.in_flight`.
        let more = self.session.throttled() && !self.requests.unparsed().is_empty();
        if self.client_eof && !self.broker_shut && !more {
            self.broker_shut = true;
            // The FIN goes out behind every byte; an error here shows at the next read.
            let _ = Pin::new(broker).poll_shutdown(cx);
        }
        false
    }

    fn write_client(&mut self, cx: &mut Context<'_>) -> bool {
        if self.client_dead {
            let waiting = self.answers.waiting();
            self.answers.wrote(waiting);
            return false;
        }
        match poll_write(&mut self.client, cx, &mut self.answers) {
            Poll::Ready(Ok(0)) | Poll::Pending => false,
            Poll::Ready(Ok(n)) => {
                self.record.count_answer_bytes(n as u64);
                self.shared.metrics.answer_bytes.inc_by(n as u64);
                true
            }
            Poll::Ready(Err(_)) => {
                self.client_ended();
                self.client_dead = true;
                true
            }
        }
    }

    /// Whether the connection has come to its end.
    fn over(&mut self) -> Option<CloseReason> {
        let in_flight = self.session.in_flight();
        if matches!(self.phase, Phase::Stop) {
            return Some(CloseReason::Stopped);
        }
        if self.broker_eof && self.answers.waiting() == 0 {
            return Some(if self.client_eof && in_flight == 0 {
                CloseReason::ClientClosed
            } else {
                CloseReason::BrokerClosed { in_flight }
            });
        }
        if self.requests.waiting() > 0 && !self.broker_deaf {
            return None;
        }
        if self.client_dead {
            return Some(CloseReason::ClientGone { in_flight });
        }
        if self.answers.waiting() > 0 {
            return None;
        }
        if in_flight == 0 && self.ending.is_some() {
            return self.ending.take();
        }
        if self.client_eof && in_flight == 0 {
            let cut_short = self.session.arriving(&self.requests).is_some() && !self.session.throttled();
            return Some(if cut_short { CloseReason::ClientGone { in_flight } } else { CloseReason::ClientClosed });
        }
        if !matches!(self.phase, Phase::Serve) && self.session.at_rest() {
            return Some(CloseReason::Drained);
        }
        None
    }

    fn poll_timers(&mut self, cx: &mut Context<'_>, now: Instant, limits: &config::Limits) -> Poll<CloseReason> {
        let clock = &mut self.clock;
        let arriving = self.session.arriving(&self.requests);
        if clock.frame != self.session.begun() || arriving.is_none() {
            clock.frame = self.session.begun();
            clock.waited = Duration::ZERO;
        }
        let waiting_for_client =
            arriving.filter(|_| !self.client_eof && !self.session.throttled() && self.requests.has_space());
        if waiting_for_client.is_some() {
            clock.waits_since = Some(now);
        }
        loop {
            let (deadline, reason) = self.deadline(now, limits, waiting_for_client);
            if deadline <= now {
                return Poll::Ready(reason);
            }
            if deadline < self.armed || self.armed <= now {
                self.armed = deadline;
                self.timer.as_mut().reset(deadline.into());
            }
            ready!(self.timer.as_mut().poll(cx));
            self.armed = now;
            if Instant::now() >= deadline {
                return Poll::Ready(reason);
            }
            // Fired for a deadline that has moved on since: armed again for the new one.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }

    /// The next moment at which something is too late, and what.
    fn deadline(&self, now: Instant, limits: &config::Limits, waiting: Option<u64>) -> (Instant, CloseReason) {
        let clock = &self.clock;
        let in_flight = self.session.in_flight();
        let mut next = if self.answers.waiting() > 0 {
            (clock.moved + limits.idle.0, CloseReason::Stalled)
        } else if self.requests.waiting() > 0 {
            (clock.moved + limits.idle.0, CloseReason::BrokerStalled)
        } else if in_flight == 0 {
            (clock.moved + limits.idle.0, CloseReason::Idle)
        } else {
            // The broker may take as long as the client's request allows; looked at again now and then.
            (now + Duration::from_secs(3600), CloseReason::Idle)
        };
        let mut earlier = |at: Instant, reason: CloseReason| {
            if at < next.0 {
                next = (at, reason);
            }
        };
        if self.session.begun() == 0 {
            earlier(clock.accepted + limits.first_byte.0, CloseReason::FirstByte);
        } else if let Some(size) = waiting {
            let allowed = limits.incomplete_frame.0 + Duration::from_secs(size / SLOWEST_PACE);
            earlier(now + allowed.saturating_sub(clock.waited), CloseReason::IncompleteFrame);
        }
        if let Some(ended) = clock.client_ended {
            earlier(ended + limits.drain.0, CloseReason::ClientGone { in_flight });
        }
        if let Phase::Drain { until } = self.phase {
            earlier(until, CloseReason::DrainTimeout { in_flight });
        }
        next
    }

    /// Says farewell: the reason is counted and logged, and the client gets a FIN behind its last answer.
    async fn finish(self, reason: &CloseReason, peer: SocketAddr) {
        let Self { mut client, broker, client_dead, client_eof, shared, record, dialled, target, session, share, .. } =
            self;
        shared.metrics.in_flight.inc_by(difference(share.in_flight, 0));
        shared.metrics.held_bytes.inc_by(difference(share.held, 0));
        shared.closed(reason, peer, target, dialled.as_ref(), session.oldest());
        if matches!(reason, CloseReason::BrokerClosed { .. } | CloseReason::BrokerError(_)) {
            shared.cluster().poke();
        }
        drop(broker);
        drop(record);
        if client_dead || client_eof {
            return;
        }
        let _ = tokio::time::timeout(LINGER, async {
            tokio::io::AsyncWriteExt::shutdown(&mut client).await?;
            let mut thrown = 0;
            let mut buffer = [0; 4096];
            while thrown < LINGER_BYTES {
                match client.read(&mut buffer).await? {
                    0 => break,
                    n => thrown += n,
                }
            }
            io::Result::Ok(())
        })
        .await;
    }
}

/// What an answer said, in the terms of the topology.
fn observed(seen: Seen) -> Observed {
    let Seen { brokers, cluster_id, controller, complete } = seen;
    let brokers = brokers
        .into_iter()
        .map(|SeenBroker { node, host, port, rack }| ObservedBroker {
            id: node,
            address: Endpoint::new(host, port),
            rack,
        })
        .collect();
    Observed { brokers, cluster_id, detailed: controller.is_some(), controller, complete }
}

#[derive(Clone, Copy)]
enum Side {
    Requests,
    Answers,
}

fn poll_read(stream: &mut TcpStream, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(space);
    ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}

/// Writes what the lane has. `Ok(0)`: it has nothing.
fn poll_write(stream: &mut TcpStream, cx: &mut Context<'_>, lane: &mut Lane) -> Poll<io::Result<usize>> {
    if lane.waiting() == 0 {
        return Poll::Ready(Ok(0));
    }
    let mut slices = [IoSlice::new(&[]); MAX_SLICES];
    let used = lane.slices(&mut slices);
    let n = ready!(Pin::new(stream).poll_write_vectored(cx, &slices[..used]))?;
    if n == 0 {
        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
    }
    lane.wrote(n);
    Poll::Ready(Ok(n))
}
