//! `cargo xtask build`: the kernel programs, then the daemon with them inside.

use anyhow::{Result, bail};

use crate::command::cargo;
use crate::{bootstrap, kernel, workspace};

/// Build the kernel programs, and turnout with them inside.
///
/// Without the kernel toolchain the daemon is built alone and says so in `turnout doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Optimised, at target/release/turnout
    #[arg(long)]
    release: bool,
    /// Leave the kernel programs out
    #[arg(long, conflicts_with = "require_ebpf")]
    no_ebpf: bool,
    /// Fail where the kernel programs can't be built
    #[arg(long)]
    require_ebpf: bool,
    /// For development: kernel programs that log each packet they refuse, into the daemon's log at level debug
    #[arg(long, conflicts_with = "no_ebpf")]
    ebpf_log: bool,
}

/// What to do about the kernel programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ebpf {
    /// Build them where the toolchain is there.
    Auto,
    /// Fail where it isn't.
    Required,
    /// Leave them out.
    Off,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let ebpf = match (args.no_ebpf, args.require_ebpf) {
        (true, _) => Ebpf::Off,
        (_, true) => Ebpf::Required,
        _ => Ebpf::Auto,
    };
    build_with(args.release, ebpf, args.ebpf_log)
}

/// Builds the daemon as a release, with the kernel programs where the toolchain is there.
pub(crate) fn release() -> Result<()> {
    build(true, Ebpf::Auto)
}

pub(crate) fn build(release: bool, ebpf: Ebpf) -> Result<()> {
    build_with(release, ebpf, false)
}

fn build_with(release: bool, ebpf: Ebpf, log: bool) -> Result<()> {
    let mut daemon = cargo().args(["build", "--package", "proxy-user", "--bin", "turnout"]);
    if release {
        daemon = daemon.arg("--release");
    }
    if log {
        daemon = daemon.args(["--features", "kernel-log"]);
    }
    match (ebpf, kernel::lacking()) {
        (Ebpf::Off, _) => {
            println!("kernel programs: left out");
            daemon = daemon.env("TURNOUT_EBPF_OBJECT", "");
        }
        (_, None) => kernel::build(log)?,
        (Ebpf::Required, Some(lack)) => bail!("kernel programs: {lack}; {}", bootstrap::hint("build")),
        (Ebpf::Auto, Some(lack)) => {
            println!("kernel programs: left out, {lack}; {}", bootstrap::hint("build"));
            // An object of an earlier toolchain may be older than the source.
            daemon = daemon.env("TURNOUT_EBPF_OBJECT", "");
        }
    }
    daemon.go()?;
    if release {
        println!("built {}", workspace::turnout().display());
    }
    Ok(())
}
