//! Where copies wait for the mainline's answer.
//!
//! A request is held under its connection and its place among that connection's requests: correlation ids may repeat,
//! answers come in order. Connections are spread over shards, so that no lock is one for all. What is held is bounded in
//! bytes and age, and whatever leaves without an answer leaves by a door that says why.
//!
//! ```text
//!   hold ─► [held] ─┬─ release (answered) ──► settle: per partition dispatched, refused, or unclear
//!      │            ├─ connection lost ─────► orphans: a retry may still tell, until their time is over
//!      │            ├─ expire ──────────────► missing (age)
//!      │            └─ drain ───────────────► missing (shutdown, removed)
//!      └─ no room ──────────────────────────► missing (bytes)
//! ```

mod orphans;
mod settle;
mod wheel;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use orphans::Orphans;
pub use settle::{Ending, Fate, HeldBatch, HeldRequest, Settled, TopicKey, fate, settle};
use wheel::{Tick, Wheel};

/// A client's connection, for as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// Its connection.
    pub connection: ConnectionId,
    /// Its place among the connection's requests.
    pub ordinal: u64,
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all requests held.
    pub bytes: usize,
    /// Time that a request is held.
    pub age: Duration,
}

/// Requests, or what is to be kept of them.
#[derive(Debug)]
pub struct Purgatory<T> {
    bounds: Bounds,
    held: AtomicUsize,
    shards: Box<[Mutex<Shard<T>>]>,
}

#[derive(Debug)]
struct Shard<T> {
    connections: HashMap<ConnectionId, BTreeMap<u64, Entry<T>>>,
    wheel: Wheel<RequestKey>,
}

#[derive(Debug)]
struct Entry<T> {
    what: T,
    bytes: usize,
    timer: Tick,
}

impl<T> Purgatory<T> {
    /// An empty one. `shards`: about as many as threads use it at once.
    #[must_use]
    pub fn new(bounds: Bounds, shards: usize, now: Instant) -> Self {
        let shard = || Shard { connections: HashMap::new(), wheel: Wheel::new(bounds.age, now) };
        Self { bounds, held: AtomicUsize::new(0), shards: (0..shards.max(1)).map(|_| Mutex::new(shard())).collect() }
    }

    /// Holds a request of `bytes` until its answer, its connection's end or its time.
    ///
    /// # Errors
    /// Gives it back when there is no room, or when that place of the connection is taken.
    pub fn hold(&self, key: RequestKey, bytes: usize, what: T, now: Instant) -> Result<(), T> {
        let room = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= self.bounds.bytes);
        if self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return Err(what);
        }
        let mut shard = self.shard(key.connection);
        let Shard { connections, wheel } = &mut *shard;
        let requests = connections.entry(key.connection).or_default();
        if requests.contains_key(&key.ordinal) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(what);
        }
        let timer = wheel.add(key, now + self.bounds.age);
        requests.insert(key.ordinal, Entry { what, bytes, timer });
        Ok(())
    }

    /// Gives out the request that was answered, if it is still held.
    pub fn release(&self, key: RequestKey) -> Option<T> {
        let mut shard = self.shard(key.connection);
        let entry = shard.take(key)?;
        shard.wheel.remove(&key, entry.timer);
        Some(self.leave(entry))
    }

    /// Gives out what a connection left behind, in order, each with its place.
    pub fn connection_ended(&self, connection: ConnectionId) -> Vec<(u64, T)> {
        let mut shard = self.shard(connection);
        let requests = shard.connections.remove(&connection).unwrap_or_default();
        let mut left = Vec::with_capacity(requests.len());
        for (ordinal, entry) in requests {
            shard.wheel.remove(&RequestKey { connection, ordinal }, entry.timer);
            left.push((ordinal, self.leave(entry)));
        }
        left
    }

    /// Gives out the requests whose time is over.
    pub fn expire(&self, now: Instant) -> Vec<T> {
        let mut expired = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            for key in shard.wheel.fire(now) {
                expired.extend(shard.take(key).map(|entry| self.leave(entry)));
            }
        }
        expired
    }

    /// Gives out everything.
    pub fn drain(&self) -> Vec<T> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let connections = std::mem::take(&mut shard.connections);
            for (connection, requests) in connections {
                for (ordinal, entry) in requests {
                    shard.wheel.remove(&RequestKey { connection, ordinal }, entry.timer);
                    all.push(self.leave(entry));
                }
            }
        }
        all
    }

    /// Bytes held now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn leave(&self, entry: Entry<T>) -> T {
        self.held.fetch_sub(entry.bytes, Ordering::Relaxed);
        entry.what
    }

    fn shard(&self, connection: ConnectionId) -> MutexGuard<'_, Shard<T>> {
        // Ids are counted up, so they spread by themselves.
        lock(&self.shards[(connection.0 % self.shards.len() as u64) as usize])
    }
}

impl<T> Shard<T> {
    /// Takes a request out, its timer apart.
    fn take(&mut self, key: RequestKey) -> Option<Entry<T>> {
        let requests = self.connections.get_mut(&key.connection)?;
        let entry = requests.remove(&key.ordinal);
        if requests.is_empty() {
            self.connections.remove(&key.connection);
        }
        entry
    }
}

/// A poisoned lock only means that another thread panicked between two steps that each leave the shard whole.
fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 1000, age: Duration::from_secs(30) };

    fn key(connection: u64, ordinal: u64) -> RequestKey {
        RequestKey { connection: ConnectionId(connection), ordinal }
    }

    #[test]
    fn an_answered_request_comes_out_once() {
        let (now, purgatory) = (Instant::now(), Purgatory::new(BOUNDS, 4, Instant::now()));
        purgatory.hold(key(1, 0), 400, "a", now).unwrap();
        purgatory.hold(key(1, 1), 400, "b", now).unwrap();
        assert_eq!(purgatory.release(key(1, 1)), Some("b"));
        assert_eq!(purgatory.release(key(1, 1)), None);
        assert_eq!(purgatory.release(key(2, 0)), None);
        assert_eq!(purgatory.bytes(), 400);
    }

    #[test]
    fn what_has_no_room_comes_back_at_once() {
        let (now, purgatory) = (Instant::now(), Purgatory::new(BOUNDS, 4, Instant::now()));
        purgatory.hold(key(1, 0), 600, "a", now).unwrap();
        assert_eq!(purgatory.hold(key(2, 0), 401, "b", now), Err("b"));
        assert_eq!(purgatory.hold(key(2, 0), usize::MAX, "b", now), Err("b"));
        assert_eq!(purgatory.hold(key(1, 0), 1, "again", now), Err("again"));
        assert_eq!(purgatory.bytes(), 600);
        purgatory.hold(key(2, 0), 400, "b", now).unwrap();
    }

    #[test]
    fn a_request_whose_time_is_over_leaves_by_itself() {
        let (now, purgatory) = (Instant::now(), Purgatory::new(BOUNDS, 4, Instant::now()));
        purgatory.hold(key(1, 0), 100, "old", now).unwrap();
        purgatory.hold(key(2, 0), 100, "young", now + BOUNDS.age / 2).unwrap();
        assert!(purgatory.expire(now + BOUNDS.age - Duration::from_millis(1)).is_empty());
        assert_eq!(purgatory.expire(now + BOUNDS.age + Duration::from_secs(1)), ["old"]);
        assert_eq!((purgatory.release(key(1, 0)), purgatory.release(key(2, 0))), (None, Some("young")));
        assert!(purgatory.expire(now + BOUNDS.age * 9).is_empty());
    }

    #[test]
    fn a_connection_leaves_its_requests_in_order_and_nobody_elses() {
        let (now, purgatory) = (Instant::now(), Purgatory::new(BOUNDS, 1, Instant::now()));
        for ordinal in [2, 0, 1] {
            purgatory.hold(key(1, ordinal), 10, format!("1.{ordinal}"), now).unwrap();
        }
        purgatory.hold(key(2, 0), 10, "2.0".into(), now).unwrap();
        let left = purgatory.connection_ended(ConnectionId(1));
        assert_eq!(left, [(0, "1.0".to_owned()), (1, "1.1".to_owned()), (2, "1.2".to_owned())]);
        assert_eq!(purgatory.bytes(), 10);
        assert_eq!(purgatory.drain(), ["2.0"]);
        assert_eq!(purgatory.bytes(), 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Hold(u64, usize),
        Release(u64, u64),
        End(u64),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..4u64, 0..400usize).prop_map(|(connection, bytes)| Step::Hold(connection, bytes)),
            3 => (0..4u64, 0..30u64).prop_map(|(connection, ordinal)| Step::Release(connection, ordinal)),
            1 => (0..4u64).prop_map(Step::End),
            2 => (0..20u64).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..150)
    }

    proptest! {
        #[test]
        fn whatever_goes_in_comes_out_once_and_the_bytes_add_up(steps in steps(), shards in 1..4usize) {
            let mut now = Instant::now();
            let purgatory = Purgatory::new(BOUNDS, shards, now);
            let mut next = [0u64; 4];
            let mut inside: BTreeSet<(u64, u64, usize)> = BTreeSet::new();
            let out = |inside: &mut BTreeSet<_>, what: Vec<(u64, u64, usize)>| what.iter().all(|w| inside.remove(w));
            for step in steps {
                match step {
                    Step::Hold(connection, bytes) => {
                        let ordinal = next[connection as usize];
                        next[connection as usize] += 1;
                        let what = (connection, ordinal, bytes);
                        let held: usize = inside.iter().map(|(.., bytes)| bytes).sum();
                        let taken = purgatory.hold(key(connection, ordinal), bytes, what, now).is_ok();
                        prop_assert_eq!(taken, held + bytes <= BOUNDS.bytes);
                        if taken {
                            inside.insert(what);
                        }
                    }
                    Step::Release(connection, ordinal) => {
                        let released = purgatory.release(key(connection, ordinal));
                        prop_assert!(out(&mut inside, released.into_iter().collect()));
                    }
                    Step::End(connection) => {
                        let left = purgatory.connection_ended(ConnectionId(connection));
                        prop_assert!(left.iter().all(|(ordinal, what)| what.1 == *ordinal));
                        prop_assert!(out(&mut inside, left.into_iter().map(|(_, what)| what).collect()));
                        prop_assert!(inside.iter().all(|(other, ..)| *other != connection));
                    }
                    Step::Wait(seconds) => {
                        now += Duration::from_secs(seconds);
                        prop_assert!(out(&mut inside, purgatory.expire(now)));
                    }
                }
                prop_assert_eq!(purgatory.bytes(), inside.iter().map(|(.., bytes)| bytes).sum::<usize>());
            }
            prop_assert!(out(&mut inside, purgatory.drain()));
            prop_assert!(inside.is_empty());
        }
    }
}
