//! Waiting for a condition, bounded.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Asks `probe` every 50 ms until it answers `Ok`; gives up after `patience` with its last error.
///
/// # Errors
/// `what` did not happen in time; the error carries why the last probe failed.
pub fn until<T>(what: &str, patience: Duration, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(error) if begin.elapsed() >= patience => {
                return Err(error.context(format!("waited {patience:?} for {what}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Like [`until`], for a plain yes or no.
///
/// # Errors
/// `what` did not become true in time.
pub fn until_true(what: &str, patience: Duration, mut probe: impl FnMut() -> bool) -> Result<()> {
    until(what, patience, || if probe() { Ok(()) } else { Err(anyhow!("not yet")) })
}
