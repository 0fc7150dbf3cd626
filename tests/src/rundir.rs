//! A directory for each thing a test starts (a cluster, a gateway). Its logs outlive the test: a test that fails by
//! returning an error can't be told from one that passed, so they are swept away by age.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::paths;

/// How long the logs of a process that has ended stay.
const KEPT_FOR: Duration = Duration::from_secs(6 * 3600);
/// Folders of this name hold what is large and not worth keeping.
pub const DATA: &str = "data";

static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static COUNTER: AtomicU32 = AtomicU32::new(0);
static PREPARE: Once = Once::new();

/// A run directory `build/runs/<pid>-<n>-<name>`. On drop its `data` folders go, unless `TURNOUT_KEEP` is set.
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
            name_on_panic();
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
        if std::env::var_os("TURNOUT_KEEP").is_none() {
            remove_data(&self.path);
        }
    }
}

fn remove_data(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if path.file_name().is_some_and(|name| name == DATA) {
            let _ = fs::remove_dir_all(path);
        } else {
            remove_data(&path);
        }
    }
}

fn runs() -> PathBuf {
    paths::build().join("runs")
}

/// Every panic names all live directories: it can't be known which of them the failed test used.
fn name_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        previous(info);
        // `try_lock`: the panic may come from a thread that holds it.
        if let Ok(live) = LIVE.try_lock() {
            live.iter().for_each(|path| eprintln!("logs in {}", path.display()));
        }
    }));
}

/// Clears what processes left that no longer live: a shared cluster is never dropped, a killed run clears nothing.
fn sweep() {
    let Ok(entries) = fs::read_dir(runs()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        let age = entry.metadata().and_then(|dir| dir.modified()).map(|made| SystemTime::now().duration_since(made));
        if age.is_ok_and(|age| age.unwrap_or_default() > KEPT_FOR) {
            let _ = fs::remove_dir_all(entry.path());
        } else {
            remove_data(&entry.path());
        }
    }
}
