//! A packet relay between two hosts that delays, reorders, doubles, damages and drops what passes, by a seed.
//!
//! ```text
//!   host A                     this process                     host B
//!   [TAP device] ── frames ──▶ decider ─▶ queue ─▶ write ──────▶ [TAP device]
//!   [TAP device] ◀────── write ◀─ queue ◀─ decider ◀── frames ── [TAP device]
//! ```
//! It replaces a link of [`crate::netns::World`], because the kernels that the suites run on may lack netem. What
//! happens to a packet is decided by a pure function of the seed and the packet's number ([`faults`]); only when it is
//! written depends on the clock.

pub mod faults;
mod tap;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::netns::Netns;
use faults::Decider;
pub use faults::Faults;
use tap::Tap;

/// Bytes that wait in one direction before further packets are dropped, as a router's buffer would.
const QUEUE_BYTES: usize = 8 << 20;
/// How soon a direction notices that it shall end, or that its faults changed.
const IDLE: Duration = Duration::from_millis(20);

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first end given to [`Relay::between`] to the second. In a `World` the first end is the one nearer to
    /// the middle: the gateway for a client's link, the fabric for the others.
    Outward,
    /// The other way.
    Inward,
}

/// What a direction did so far, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken from the sender.
    pub received: u64,
    /// Written to the receiver, copies included.
    pub delivered: u64,
    /// Dropped by the seed.
    pub lost: u64,
    /// Sent twice.
    pub doubled: u64,
    /// Sent with a bit flipped.
    pub damaged: u64,
    /// Held back so that later ones overtake.
    pub held_back: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    received: AtomicU64,
    delivered: AtomicU64,
    lost: AtomicU64,
    doubled: AtomicU64,
    damaged: AtomicU64,
    held_back: AtomicU64,
    overflowed: AtomicU64,
}

/// A running relay; its devices disappear when it is dropped.
#[derive(Debug)]
pub struct Relay {
    directions: [Way; 2],
    stop: Arc<AtomicBool>,
}

/// One direction.
#[derive(Debug)]
struct Way {
    faults: Arc<Mutex<Faults>>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Creates a TAP device in each namespace and relays between them; both directions begin with `faults`.
    ///
    /// # Errors
    /// This process is not root, or the kernel has no TAP devices.
    pub fn between(a: (&Netns, &str), b: (&Netns, &str), faults: Faults, seed: u64) -> Result<Self> {
        let a = Arc::new(Tap::create(a.0, a.1)?);
        let b = Arc::new(Tap::create(b.0, b.1)?);
        let stop = Arc::new(AtomicBool::new(false));
        let way = |from: &Arc<Tap>, to: &Arc<Tap>, seed: u64| {
            let faults = Arc::new(Mutex::new(faults));
            let counters = Arc::new(Counters::default());
            let pump = Pump {
                from: Arc::clone(from),
                to: Arc::clone(to),
                faults: Arc::clone(&faults),
                counters: Arc::clone(&counters),
                stop: Arc::clone(&stop),
                decider: Decider::new(seed),
                begin: Instant::now(),
                queue: BinaryHeap::new(),
                queued_bytes: 0,
                next_number: 0,
            };
            Way { faults, counters, thread: Some(std::thread::spawn(move || pump.run())) }
        };
        Ok(Self { directions: [way(&a, &b, seed), way(&b, &a, seed.wrapping_add(1))], stop })
    }

    /// Changes what happens to packets from now on, both ways.
    pub fn set(&self, faults: Faults) {
        self.set_one(Direction::Outward, faults);
        self.set_one(Direction::Inward, faults);
    }

    /// The same for one direction.
    pub fn set_one(&self, direction: Direction, faults: Faults) {
        *self.way(direction).faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// What a direction did so far.
    #[must_use]
    pub fn counts(&self, direction: Direction) -> Counts {
        let Counters { received, delivered, lost, doubled, damaged, held_back, overflowed } =
            &*self.way(direction).counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            received: read(received),
            delivered: read(delivered),
            lost: read(lost),
            doubled: read(doubled),
            damaged: read(damaged),
            held_back: read(held_back),
            overflowed: read(overflowed),
        }
    }

    fn way(&self, direction: Direction) -> &Way {
        &self.directions[direction as usize]
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for way in &mut self.directions {
            if let Some(thread) = way.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// A packet that waits for its time: earliest first, then in the order of decision.
type Waiting = Reverse<(Duration, u64, Vec<u8>)>;

struct Pump {
    from: Arc<Tap>,
    to: Arc<Tap>,
    faults: Arc<Mutex<Faults>>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    decider: Decider,
    begin: Instant,
    queue: BinaryHeap<Waiting>,
    queued_bytes: usize,
    next_number: u64,
}

impl Pump {
    fn run(mut self) {
        let mut buffer = vec![0; 64 * 1024];
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.begin.elapsed();
            self.deliver(now);
            let due = self.queue.peek().map_or(IDLE, |Reverse((at, ..))| at.saturating_sub(now).min(IDLE));
            if !self.from.wait_readable(due) {
                continue;
            }
            let faults = *self.faults.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(len) = self.from.read(&mut buffer) {
                self.take(&buffer[..len], &faults);
            }
        }
    }

    fn take(&mut self, packet: &[u8], faults: &Faults) {
        let counters = Arc::clone(&self.counters);
        let add = |counter: &AtomicU64, count: bool| counter.fetch_add(u64::from(count), Ordering::Relaxed);
        add(&counters.received, true);
        let fate = self.decider.decide(self.begin.elapsed(), packet.len(), faults);
        add(&counters.lost, fate.deliveries.is_empty());
        add(&counters.doubled, fate.deliveries.len() > 1);
        add(&counters.damaged, fate.flip_bit.is_some());
        add(&counters.held_back, fate.held_back);
        for at in fate.deliveries {
            if self.queued_bytes + packet.len() > QUEUE_BYTES {
                add(&counters.overflowed, true);
                continue;
            }
            let mut copy = packet.to_vec();
            if let Some(bit) = fate.flip_bit {
                copy[bit / 8] ^= 1 << (bit % 8);
            }
            self.queued_bytes += copy.len();
            self.queue.push(Reverse((at, self.next_number, copy)));
            self.next_number += 1;
        }
    }

    fn deliver(&mut self, now: Duration) {
        while let Some(Reverse((at, ..))) = self.queue.peek()
            && *at <= now
        {
            let Some(Reverse((_, _, packet))) = self.queue.pop() else { return };
            self.queued_bytes -= packet.len();
            if self.to.write(&packet) {
                self.counters.delivered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
