//! Where things are, and how several test processes share the build folder without racing.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.parent().unwrap_or(crate_dir).to_path_buf()
}

/// `build/`, which git ignores: fetched artifacts, compiled clients, run directories.
#[must_use]
pub fn build() -> PathBuf {
    root().join("build")
}

/// The `tests` crate's own files (client sources, Maven pom).
#[must_use]
pub fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// An exclusive advisory lock on a file, held until dropped. The kernel releases it when the process dies.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Waits for the lock on `path` (created if missing).
    ///
    /// # Errors
    /// The file can't be created or locked.
    pub fn acquire(path: &Path) -> Result<Self> {
        let file = open_lock(path)?;
        loop {
            // SAFETY: flock on a descriptor that `file` keeps open for the whole call.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Self { _file: file });
            }
            let error = std::io::Error::last_os_error();
            ensure!(error.kind() == std::io::ErrorKind::Interrupted, "locking {}: {error}", path.display());
        }
    }

    /// Takes the lock if nobody holds it.
    ///
    /// # Errors
    /// The file can't be created.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>> {
        let file = open_lock(path)?;
        // SAFETY: flock on a descriptor that `file` keeps open for the whole call.
        let taken = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        Ok(taken.then_some(Self { _file: file }))
    }
}

fn open_lock(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    }
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("opening the lock file {}", path.display()))
}

/// Runs `make` once for each `fingerprint`: later calls, in this process or another, find the stamp and return at once.
///
/// `make` gets an empty directory that becomes `dir` only when it succeeded, so a killed run leaves nothing half-made.
///
/// # Errors
/// What `make` reports, or the directory can't be put in place.
pub fn once(dir: &Path, fingerprint: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = dir.file_name().context("the directory to make has no name")?.to_string_lossy().into_owned();
    let parent = dir.parent().context("the directory to make has no parent")?;
    let stamp = dir.join(".stamp");
    let is_made = || fs::read_to_string(&stamp).is_ok_and(|found| found == fingerprint);
    if is_made() {
        return Ok(());
    }
    let _lock = FileLock::acquire(&parent.join(format!(".{name}.lock")))?;
    if is_made() {
        return Ok(());
    }
    let draft = parent.join(format!(".{name}.new"));
    remove_dir(&draft)?;
    fs::create_dir_all(&draft)?;
    make(&draft)?;
    fs::write(draft.join(".stamp"), fingerprint)?;
    remove_dir(dir)?;
    fs::rename(&draft, dir).with_context(|| format!("putting {} in place", dir.display()))
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// A fingerprint of files and words for [`once`]: it changes when any byte of them does.
///
/// # Errors
/// A file can't be read.
pub fn fingerprint(files: &[PathBuf], words: &[&str]) -> Result<String> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    for file in files {
        fs::read(file).with_context(|| format!("reading {}", file.display()))?.hash(&mut hasher);
    }
    words.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_make_leaves_nothing_and_the_next_one_runs() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("thing");
        assert!(once(&target, "1", |_| anyhow::bail!("no")).is_err());
        assert!(!target.exists());
        once(&target, "1", |draft| Ok(fs::write(draft.join("a"), "x")?)).unwrap();
        once(&target, "1", |_| panic!("made twice for one fingerprint")).unwrap();
        once(&target, "2", |draft| Ok(fs::write(draft.join("b"), "y")?)).unwrap();
        assert!(target.join("b").exists() && !target.join("a").exists());
    }

    #[test]
    fn a_held_lock_is_not_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::acquire(&path).unwrap();
        assert!(FileLock::try_acquire(&path).unwrap().is_none());
        drop(held);
        assert!(FileLock::try_acquire(&path).unwrap().is_some());
    }
}
