//! Folders of sets: where the links of a daemon's programs outlive it.
//!
//! Each process has programs and maps of its own. When it is killed, its links stay, so that the last packets of its
//! sockets (FINs, RSTs, retransmissions) are still put into the wire's numbers; its successor removes them later.
//!
//! ```text
//! /sys/fs/bpf/turnout/splice-4711-0/     locked by its owner (flock) as long as that lives
//!                                  /in-2    link at the way in of interface number 2
//!                                  /out-2   … at the way out
//!                    /new-splice-4711-0/ being made
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::sys::Way;
use crate::kernel::pins::{self, DRAFT};
use crate::kernel::{EdgeError, sys};

const SET: &str = "splice-";
/// How often, and how far apart, the lock of a set is asked for before its owner counts as alive.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Of the process that owns it.
#[derive(Debug)]
pub(super) struct Set {
    folder: PathBuf,
    lock: OwnedFd,
}

const fn prefix(way: Way) -> &'static str {
    match way {
        Way::In => "in-",
        Way::Out => "out-",
    }
}

impl Set {
    /// Makes one. The caller has the lock of the pin folder.
    pub(super) fn make(pin: &Path) -> Result<Self, EdgeError> {
        let (folder, draft) = unused(pin);
        fs::create_dir(&draft).map_err(EdgeError::pin("create", &draft))?;
        let lock = File::open(&draft).map_err(EdgeError::pin("open", &draft))?;
        match sys::lock(lock.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(EdgeError::Held { pin: draft.clone(), holder: pins::holder(&draft) }),
            Err(source) => return Err(EdgeError::System { what: "locking the splice's folder", source }),
        }
        fs::rename(&draft, &folder).map_err(EdgeError::pin("rename into place", &draft))?;
        Ok(Self { folder, lock: lock.into() })
    }

    /// Whether it is still there.
    pub(super) fn is_there(&self) -> bool {
        pins::is_locked_by(&self.folder, &self.lock)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the link of an interface is pinned.
    pub(super) fn link(&self, way: Way, interface: u32) -> PathBuf {
        self.folder.join(format!("{}{interface}", prefix(way)))
    }

    /// Interfaces that it has a link to.
    pub(super) fn interfaces(&self) -> BTreeSet<u32> {
        let of = |name: &String| Way::BOTH.into_iter().find_map(|way| name.strip_prefix(prefix(way))?.parse().ok());
        pins::names(&self.folder).unwrap_or_default().iter().filter_map(of).collect()
    }

    /// Whether an interface's two links are there, and attached to it.
    pub(super) fn holds(&self, interface: u32) -> bool {
        Way::BOTH.into_iter().all(|way| {
            let target = sys::object_at(&self.link(way, interface)).and_then(|link| sys::link_target(link.as_fd()));
            matches!(target, Ok(Some(target)) if target == interface)
        })
    }

    /// Takes the programs off an interface.
    pub(super) fn end(&self, interface: u32) -> Result<(), EdgeError> {
        Way::BOTH.into_iter().try_for_each(|way| pins::end_link(&self.link(way, interface)))
    }

    /// Takes everything off.
    pub(super) fn remove(&self) -> Result<(), EdgeError> {
        if self.is_there() { remove(&self.folder) } else { Ok(()) }
    }
}

/// A folder that isn't there, and its draft. The same process may have had others, and so may another with its number.
fn unused(pin: &Path) -> (PathBuf, PathBuf) {
    let mut n = 0u32;
    loop {
        let name = format!("{SET}{}-{n}", std::process::id());
        let (folder, draft) = (pin.join(&name), pin.join(format!("{DRAFT}{name}")));
        if !folder.exists() && !draft.exists() {
            return (folder, draft);
        }
        n += 1;
    }
}

/// Sets of a pin folder, whoever's.
fn all(pin: &Path) -> Vec<PathBuf> {
    let names = pins::names(pin).unwrap_or_default();
    names.into_iter().filter(|name| name.starts_with(SET)).map(|name| pin.join(name)).collect()
}

/// Whether a folder is a set.
pub(in crate::kernel) fn is_set(name: &str) -> bool {
    name.starts_with(SET)
}

/// The lock of a set whose owner is dead.
fn lock_of_dead(folder: &Path) -> Option<OwnedFd> {
    let folder = File::open(folder).ok()?;
    sys::lock(folder.as_fd()).ok()?.then(|| folder.into())
}

/// Removes a set that nobody owns; `false`: somebody does. An owner that just ended may have a child between fork and
/// exec, which holds the lock for that moment.
pub(in crate::kernel) fn remove_dead(folder: &Path) -> Result<bool, EdgeError> {
    for n in 0..LOCK_TRIES {
        if let Some(_lock) = lock_of_dead(folder) {
            return remove(folder).map(|()| true);
        }
        if n + 1 < LOCK_TRIES {
            std::thread::sleep(LOCK_PAUSE);
        }
    }
    Ok(false)
}

/// Ends the links of a set, and its folder.
pub(in crate::kernel) fn remove(folder: &Path) -> Result<(), EdgeError> {
    for name in pins::names(folder).map_err(EdgeError::pin("list", folder))? {
        pins::end_link(&folder.join(name))?;
    }
    fs::remove_dir(folder).map_err(EdgeError::pin("remove", folder))
}

/// Kernel ids of the programs of all sets of a pin folder.
pub(super) fn programs(pin: &Path) -> BTreeSet<u32> {
    let links = all(pin).into_iter().flat_map(|folder| {
        let names = pins::names(&folder).unwrap_or_default();
        names.into_iter().map(move |name| folder.join(name))
    });
    links.filter_map(|path| sys::link_program(sys::object_at(&path).ok()?.as_fd()).ok()).collect()
}

/// Sets whose owners are dead, with when that was first seen.
#[derive(Debug, Default)]
pub(super) struct Dead(BTreeMap<PathBuf, Instant>);

impl Dead {
    /// Removes those that were left long enough ago that none of their owners' connections has a packet to send. The
    /// caller has the lock of the pin folder.
    pub(super) fn clear(&mut self, pin: &Path, stay: Duration, now: Instant) {
        let there: BTreeSet<PathBuf> = all(pin).into_iter().collect();
        self.0.retain(|folder, _| there.contains(folder));
        for folder in there {
            let Some(_lock) = lock_of_dead(&folder) else {
                self.0.remove(&folder);
                continue;
            };
            let seen = *self.0.entry(folder.clone()).or_insert(now);
            if now.saturating_duration_since(seen) >= stay {
                match remove(&folder) {
                    Ok(()) => tracing::info!("removed the splice of a daemon that is gone: {}", folder.display()),
                    Err(error) => tracing::warn!("the splice of a daemon that is gone: {error}"),
                }
                self.0.remove(&folder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_names_of_their_own_without_dots() {
        let pin = tempfile::tempdir().expect("a folder");
        let sets = [(); 3].map(|()| Set::make(pin.path()).expect("made"));
        let names: BTreeSet<_> = all(pin.path()).into_iter().collect();
        assert_eq!(names, sets.iter().map(|set| set.folder().to_owned()).collect());
        assert_eq!(names.len(), 3);
        for set in &sets {
            let name = set.folder().file_name().expect("a name").to_string_lossy().into_owned();
            assert!(!name.contains('.') && is_set(&name), "bpffs takes no dots: {name}");
        }
        assert_eq!(pins::names(pin.path()).expect("listed").len(), 3, "no draft is left");
    }

    #[test]
    fn interfaces_are_read_from_the_names_of_links() {
        let pin = tempfile::tempdir().expect("a folder");
        let set = Set::make(pin.path()).expect("made");
        for name in ["in-3", "out-3", "out-12", "in-x", "other"] {
            fs::write(set.folder().join(name), "").expect("written");
        }
        assert_eq!(set.interfaces(), [3, 12].into());
        assert!(!set.holds(3), "these are no links");
    }

    #[test]
    fn a_set_stays_while_its_owner_lives_and_for_a_while_after() {
        const STAY: Duration = Duration::from_secs(120);
        let pin = tempfile::tempdir().expect("a folder");
        let [living, dying] = [(); 2].map(|()| Set::make(pin.path()).expect("made"));
        fs::write(dying.folder().join("in-3"), "").expect("written");
        let (mut dead, begin) = (Dead::default(), Instant::now());
        dead.clear(pin.path(), STAY, begin);
        let gone = dying.folder().to_owned();
        drop(dying);
        for (seconds, there) in [(200, true), (319, true), (320, false)] {
            dead.clear(pin.path(), STAY, begin + Duration::from_secs(seconds));
            assert_eq!(gone.exists(), there, "{seconds} s");
        }
        assert!(living.is_there());
        assert!(!remove_dead(living.folder()).expect("looked at"));
        living.remove().expect("removed");
        assert!(!living.is_there());
    }
}
