//! Tests that can't run here say so, and the run lists them at the end.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use crate::paths;

/// How much a run is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// What fits the time of a continuous-integration run.
    Ci,
    /// Everything: long soaks, all clients in both modes (`TURNOUT_TIER=full`).
    Full,
}

/// The tier of this run, from `TURNOUT_TIER` (`ci`, the default, or `full`).
#[must_use]
pub fn tier() -> Tier {
    match std::env::var("TURNOUT_TIER").as_deref() {
        Ok("full") => Tier::Full,
        _ => Tier::Ci,
    }
}

/// Whether a skipped real-Kafka suite is a failure (`CI=true`).
#[must_use]
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Whether this process may create network namespaces and devices.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// File with one line for each skipped test: its name, a tab, the reason. Whoever starts a run empties it.
#[must_use]
pub fn register() -> PathBuf {
    paths::build().join("skips.txt")
}

/// What a test may return when it is skipped: `()`, or `Ok(())`.
pub trait Skipped {
    /// That value.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<E> Skipped for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// Registers the calling test as skipped. Use as `return harness::skip("needs root");`.
///
/// The name is that of the test's thread, as the standard test runner sets it.
pub fn skip<T: Skipped>(reason: impl AsRef<str>) -> T {
    let thread = std::thread::current();
    record(thread.name().unwrap_or("unnamed test"), reason.as_ref());
    T::skipped()
}

/// Like [`skip`], for a test of the real-Kafka suites: on CI (`CI=true`) these must run, so it fails there.
///
/// # Panics
/// On CI.
pub fn skip_real_kafka<T: Skipped>(reason: impl AsRef<str>) -> T {
    assert!(!is_ci(), "a real-Kafka test can't run, which CI refuses: {}", reason.as_ref());
    skip(reason)
}

/// Registers anything that is left out, e.g. one client family of a test that runs for the others.
pub fn record(name: &str, reason: &str) {
    let binary = std::env::current_exe()
        .ok()
        .and_then(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .unwrap_or_default();
    // Cargo appends `-<hash>` to the name of a test binary.
    let suite = binary.rsplit_once('-').map_or(binary.as_str(), |(suite, _)| suite);
    let line = format!("{suite}::{name}\t{}\n", reason.replace(['\n', '\t'], " "));
    eprint!("skipped: {line}");
    let path = register();
    let written = fs::create_dir_all(paths::build())
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&path))
        // One write call, so that lines of parallel test processes don't mix.
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!("the skip was not registered in {}: {error}", path.display());
    }
}

/// Leaves the calling test with a registered skip unless this process is root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            return $crate::skip("needs root, to create network namespaces");
        }
    };
}

/// Leaves the calling test with a registered skip where Kafka's jars can't be had; on CI it fails instead.
#[macro_export]
macro_rules! need_kafka {
    () => {
        if let Err(error) = $crate::kafka::Artifacts::prepare() {
            return $crate::skip::skip_real_kafka(format!("{error:#}"));
        }
    };
}

/// Leaves the calling test with a registered skip where this client family can't be prepared; on CI it fails instead.
#[macro_export]
macro_rules! need_client {
    ($family:expr) => {
        if let Err(error) = $crate::clients::prepare($family) {
            return $crate::skip::skip_real_kafka(format!("{error:#}"));
        }
    };
}

/// Leaves the calling test with a registered skip unless the run is of the full tier.
#[macro_export]
macro_rules! full_tier {
    () => {
        if $crate::tier() < $crate::Tier::Full {
            return $crate::skip("full tier only (TURNOUT_TIER=full)");
        }
    };
}
