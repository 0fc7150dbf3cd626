//! A pin folder for each gateway, which leaves nothing behind, whatever became of the gateway.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use turnout::kernel;

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "turnout-test-";

/// Gateways that live as long as their test process are never dropped: the next process takes off what is theirs.
fn clear_leftovers() {
    clear(|pid| !Path::new(&format!("/proc/{pid}")).exists());
}

/// Takes off what the gateways of this process have pinned, programs and all, once they have ended: for an end without
/// drops.
pub(crate) fn remove_pins() {
    clear(|pid| pid == std::process::id());
}

fn clear(is_meant: impl Fn(u32) -> bool) {
    for entry in fs::read_dir(BPFFS).into_iter().flatten().flatten() {
        if owner(&entry.file_name().to_string_lossy()).is_some_and(&is_meant) {
            drop(PinFolder(entry.path()));
        }
    }
}

/// Id of the process whose gateway has the folder of this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// A folder on the bpffs that no other gateway has; what is pinned in it is taken off when this is dropped.
#[derive(Debug)]
pub struct PinFolder(PathBuf);

impl PinFolder {
    /// A name; whoever pins something makes the folder.
    #[must_use]
    pub fn reserve() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        static PREPARE: Once = Once::new();
        PREPARE.call_once(clear_leftovers);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self(Path::new(BPFFS).join(format!("{PREFIX}{}-{number}", std::process::id())))
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where in it the edge's pins are that are in use.
    #[must_use]
    pub fn edge(&self) -> PathBuf {
        self.0.join("edge")
    }
}

impl Drop for PinFolder {
    fn drop(&mut self) {
        // One at a time: an interrupt may clear what a thread is just dropping.
        static DETACHING: Mutex<()> = Mutex::new(());
        let _detaching = DETACHING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = kernel::detach(&self.0, true) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_whose_the_folder_is() {
        let reserved = PinFolder::reserve();
        assert_eq!(owner(&reserved.path().file_name().unwrap().to_string_lossy()), Some(std::process::id()));
        assert_eq!(["turnout-test-9", "turnout-9-0", "turnout"].map(owner), [None; 3]);
    }
}
