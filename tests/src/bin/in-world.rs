//! Runs a suite on the client host of a world ([`harness::netns::around`]): its gateways and clusters get hosts of their own.
//!
//! `in-world PROGRAM ARG…` ends as the program does, or with 1 where the kernel passed nothing on.

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::netns::{ADOPT, TALLY, World};
use harness::process::Process;

/// Longer than any suite; whoever runs this has a bound of its own.
const PATIENCE: Duration = Duration::from_secs(6 * 3600);

fn main() -> Result<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let program = args.next().context("no program")?;
    let world = World::builder().clients(1).brokers(1).build()?;
    let tally = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(program);
    command.args(args).env(ADOPT, world.names()).env(TALLY, tally.path()).stdin(Stdio::null());
    let suite = Process::spawn("the suite", command, Some(&world.client(0).netns), None)?;
    let status = suite.wait(PATIENCE)?;

    let lines = std::fs::read_to_string(tally.path())?;
    let (mut spliced, mut all) = (0f64, 0f64);
    for (s, a) in lines.lines().filter_map(|line| line.split_once(' ')) {
        spliced += s.parse::<f64>().unwrap_or(0.0);
        all += a.parse::<f64>().unwrap_or(0.0);
    }
    println!("in the world: the kernel passed on {:.0} of {:.0} MB", spliced / 1e6, all / 1e6);
    if status.success() && all > 0.0 && spliced == 0.0 {
        println!("nothing was spliced, so nothing was shown");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
