//! The probe: an XDP program that counts the packets of an interface by what they are, and passes every one.
//!
//! It changes no traffic. It exists to show that this host can build, load, attach, read and detach a kernel program.
//!
//! Attached for longer than a process lives, it is held by pins:
//!
//! ```text
//! /sys/fs/bpf/turnout/probe/TURNOUT_PACKETS   the counters
//!                          /link-eth0         the attachment; removing the file detaches it
//! ```
//!
//! The folder is filled under another name and renamed into place, so that of two who attach at once one wins and the
//! other knows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError, PerCpuArray};
use aya::programs::links::{FdLink, LinkError};
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader};
use proxy_common::packet::{Class, Counter};

use super::object;

const PROGRAM: &str = "turnout_probe";
const COUNTERS: &str = "TURNOUT_PACKETS";
const FOLDER: &str = "probe";
const LINK_PREFIX: &str = "link-";

/// Why the probe could not be loaded, attached, read or detached.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The binary carries no kernel programs.
    #[error("this turnout was built without kernel programs; build it with `cargo xtask build --release`")]
    NotBuilt,
    /// The object is not what this daemon was written for.
    #[error("the kernel object has no {what} `{name}`; build daemon and programs from the same source")]
    Missing {
        /// `program` or `map`.
        what: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// The kernel refused the object.
    #[error("the kernel refused the programs (`turnout doctor` says what this host lacks)")]
    Load(#[from] EbpfError),
    /// The kernel refused the program, or its attachment.
    #[error("the kernel refused program `{PROGRAM}`{}", on(.interface))]
    Program {
        /// Interface, when attaching.
        interface: Option<String>,
        /// What the kernel said.
        source: Box<ProgramError>,
    },
    /// The attachment can't be pinned.
    #[error("interface {interface} takes no attachment that can outlive this process")]
    NoLink {
        /// Interface.
        interface: String,
        /// Why.
        source: LinkError,
    },
    /// Counters could not be read.
    #[error("can't read the probe's counters")]
    Map(#[from] MapError),
    /// The probe is there already.
    #[error("the probe is already attached: {} exists; detach it first", .0.display())]
    AlreadyAttached(PathBuf),
    /// A pin could not be made or removed.
    #[error("can't {action} {}; is a bpffs mounted there (`mount -t bpf bpf /sys/fs/bpf`)?", path.display())]
    Pin {
        /// `create`, `pin`, `remove` …
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn on(interface: &Option<String>) -> String {
    interface.as_ref().map(|i| format!(" on interface {i}")).unwrap_or_default()
}

/// The probe, loaded. Dropping it detaches and unloads it.
#[derive(Debug)]
pub struct Probe {
    ebpf: Ebpf,
}

impl Probe {
    /// Loads the embedded program; it is attached to nothing yet. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    pub fn load() -> Result<Self, ProbeError> {
        let object = object().ok_or(ProbeError::NotBuilt)?;
        let mut probe = Self { ebpf: EbpfLoader::new().load(object)? };
        probe.program()?.load().map_err(|source| ProbeError::Program { interface: None, source: Box::new(source) })?;
        Ok(probe)
    }

    /// Attaches to an interface of the calling thread's network namespace, in the driver (native mode). There is no
    /// fall back to generic mode: it would answer whether a program runs, not whether this host runs it well.
    pub fn attach(&mut self, interface: &str) -> Result<(), ProbeError> {
        self.link(interface).map(|_| ())
    }

    /// What was counted so far on all CPUs, in the order of [`Class::ALL`].
    pub fn counters(&self) -> Result<Vec<(Class, Counter)>, ProbeError> {
        let map = self.ebpf.map(COUNTERS).ok_or(ProbeError::Missing { what: "map", name: COUNTERS })?;
        sum(&PerCpuArray::try_from(map)?)
    }

    fn program(&mut self) -> Result<&mut Xdp, ProbeError> {
        self.ebpf
            .program_mut(PROGRAM)
            .ok_or(ProbeError::Missing { what: "program", name: PROGRAM })?
            .try_into()
            .map_err(|source| ProbeError::Program { interface: None, source: Box::new(source) })
    }

    fn link(&mut self, interface: &str) -> Result<aya::programs::xdp::XdpLinkId, ProbeError> {
        self.program()?
            .attach(interface, XdpMode::Driver)
            .map_err(|source| ProbeError::Program { interface: Some(interface.to_owned()), source: Box::new(source) })
    }

    fn pin_into(&mut self, folder: &Path, interface: &str) -> Result<(), ProbeError> {
        let refused = |source: ProgramError| ProbeError::Program {
            interface: Some(interface.to_owned()),
            source: Box::new(source),
        };
        let id = self.link(interface)?;
        let link = self.program()?.take_link(id).map_err(refused)?;
        let link =
            FdLink::try_from(link).map_err(|source| ProbeError::NoLink { interface: interface.to_owned(), source })?;

        let map = self.ebpf.map(COUNTERS).ok_or(ProbeError::Missing { what: "map", name: COUNTERS })?;
        let path = folder.join(COUNTERS);
        map.pin(&path).map_err(|e| ProbeError::Pin { action: "pin", path, source: io::Error::other(e) })?;
        let path = folder.join(format!("{LINK_PREFIX}{interface}"));
        link.pin(&path).map_err(|e| ProbeError::Pin { action: "pin", path, source: io::Error::other(e) })?;
        Ok(())
    }
}

/// Attaches the probe to an interface so that it stays after this process, held by pins under `pin`
/// (see [`super::PIN_DIRECTORY`]), which must be on a bpffs.
pub fn attach(pin: &Path, interface: &str) -> Result<(), ProbeError> {
    let place = pin.join(FOLDER);
    if place.exists() {
        return Err(ProbeError::AlreadyAttached(place));
    }
    let mut probe = Probe::load()?;
    let draft = pin.join(format!("new-{}", std::process::id()));
    fs::create_dir_all(&draft).map_err(|source| ProbeError::Pin { action: "create", path: draft.clone(), source })?;
    let done = probe.pin_into(&draft, interface).and_then(|()| {
        fs::rename(&draft, &place).map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                ProbeError::AlreadyAttached(place.clone())
            }
            _ => ProbeError::Pin { action: "rename to", path: place.clone(), source },
        })
    });
    if done.is_err() {
        // Unpinned, the link goes with its last descriptor. What remains after a failure here is visible by its name.
        let _ = remove(&draft);
    }
    done
}

/// Detaches a probe that [`attach`] left behind: `true` if there was one.
///
/// The kernel lets go of a removed pin after an RCU grace period: some milliseconds later the interface is free.
pub fn detach(pin: &Path) -> Result<bool, ProbeError> {
    let place = pin.join(FOLDER);
    if !place.exists() {
        return Ok(false);
    }
    remove(&place).map_err(|source| ProbeError::Pin { action: "remove", path: place, source })?;
    // Other programs may have their pins beside it: the folder goes with the last of them.
    let _ = fs::remove_dir(pin);
    Ok(true)
}

/// What an attached probe has counted, in the order of [`Class::ALL`]; `None` if it isn't attached.
pub fn pinned_counters(pin: &Path) -> Result<Option<Vec<(Class, Counter)>>, ProbeError> {
    let path = pin.join(FOLDER).join(COUNTERS);
    if !path.exists() {
        return Ok(None);
    }
    let map = Map::PerCpuArray(MapData::from_pin(path)?);
    sum(&PerCpuArray::try_from(&map)?).map(Some)
}

/// bpffs allows no removal of a folder with its contents in one step.
fn remove(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}

/// A [`Counter`] as the map holds it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Slot(Counter);

// SAFETY: two u64 without padding: every bit pattern is a value.
unsafe impl aya::Pod for Slot {}

fn sum(map: &PerCpuArray<&MapData, Slot>) -> Result<Vec<(Class, Counter)>, ProbeError> {
    Class::ALL
        .iter()
        .map(|&class| {
            let mut total = Counter::default();
            for Slot(Counter { packets, bytes }) in map.get(&class.index(), 0)?.iter() {
                total.packets += packets;
                total.bytes += bytes;
            }
            Ok((class, total))
        })
        .collect()
}
