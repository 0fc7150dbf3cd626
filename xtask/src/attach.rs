//! `cargo xtask attach` and `detach`: the kernel programs without the daemon, by way of the turnout binary.

use anyhow::{Result, bail};

use crate::build::{self, Ebpf};
use crate::command::run;
use crate::workspace;

/// Load the kernel programs on an interface without the daemon (root).
///
/// Admission (XDP) on the interface and steering (sk_lookup) in this network namespace. Ports and lists are the daemon's
/// to fill: until then everything passes. It stays until `cargo xtask detach`, held by pins under /sys/fs/bpf/turnout.
#[derive(clap::Args)]
pub(crate) struct AttachArgs {
    /// Network interface whose driver runs XDP, e.g. eth0
    interface: String,
}

/// Take off what `attach` left (root).
#[derive(clap::Args)]
pub(crate) struct DetachArgs {}

pub(crate) fn attach(AttachArgs { interface }: &AttachArgs) -> Result<()> {
    build::build(true, Ebpf::Required)?;
    run(workspace::turnout()).args(["attach", "--interface", interface.as_str()]).go()
}

pub(crate) fn detach(DetachArgs {}: &DetachArgs) -> Result<()> {
    let turnout = workspace::turnout();
    if !turnout.is_file() {
        bail!("there is no {}; build it with `cargo xtask build --release`", turnout.display());
    }
    run(turnout).arg("detach").go()
}
