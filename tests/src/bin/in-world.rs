//! Runs a suite on the client host of a world ([`harness::netns::around`]): its gateways and clusters get hosts of their own.
//!
//! `in-world PROGRAM ARG…` ends as the program does, or with 1 where the kernel passed nothing on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::netns::{ADOPT, TALLY, World};
use harness::process::Process;
use harness::turnout::passed_on;

/// How often gateways are asked what has passed: most end with their test, or with the suite, and can't be asked then.
const LOOK: Duration = Duration::from_millis(300);

/// The hosts of a world reach no name server. Brokers look up who logs in, and would wait five seconds for each; nobody
/// listens at this address, which they learn at once.
const NO_RESOLVER: &str = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";

/// Puts the file in the place of the host's own, for this process and what it starts.
const COVER: &str = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";

fn main() -> Result<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let program = args.next().context("no program")?;
    let world = World::builder().clients(1).brokers(1).build()?;
    let tally = tempfile::NamedTempFile::new()?;
    let resolver = tempfile::NamedTempFile::new()?;
    std::fs::write(&resolver, NO_RESOLVER)?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c", COVER]).arg(resolver.path()).arg(program);
    command.args(args).env(ADOPT, world.names()).env(TALLY, tally.path()).stdin(Stdio::null());
    let suite = Process::spawn("the suite", command, Some(&world.client(0).netns), None)?;

    let mut seen: BTreeMap<SocketAddr, [f64; 2]> = BTreeMap::new();
    while suite.is_running() {
        thread::sleep(LOOK);
        for line in std::fs::read_to_string(tally.path())?.lines() {
            let admin = line.parse().with_context(|| format!("an admin server's address: {line}"))?;
            if let Ok(passed) = passed_on(admin, &world.gateway().netns) {
                seen.insert(admin, passed);
            }
        }
    }
    let status = suite.wait(LOOK)?;
    let [spliced, all] = seen.values().fold([0.0; 2], |sum, passed| [sum[0] + passed[0], sum[1] + passed[1]]);
    println!("in the world: the kernel passed on {:.1} of {:.1} MB", spliced / 1e6, all / 1e6);
    if status.success() && spliced == 0.0 {
        println!("nothing was spliced, so nothing was shown");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
