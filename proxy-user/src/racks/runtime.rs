//! What the connections of one virtual cluster share about replica routing. Settings are replaced by a reload; what is
//! remembered and counted stays.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use arc_swap::ArcSwapOption;

use super::book::{Book, HoldRules};
use super::decide::Stay;
use super::place::Places;
use super::tally::Tally;
use crate::config::{Racks, RacksMode};
use crate::kafka::ids::NodeId;

/// A config, ready to be asked.
#[derive(Debug)]
pub struct Settings {
    /// As it was given.
    pub config: Racks,
    /// Its rules for clients.
    pub places: Places,
}

impl Settings {
    /// How long replicas are held down.
    #[must_use]
    pub fn hold_rules(&self) -> HoldRules {
        HoldRules { first: self.config.hold_down.0, longest: self.config.hold_down_max.0 }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Runtime {
    settings: ArcSwapOption<Settings>,
    book: Mutex<Book>,
    tally: Mutex<Tally>,
    /// Brokers that were seen to choose by rack, for want of a word about their selector.
    seen_to_choose: RwLock<HashSet<NodeId>>,
    stayed: [AtomicU64; Stay::ALL.len()],
    overflows: AtomicU64,
    stood_in: AtomicU64,
}

/// A panic elsewhere must not take the book with it: entries are whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// For a config; `None`, or mode `off`: nothing is routed.
    #[must_use]
    pub fn new(config: Option<&Racks>) -> Self {
        let runtime = Self::default();
        runtime.configure(config);
        runtime
    }

    /// Goes on with another config.
    pub fn configure(&self, config: Option<&Racks>) {
        let config = config.filter(|config| config.mode != RacksMode::Off);
        let settings = config.map(|config| Settings { places: Places::of(config), config: config.clone() });
        self.settings.store(settings.map(Arc::new));
    }

    /// The settings in force; `None`: nothing is routed.
    #[must_use]
    pub fn settings(&self) -> Option<Arc<Settings>> {
        self.settings.load_full()
    }

    /// Whether anything is routed.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.settings.load().is_some()
    }

    /// Redirects and holds.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Bytes by rack.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// A broker named a replica for a client's rack: it runs a selector.
    pub fn note_choice(&self, node: NodeId) {
        if !self.has_chosen(node) {
            self.seen_to_choose.write().unwrap_or_else(PoisonError::into_inner).insert(node);
        }
    }

    /// Whether a broker was seen to choose by rack.
    #[must_use]
    pub fn has_chosen(&self, node: NodeId) -> bool {
        self.seen_to_choose.read().unwrap_or_else(PoisonError::into_inner).contains(&node)
    }

    /// Counts a partition with records that was read at the leader, for this reason.
    pub fn stayed(&self, reason: Stay) {
        self.stayed[reason as usize].fetch_add(1, Relaxed);
    }

    /// How often for which reason.
    pub fn stays(&self) -> impl Iterator<Item = (Stay, u64)> + '_ {
        Stay::ALL.into_iter().map(|reason| (reason, self.stayed[reason as usize].load(Relaxed)))
    }

    /// Counts an answer that passed `patch_buffer`.
    pub fn overflowed(&self) {
        self.overflows.fetch_add(1, Relaxed);
    }

    /// Answers that passed `patch_buffer`.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Relaxed)
    }

    /// Counts a connection on which the gateway answers Fetch in the place of a broker that is out of reach.
    pub fn stands_in(&self) {
        self.stood_in.fetch_add(1, Relaxed);
    }

    /// Connections on which the gateway stood in for a broker.
    #[must_use]
    pub fn stood_in(&self) -> u64 {
        self.stood_in.load(Relaxed)
    }
}
