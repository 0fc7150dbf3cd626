//! Where programs, maps and links outlive the process: a folder on a bpffs.
//!
//! ```text
//! /sys/fs/bpf/turnout/              plain folder; who has it locked (flock) owns what is in it
//!                    /edge/         renamed into place when complete
//!                         /layout-0123456789abcdef   what the maps look like
//!                         /PORTS …                   maps
//!                         /turnout_admit …           programs
//!                         /steering                  link to the network namespace
//!                         /xdp-native-2 …            link to interface number 2, and its mode
//!                    /splice-4711-0/ links of a process's splice (`splice::sets`)
//!                    /new-4711/     being made, or what a crash left of that; cleared by the next owner
//! ```
//! Names have no dot: bpffs refuses it. Interfaces have one sometimes, so links are named by number.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::splice::sets;
use super::{EdgeError, sys};

/// The edge's folder in the pin folder.
const EDGE: &str = "edge";
pub(super) const DRAFT: &str = "new-";
const LAYOUT: &str = "layout-";
/// Where a program waits to be renamed over its predecessor.
pub(super) const NEXT: &str = "-next";
/// The link of steering.
pub(super) const STEERING: &str = "steering";
const XDP: &str = "xdp-";
/// How often, and how far apart, the lock is asked for before it counts as held.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const SYSTEM_BPFFS: &str = "/sys/fs/bpf";

/// The folder that is in use.
pub(super) fn edge(pin: &Path) -> PathBuf {
    pin.join(EDGE)
}

/// A name for a folder in the making.
pub(super) fn draft(pin: &Path) -> PathBuf {
    pin.join(format!("{DRAFT}{}", std::process::id()))
}

/// The fingerprint that a folder's maps were made with.
pub(super) fn layout(folder: &Path) -> Option<String> {
    names(folder).ok()?.into_iter().find_map(|name| Some(name.strip_prefix(LAYOUT)?.to_owned()))
}

/// Writes it down.
pub(super) fn set_layout(folder: &Path, fingerprint: &str) -> Result<(), EdgeError> {
    let path = folder.join(format!("{LAYOUT}{fingerprint}"));
    fs::create_dir(&path).map_err(EdgeError::pin("create", &path))
}

/// How XDP runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// In the driver.
    Native,
    /// Behind it, on the kernel's own packet structure.
    Generic,
}

impl Mode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// Where the link of an interface is pinned.
pub(super) fn xdp_link(folder: &Path, mode: Mode, index: u32) -> PathBuf {
    folder.join(format!("{XDP}{}-{index}", mode.name()))
}

/// The links to interfaces that a folder holds.
pub(super) fn xdp_links(folder: &Path) -> Vec<(Mode, u32, PathBuf)> {
    let parse = |name: &str| {
        let (mode, index) = name.strip_prefix(XDP)?.split_once('-')?;
        let mode = [Mode::Native, Mode::Generic].into_iter().find(|m| m.name() == mode)?;
        Some((mode, index.parse().ok()?, folder.join(name)))
    };
    names(folder).unwrap_or_default().iter().filter_map(|name| parse(name)).collect()
}

pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The innermost folder on the way to the pin folder that exists.
fn nearest(pin: &Path) -> &Path {
    pin.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"))
}

/// Makes the pin folder, mounting a bpffs first where there is none and this process may.
pub(super) fn make(pin: &Path) -> Result<(), EdgeError> {
    if !sys::is_bpffs(nearest(pin)) {
        let system = Path::new(SYSTEM_BPFFS);
        let parent = pin.parent().unwrap_or(pin).to_owned();
        if !pin.starts_with(system) {
            return Err(EdgeError::NoBpffs { pin: pin.into(), mount_point: parent, source: None });
        }
        sys::mount_bpffs(system).map_err(|e| EdgeError::NoBpffs {
            pin: pin.into(),
            mount_point: system.into(),
            source: Some(e),
        })?;
    }
    fs::create_dir_all(pin).map_err(EdgeError::pin("create", pin))
}

/// Makes the pin folder for a user without rights of its own: what a unit's ExecStartPre does as root. Where the bpffs
/// is closed to others (systemd mounts it with mode 0700), passing through is opened; what lies in it stays closed.
///
/// # Errors
/// No bpffs can be had, or the folder can't be given away.
pub fn prepare(pin: &Path, uid: u32, gid: u32) -> Result<(), EdgeError> {
    if sys::is_bpffs(nearest(pin)) {
        return give_away(pin, uid, gid);
    }
    // A unit's step has a mount namespace of its own, even with full privileges: what is mounted in it, no other sees.
    match sys::where_init_is(|| give_away(pin, uid, gid)) {
        Ok(done) => done,
        Err(error) => {
            tracing::debug!("preparing in this mount namespace: init's can't be entered: {error}");
            give_away(pin, uid, gid)
        }
    }
}

fn give_away(pin: &Path, uid: u32, gid: u32) -> Result<(), EdgeError> {
    make(pin)?;
    for folder in pin.ancestors().skip(1).take_while(|p| sys::is_bpffs(p)) {
        let mode = fs::metadata(folder).map_err(EdgeError::pin("look at", folder))?.permissions().mode();
        if mode & 0o001 == 0 {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o001))
                .map_err(EdgeError::pin("open the way through", folder))?;
        }
    }
    let mut theirs = vec![pin.to_owned()];
    // What an earlier start as another user left.
    let mut next = 0;
    while next < theirs.len() {
        let folder = theirs[next].clone();
        if folder.is_dir() {
            let inside = names(&folder).map_err(EdgeError::pin("list", &folder))?;
            theirs.extend(inside.into_iter().map(|name| folder.join(name)));
        }
        next += 1;
    }
    for path in theirs {
        sys::chown(&path, uid, gid).map_err(EdgeError::pin("give away", &path))?;
    }
    fs::set_permissions(pin, fs::Permissions::from_mode(0o750)).map_err(EdgeError::pin("protect", pin))
}

/// Takes the lock of the pin folder.
pub(super) fn lock(pin: &Path) -> Result<OwnedFd, EdgeError> {
    // An owner that just ended may have a child between fork and exec, which holds the lock for that moment. And between
    // opening and locking, an owner that detaches may remove the folder, and somebody make a new one.
    let mut tries = LOCK_TRIES;
    loop {
        tries -= 1;
        let folder = File::open(pin).map_err(EdgeError::pin("open", pin))?;
        match adopt(pin, folder.into()) {
            Err(EdgeError::WrongLock(_)) if tries > 0 => make(pin)?,
            Err(EdgeError::Held { .. }) if tries > 0 => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
}

/// Takes over a lock descriptor: of the right folder, and locked by its open description.
pub(super) fn adopt(pin: &Path, lock: OwnedFd) -> Result<OwnedFd, EdgeError> {
    let system = |what| move |source| EdgeError::System { what, source };
    let folder = File::from(lock);
    if !sys::lock(folder.as_fd()).map_err(system("locking the pin folder"))? {
        return Err(EdgeError::Held { pin: pin.into(), holder: holder(pin) });
    }
    let lock = folder.into();
    if is_locked_by(pin, &lock) { Ok(lock) } else { Err(EdgeError::WrongLock(pin.into())) }
}

/// Whether the descriptor is of the folder that is there now, not of one that was removed.
pub(super) fn is_locked_by(pin: &Path, lock: &OwnedFd) -> bool {
    let held = lock.try_clone().and_then(|lock| File::from(lock).metadata());
    matches!((fs::metadata(pin), held), (Ok(there), Ok(held)) if (there.dev(), there.ino()) == (held.dev(), held.ino()))
}

/// Whether what is pinned under `pin` still is that of who has this lock.
pub(super) fn is_owner(pin: &Path, lock: &OwnedFd) -> bool {
    is_locked_by(pin, lock) && edge(pin).exists()
}

/// Who holds the lock, as far as `/proc/locks` tells: it names the process that took it, not one it was passed on to.
pub(super) fn holder(pin: &Path) -> String {
    let unknown = "another process".to_owned();
    let (Ok(locks), Ok(folder)) = (fs::read_to_string("/proc/locks"), fs::metadata(pin)) else { return unknown };
    let Some(pid) = lock_owner(&locks, folder.ino(), folder.dev()) else { return unknown };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("a process that process {pid} passed it to"),
    }
}

/// A line of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4711 00:1b:12345 0 EOF` (proc(5)).
fn lock_owner(locks: &str, inode: u64, device: u64) -> Option<u32> {
    let at = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at_kind = words.iter().position(|w| *w == "FLOCK")?;
        (words.get(at_kind + 4) == Some(&at.as_str())).then(|| words.get(at_kind + 3)?.parse().ok()).flatten()
    })
}

/// Clears what crashed attempts left. Only the owner of the lock may.
pub(super) fn clear_leftovers(pin: &Path) -> Result<(), EdgeError> {
    for name in names(pin).map_err(EdgeError::pin("list", pin))? {
        if name.strip_prefix(DRAFT).is_some_and(sets::is_set) {
            sets::remove(&pin.join(name))?;
        } else if name.starts_with(DRAFT) {
            remove(&pin.join(name))?;
        }
    }
    let edge = edge(pin);
    for name in names(&edge).unwrap_or_default() {
        if name.ends_with(NEXT) {
            let path = edge.join(name);
            fs::remove_file(&path).map_err(EdgeError::pin("remove", &path))?;
        }
    }
    Ok(())
}

/// Removes a folder of pins. Links that are pinned nowhere else end with it.
pub(super) fn remove(folder: &Path) -> Result<(), EdgeError> {
    for name in names(folder).map_err(EdgeError::pin("list", folder))? {
        let path = folder.join(name);
        let removed = if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) };
        removed.map_err(EdgeError::pin("remove", &path))?;
    }
    fs::remove_dir(folder).map_err(EdgeError::pin("remove", folder))
}

/// Detaches a pinned link at once and removes its pin; a link that is gone already is no error.
pub(super) fn end_link(path: &Path) -> Result<(), EdgeError> {
    if let Ok(link) = sys::object_at(path) {
        // Refused for a link whose interface is gone; there is nothing to detach then.
        let _ = sys::detach_link(link.as_fd());
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(EdgeError::pin("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Whether the splices of processes that live are spared, which end theirs themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splices {
    /// They are: connections that they still have would break.
    OfTheDead,
    /// Those, too.
    All,
}

/// Ends everything under the pin folder, and the folder. The caller holds the lock, or was told to do without. Where a
/// process that lives still has a splice, its folder is said, and stays.
pub(super) fn end(pin: &Path, splices: Splices) -> Result<Option<PathBuf>, EdgeError> {
    let mut spared = None;
    for name in names(pin).map_err(EdgeError::pin("list", pin))? {
        let is_set = sets::is_set(name.strip_prefix(DRAFT).unwrap_or(&name));
        let folder = pin.join(name);
        if !folder.is_dir() {
            continue;
        }
        if is_set {
            match splices {
                Splices::All => sets::remove(&folder)?,
                Splices::OfTheDead if sets::remove_dead(&folder)? => {}
                Splices::OfTheDead => spared = Some(folder),
            }
            continue;
        }
        for (_, _, link) in xdp_links(&folder) {
            end_link(&link)?;
        }
        end_link(&folder.join(STEERING))?;
        remove(&folder)?;
    }
    if spared.is_some() {
        return Ok(spared);
    }
    match fs::remove_dir(pin) {
        // Prepared for this user in a folder of root's: the empty folder is the unit's, and stays.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(None),
        Err(e) => Err(EdgeError::pin("remove", pin)(e)),
        Ok(()) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 00:1b:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 20 00:1b:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 30 00:1b:77 0 EOF\n";
        let device = libc::makedev(0, 0x1b);
        assert_eq!(lock_owner(locks, 77, device), Some(30));
        assert_eq!(lock_owner(locks, 79, device), None);
    }

    #[test]
    fn links_are_found_by_their_names_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["xdp-native-12", "xdp-generic-3", "xdp-odd-4", "xdp-native-x", "PORTS", "steering"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let mut found: Vec<_> = xdp_links(folder.path()).into_iter().map(|(mode, index, _)| (mode, index)).collect();
        found.sort_unstable();
        assert_eq!(found, [(Mode::Native, 12), (Mode::Generic, 3)]);
    }

    #[test]
    fn a_layout_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(layout(folder.path()), None);
        set_layout(folder.path(), "0123").unwrap();
        assert_eq!(layout(folder.path()).as_deref(), Some("0123"));
    }

    #[test]
    fn pins_outside_of_a_bpffs_are_refused_with_the_mount_to_make() {
        let folder = tempfile::tempdir().unwrap();
        let refused = make(&folder.path().join("pins")).unwrap_err().to_string();
        assert!(refused.contains("mount -t bpf bpf"), "{refused}");
    }
}
