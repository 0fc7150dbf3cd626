//! The edge in the kernel: programs loaded, tables filled, links made and replaced, by the owner of the pins.
//!
//! ```text
//!             no pins            pins, same layout            pins, other layout
//!                │                       │                            │
//!        fresh maps, renamed     programs loaded against      fresh maps in a draft folder
//!            into place          the pinned maps, links       (old links run old programs)
//!                │               replaced                             │ ports, admission and sockets given
//!                │                       │                            │ links replaced, folders exchanged
//!                └───────────────────► current ◄──────────────────────┘
//! ```
//! A link's program is replaced in one step (BPF_LINK_UPDATE): no packet passes without one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::programs::XdpMode;
use aya::programs::links::FdLink;

use super::backoff::Backoff;
use super::interfaces::{self, Network};
use super::pins::{self, Mode, Splices};
use super::programs::{self, ADMIT, STEER, explain, load, pin_link, pin_program, program_fd, refused, replace_program};
use super::splice::Splice;
use super::tables::{self, Tables};
use super::{EdgeError, doctor, layout, object, sys, view};
use crate::gateway::edge::{
    AdmissionRules, Edge, EdgeCounters, EdgeStatus, InterfaceStatus, PortTable, RefusedSource, Slot, SpliceStatus,
};
use crate::splice::session::Splicer;

/// The namespace of the calling thread, which in the daemon is that of the process.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The kernel around the gateway's sockets; see [`Edge`].
pub struct KernelEdge {
    pin: PathBuf,
    inner: Mutex<Inner>,
}

impl std::fmt::Debug for KernelEdge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelEdge").field("pin", &self.pin).finish_non_exhaustive()
    }
}

struct Inner {
    pin: PathBuf,
    /// `None` after the hand-over: nothing is changed any more.
    lock: Option<OwnedFd>,
    /// The network namespace that is steered in: the one this was opened in.
    namespace: File,
    layout: String,
    ebpf: Ebpf,
    #[cfg(feature = "kernel-log")]
    logs: Option<super::logs::Logs>,
    tables: Tables,
    /// Tables that were filled before the links are switched to them; `None`: they are in use.
    staged: Option<Filled>,
    /// Steering was attached, and is to stay so.
    steers: bool,
    wanted: Wanted,
    /// Interfaces that could not be attached natively, with the reason.
    troubles: BTreeMap<u32, String>,
    /// When interfaces that can't have the program are tried again.
    retries: Backoff<u32>,
    /// Why steering could not be repaired, as last logged.
    steering_trouble: Option<String>,
    /// Why host addresses or interfaces could not be read last time.
    blind: Option<String>,
    /// Somebody else took everything off: how that showed.
    lost: Option<String>,
    /// `Err`: why there is none.
    splice: Result<Splice, String>,
}

/// What was given of fresh tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Filled {
    ports: bool,
    admission: bool,
    sockets: bool,
}

impl Filled {
    const fn is_complete(self) -> bool {
        self.ports && self.admission && self.sockets
    }
}

/// Which interfaces admission should run on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// Nobody has said yet: links are left as they are.
    Unknown,
    /// All that can carry clients.
    All,
    /// These.
    Named(Vec<String>),
}

impl Wanted {
    /// Those that are there; `None`: nobody has said yet.
    fn of(&self, network: &Network) -> Option<BTreeMap<u32, String>> {
        match self {
            Self::Unknown => None,
            Self::All => Some(network.wanted(None)),
            Self::Named(names) => Some(network.wanted(Some(names))),
        }
    }
}

impl KernelEdge {
    /// Takes the lock of the pins, loads the programs, and takes over what an earlier daemon left.
    ///
    /// # Errors
    /// Another process holds the pins, no bpffs can be had, or the kernel refused the programs. An earlier daemon's
    /// programs stay as they were.
    pub fn open(pin: &Path) -> Result<Self, EdgeError> {
        Self::open_mirroring(pin, None, None)
    }

    /// The same with a lock that was handed over by the process that had it (see [`Self::lock_fd`]), if there is one, and
    /// with so many bytes for copies of frames, if there are to be any.
    ///
    /// # Errors
    /// As [`Self::open`], and where the descriptor isn't the lock of these pins.
    pub fn open_mirroring(pin: &Path, lock: Option<OwnedFd>, mirror: Option<u64>) -> Result<Self, EdgeError> {
        let edge = match lock {
            Some(lock) => {
                check_kernel()?;
                let lock = pins::adopt(pin, lock)?;
                Self::with_lock(pin, lock)?
            }
            None => Self::open_without_splice(pin)?,
        };
        edge.inner().load_splice(mirror);
        Ok(edge)
    }

    /// The same for what needs no session: admission and steering alone.
    pub(super) fn open_without_splice(pin: &Path) -> Result<Self, EdgeError> {
        check_kernel()?;
        pins::make(pin)?;
        let lock = pins::lock(pin)?;
        Self::with_lock(pin, lock)
    }

    /// As [`Self::open`], with a lock that was handed over.
    ///
    /// # Errors
    /// As [`Self::open_mirroring`].
    pub fn open_with_lock(pin: &Path, lock: OwnedFd) -> Result<Self, EdgeError> {
        Self::open_mirroring(pin, Some(lock), None)
    }

    fn with_lock(pin: &Path, lock: OwnedFd) -> Result<Self, EdgeError> {
        let mut inner = Inner::load(pin, lock, object().ok_or(EdgeError::NotBuilt)?)?;
        inner.upkeep();
        Ok(Self { pin: pin.to_owned(), inner: Mutex::new(inner) })
    }

    /// A copy of the lock, to hand to a child: the pins stay locked as long as one copy is open. It closes on exec
    /// unless told otherwise. `None` after the release.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn lock_fd(&self) -> std::io::Result<Option<OwnedFd>> {
        self.inner().lock.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Attaches steering, and switches to fresh tables even where not all of them were given: what is left out is
    /// empty. For attaching without a daemon.
    pub(super) fn attach_as_it_is(&self) -> Result<(), EdgeError> {
        let mut inner = self.inner();
        inner.switch()?;
        inner.attach_steering()
    }

    /// A poisoned lock means that a call panicked; the kernel's state is still what the kernel says.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Inner) -> Result<(), EdgeError>) -> anyhow::Result<()> {
        let mut inner = self.inner();
        if inner.lock.is_none() {
            return Err(EdgeError::Released(self.pin.clone()).into());
        }
        change(&mut inner)?;
        Ok(inner.switch_if_filled()?)
    }
}

impl Edge for KernelEdge {
    fn set_ports(&self, ports: &PortTable) -> anyhow::Result<()> {
        self.change(|inner| {
            inner.tables.set_ports(ports)?;
            if let Ok(splice) = &inner.splice {
                splice.set_ports(ports)?;
            }
            inner.filled(|filled| filled.ports = true);
            Ok(())
        })
    }

    fn set_admission(&self, rules: &AdmissionRules) -> anyhow::Result<()> {
        self.change(|inner| {
            inner.tables.set_admission(rules)?;
            inner.filled(|filled| filled.admission = true);
            Ok(())
        })
    }

    fn set_sockets(&self, sockets: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        self.change(|inner| {
            inner.tables.set_sockets(sockets)?;
            inner.filled(|filled| filled.sockets = true);
            if inner.staged.is_none() { inner.attach_steering() } else { Ok(()) }
        })
    }

    fn set_interfaces(&self, wanted: Option<&[String]>) {
        let mut inner = self.inner();
        inner.wanted = wanted.map_or(Wanted::All, |names| Wanted::Named(names.to_vec()));
        inner.troubles.clear();
        inner.retries = Backoff::default();
        if let Ok(splice) = &mut inner.splice {
            splice.hurry();
        }
        inner.upkeep();
    }

    fn upkeep(&self) {
        self.inner().upkeep();
    }

    fn lost(&self) -> Option<String> {
        self.inner().lost.clone()
    }

    fn counters(&self) -> BTreeMap<Slot, EdgeCounters> {
        self.inner().tables.counters()
    }

    fn refused_sources(&self, limit: usize) -> Vec<RefusedSource> {
        self.inner().tables.refused(limit)
    }

    fn status(&self) -> EdgeStatus {
        self.inner().status()
    }

    fn splicer(&self) -> Result<Arc<dyn Splicer>, String> {
        self.inner().splice.as_ref().map_err(Clone::clone)?.splicer()
    }

    fn splice_status(&self) -> Option<SpliceStatus> {
        self.inner().splice.as_ref().ok().map(Splice::status)
    }

    fn release(&self) {
        // Closed, not unlocked: an unlock would be the child's, too, who shares the open description.
        self.inner().lock = None;
    }

    fn lock(&self) -> Option<OwnedFd> {
        // Without a descriptor to spare there is nothing to hand over, and the successor says what it lacks.
        self.lock_fd().ok().flatten()
    }

    fn detach(&self) -> anyhow::Result<()> {
        let mut inner = self.inner();
        if inner.lock.is_none() {
            return Ok(());
        }
        // What is there after a loss is somebody else's.
        let ended = if inner.lost.is_none() { inner.end(&self.pin) } else { Ok(()) };
        inner.lock = None;
        Ok(ended?)
    }
}

impl Inner {
    fn load(pin: &Path, lock: OwnedFd, object: &[u8]) -> Result<Self, EdgeError> {
        let namespace = File::open(NAMESPACE)
            .map_err(|source| EdgeError::System { what: "opening this process's network namespace", source })?;
        pins::clear_leftovers(pin)?;
        let definitions = layout::definitions(object)?;
        let fingerprint = layout::fingerprint(&definitions);
        let edge = pins::edge(pin);
        let reuse = pins::layout(&edge).as_ref() == Some(&fingerprint) && tables::matches(&edge, &definitions);
        let folder = if reuse { edge.clone() } else { pins::draft(pin) };
        let loaded = if reuse {
            load(&folder, object, &definitions)
        } else {
            fs::create_dir(&folder).map_err(EdgeError::pin("create", &folder))?;
            pins::set_layout(&folder, &fingerprint).and_then(|()| load(&folder, object, &definitions))
        };
        let pinned = loaded.and_then(|(mut ebpf, tables)| {
            for name in [ADMIT, STEER] {
                pin_program(&mut ebpf, name, &folder)?;
            }
            Ok((ebpf, tables))
        });
        #[cfg_attr(not(feature = "kernel-log"), expect(unused_mut, reason = "the logger takes its map out"))]
        let (mut ebpf, tables) = match pinned {
            Ok(pinned) => pinned,
            Err(e) => {
                // Whoever comes next clears what this leaves.
                let _ = pins::clear_leftovers(pin);
                return Err(e);
            }
        };
        let mut inner = Self {
            pin: pin.to_owned(),
            lock: Some(lock),
            namespace,
            layout: fingerprint,
            #[cfg(feature = "kernel-log")]
            logs: super::logs::Logs::of(&mut ebpf),
            ebpf,
            tables,
            staged: None,
            steers: false,
            wanted: Wanted::Unknown,
            troubles: BTreeMap::new(),
            retries: Backoff::default(),
            steering_trouble: None,
            blind: None,
            lost: None,
            splice: Err("the splice's programs were not loaded".to_owned()),
        };
        if reuse {
            inner.replace_programs(&edge)?;
        } else if edge.exists() {
            inner.staged = Some(Filled::default());
        } else {
            fs::rename(&folder, &edge).map_err(EdgeError::pin("rename into place", &folder))?;
        }
        Ok(inner)
    }

    /// Loads the splice: without it, the gateway goes on by itself.
    fn load_splice(&mut self, mirror: Option<u64>) {
        self.splice = Splice::load(&self.pin, mirror).map_err(|error| {
            let why = format!("{:#}", anyhow::Error::new(error));
            tracing::warn!("no connection will be spliced: {why}");
            why
        });
        self.upkeep();
    }

    fn end(&mut self, pin: &Path) -> Result<(), EdgeError> {
        let splice = self.splice.as_mut().map_or(Ok(()), Splice::detach);
        pins::end(pin, Splices::OfTheDead).and(splice)
    }

    fn filled(&mut self, mark: impl FnOnce(&mut Filled)) {
        if let Some(filled) = &mut self.staged {
            mark(filled);
        }
    }

    fn switch_if_filled(&mut self) -> Result<(), EdgeError> {
        if self.staged.is_some_and(Filled::is_complete) { self.switch() } else { Ok(()) }
    }

    /// Puts the fresh tables to use: links to the new programs, then the folders exchanged.
    fn switch(&mut self) -> Result<(), EdgeError> {
        if self.staged.is_none() {
            return Ok(());
        }
        self.host_addresses();
        let (edge, draft) = (pins::edge(&self.pin), pins::draft(&self.pin));
        self.replace_programs(&edge)?;
        let links = pins::xdp_links(&edge).into_iter().map(|(_, _, path)| path).chain([edge.join(pins::STEERING)]);
        for path in links.filter(|path| path.exists()) {
            let link = sys::object_at(&path).map_err(EdgeError::pin("open", &path))?;
            let second = draft.join(path.file_name().unwrap_or_default());
            // Made by an attempt that failed behind this.
            let _ = fs::remove_file(&second);
            sys::pin_at(link.as_fd(), &second).map_err(EdgeError::pin("pin a link at", &second))?;
        }
        sys::exchange(&edge, &draft).map_err(EdgeError::pin("exchange with its successor", &edge))?;
        self.staged = None;
        pins::remove(&draft)?;
        self.upkeep();
        self.attach_steering()
    }

    /// Gives the programs to the links of a folder. A link whose target is gone is left to [`Self::upkeep`].
    fn replace_programs(&mut self, folder: &Path) -> Result<(), EdgeError> {
        let admit = program_fd(&self.ebpf, ADMIT)?;
        for (_, _, path) in pins::xdp_links(folder) {
            replace_program(&path, &admit)?;
        }
        let steering = folder.join(pins::STEERING);
        if steering.exists() {
            replace_program(&steering, &program_fd(&self.ebpf, STEER)?)?;
        }
        Ok(())
    }

    /// Attaches steering to the network namespace, unless it is.
    fn attach_steering(&mut self) -> Result<(), EdgeError> {
        self.steers = true;
        let path = pins::edge(&self.pin).join(pins::STEERING);
        if path.exists() {
            let inode = self
                .namespace
                .metadata()
                .map_err(|source| EdgeError::System { what: "looking at the network namespace", source })?
                .ino();
            let link = sys::object_at(&path).map_err(EdgeError::pin("open", &path))?;
            let target = sys::link_target(link.as_fd()).map_err(EdgeError::pin("ask", &path))?;
            if target.is_some_and(|target| u64::from(target) == inode) {
                return Ok(());
            }
            // An earlier daemon ran in another namespace, which may be gone.
            pins::end_link(&path)?;
        }
        let program = programs::steer(&mut self.ebpf)?;
        let link = program.attach(&self.namespace).map_err(refused(STEER))?;
        let link: FdLink = program.take_link(link).map_err(refused(STEER))?.into();
        pin_link(link, &path)
    }

    /// Everything that may have changed by itself since a second ago.
    fn upkeep(&mut self) {
        let network = self.upkeep_edge();
        let owns = self.lock.is_some() && self.lost.is_none();
        if let Ok(splice) = &mut self.splice {
            let network = network.or_else(|| Network::look().ok());
            let wanted = network.and_then(|network| {
                let mut wanted = self.wanted.of(&network)?;
                if self.wanted == Wanted::All {
                    // One that is down for a moment keeps them: its connections are still spliced.
                    let standing = splice.interfaces().into_iter().filter_map(|i| network.interfaces.get(&i));
                    wanted.extend(standing.map(|interface| (interface.index, interface.name.clone())));
                }
                Some(wanted)
            });
            splice.upkeep(wanted.as_ref(), owns);
        }
    }

    /// The same for admission and steering. What the namespace is like, where that was looked at.
    fn upkeep_edge(&mut self) -> Option<Network> {
        let lock = self.lock.as_ref().filter(|_| self.lost.is_none())?;
        if !pins::is_owner(&self.pin, lock) {
            // `turnout detach --force`, or by hand. Whoever did it meant it: nothing is made anew here.
            let pin = self.pin.display();
            self.lost = Some(format!("somebody took the kernel programs off (the pins at {pin} are gone)"));
            return None;
        }
        #[cfg(feature = "kernel-log")]
        if let Some(logs) = &mut self.logs {
            logs.flush();
        }
        // A switch that failed half way, or a link that somebody took off.
        let repaired = match self.staged {
            Some(_) => self.switch_if_filled(),
            None if self.steers => self.attach_steering(),
            None => Ok(()),
        };
        let trouble = repaired.err().map(|e| e.to_string());
        if trouble != self.steering_trouble {
            trouble.iter().for_each(|e| tracing::warn!("steering: {e}"));
            self.steering_trouble = trouble;
        }
        let network = self.host_addresses()?;
        if self.staged.is_none()
            && let Some(wanted) = self.wanted.of(&network)
        {
            self.upkeep_interfaces(&wanted);
        }
        Some(network)
    }

    fn upkeep_interfaces(&mut self, wanted: &BTreeMap<u32, String>) {
        let attached = self.attached(wanted);
        self.troubles.retain(|index, _| wanted.contains_key(index));
        self.retries.retain(|index| wanted.contains_key(index) && !attached.contains(index));
        for (&index, name) in wanted.iter().filter(|(index, _)| !attached.contains(index)) {
            if !self.retries.is_due(&index) {
                continue;
            }
            match self.attach(index, name) {
                Ok(None) => drop(self.troubles.remove(&index)),
                Ok(Some(why)) => drop(self.troubles.insert(index, why)),
                Err(why) => {
                    self.retries.failed(index);
                    self.troubles.insert(index, why);
                }
            }
        }
    }

    /// Brings the host's own addresses up to date.
    fn host_addresses(&mut self) -> Option<Network> {
        let network = match Network::look() {
            Ok(network) => network,
            Err(e) => {
                self.blind = Some(format!("the interfaces can't be listed: {e}"));
                return None;
            }
        };
        self.blind = self.tables.set_host(&network.addresses).err().map(|e| e.to_string());
        Some(network)
    }

    /// Interfaces that a link is attached to. Links to others, and those whose interface is gone, end here.
    fn attached(&self, wanted: &BTreeMap<u32, String>) -> BTreeSet<u32> {
        let mut attached = BTreeSet::new();
        for (_, index, path) in pins::xdp_links(&pins::edge(&self.pin)) {
            let target = sys::object_at(&path).and_then(|link| sys::link_target(link.as_fd()));
            let lives = matches!(target, Ok(Some(target)) if target == index);
            if lives && wanted.contains_key(&index) {
                attached.insert(index);
            } else if let Err(e) = pins::end_link(&path) {
                tracing::warn!("interface {index}: {e}");
            }
        }
        attached
    }

    /// `Ok(None)`: native. `Ok(Some)`: generic, and why. `Err`: not at all, and why.
    fn attach(&mut self, index: u32, name: &str) -> Result<Option<String>, String> {
        let native = match self.attach_in(Mode::Native, index) {
            Ok(()) => return Ok(None),
            Err(e) => explain(name, &e),
        };
        match self.attach_in(Mode::Generic, index) {
            Ok(()) => Ok(Some(format!("the driver refused native XDP: {native}"))),
            Err(e) => {
                let generic = explain(name, &e);
                Err(if generic == native { native } else { format!("native: {native}; generic: {generic}") })
            }
        }
    }

    fn attach_in(&mut self, mode: Mode, index: u32) -> Result<(), EdgeError> {
        let program = programs::admit(&mut self.ebpf)?;
        let xdp_mode = match mode {
            Mode::Native => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        let link = program.attach_to_if_index(index, xdp_mode).map_err(refused(ADMIT))?;
        let link = program.take_link(link).map_err(refused(ADMIT))?;
        // What isn't a link can't be pinned; dropped, it is detached.
        let link = FdLink::try_from(link).map_err(|e| EdgeError::Object(e.to_string()))?;
        pin_link(link, &pins::xdp_link(&pins::edge(&self.pin), mode, index))
    }

    fn status(&self) -> EdgeStatus {
        let mut status = view::status(&self.pin);
        status.layout.clone_from(&self.layout);
        for interface in &mut status.interfaces {
            let trouble = self
                .troubles
                .iter()
                .find(|(index, _)| interfaces::name_of(**index).as_deref() == Some(interface.name.as_str()));
            interface.reason = match (trouble, interface.mode) {
                (Some((_, why)), _) => Some(why.clone()),
                (None, Some("generic")) => Some("the driver refused native XDP at an earlier start".to_owned()),
                _ => None,
            };
        }
        let attached: BTreeSet<String> = status.interfaces.iter().map(|i| i.name.clone()).collect();
        let missing = |name: String, reason: String| InterfaceStatus { name, mode: None, reason: Some(reason) };
        for (index, why) in &self.troubles {
            let name = interfaces::name_of(*index).unwrap_or_else(|| format!("number {index}"));
            if !attached.contains(&name) {
                status.interfaces.push(missing(name, why.clone()));
            }
        }
        if let Wanted::Named(names) = &self.wanted {
            let known: BTreeSet<String> = status.interfaces.iter().map(|i| i.name.clone()).collect();
            for name in names.iter().filter(|name| !known.contains(*name)) {
                let why = self
                    .lost
                    .as_ref()
                    .or(self.blind.as_ref())
                    .cloned()
                    .unwrap_or_else(|| "there is no such interface".to_owned());
                status.interfaces.push(missing(name.clone(), why));
            }
        }
        status.interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        status
    }
}

fn check_kernel() -> Result<(), EdgeError> {
    match doctor::running_kernel() {
        Some((found, version)) if version < doctor::OLDEST_KERNEL => {
            Err(EdgeError::OldKernel { found, needed: doctor::OLDEST_KERNEL })
        }
        _ => Ok(()),
    }
}
