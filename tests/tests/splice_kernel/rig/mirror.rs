//! The mirror of a trial: the daemon's own, with a reader of the ring, and somebody who checks every frame.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use aya::maps::{MapData, RingBuf};
use proxy_common::flows::{Recalled, Slot};
use proxy_common::splice::state::Side;
use turnout::splice::mirror::{Cause, ConnectionId, Event, LOOK, Mirror, Mirrored, Tap};
use turnout::splice::session::{Keeper, Place, Session};

use super::daemon::Shared;
use super::traffic::check_copy;

/// Memory for frames that aren't whole.
const ROOM: usize = 64 << 20;

/// Sessions whose memory the mirror looks into.
struct Slots(Vec<Shared>);

// SAFETY: the slots are mapped for longer than the mirror of a trial lives, and each has one session.
unsafe impl Keeper for Slots {
    fn slot(&self, index: u32) -> *const Slot {
        self.0[index as usize].0
    }

    fn recall(&self, _: u32, _: u32, _: Side) -> Recalled {
        Recalled::Unknown
    }

    fn is_whole(&self, _: u32, _: std::os::fd::BorrowedFd<'_>, _: std::os::fd::BorrowedFd<'_>) -> bool {
        true
    }

    fn stands(&self, _: u32) -> bool {
        true
    }

    fn end(&self, _: u32, _: u32) {}
}

// SAFETY: as for the slot's pointer itself: what is read by several threads are whole words.
unsafe impl Sync for Slots {}

/// What was copied of all connections, by direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub(super) frames: [u64; 2],
    pub(super) bytes: u64,
    pub(super) lost: [u64; 2],
    /// Of those, lost by anything but a full ring or want of memory.
    pub(super) torn: u64,
    pub(super) ended: u64,
}

/// Checks every frame, and counts.
#[derive(Default)]
struct Checker {
    copied: Mutex<Copied>,
    /// By connection and direction: the index that comes next, or a later one.
    next: Mutex<HashMap<(ConnectionId, usize), u32>>,
}

impl Mirrored for Checker {
    fn take(&self, connection: ConnectionId, event: Event) {
        let mut copied = self.copied.lock().expect("no panic");
        match event {
            Event::Frame { side, index, frame } => {
                let index = index.expect("every request gets an answer");
                check_copy(side, index, &frame);
                let mut next = self.next.lock().expect("no panic");
                let next = next.entry((connection, side.index())).or_default();
                assert!(index >= *next, "{side:?} {index} comes after {next}");
                *next = index + 1;
                copied.frames[side.index()] += 1;
                copied.bytes += frame.len() as u64;
            }
            Event::Lost { side, frames, cause } => {
                copied.lost[side.index()] += u64::from(frames);
                copied.torn += u64::from(matches!(cause, Cause::Torn | Cause::Cut)) * u64::from(frames);
            }
            Event::Ended => copied.ended += 1,
        }
    }
}

/// A trial's mirror.
pub(super) struct Trial {
    mirror: Arc<Mirror>,
    checker: Arc<Checker>,
    over: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Trial {
    /// Reads a ring from now on.
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        let (mirror, over) = (Mirror::new(ROOM), Arc::new(AtomicBool::new(false)));
        let reader = thread::spawn({
            let (mirror, over) = (Arc::clone(&mirror), Arc::clone(&over));
            move || read(ring, &mirror, &over)
        });
        Self { mirror, checker: Arc::default(), over, reader }
    }

    /// Of a connection whose session has this slot.
    pub(super) fn tap(&self, slots: &[Shared], session: u32, generation: u32) -> (Tap, Session) {
        let place = Place { reads: 0, writes: 0 };
        let session = Session::new(Arc::new(Slots(slots.to_vec())), session, generation, [place; 2]);
        let mut tap = Tap::new(&self.mirror, Arc::<Checker>::clone(&self.checker));
        tap.splice(&session, 0);
        (tap, session)
    }

    /// What has come, once so many connections have ended.
    pub(super) fn finish(self, connections: u64) -> Copied {
        let patience = Instant::now() + std::time::Duration::from_secs(10);
        while self.checker.copied.lock().expect("no panic").ended < connections {
            assert!(Instant::now() < patience, "connections are not ended: {:?}", self.checker.copied);
            thread::sleep(LOOK);
        }
        self.over.store(true, Ordering::Relaxed);
        self.reader.join().expect("the reader does not panic");
        assert_eq!(self.mirror.used(), 0, "everything is given back");
        *self.checker.copied.lock().expect("no panic")
    }
}

fn read(mut ring: RingBuf<MapData>, mirror: &Mirror, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        while let Some(record) = ring.next() {
            mirror.piece(0, &record);
        }
        mirror.look(Instant::now());
        let mut poll = libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one of them.
        unsafe { libc::poll(&raw mut poll, 1, LOOK.as_millis() as libc::c_int) };
    }
}
