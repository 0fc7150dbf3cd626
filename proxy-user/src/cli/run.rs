//! `turnout run`: the log and the runtime, and then the gateway.

use std::path::Path;

use anyhow::Context;

use super::{logging, parts};

/// Serves until a drain has ended.
///
/// # Errors
/// Why the start failed; it is for the command line to print.
pub(super) fn run(config_path: &Path) -> anyhow::Result<()> {
    let loaded = parts::load(config_path)?;
    let log = logging::init(loaded.config.log.format, &loaded.config.log.level)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = loaded.config.workers {
        runtime.worker_threads(usize::from(workers).max(1));
    }
    let runtime = runtime.thread_name("turnout").enable_all().build().context("can't start worker threads")?;
    runtime.block_on(parts::serve(parts::ServeOptions { config_path: config_path.to_owned(), loaded, log }))
}
