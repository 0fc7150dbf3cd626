//! `turnout run`: the log and the runtime, and then the daemon.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::runtime::Runtime;

use super::daemon;
use super::logging::{self, LogHandle};
use crate::config::{self, FastPath, FastPathMode, Loaded};
use crate::kernel::capabilities::{self, Capability, NEEDED, Set, USEFUL};
use crate::splice::mirror::Consumers;
use crate::{handover, kernel};

/// Serves until a drain has ended.
///
/// # Errors
/// Why the start failed; it is for the command line to print.
pub(super) fn run(config_path: &Path, consumers: Option<Arc<dyn Consumers>>) -> anyhow::Result<()> {
    let mut inherited = handover::receive()?;
    let (loaded, log, runtime) = match prepare(config_path) {
        Ok(prepared) => prepared,
        Err(error) => {
            if let Some((predecessor, _)) = &mut inherited {
                predecessor.failed(&format!("{error:#}"));
            }
            return Err(error);
        }
    };
    runtime.block_on(daemon::serve(config_path.to_owned(), loaded, log, inherited, consumers))
}

fn prepare(config_path: &Path) -> anyhow::Result<(Loaded, LogHandle, Runtime)> {
    let loaded = config::load(config_path)?;
    let log = logging::init(loaded.config.log.format, &loaded.config.log.level)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    prepare_kernel(&loaded.config.fast_path);
    // Connections have threads of their own; this one accepts them, follows clusters and talks to operators.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start the runtime")?;
    Ok((loaded, log, runtime))
}

/// Does what needs more rights than the daemon keeps, and gives the others up: before there are threads, which have
/// their own.
fn prepare_kernel(fast_path: &FastPath) {
    // SAFETY: neither call takes or returns a pointer, or can fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    if fast_path.mode != FastPathMode::Off
        && Set::effective().is_ok_and(|set| set.has(Capability::SysAdmin))
        && let Err(error) = kernel::prepare(&fast_path.pin, uid, gid)
    {
        // What comes of it is said when the programs are loaded.
        tracing::debug!("preparing {}: {error}", fast_path.pin.display());
    }
    if let Err(error) = capabilities::keep_only(NEEDED.into_iter().chain(USEFUL)) {
        tracing::warn!("capabilities that are not needed could not be given up: {error}");
    }
}
