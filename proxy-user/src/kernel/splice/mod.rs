//! The splice in the kernel: this process's programs and maps, the interfaces they stand on, and the sessions.
//!
//! ```text
//!  KernelEdge ── Splice ── sets      the folder that the links outlive the process in
//!                  │       chain     on which interfaces, and that nothing stands before
//!                  └─ Arc<Shared> ── sessions   begun for the gateway, each with a share of the memory
//!                                    ring       copies of frames, read by a thread of its own
//! ```
//! A set of programs and maps belongs to one process: a successor loads its own, in front, and what it doesn't know it
//! leaves to the next in the chain.

mod chain;
mod counts;
mod place;
mod programs;
mod ring;
mod route;
mod selftest;
mod sessions;
pub(super) mod sets;
mod slots;
mod sys;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aya::Ebpf;
use proxy_common::flows::SESSIONS;

use self::chain::{Chain, Leave};
use self::programs::Loaded;
use self::sessions::{Sessions, Shared};
use self::sets::{Dead, Set};
use self::slots::LINGER;
use super::{EdgeError, object};
use crate::gateway::edge::{PortTable, SpliceStatus};
use crate::splice::session::Splicer;

/// How long the last packets of sockets that were just closed are waited for.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often what stays behind looks whether it is still needed.
const LOOK: Duration = Duration::from_secs(1);

/// The splice of this process.
pub(super) struct Splice {
    pin: PathBuf,
    ebpf: Ebpf,
    set: Arc<Set>,
    chain: Chain,
    shared: Arc<Shared>,
    dead: Dead,
}

impl Splice {
    /// Loads it. The caller has the lock of the pin folder. `mirror`: bytes for copies of frames, if there are to be any.
    pub(super) fn load(pin: &Path, mirror: Option<u64>) -> Result<Self, EdgeError> {
        let object = object::splice_object().ok_or(EdgeError::NotBuilt)?;
        let Loaded { ebpf, tables, memory, ring, recall, stamped, ids } = programs::load(object, mirror)?;
        let shared = Arc::new(Shared::new(memory, [recall, stamped], tables, ring)?);
        let set = Arc::new(Set::make(pin)?);
        Ok(Self { pin: pin.to_owned(), ebpf, set, chain: Chain::new(ids), shared, dead: Dead::default() })
    }

    /// Where the gateway begins sessions; `Err`: why nowhere.
    pub(super) fn splicer(&self) -> Result<Arc<dyn Splicer>, String> {
        match self.shared.closed() {
            Some(why) => Err(why),
            None => Ok(Arc::new(Sessions(Arc::clone(&self.shared)))),
        }
    }

    /// Makes connections to these ports spliceable, and to no others.
    pub(super) fn set_ports(&self, ports: &PortTable) -> Result<(), EdgeError> {
        self.shared.tables(|tables| tables.set_listeners(ports))
    }

    /// Interfaces that the programs stand on.
    pub(super) fn interfaces(&self) -> BTreeSet<u32> {
        self.set.interfaces()
    }

    /// Interfaces that failed are tried again at once.
    pub(super) fn hurry(&mut self) {
        self.chain.hurry();
    }

    /// Everything that may have changed by itself since a second ago. `wanted`: interfaces that it should stand on, where
    /// that is known. `owns`: this process has the pin folder.
    pub(super) fn upkeep(&mut self, wanted: Option<&BTreeMap<u32, String>>, owns: bool) {
        let now = Instant::now();
        self.shared.expire(now);
        if self.shared.closed().is_some() {
            return;
        }
        if !self.set.is_there() {
            let why = format!("somebody took the splice's programs off (the pins at {} are gone)", self.pin.display());
            tracing::warn!("{why}");
            self.close(&why);
            return;
        }
        if owns {
            self.dead.clear(&self.pin, LINGER, now);
        }
        if let Some(wanted) = wanted {
            let leave = Leave { attach: owns, move_about: self.shared.usage().is_idle };
            self.chain.upkeep(&mut self.ebpf, &self.pin, &self.set, wanted, leave);
            self.shared.set_usable(self.chain.usable());
            self.shared.set_standing(self.set.interfaces().into_iter().filter(|i| self.set.holds(*i)).collect());
        }
    }

    /// No session begins any more.
    fn close(&mut self, why: &str) {
        self.shared.close(why);
        self.chain.lose(why);
        self.shared.set_usable(BTreeSet::new());
        self.shared.set_standing(BTreeSet::new());
    }

    /// For operators.
    pub(super) fn status(&self) -> SpliceStatus {
        SpliceStatus {
            interfaces: self.chain.status(),
            sessions: self.shared.usage().in_use,
            room: SESSIONS,
            counters: self.shared.tables(|tables| tables.counts()).unwrap_or_default(),
        }
    }

    /// Takes it off, once the sockets of sessions have sent their last packets; with sessions that go on it stays, because
    /// their packets would be taken for others without it. What stays is a dead set once this process ends.
    pub(super) fn detach(&mut self) -> Result<(), EdgeError> {
        // Where they stand for the connections that go on, they go on standing.
        self.shared.close("the splice was taken off");
        let patience = Instant::now() + FAREWELL;
        while self.shared.is_needed(Instant::now(), FAREWELL) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(20));
        }
        if self.shared.has_forwarded() {
            let folder = self.set.folder().display();
            tracing::warn!("connections are still spliced; the programs that they need stay at {folder}");
            return Ok(());
        }
        self.set.remove()
    }
}

impl Drop for Splice {
    /// With flows left, the sockets that they are of have something to send yet, or may: it stays for them, in the hands of
    /// a thread of its own.
    fn drop(&mut self) {
        if self.shared.usage().is_idle {
            return take_off(&self.set, &self.pin);
        }
        let (set, shared, pin) = (Arc::clone(&self.set), Arc::clone(&self.shared), self.pin.clone());
        let stay = move || {
            while !shared.usage().is_idle {
                thread::sleep(LOOK);
                shared.expire(Instant::now());
            }
            take_off(&set, &pin);
        };
        if let Err(error) = thread::Builder::new().name("splice-stays".into()).spawn(stay) {
            tracing::warn!("the splice of connections that go on is left to `turnout detach`: {error}");
        }
    }
}

/// Removes a set, and the pin folder where that leaves it empty.
fn take_off(set: &Set, pin: &Path) {
    if !set.is_there() {
        return;
    }
    match set.remove() {
        // Refused where an edge is in it, or another set, or where the folder isn't this user's to remove.
        Ok(()) => drop(std::fs::remove_dir(pin)),
        Err(error) => tracing::warn!("the splice could not be taken off: {error}"),
    }
}
