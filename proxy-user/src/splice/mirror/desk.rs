//! Where the kernel's copies find their connection, and what is missing is given up.
//!
//! Pieces come from the thread that reads the ring; bytes of the daemon's own come from the worker that relays them
//! ([`super::Tap`]). Both take the connection's lock for as long as it takes to copy them. A piece is in the ring some
//! microseconds after its packet was marked, so what is missing though the ring was read is waited for a little
//! ([`PATIENCE`]), and then lost.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proxy_common::splice::mirror::Head;

use super::assembly::{Assembly, Room};
use super::{ConnectionId, Event, Mirrored};
use crate::splice::session::Watch;

/// How often [`Mirror::look`] is to be called while [`Mirror::is_waiting`].
pub const LOOK: Duration = Duration::from_millis(20);

/// How long something may be missing though the ring was read. Far above what a packet's way through the program takes, also
/// on a virtual CPU that is taken away in between.
const PATIENCE: Duration = Duration::from_millis(100);

/// After the end of a connection: what the kernel still passes on of it until its sockets are closed.
const FAREWELL: Duration = Duration::from_millis(200);

/// A connection's part of the mirror.
pub(super) struct Feed {
    id: ConnectionId,
    consumer: Arc<dyn Mirrored>,
    assembly: Mutex<Assembly>,
    /// It is among those that are looked at.
    is_listed: AtomicBool,
}

/// A session: the ring that its copies come by, and its slot.
pub(super) type Key = (u64, u32);

/// A connection that the kernel has a part of.
struct Spliced {
    watch: Watch,
    /// Index of the connection's frame that is the session's first.
    base: u32,
    feed: Arc<Feed>,
    /// When the daemon was done with it.
    ended: Option<Instant>,
    /// What is waited for, and since when.
    since: Option<([(u32, u32); 2], Instant)>,
}

/// See the module. One for the process.
pub struct Mirror {
    room: Room,
    next: AtomicU64,
    rings: AtomicU64,
    spliced: Mutex<BTreeMap<Key, Spliced>>,
    /// Those for which something is missing.
    waiting: Mutex<Vec<Key>>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("room", &self.room).finish_non_exhaustive()
    }
}

/// A poisoned lock means that a consumer panicked; what is behind it is as good as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// Does something with the assembly, and gives what comes out. Whether something is missing.
    pub(super) fn with(&self, work: impl FnOnce(&mut Assembly, &mut dyn FnMut(Event))) -> bool {
        let mut assembly = lock(&self.assembly);
        work(&mut assembly, &mut |event| self.consumer.take(self.id, event));
        assembly.is_waiting()
    }
}

impl Mirror {
    /// With so many bytes for frames that aren't whole.
    #[must_use]
    pub fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            room: Room::new(room),
            next: AtomicU64::new(0),
            rings: AtomicU64::new(0),
            spliced: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// Bytes of frames that aren't whole.
    #[must_use]
    pub fn used(&self) -> usize {
        self.room.used()
    }

    pub(super) fn feed(&self, consumer: Arc<dyn Mirrored>) -> Arc<Feed> {
        let id = ConnectionId(self.next.fetch_add(1, Ordering::Relaxed));
        Arc::new(Feed { id, consumer, assembly: Mutex::default(), is_listed: AtomicBool::new(false) })
    }

    /// A number for one more ring, whose slots are others than those of the rings before.
    pub fn ring(&self) -> u64 {
        self.rings.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The kernel may have a part of the connection from now on.
    pub(super) fn enter(&self, watch: Watch, base: u32, feed: &Arc<Feed>) -> Key {
        let key = (watch.ring(), watch.index());
        let spliced = Spliced { watch, base, feed: Arc::clone(feed), ended: None, since: None };
        let before = lock(&self.spliced).insert(key, spliced);
        // Its slot was given to another session: whatever is missing of it is gone.
        before.into_iter().for_each(|before| self.finish(&before));
        key
    }

    /// The kernel had no part of it, and won't.
    pub(super) fn leave(&self, key: Key, feed: &Arc<Feed>) {
        let mut all = lock(&self.spliced);
        if all.get(&key).is_some_and(|spliced| Arc::ptr_eq(&spliced.feed, feed)) {
            all.remove(&key);
        }
    }

    /// The daemon is done with the connection.
    pub(super) fn end(&self, key: Key, feed: &Arc<Feed>, now: Instant) {
        let mut all = lock(&self.spliced);
        if let Some(spliced) = all.get_mut(&key).filter(|spliced| Arc::ptr_eq(&spliced.feed, feed)) {
            spliced.ended = Some(now);
        }
        drop(all);
        self.list(key, feed);
    }

    /// Something is missing for a connection.
    pub(super) fn list(&self, key: Key, feed: &Feed) {
        if !feed.is_listed.swap(true, Ordering::Relaxed) {
            lock(&self.waiting).push(key);
        }
    }

    /// Takes what stands in a ring: a piece's head and its bytes, and maybe more behind them.
    pub fn piece(&self, ring: u64, record: &[u8]) {
        let Some((head, bytes)) = record.split_at_checked(size_of::<Head>()) else { return };
        // SAFETY: there are as many bytes as the head has, which is made of integers (`Plain`).
        let mut head = unsafe { head.as_ptr().cast::<Head>().read_unaligned() };
        let Some(bytes) = bytes.get(..head.length as usize) else { return };
        let key = (ring, head.session);
        let feed = match lock(&self.spliced).get(&key) {
            Some(spliced) if spliced.watch.generation() == head.generation => {
                head.frames = head.frames.wrapping_add(spliced.base);
                Arc::clone(&spliced.feed)
            }
            // Of a connection without a consumer, or one that was finished.
            Some(_) | None => return,
        };
        if feed.with(|assembly, give| assembly.piece(head, bytes, &self.room, give)) {
            self.list(key, &feed);
        }
    }

    /// Whether something is missing, so that it must be looked at.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }

    /// Looks at what is missing, and gives up what will not come. To be called when everything was read that stood in the
    /// ring at the last call.
    pub fn look(&self, now: Instant) {
        let mut listed = mem::take(&mut *lock(&self.waiting));
        listed.retain(|key| self.look_at(*key, now));
        lock(&self.waiting).append(&mut listed);
    }

    /// Whether it has to be looked at again.
    fn look_at(&self, key: Key, now: Instant) -> bool {
        let mut all = lock(&self.spliced);
        let Some(spliced) = all.get_mut(&key) else { return false };
        let feed = Arc::clone(&spliced.feed);
        // Before it is looked at: who finds something missing from here on lists it anew.
        feed.is_listed.store(false, Ordering::Relaxed);
        let has_ended = spliced.ended.is_some_and(|ended| now >= ended + FAREWELL);
        let tallies = if has_ended { Some(spliced.watch.tallies()) } else { None };
        let mut is_over = false;
        let is_waiting = feed.with(|assembly, give| {
            if let Some(tallies) = tallies {
                assembly.end(tallies.unwrap_or_default(), &self.room, give);
            }
            let progress = assembly.progress();
            match spliced.since {
                Some((before, since)) if before == progress => {
                    if now >= since + PATIENCE {
                        assembly.give_up(&self.room, give);
                        spliced.since = None;
                    }
                }
                _ => spliced.since = Some((progress, now)),
            }
            is_over = assembly.is_over();
        });
        if is_over {
            all.remove(&key);
            return false;
        }
        if is_waiting || spliced.ended.is_some() {
            return !feed.is_listed.swap(true, Ordering::Relaxed);
        }
        spliced.since = None;
        false
    }

    /// Ends it as it is.
    fn finish(&self, spliced: &Spliced) {
        let tallies = spliced.watch.tallies().unwrap_or_default();
        spliced.feed.with(|assembly, give| {
            assembly.end(tallies, &self.room, give);
            while !assembly.is_over() {
                assembly.give_up(&self.room, give);
            }
        });
    }
}
