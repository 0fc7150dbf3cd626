//! Ctrl-C at any moment: what this process started ends; its kernel programs, namespaces and run directories go.
//!
//! Harness calls block for long (a cluster starts, Maven fetches), so the end doesn't wait for them to notice a flag:
//! one thread waits for the signal, cleans up and exits the process.

use std::fs;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::turnout::remove_pins;
use crate::{netns, paths, process};

/// What a shell expects of a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

static EXIT_CODE: AtomicI32 = AtomicI32::new(INTERRUPTED);

/// Cleans up and exits with 130 when SIGINT or SIGTERM comes, from now on.
///
/// # Errors
/// The thread that waits for signals can't be started.
pub fn guard() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let wait = move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let signals = signal(SignalKind::interrupt()).and_then(|int| Ok((int, signal(SignalKind::terminate())?)));
            let (mut interrupt, mut terminate) = match signals {
                Ok(signals) => signals,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            // Held to the end: what is started from now on would be left behind.
            let _no_more = process::hold_starts();
            clean_up();
            std::process::exit(EXIT_CODE.load(Ordering::Relaxed));
        });
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    is_ready.recv()?.context("waiting for signals")
}

/// From now on an interrupt is the expected end: exit code 0.
pub fn expected() {
    EXIT_CODE.store(0, Ordering::Relaxed);
}

/// Waits for the end of the process where an interrupt cleans up: for a program that is about to end by itself, often
/// because what it had started was ended.
pub fn give_way() {
    drop(process::hold_starts());
}

fn clean_up() {
    eprintln!("\ninterrupted: cleaning up");
    let children = children();
    for pid in &children {
        // SAFETY: plain syscall. The pid is a child of this process, hence not reused before it is reaped; every
        // child the harness starts leads a process group of its own.
        unsafe { libc::killpg(*pid, libc::SIGKILL) };
    }
    for _ in 0..100 {
        if children.iter().all(|pid| has_ended(*pid)) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    remove_pins();
    netns::delete_own();
    remove_run_directories();
}

/// Removes the run directories of this process, logs included: for the end of a run whose logs nobody will ask for.
pub fn remove_run_directories() {
    let own = format!("{}-", std::process::id());
    for entry in fs::read_dir(paths::build().join("runs")).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&own) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Processes whose parent this process is.
fn children() -> Vec<i32> {
    let own = std::process::id().to_string();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat_fields(*pid).is_some_and(|fields| fields.get(1) == Some(&own))).collect()
}

/// Whether it is gone, or dead and only waits to be reaped.
fn has_ended(pid: i32) -> bool {
    stat_fields(pid).is_none_or(|fields| fields[0] == "Z")
}

/// The fields of `/proc/PID/stat` behind the command's name: state, parent, …
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and parentheses itself.
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}
