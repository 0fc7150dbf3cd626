//! Where things are.

use std::path::{Path, PathBuf};

/// The folder that holds the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The release build of the daemon.
pub(crate) fn turnout() -> PathBuf {
    target().join("release/turnout")
}

/// The kernel object that the daemon's build script embeds; the same path whatever CARGO_TARGET_DIR says.
pub(crate) fn kernel_object() -> PathBuf {
    kernel_objects().join("turnout-ebpf")
}

/// The folder where all of them are.
pub(crate) fn kernel_objects() -> PathBuf {
    root().join("target/bpf")
}

/// Fetched artifacts, run directories, lists: everything that isn't cargo's and may be deleted.
pub(crate) fn scratch() -> PathBuf {
    root().join("build")
}

/// Tools that bootstrap put beside the project because the host's own are missing or too old; first in PATH.
pub(crate) fn tools() -> PathBuf {
    scratch().join("tools/bin")
}
