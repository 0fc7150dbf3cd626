//! What is pinned, read by anybody who may: no lock is needed to look.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;

use aya::programs::ProgramInfo;

use super::programs::{ADMIT, STEER};
use super::tables::Tables;
use super::{EdgeError, interfaces, pins, sys};
use crate::gateway::edge::{EdgeCounters, EdgeStatus, InterfaceStatus, RefusedSource, Slot};

/// What is loaded and attached under a pin folder; empty where nothing is. Names of interfaces are those of the calling
/// thread's network namespace.
#[must_use]
pub fn status(pin: &Path) -> EdgeStatus {
    let folder = pins::edge(pin);
    let target = |path: &Path| sys::object_at(path).and_then(|link| sys::link_target(link.as_fd())).ok().flatten();
    let programs = [ADMIT, STEER].into_iter().filter_map(|name| {
        let info = ProgramInfo::from_pin(folder.join(name)).ok()?;
        // As bpftool prints it: the tag's bytes in their order in memory.
        Some((name.to_owned(), (info.id(), format!("{:016x}", info.tag().swap_bytes()))))
    });
    let interface = |(mode, index, path): (pins::Mode, u32, std::path::PathBuf)| {
        target(&path)?;
        let name = interfaces::name_of(index).unwrap_or_else(|| format!("number {index} of another namespace"));
        Some(InterfaceStatus { name, mode: Some(mode.name()), reason: None })
    };
    let mut interfaces: Vec<_> = pins::xdp_links(&folder).into_iter().filter_map(interface).collect();
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    EdgeStatus {
        pin: pin.display().to_string(),
        layout: pins::layout(&folder).unwrap_or_default(),
        programs: programs.collect(),
        interfaces,
        steering: target(&folder.join(pins::STEERING)).is_some(),
    }
}

/// What was counted, by virtual cluster's slot; `None`: nothing is pinned.
///
/// # Errors
/// The pins can't be read, or are another version's.
pub fn counters(pin: &Path) -> Result<Option<BTreeMap<Slot, EdgeCounters>>, EdgeError> {
    pinned(pin).map(|tables| tables.map(|tables| tables.counters()))
}

/// Who was refused lately, the most first; `None`: nothing is pinned.
///
/// # Errors
/// As [`counters`].
pub fn refused(pin: &Path, limit: usize) -> Result<Option<Vec<RefusedSource>>, EdgeError> {
    pinned(pin).map(|tables| tables.map(|tables| tables.refused(limit)))
}

fn pinned(pin: &Path) -> Result<Option<Tables>, EdgeError> {
    let folder = pins::edge(pin);
    if !folder.exists() { Ok(None) } else { Tables::pinned(&folder).map(Some) }
}
