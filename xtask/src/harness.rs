//! Jobs whose body is elsewhere: the daemon itself, and the demo and the bench of the `tests` crate.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::bootstrap::{self, Purpose};
use crate::command::{self, cargo};
use crate::{build, workspace};

/// Build turnout and run it; by default the daemon with the smallest example config.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask run\n  cargo xtask run -- run --config config/minimal.yaml\n  cargo xtask run -- doctor"
)]
pub(crate) struct RunArgs {
    /// Arguments of turnout; none: the daemon with the smallest example config
    #[arg(last = true)]
    args: Vec<OsString>,
}

/// Set up, and see real Kafka traffic through turnout for half a minute.
///
/// Starts a real Kafka cluster of three brokers in three racks and turnout in front of it, sends and reads real records,
/// shows a live table, checks that every record arrived once and in order per partition, and cleans up. As root, and with
/// the kernel programs built, clients, gateway and brokers get hosts of their own (network namespaces), so that the kernel
/// passes on most bytes; elsewhere everything is on loopback, through the daemon.
#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// Leave everything running and print how to try it with kcat
    #[arg(long)]
    keep: bool,
    /// How long the traffic runs
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    seconds: u32,
    /// Stay on loopback also where hosts of their own can be had
    #[arg(long)]
    loopback: bool,
}

/// Set up, and compare direct, turnout and haproxy on real Kafka.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask bench --quick\n  cargo xtask bench --fast-path --quick    the fast path beside plain IP forwarding (root)\n  cargo xtask bench --rounds 5 --peer other=127.0.0.1:9192@4711\n  cargo xtask bench -- --help    what the bench takes"
)]
pub(crate) struct BenchArgs {
    /// Arguments of the bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(RunArgs { args }: &RunArgs) -> Result<()> {
    build::release()?;
    let args = if args.is_empty() {
        vec!["run".into(), "--config".into(), smallest_example()?.into_os_string()]
    } else {
        args.clone()
    };
    command::run(workspace::turnout()).args(args).go()
}

pub(crate) fn demo(&DemoArgs { keep, seconds, loopback }: &DemoArgs) -> Result<()> {
    bootstrap::or_go_on(Purpose::Demo)?;
    build::release()?;
    let mut args: Vec<OsString> = vec!["--seconds".into(), seconds.to_string().into()];
    if keep {
        args.push("--keep".into());
    }
    if loopback {
        args.push("--loopback".into());
    }
    harness_binary("demo", &args)
}

pub(crate) fn bench(BenchArgs { args }: &BenchArgs) -> Result<()> {
    bootstrap::or_go_on(Purpose::Bench)?;
    build::release()?;
    harness_binary("bench", args)
}

/// Runs a binary of the `tests` crate, with the release build of the daemon named in TURNOUT_BIN.
fn harness_binary(name: &str, args: &[OsString]) -> Result<()> {
    let source = format!("tests/src/bin/{name}.rs");
    let folder = format!("tests/src/bin/{name}/main.rs");
    if ![&source, &folder].into_iter().any(|s| workspace::root().join(s).is_file()) {
        bail!("this source tree has no {source}");
    }
    cargo()
        .args(["run", "--release", "--quiet", "--package", "turnout-tests", "--bin", name, "--"])
        .args(args)
        .env("TURNOUT_BIN", workspace::turnout())
        .go()
}

/// The shortest file of `config/`.
fn smallest_example() -> Result<PathBuf> {
    let folder = workspace::root().join("config");
    std::fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .min_by_key(|path| path.metadata().map_or(u64::MAX, |m| m.len()))
        .with_context(|| format!("there is no example in {}; name a config after `--`", folder.display()))
}
