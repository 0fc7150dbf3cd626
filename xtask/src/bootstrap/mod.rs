//! `cargo xtask bootstrap`: look at the host, plan, say it, do it.

mod host;
mod install;
mod plan;

use anyhow::{Result, bail};
use clap::ValueEnum;

use host::Host;
use plan::{Plan, plan};

/// Install what a job needs and this host lacks.
///
/// Everything is listed with its reason before anything is done. A second run finds nothing to do. What can't be
/// installed here (no root, no apt, no network) is named, and the exit code is 1.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The job to prepare for
    #[arg(long = "for", value_enum, default_value_t = Purpose::All, value_name = "JOB")]
    purpose: Purpose,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// A job with needs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// Compile turnout and its kernel programs
    Build,
    /// Build, and run every test
    Test,
    /// Build, and run the demo
    Demo,
    /// Build, and run the bench
    Bench,
    /// Build, and check style and dependencies
    Lint,
    /// All of them
    All,
}

/// The command that prepares for a job, for messages.
pub(crate) fn hint(job: &str) -> String {
    format!("`cargo xtask bootstrap --for {job}` installs it")
}

pub(crate) fn main(&Args { purpose, dry_run }: &Args) -> Result<()> {
    let plan = plan(&Host::look(), purpose);
    print!("{plan}");
    if dry_run || plan.is_empty() {
        return Ok(());
    }
    install::carry_out(&plan)?;
    let Plan { steps, lacks } = self::plan::plan(&Host::look(), purpose);
    if !steps.is_empty() {
        bail!("installed, but still missing: {}", steps.iter().map(|s| s.what()).collect::<Vec<_>>().join(", "));
    }
    if !lacks.is_empty() {
        bail!("{} of the things above can't be installed here", lacks.len());
    }
    println!("done; a second run has nothing to do");
    Ok(())
}

/// Prepares for a job that can do without some of it: on CI everything must be there, elsewhere the job goes on and
/// names what it skips.
pub(crate) fn or_go_on(purpose: Purpose) -> Result<()> {
    let done = main(&Args { purpose, dry_run: false });
    match done {
        Err(error) if !is_ci() => {
            eprintln!("bootstrap: {error:#}; going on without");
            Ok(())
        }
        done => done,
    }
}

/// Whether this run is a continuous-integration run (`CI=true`).
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|v| v == "true" || v == "1")
}
