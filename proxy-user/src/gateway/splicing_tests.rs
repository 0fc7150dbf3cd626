//! When a connection's directions are the kernel's. The kernel is memory that the tests change by the machine's own rules.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use proxy_common::flows::{Recalled, Slot};
use proxy_common::splice::notes::{Kind, Note};
use proxy_common::splice::policy::Policy;
use proxy_common::splice::seq::{InLocal, InWire, OutLocal};
use proxy_common::splice::state::{Dir, Origin, Side};
use proxy_common::splice::switch;
use tokio::net::{TcpListener, TcpStream};

use super::lane::Lane;
use super::session::{Session, View};
use super::session_tests::{HEARTBEAT, answer, request, view};
use super::splicing::{Access, Splicing};
use crate::metrics::Metrics;
use crate::splice::eligible::Obstacle;
use crate::splice::session::{Keeper, Opening, Place, Refusal, Session as KernelSession, Splicer};

const PLACES: [Place; 2] = [Place { reads: 1000, writes: 2000 }, Place { reads: 3000, writes: u32::MAX - 4 }];

/// One session's memory, and what was asked of it.
pub(super) struct Kernel {
    slot: Mutex<Box<Slot>>,
    is_whole: AtomicBool,
    stands: AtomicBool,
    ended: AtomicU32,
    refuses: Mutex<Option<Obstacle>>,
}

// SAFETY: the box stays where it is for the keeper's life. The tests change it between calls, on one thread.
unsafe impl Keeper for Kernel {
    fn slot(&self, _: u32) -> *const Slot {
        &raw const **self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recall(&self, _: u32, _: u32, side: Side) -> Recalled {
        let was_peer = self.dir(side, switch::recall);
        if was_peer { Recalled::WasPeer } else { Recalled::WasLocal }
    }

    fn is_whole(&self, _: u32, _: BorrowedFd<'_>, _: BorrowedFd<'_>) -> bool {
        self.is_whole.load(Relaxed)
    }

    fn stands(&self, _: u32) -> bool {
        self.stands.load(Relaxed)
    }

    fn end(&self, _: u32, _: u32) {
        self.ended.fetch_add(1, Relaxed);
    }
}

impl Kernel {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            slot: Mutex::new(Box::default()),
            is_whole: AtomicBool::new(true),
            stands: AtomicBool::new(true),
            ended: AtomicU32::new(0),
            refuses: Mutex::default(),
        })
    }

    /// One that refuses every connection, as the kernel does on loopback.
    pub(super) fn of_loopback() -> Arc<Self> {
        let kernel = Self::new();
        *kernel.refuses.lock().unwrap_or_else(PoisonError::into_inner) = Some(Obstacle::Loopback(Side::Client));
        kernel
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        change(&mut self.slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn dir<T>(&self, side: Side, change: impl FnOnce(&mut Dir) -> T) -> T {
        self.change(|slot| change(&mut slot.session.dirs[side.index()]))
    }

    pub(super) fn arm(&self, side: Side) -> Option<(u32, u32, u32, u32)> {
        let armed = self.change(|slot| slot.session.arms[side.index()].read())?;
        let (InLocal(at), OutLocal(sent)) = (armed.at, armed.sent);
        Some((at, sent, armed.frames, armed.remain))
    }

    /// Forwards by the arm that is given: so many bytes, in which this many frames begin, and the last lacks some.
    fn forwards(&self, side: Side, bytes: u32, frames: u32, remain: u32) {
        self.change(|slot| {
            let armed = slot.session.arms[side.index()].read().expect("leave was given");
            let d = &mut slot.session.dirs[side.index()];
            assert_eq!(armed.epoch, d.epoch, "an arm names its epoch");
            let seq = InWire(armed.at.0.wrapping_add(d.k));
            switch::to_peer(d, seq, &armed);
            d.exp = d.exp.plus(bytes);
            d.frames = d.frames.wrapping_add(frames);
            d.remain = remain;
            slot.traffic[side.index()].bytes += u64::from(bytes);
            slot.traffic[side.index()].packets += 1;
        });
    }

    fn takes_back(&self, side: Side) {
        self.dir(side, switch::to_local);
    }
}

/// A session of it.
pub(super) fn kernel_session(kernel: &Arc<Kernel>) -> KernelSession {
    kernel.change(|slot| *slot = Slot { generation: 1, ..Slot::default() });
    KernelSession::new(Arc::clone(kernel) as Arc<dyn Keeper>, 7, 1, PLACES)
}

pub(super) struct Source(pub(super) Arc<Kernel>);

impl Splicer for Source {
    fn begin(&self, _: BorrowedFd<'_>, _: BorrowedFd<'_>, _: u16) -> Result<KernelSession, Refusal> {
        if let Some(obstacle) = *self.0.refuses.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Refusal::Obstacle(obstacle));
        }
        self.0.change(|slot| {
            *slot = Slot { generation: 1, ..Slot::default() };
            let [client, broker] = PLACES;
            let origin = |x: Place, y: Place| Origin {
                rcv_nxt: x.reads,
                unread: 0,
                write_seq: y.writes,
                unacked: 0,
                x_scale: 0,
                y_scale: 0,
                x_window: 60_000,
                x_had_early: false,
                y_window: 60_000,
                y_wl: y.reads,
            };
            slot.session.dirs = [Dir::new(&origin(client, broker)), Dir::new(&origin(broker, client))];
        });
        Ok(KernelSession::new(Arc::clone(&self.0) as Arc<dyn Keeper>, 7, 1, PLACES))
    }

    fn set_policy(&self, _: u16, _: &Policy) -> anyhow::Result<()> {
        Ok(())
    }

    fn opening(&self) -> Opening {
        Opening { mark: 1, receive_buffer: 65_536 }
    }
}

/// A connection without traffic on its sockets: what is read and written is said, not done.
struct World {
    kernel: Arc<Kernel>,
    access: Access,
    splicing: Splicing,
    session: Session,
    requests: Lane,
    answers: Lane,
    sockets: [TcpStream; 2],
    metrics: Metrics,
    now: Instant,
}

impl World {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let kernel = Kernel::new();
        let access = Access { splicer: Arc::new(Source(Arc::clone(&kernel))), policy: 0 };
        let mut world = Self {
            kernel,
            access,
            splicing: Splicing::default(),
            session: Session::new(),
            requests: Lane::default(),
            answers: Lane::default(),
            sockets: [one.unwrap(), other.unwrap().0],
            metrics: Metrics::default(),
            now: Instant::now(),
        };
        world.request(&request(HEARTBEAT, 0, 0, b""));
        world.answer(&answer(0, b""));
        assert!(world.session.can_splice());
        world
    }

    fn begin(&mut self) {
        let [client, broker] = &self.sockets;
        let metrics = self.metrics.virtual_cluster("orders");
        self.splicing.begin(&self.access, client, broker, &mut self.session, &metrics, self.now);
    }

    /// Spliced, and all roles seen.
    async fn spliced() -> Self {
        let mut world = Self::new().await;
        world.begin();
        world.kernel.change(|slot| slot.seen = 0b1111);
        world.reads(Side::Client, 0);
        world.reads(Side::Broker, 0);
        world
    }

    /// Nothing more is there to read, after so many bytes.
    fn reads(&mut self, side: Side, length: usize) {
        if length > 0 {
            self.splicing.read(side, length, &mut self.session, self.now);
        }
        self.splicing.drained(side);
    }

    fn arm(&mut self) {
        let [client, broker] = &self.sockets;
        self.splicing.arm(&mut self.session, [&self.requests, &self.answers], client, broker, self.now);
    }

    fn answer(&mut self, frame: &[u8]) {
        self.answers.space()[..frame.len()].copy_from_slice(frame);
        self.answers.filled(frame.len());
        self.session.on_answer_bytes(&mut self.answers, &view(false)).unwrap();
        assert_eq!(self.answers.waiting(), frame.len());
        self.answers.wrote(frame.len());
    }

    fn request(&mut self, frame: &[u8]) {
        self.reads(Side::Client, frame.len());
        self.requests.space()[..frame.len()].copy_from_slice(frame);
        self.requests.filled(frame.len());
        self.session.on_request_bytes(&mut self.requests, &mut self.answers, &view(false)).unwrap();
        let waiting = self.requests.waiting();
        self.requests.wrote(waiting);
        self.splicing.wrote(Side::Client, waiting);
    }
}

#[tokio::test]
async fn leave_is_given_once_every_role_was_seen_and_says_where_the_daemon_is() {
    let mut world = World::new().await;
    world.begin();
    assert!(world.splicing.is_live());
    world.arm();
    assert_eq!(world.kernel.arm(Side::Client), None, "nobody knows yet that all packets pass the programs");
    world.kernel.change(|slot| slot.seen = 0b1111);
    world.arm();
    assert_eq!(world.kernel.arm(Side::Client), None, "a read has not yet found nothing");
    let frame = request(HEARTBEAT, 0, 1, b"");
    world.request(&frame);
    world.reads(Side::Broker, 0);
    world.arm();
    let length = frame.len() as u32;
    assert_eq!(world.kernel.arm(Side::Client), Some((1000 + length, (u32::MAX - 4).wrapping_add(length), 1, 0)));
    assert_eq!(world.kernel.arm(Side::Broker), Some((3000, 2000, 0, 0)));
}

#[tokio::test]
async fn bytes_that_come_after_a_turn_of_the_kernels_are_read_from_where_it_stopped() {
    let mut world = World::spliced().await;
    world.arm();
    world.kernel.forwards(Side::Client, 500, 3, 20);
    assert!(world.splicing.has(Side::Client) && !world.splicing.has(Side::Broker));
    world.splicing.look(&mut world.session);
    assert_eq!(world.session.in_flight(), 3);
    world.kernel.takes_back(Side::Client);
    world.reads(Side::Client, 20);
    assert!(!world.splicing.has(Side::Client));
    assert_eq!(world.session.requests_at(&world.requests), Some((3, 20)), "the rest of a frame comes first");
    assert_eq!(world.session.in_flight(), 3);
    world.arm();
    assert_eq!(world.kernel.arm(Side::Client).map(|arm| arm.0), Some(1020), "what was forwarded is not x's");
}

#[tokio::test]
async fn an_answer_is_expected_however_late_the_kernel_passed_its_request_on() {
    let mut world = World::spliced().await;
    world.arm();
    world.splicing.look(&mut world.session);
    world.kernel.forwards(Side::Client, 500, 1, 0);
    world.kernel.change(|slot| slot.session.notes.set(0, Note { kind: Kind::Plain, mirrored: false }));
    let frame = answer(1, b"");
    world.reads(Side::Broker, frame.len());
    world.answers.space()[..frame.len()].copy_from_slice(&frame);
    world.answers.filled(frame.len());
    let view = View { notes: world.splicing.notes(), ..view(false) };
    world.session.on_answer_bytes(&mut world.answers, &view).expect("it was asked for");
    assert_eq!((world.answers.waiting(), world.session.in_flight()), (frame.len(), 0));
}

#[tokio::test]
async fn what_is_over_is_taken_back_for_good() {
    let mut world = World::spliced().await;
    world.arm();
    world.kernel.forwards(Side::Client, 500, 2, 0);
    world.kernel.forwards(Side::Broker, 100, 1, 7);
    assert!(world.splicing.stop(&mut world.session, world.now));
    assert!(!world.splicing.is_live() && world.splicing.session().is_some(), "its bytes are still translated");
    assert_eq!(world.session.in_flight(), 2, "one answer is under way");
    assert_eq!(world.session.answers_at(&world.answers), Some((1, 7)));
    world.reads(Side::Client, 0);
    world.arm();
    assert_eq!(world.kernel.arm(Side::Client), None);
    let spliced = world.metrics.virtual_cluster("orders").spliced;
    assert_eq!(spliced.get(), 1);
    drop(world.splicing);
    assert_eq!((spliced.get(), world.kernel.ended.load(Relaxed)), (0, 1));
}

#[tokio::test]
async fn answers_that_the_gateway_has_something_to_say_between_are_taken_back() {
    let mut world = World::spliced().await;
    world.arm();
    world.kernel.forwards(Side::Client, 100, 2, 0);
    world.kernel.forwards(Side::Broker, 50, 1, 0);
    world.kernel.takes_back(Side::Client);
    world.request(&super::session_tests::api_versions_99(9));
    assert!(world.session.owes() && world.answers.waiting() == 0);
    assert!(world.splicing.recall_answers(&mut world.session, world.now));
    world.session.say_own(&mut world.answers);
    assert_eq!(world.answers.waiting(), 0, "one answer is due before it");
    assert_eq!(world.session.in_flight(), 2);
}

#[tokio::test]
async fn a_session_that_something_came_past_is_given_up_before_it_matters() {
    let mut world = World::spliced().await;
    world.kernel.is_whole.store(false, Relaxed);
    world.arm();
    assert!(world.splicing.session().is_none() && world.kernel.arm(Side::Client).is_none());
    assert!(world.splicing.why_not().is_some_and(|why| why.contains("past the programs")));
    let frame = request(HEARTBEAT, 0, 1, b"");
    world.request(&frame);
    // Served as ever.
    world.answer(&answer(1, b""));
    for _ in 0..2 {
        world.now += Duration::from_secs(6);
        assert!(world.splicing.is_due(world.now));
        world.begin();
        world.kernel.change(|slot| slot.seen = 0b1111);
        world.arm();
    }
    world.now += Duration::from_secs(60);
    assert!(!world.splicing.is_due(world.now), "three times is enough");
}

#[tokio::test]
async fn what_can_pass_is_tried_again_and_what_was_agreed_on_is_not() {
    for (obstacle, again) in
        [(Obstacle::Distance(Duration::from_millis(120)), true), (Obstacle::Timestamps(Side::Client), false)]
    {
        let mut world = World::new().await;
        *world.kernel.refuses.lock().unwrap() = Some(obstacle);
        assert!(world.splicing.is_due(world.now));
        world.begin();
        assert_eq!(world.splicing.why_not(), Some(obstacle.to_string().as_str()));
        assert!(!world.splicing.is_due(world.now));
        assert_eq!(world.splicing.is_due(world.now + Duration::from_secs(6)), again, "{obstacle}");
        let counted = world.metrics.virtual_cluster("orders").not_spliced.snapshot();
        assert_eq!(counted.get(obstacle.label()), Some(&1));
    }
}

#[tokio::test]
async fn a_session_needs_the_programs_once_the_kernel_has_forwarded() {
    let mut world = World::spliced().await;
    world.kernel.stands.store(false, Relaxed);
    world.arm();
    assert!(world.splicing.session().is_some_and(|session| session.stands()), "nothing is translated yet");
    world.kernel.forwards(Side::Client, 500, 1, 0);
    assert!(world.splicing.session().is_some_and(|session| !session.stands()));
}

#[tokio::test]
async fn a_direction_that_switches_for_nothing_stays_the_daemons_for_a_while() {
    let mut world = World::spliced().await;
    let mut turns = 0;
    while turns < 100 {
        world.reads(Side::Client, 1);
        world.arm();
        if world.kernel.arm(Side::Client).is_none_or(|arm| arm.0 != 1000 + turns + 1) {
            break;
        }
        turns += 1;
        world.kernel.forwards(Side::Client, 30, 0, 0);
        world.kernel.takes_back(Side::Client);
    }
    assert_eq!(turns, 16);
    world.now += Duration::from_millis(25);
    world.reads(Side::Client, 1);
    world.arm();
    world.kernel.forwards(Side::Client, 30, 0, 0);
}
