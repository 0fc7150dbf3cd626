//! A directory for each thing a test starts (a cluster, a gateway), kept when a test fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::paths;

/// Marks a directory whose test failed.
const KEEP: &str = ".keep";
/// How long the directory of a failed test stays.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static COUNTER: AtomicU32 = AtomicU32::new(0);
static PREPARE: Once = Once::new();

/// A run directory `build/runs/<pid>-<n>-<name>`; removed on drop unless a test of this process panicked meanwhile.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Creates one.
    ///
    /// # Errors
    /// The directory can't be created.
    pub fn create(name: &str) -> Result<Self> {
        PREPARE.call_once(|| {
            sweep();
            keep_on_panic();
        });
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = runs().join(format!("{}-{number}-{name}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.path);
        if !self.path.join(KEEP).exists() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn runs() -> PathBuf {
    paths::build().join("runs")
}

/// Every panic marks all live directories: it can't be known which of them the failed test used.
fn keep_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        previous(info);
        // `try_lock`: the panic may come from a thread that holds it.
        if let Ok(live) = LIVE.try_lock() {
            for path in live.iter() {
                let _ = fs::write(path.join(KEEP), "");
                eprintln!("logs kept in {}", path.display());
            }
        }
    }));
}

/// Removes what processes left that no longer live: a shared cluster is never dropped, a killed run cleans nothing.
fn sweep() {
    let Ok(entries) = fs::read_dir(runs()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        let age = fs::metadata(entry.path().join(KEEP))
            .and_then(|keep| keep.modified())
            .map(|kept| SystemTime::now().duration_since(kept).unwrap_or_default());
        if age.is_ok_and(|age| age < KEPT_FOR) {
            continue;
        }
        let _ = fs::remove_dir_all(entry.path());
    }
}
