//! A path that turns out narrower than the links at its ends: a router says so, and who sent what was too large sends it
//! again in smaller pieces, whichever of the two it was, the client or the daemon's socket.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::client::{Load, all_orderly};
use crate::in_both_modes;
use crate::processes::goes_on;
use crate::stage::{Mode, SOON, Setup, Stage};

in_both_modes! {
    a_path_that_becomes_narrower => |mode| becomes_narrower(Setup::new(mode));
    a_path_of_ipv6_that_becomes_narrower => |mode| becomes_narrower(Setup::new(mode).v6());
}

/// Bytes; IPv6 asks for 1280 at least.
const NARROW: u32 = 1_300;

/// Some requests of more than a packet are always under way.
const LOAD: Load = Load { daemons: 100, ..Load::USUAL };

/// Messages of routers that the kernel's programs passed on.
fn told(stage: &Stage) -> Result<u64> {
    let status = stage.gateway.status()?;
    let edge = status.edge.context("no kernel programs")?;
    Ok(edge.splice.context("no splice")?.counters["path_told"])
}

fn becomes_narrower(setup: Setup) -> Result<()> {
    setup.run(|stage| {
        let running = stage.load(LOAD)?;
        stage.wait_spliced(LOAD.connections)?;
        goes_on(&running, SOON)?;
        for broker in 0..stage.world.brokers().len() {
            stage.world.narrow(broker, NARROW)?;
        }
        goes_on(&running, SOON)?;
        let before = stage.spliced_bytes()?;
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(200));
            goes_on(&running, SOON)?;
        }
        let passed = stage.spliced_bytes()? - before;
        all_orderly(&stage.outcomes(running.stop()?)?)?;
        if stage.setup.mode == Mode::Kernel {
            let told = told(stage)?;
            println!("{told} messages of routers; {} kB by the kernel on the narrow path", passed / 1000);
            ensure!(told > 0, "nobody was told");
            ensure!(passed > 0, "the kernel passed on nothing any more");
        }
        Ok(())
    })
}
