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

mod splice;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use proxy_common::splice::state::Side;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::clock::{Clock, Wait};
use super::close::CloseReason;
use super::gauges::{Gauges, Level};
use super::lane::{Lane, MAX_SLICES};
use super::mapping::Mapping;
use super::mirroring::Mirroring;
use super::reads::{ConnectionReads, hold_broker};
use super::registry::{Call, ConnectionRecord};
use super::session::{Event, Session, View};
use super::shared::{Phase, Shared};
use super::splicing::Splicing;
use crate::config;
use crate::kafka::header;
use crate::kafka::rewrite::{Seen, SeenBroker};
use crate::upstream::{self, DialError, Endpoint, Observed, ObservedBroker, Target};

/// How long a closed connection waits for the client's FIN, so that answers just sent aren't lost to a reset.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes thrown away while lingering.
const LINGER_BYTES: usize = 1024 * 1024;

/// A dial may take this many times `connect_timeout` over all its candidates: two black holes, within the 30 s that
/// clients wait for a request by default.
const PATIENCE: u32 = 2;

/// Reads and writes of one poll (1 MiB each way) before other connections of the worker get their turn.
const ROUNDS: u32 = 8;

/// A broker that has said nothing at all for this long to a client that then gave up is tried last for a while: its
/// process may be frozen, and its host accepts for it.
const MUTE: Duration = Duration::from_millis(500);

/// How often a client that isn't read is looked at, whether it is still there.
const LOOK: Duration = Duration::from_secs(1);

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

/// See the module.
pub(crate) struct Connection {
    client: TcpStream,
    peer: SocketAddr,
    broker: Broker,
    session: Session,
    requests: Lane,
    answers: Lane,

    target: Target,
    dialled: Option<Endpoint>,
    dialled_at: Instant,
    /// The node's address is not known: a bootstrap broker stands in until a Metadata answer tells.
    provisional: bool,
    /// The answer that waits to be written names brokers whose ports are about to open.
    ports: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,

    /// The client will send nothing more, and everything it sent was read.
    client_eof: bool,
    /// The client can't be written to any more: its answers are dropped, what it sent is still passed on.
    client_dead: bool,
    /// What its socket said, if it failed.
    client_error: Option<io::Error>,
    /// Our FIN to the broker is out.
    broker_shut: bool,
    /// The broker has sent something: it is not one that accepts and says nothing, as a frozen process does.
    broker_spoke: bool,
    /// The broker will send nothing more.
    broker_eof: bool,
    /// The broker takes nothing more; what it sent is still delivered.
    broker_deaf: bool,

    /// The client sent what can't be passed on: the connection ends when its earlier requests are answered.
    ending: Option<CloseReason>,
    /// The broker's socket failed, or it sent what can't be passed on: the connection ends when the answers before are
    /// delivered.
    fault: Option<CloseReason>,

    phase: Phase,
    phases: watch::Receiver<Phase>,
    clock: Clock,
    timer: Pin<Box<Sleep>>,
    armed: Instant,

    splicing: Splicing,
    /// Bytes that the kernel had passed on when it was looked at last.
    forwarded: u64,

    reads: ConnectionReads,
    /// The target is out of reach: whatever any broker can answer, another one does, and Fetch the gateway.
    stands_in: bool,

    host: String,
    gauges: Gauges,
    shared: Arc<Shared>,
    record: Arc<ConnectionRecord>,
}

/// Serves a connection to its end.
pub(crate) async fn serve(connection: Box<Connection>) {
    if let Some((client, record)) = connection.run().await {
        linger(client).await;
        // Until here its socket counts against the limits, and a drain waits for it.
        drop(record);
    }
}

/// Sends a FIN and waits for the client's, so that answers just sent aren't lost to a reset.
async fn linger(mut client: TcpStream) {
    let goodbye = async {
        tokio::io::AsyncWriteExt::shutdown(&mut client).await?;
        let mut thrown = 0;
        while thrown < LINGER_BYTES {
            client.readable().await?;
            match client.try_read(&mut [0; 4096]) {
                Ok(0) => break,
                Ok(n) => thrown += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, goodbye).await;
}

impl Connection {
    /// A connection on which nothing has happened yet. Boxed, as it is large and handed around.
    pub(crate) fn new(accepted: Accepted) -> Box<Self> {
        let Accepted { client, peer, local, target, shared, phase: mut phases, record } = accepted;
        let now = Instant::now();
        let armed = now + Duration::from_secs(1);
        let phase = phases.borrow_and_update().clone();
        let mut session = Session::new();
        session.set_tap(shared.mirror().map(Mirroring::tap));
        Box::new(Self {
            client,
            peer,
            broker: Broker::Idle,
            session,
            requests: Lane::default(),
            answers: Lane::default(),
            target,
            dialled: None,
            dialled_at: now,
            provisional: false,
            ports: None,
            client_eof: false,
            client_dead: false,
            client_error: None,
            broker_shut: false,
            broker_spoke: false,
            broker_eof: false,
            broker_deaf: false,
            ending: None,
            fault: None,
            phase,
            phases,
            splicing: Splicing::default(),
            forwarded: 0,
            clock: Clock::new(now),
            timer: Box::pin(tokio::time::sleep_until(armed.into())),
            armed,
            reads: ConnectionReads::new(
                match target {
                    Target::Node(node) => Some(node),
                    Target::Bootstrap => None,
                },
                peer.ip(),
                local.ip(),
            ),
            stands_in: false,
            host: local.ip().to_canonical().to_string(),
            gauges: Gauges::new(Arc::clone(&shared)),
            shared,
            record,
        })
    }

    /// Serves to the end. Hands back the client's socket where it must be closed with care.
    async fn run(mut self: Box<Self>) -> Option<(TcpStream, Arc<ConnectionRecord>)> {
        let mut phases = self.phases.clone();
        let record = Arc::clone(&self.record);
        let reason = loop {
            tokio::select! {
                biased;
                call = record.called() => match call {
                    Call::Denied => break CloseReason::Denied,
                    Call::Torn => break CloseReason::SpliceLost,
                    Call::Look => {}
                },
                reason = poll_fn(|cx| self.poll(cx)) => break reason,
                changed = phases.changed() => {
                    if changed.is_err() {
                        break CloseReason::Stopped;
                    }
                    self.phase = phases.borrow_and_update().clone();
                }
            }
        };
        self.close(&reason)
    }

    /// Moves bytes until nothing moves any more. Ready with the reason when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if matches!(self.phase, Phase::Stop) {
            return Poll::Ready(CloseReason::Stopped);
        }
        let now = Instant::now();
        self.clock.wake(now);
        let shared = Arc::clone(&self.shared);
        let config = shared.config();
        self.look_at_splice(now, &config.limits);
        let mut rounds = 0;
        loop {
            match self.round(cx, &config) {
                Ok(true) => self.clock.moved(now),
                Ok(false) => break,
                Err(reason) => return Poll::Ready(reason),
            }
            rounds += 1;
            if rounds == ROUNDS {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if self.patience().is_some_and(|until| until <= now) && self.is_broker_dead(&config, now) {
            if self.splicing.session().is_some() {
                // Another broker can't take this one's place on the wire. The client's next connection goes elsewhere.
                return Poll::Ready(CloseReason::BrokerError(io::ErrorKind::TimedOut.into()));
            }
            if self.take_over(&config) {
                // What was said in its place is to be written.
                cx.waker().wake_by_ref();
            }
        }
        if rounds < ROUNDS && !self.splice(config.limits.in_flight as usize, now) {
            cx.waker().wake_by_ref();
        }
        if rounds < ROUNDS
            && let Some(reason) = self.over(&config.limits)
        {
            return Poll::Ready(reason);
        }
        self.requests.release();
        self.answers.release();
        self.session.release();
        self.gauge(&config.limits);
        self.poll_timers(cx, now, &config.limits)
    }

    /// Brings the gauges up to date with this connection's share.
    fn gauge(&mut self, limits: &config::Limits) {
        let pause = self.session.pause(&self.answers, limits.in_flight as usize);
        let level = Level {
            in_flight: self.session.in_flight(),
            held: self.session.held(),
            client_paused: !self.client_eof && (pause.is_some() || !self.requests.has_space()),
            pause,
            broker_paused: !self.broker_eof && !self.answers.has_space(),
        };
        self.gauges.set(level, &self.record);
        self.record.set_requests(self.session.begun());
        self.session.indexes().into_iter().for_each(|indexes| self.record.set_indexes(indexes));
    }

    /// One go at each socket. Whether anything moved; if not, whoever can move something next will wake this task.
    fn round(&mut self, cx: &mut Context<'_>, config: &config::VirtualCluster) -> Result<bool, CloseReason> {
        let mut moved = self.read_client(cx, &config.limits);
        if self.must_reach_first() {
            // Whom a Fetch goes to is known before it is looked at.
            self.reach_broker(cx)?;
        }
        if !self.must_reach_first() {
            self.parse(config, Lanes::Requests);
            self.say_own_answers(cx);
        }
        self.reach_broker(cx)?;
        moved |= self.write_broker(cx, &config.limits);
        moved |= self.read_broker(cx);
        self.parse(config, Lanes::Answers);
        if self.broker_eof && self.answers.unparsed().is_empty() && self.is_merely_gone() {
            moved |= self.take_over(config);
        }
        moved |= self.write_client(cx);
        Ok(moved)
    }

    /// Reads are routed, the client has sent something, and nobody was dialled yet.
    fn must_reach_first(&self) -> bool {
        matches!(self.broker, Broker::Idle | Broker::Dialling(_))
            && !self.stands_in
            && matches!(self.target, Target::Node(_))
            && self.shared.racks.is_on()
            // What is no Kafka, or not there yet, costs the cluster nothing.
            && self.requests.unparsed().first_chunk().is_some_and(|first| header::foreign(*first).is_none())
    }

    /// Nothing but its absence is to be said of the broker.
    fn is_merely_gone(&self) -> bool {
        matches!(self.fault, None | Some(CloseReason::BrokerError(_)))
    }

    fn is_broker_dead(&mut self, config: &config::VirtualCluster, now: Instant) -> bool {
        let reads = self.reads.on(&self.shared, config.broker_ports);
        let world = Mapping::new(config, &self.host, &self.shared, reads);
        self.session.is_broker_dead(&world, now)
    }

    /// When it is time to ask whether a broker that says nothing is dead. What the client does not take is not the broker's fault.
    fn patience(&self) -> Option<Instant> {
        let waits = matches!(self.broker, Broker::Open(_)) && !self.broker_eof && self.answers.waiting() == 0;
        self.session.patience().filter(|_| waits)
    }

    /// The broker is gone, or silent for too long: its readers are told where to read instead. Whether they are.
    fn take_over(&mut self, config: &config::VirtualCluster) -> bool {
        let Target::Node(node) = self.target else { return false };
        let reads = self.reads.on(&self.shared, config.broker_ports);
        let world = Mapping::new(config, &self.host, &self.shared, reads);
        if self.stands_in || self.client_dead || !self.session.take_over(&mut self.answers, &world) {
            return false;
        }
        hold_broker(&self.shared, self.shared.cluster(), node);
        drop_waiting(&mut self.requests);
        let unread = self.answers.unparsed().len();
        self.answers.skip(unread);
        self.broker = Broker::Idle;
        (self.broker_eof, self.broker_deaf, self.broker_shut, self.stands_in) = (false, false, false, true);
        self.fault = None;
        true
    }

    fn is_paused(&self, limits: &config::Limits) -> bool {
        self.session.pause(&self.answers, limits.in_flight as usize).is_some()
    }

    /// Requests that were read wait until the session goes on.
    fn has_backlog(&self, limits: &config::Limits) -> bool {
        self.is_paused(limits) && !self.requests.unparsed().is_empty()
    }

    fn wants_client(&self, limits: &config::Limits) -> bool {
        !self.client_eof
            && self.ending.is_none()
            && self.fault.is_none()
            && !self.resting()
            && !self.is_paused(limits)
            && self.requests.has_space()
    }

    fn is_draining(&self) -> bool {
        !matches!(self.phase, Phase::Serve)
    }

    /// A drain keeps the connection from beginning anything new.
    fn resting(&self) -> bool {
        self.is_draining() && !self.session.arriving(&self.requests).is_some_and(|arriving| arriving.begun)
    }

    fn read_client(&mut self, cx: &mut Context<'_>, limits: &config::Limits) -> bool {
        if !self.wants_client(limits) {
            return false;
        }
        let read = poll_read(&mut self.client, cx, self.requests.space());
        self.note_read(Side::Client, &read);
        match read {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => {
                self.client_eof = true;
                self.client_gave_up();
            }
            Poll::Ready(Ok(n)) => {
                self.requests.filled(n);
                self.record.count_request_bytes(n as u64);
                self.shared.metrics.request_bytes.inc_by(n as u64);
            }
            // What it sent before is still passed on (it may be acks=0), what it was owed is dropped.
            Poll::Ready(Err(error)) => {
                self.client_eof = true;
                self.client_failed(error);
            }
        }
        true
    }

    fn client_failed(&mut self, error: io::Error) {
        self.client_dead = true;
        self.client_error.get_or_insert(error);
        self.client_gave_up();
    }

    /// The client ended its side. One that was owed an answer by a broker that never said a word tells of that broker.
    fn client_gave_up(&mut self) {
        self.clock.client_ended(Instant::now());
        let mute = !self.broker_spoke && !self.broker_eof && self.dialled_at.elapsed() >= MUTE;
        if mute && self.session.oldest().is_some() {
            self.dialled.iter().for_each(|endpoint| self.shared.cluster().report(endpoint, false));
        }
    }

    fn read_broker(&mut self, cx: &mut Context<'_>) -> bool {
        let Broker::Open(broker) = &mut self.broker else { return false };
        if self.broker_eof || !self.answers.has_space() {
            return false;
        }
        let read = poll_read(broker, cx, self.answers.space());
        self.note_read(Side::Broker, &read);
        match read {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.broker_eof = true,
            Poll::Ready(Ok(n)) => {
                self.answers.filled(n);
                if !self.broker_spoke {
                    self.broker_spoke = true;
                    self.dialled.iter().for_each(|endpoint| self.shared.cluster().report(endpoint, true));
                }
            }
            Poll::Ready(Err(error)) => self.broker_failed(CloseReason::BrokerError(error)),
        }
        true
    }

    fn broker_failed(&mut self, reason: CloseReason) {
        self.broker_eof = true;
        self.fault.get_or_insert(reason);
    }

    fn parse(&mut self, config: &config::VirtualCluster, lanes: Lanes) {
        let nothing_new = match lanes {
            Lanes::Requests => self.requests.unparsed().is_empty() || self.ending.is_some(),
            // A socket that failed takes nothing from what was read of it before.
            Lanes::Answers => {
                self.answers.unparsed().is_empty()
                    || self.fault.as_ref().is_some_and(|fault| !matches!(fault, CloseReason::BrokerError(_)))
            }
        };
        if nothing_new {
            return;
        }
        let view = View {
            policy: config.versions,
            frame: config.limits.frame.0,
            rewrite_frame: config.limits.rewrite_frame.0,
            in_flight: config.limits.in_flight as usize,
            world: &Mapping::new(config, &self.host, &self.shared, self.reads.on(&self.shared, config.broker_ports)),
            draining: self.is_draining(),
            notes: self.splicing.notes(),
        };
        match lanes {
            Lanes::Requests => {
                if let Err(reason) = self.session.on_request_bytes(&mut self.requests, &mut self.answers, &view) {
                    // As at a broker, which would not have read this far: what was asked before is answered first.
                    self.ending = Some(reason);
                }
            }
            Lanes::Answers => {
                if let Err(reason) = self.session.on_answer_bytes(&mut self.answers, &view) {
                    self.broker_failed(reason);
                }
            }
        }
        for event in self.session.take_events() {
            match event {
                Event::Rewritten => {
                    self.shared.metrics.rewritten.inc();
                }
                Event::Answered => {
                    self.shared.metrics.answered.inc();
                }
                Event::ClientId(id) => {
                    self.reads.set_client_id(&id);
                    self.record.set_client_id(id);
                }
                Event::Software(name, version) => {
                    self.reads.set_software(&name);
                    self.record.set_software(&name, &version);
                }
                Event::Seen(mut seen) => {
                    let cluster = self.shared.cluster();
                    let topics = std::mem::take(&mut seen.topics);
                    if !topics.is_empty() {
                        cluster.learn(topics);
                    }
                    cluster.observe(observed(seen));
                    self.ports = self.shared.missing_ports().map(|ports| Box::pin(ports) as _);
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
    }

    /// Dials once there is something to send.
    fn reach_broker(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        if matches!(self.broker, Broker::Idle) && (self.requests.waiting() > 0 || self.must_reach_first()) {
            let cluster = self.shared.cluster();
            let target = if self.stands_in { Target::Bootstrap } else { self.target };
            let mut candidates = cluster.candidates(target);
            if candidates.is_empty() {
                self.provisional = self.target != Target::Bootstrap;
                candidates = cluster.candidates(Target::Bootstrap);
            }
            let timeout = cluster.connect_timeout();
            let opening = self.shared.opening();
            let seconds = self.shared.metrics.dial_seconds.clone();
            self.broker = Broker::Dialling(Box::pin(async move {
                let began = Instant::now();
                let dialled = upstream::dial(&candidates, timeout, timeout * PATIENCE, opening).await;
                seconds.observe(began.elapsed().as_secs_f64());
                dialled
            }));
        }
        if let Broker::Dialling(dial) = &mut self.broker
            && let Poll::Ready(result) = dial.as_mut().poll(cx)
        {
            match result {
                Ok((stream, endpoint)) => {
                    self.record.set_broker(&endpoint);
                    self.dialled = Some(endpoint);
                    self.dialled_at = Instant::now();
                    self.broker = Broker::Open(stream);
                }
                Err(error) => {
                    let cluster = self.shared.cluster();
                    if let DialError::Failed(attempts) = &error {
                        attempts.iter().for_each(|attempt| cluster.report(&attempt.endpoint, false));
                    }
                    cluster.poke();
                    self.shared.metrics.dial_failures.inc();
                    if let Target::Node(node) = self.target
                        && self.must_reach_first()
                    {
                        hold_broker(&self.shared, cluster, node);
                        self.session.stand_in();
                        self.stands_in = true;
                        self.broker = Broker::Idle;
                        return Ok(());
                    }
                    return Err(CloseReason::Unreachable(error));
                }
            }
        }
        Ok(())
    }

    fn write_broker(&mut self, cx: &mut Context<'_>, limits: &config::Limits) -> bool {
        let backlog = self.has_backlog(limits);
        let Broker::Open(broker) = &mut self.broker else { return false };
        if self.broker_deaf {
            return drop_waiting(&mut self.requests);
        }
        match poll_write(broker, cx, &mut self.requests) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => {}
            Poll::Ready(Ok(n)) => {
                self.splicing.wrote(Side::Client, n);
                return true;
            }
            Poll::Ready(Err(_)) => {
                self.broker_deaf = true;
                return true;
            }
        }
        if self.client_eof && !self.broker_shut && !backlog {
            self.broker_shut = true;
            // Every byte is written, so the FIN goes out behind them; an error here shows at the next read.
            let _ = Pin::new(broker).poll_shutdown(cx);
        }
        false
    }

    fn write_client(&mut self, cx: &mut Context<'_>) -> bool {
        if self.client_dead {
            return drop_waiting(&mut self.answers);
        }
        if let Some(ports) = &mut self.ports {
            if ports.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.ports = None;
        }
        match poll_write(&mut self.client, cx, &mut self.answers) {
            Poll::Ready(Ok(0)) | Poll::Pending => false,
            Poll::Ready(Ok(n)) => {
                self.splicing.wrote(Side::Broker, n);
                self.record.count_answer_bytes(n as u64);
                self.shared.metrics.answer_bytes.inc_by(n as u64);
                true
            }
            Poll::Ready(Err(error)) => {
                self.client_failed(error);
                true
            }
        }
    }

    /// Whether the connection has come to its end. Asked when nothing moves.
    fn over(&mut self, limits: &config::Limits) -> Option<CloseReason> {
        if self.must_reach_first() {
            return None;
        }
        let in_flight = self.session.in_flight();
        if self.broker_eof && self.answers.waiting() == 0 {
            // A broker that closes because the client did, at once or within a frame, is not to blame.
            let follows = self.client_dead || self.client_eof && (in_flight == 0 || self.is_cut_short());
            return Some(match self.fault.take() {
                None | Some(CloseReason::BrokerError(_)) if follows => self.client_end(),
                None => CloseReason::BrokerClosed { in_flight },
                Some(reason) => reason,
            });
        }
        if in_flight > 0 || self.answers.waiting() > 0 || self.requests.waiting() > 0 && !self.broker_deaf {
            return None;
        }
        if let Some(reason) = self.ending.take() {
            return Some(reason);
        }
        if self.stands_in && self.session.has_stood_in() {
            // The next connection may find the broker itself.
            return Some(CloseReason::StoodIn);
        }
        if self.client_eof && !self.has_backlog(limits) {
            return Some(self.client_end());
        }
        (self.is_draining() && self.session.at_rest()).then_some(CloseReason::Drained)
    }

    fn is_cut_short(&self) -> bool {
        self.client_eof && self.session.arriving(&self.requests).is_some()
    }

    /// What the client's end was.
    fn client_end(&mut self) -> CloseReason {
        match self.client_error.take() {
            Some(error) => CloseReason::ClientError(error),
            None if self.is_cut_short() => CloseReason::ClientGone { in_flight: self.session.in_flight() },
            None => CloseReason::ClientClosed,
        }
    }

    fn poll_timers(&mut self, cx: &mut Context<'_>, mut now: Instant, limits: &config::Limits) -> Poll<CloseReason> {
        let wants_client = self.wants_client(limits);
        let wait = Wait {
            in_flight: self.session.in_flight(),
            answers: self.answers.waiting() > 0,
            requests: self.requests.waiting() > 0,
            begun: self.session.begun(),
            client: self.session.arriving(&self.requests).filter(|_| wants_client && !self.splicing.has(Side::Client)),
            drain: match self.phase {
                Phase::Drain { until } => Some(until),
                Phase::Serve | Phase::Stop => None,
            },
        };
        // Who is spliced is not woken by what passes, and has no keepalive. Where nothing is in flight the idle limit ends
        // the wait; where something is, there is no other bound.
        let owed = self.splicing.is_live() && self.session.in_flight() > 0;
        let quiet = owed.then(|| self.clock.last_moved() + limits.idle.0);
        let patience = [self.patience(), quiet].into_iter().flatten().min();
        loop {
            if patience.is_some_and(|until| until <= now) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let looks = !wants_client && !self.clock.has_client_ended();
            if looks && has_hung_up(&self.client) {
                self.clock.client_ended(now);
                continue;
            }
            let due = self.clock.wait(now, &wait, limits);
            let next = match due {
                Some((at, reason)) if at <= now => return Poll::Ready(reason),
                Some((at, _)) if looks => at.min(now + LOOK),
                Some((at, _)) => at,
                None if looks => now + LOOK,
                // The sockets wake this task; so does, rarely, the timer as it stands.
                None if self.armed > now => self.armed,
                None => now + Duration::from_secs(3600),
            };
            let next = patience.map_or(next, |until| until.min(next));
            // A timer that fires too early costs less than moving it with every byte.
            if next < self.armed || self.armed <= now {
                self.armed = next;
                self.timer.as_mut().reset(next.into());
            }
            ready!(self.timer.as_mut().poll(cx));
            now = Instant::now().max(self.armed);
        }
    }

    /// Says farewell: the reason is counted and logged. Hands back what must linger, so that the client gets a FIN
    /// behind its last answer; everything else is given back here.
    fn close(self: Box<Self>, reason: &CloseReason) -> Option<(TcpStream, Arc<ConnectionRecord>)> {
        let Self { client, peer, client_dead, client_eof, shared, record, dialled, target, session, splicing, .. } =
            *self;
        record.count_kernel(&shared.metrics);
        drop(splicing);
        shared.closed(reason, peer, target, dialled.as_ref(), session.oldest());
        if matches!(reason, CloseReason::BrokerClosed { .. } | CloseReason::BrokerError(_)) {
            shared.cluster().poke();
        }
        if matches!(reason, CloseReason::Denied | CloseReason::SpliceLost) {
            // Nothing more is to pass, and where the kernel drops its packets no FIN is ever acknowledged.
            let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
            return None;
        }
        (!client_dead && !client_eof).then_some((client, record))
    }
}

/// Whether the client's FIN or reset has come, though what it sent is not read at the moment. Without a waker: the
/// runtime has noted it when it came.
fn has_hung_up(client: &TcpStream) -> bool {
    let noted = pin!(client.ready(Interest::PRIORITY)).poll(&mut Context::from_waker(Waker::noop()));
    matches!(noted, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

/// Nobody takes these any more. Whether there were any.
fn drop_waiting(lane: &mut Lane) -> bool {
    let waiting = lane.waiting();
    lane.wrote(waiting);
    waiting > 0
}

/// What an answer said, in the terms of the topology.
fn observed(seen: Seen) -> Observed {
    let Seen { brokers, cluster_id, controller, complete, topics: _ } = seen;
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
enum Lanes {
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
    // One piece needs no vector: send(2) costs the kernel less than writev(2).
    let written = match &slices[..used] {
        [only] => Pin::new(stream).poll_write(cx, only),
        several => Pin::new(stream).poll_write_vectored(cx, several),
    };
    let n = ready!(written)?;
    if n == 0 {
        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
    }
    lane.wrote(n);
    Poll::Ready(Ok(n))
}
