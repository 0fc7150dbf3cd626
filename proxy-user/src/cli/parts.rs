//! The other parts as the command line uses them: each function here is the one place that calls its part.
//!
//! SEAM: the parts are joined here. Until then each function says which part is missing, and its command fails.

use std::path::{Path, PathBuf};

use super::logging::LogHandle;
use crate::config::Config;

/// A config file that was read and is whole.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Config,
    /// One sentence each.
    pub(super) warnings: Vec<String>,
}

/// What the daemon is started with.
#[expect(dead_code, reason = "the gateway reads it")]
pub(super) struct ServeOptions {
    /// Read again at each reload.
    pub(super) config_path: PathBuf,
    /// The config as it was read at the start.
    pub(super) loaded: Loaded,
    /// The log, to be turned when a reload changes it.
    pub(super) log: LogHandle,
}

/// One sentence about this host.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Finding {
    pub(super) topic: String,
    pub(super) ok: bool,
    pub(super) sentence: String,
    pub(super) remedy: Option<String>,
}

// SEAM: crate::config::load
pub(super) fn load(path: &Path) -> anyhow::Result<Loaded> {
    anyhow::bail!("{}: this binary was built without config loading", path.display())
}

// SEAM: ConfigError::to_json, where `load`'s error is one
pub(super) fn refusal_json(path: &Path, error: &anyhow::Error) -> serde_json::Value {
    serde_json::json!({ "ok": false, "file": path, "problems": [{ "message": format!("{error:#}") }] })
}

// SEAM: crate::config::tree
pub(super) fn tree(loaded: &Loaded) -> String {
    format!("{:#?}\n", loaded.config)
}

// SEAM: crate::config::check_json
pub(super) fn check_json(loaded: &Loaded) -> serde_json::Value {
    serde_json::json!({ "ok": true, "warnings": loaded.warnings })
}

// SEAM: crate::kernel::doctor::findings
pub(super) fn findings() -> anyhow::Result<Vec<Finding>> {
    anyhow::bail!("this binary was built without the doctor")
}

// SEAM: crate::gateway::serve
pub(super) async fn serve(options: ServeOptions) -> anyhow::Result<()> {
    anyhow::bail!("{}: this binary was built without the gateway", options.config_path.display())
}
