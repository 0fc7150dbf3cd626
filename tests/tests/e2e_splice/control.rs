//! What operators do under load: drain, reload, upgrade, take the kernel's programs off and put them on again.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Tier, wait};
use turnout::gateway::status::SessionStatus;

use crate::client::{End, Load, Outcome, Running, all_orderly};
use crate::processes::goes_on;
use crate::stage::{Mode, SOON, Setup, Stage, wait_gone};
use crate::{in_both_modes, need_kernel};

in_both_modes! {
    a_drain => a_drain;
    reloads_of_versions => reloads_of_versions;
    upgrades => upgrades;
}

const LOAD: Load = Load { daemons: 100, ..Load::USUAL };

/// A load that is well under way.
fn under_way(stage: &Stage) -> Result<Running> {
    let running = stage.load(LOAD)?;
    stage.wait_spliced(LOAD.connections)?;
    thread::sleep(Duration::from_millis(400));
    Ok(running)
}

/// Every request that a broker was given is answered, and the connection ends between answers.
fn drained(stage: &Stage, outcomes: &[Outcome]) -> Result<()> {
    for Outcome { number, end, answers, .. } in outcomes {
        ensure!(matches!(end, End::Closed { inside: false }), "connection {number}: {end:?}");
        let served = stage.served(*number).context("no broker knows of it")?;
        wait::until("the broker's side to end", SOON, || served.ended().context("it is open"))?;
        let (received, answered) = (served.received(), served.answered());
        ensure!(
            *answers == received && answered == received,
            "connection {number}: the broker was asked {received} times and answered {answered}, {answers} arrived"
        );
    }
    Ok(())
}

fn a_drain(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let running = under_way(stage)?;
        let at = Instant::now();
        let status = stage.gateway.stop(SOON)?;
        let took = at.elapsed();
        let outcomes = stage.outcomes(running.wait()?)?;
        ensure!(status.success(), "the gateway ends with {status}");
        println!("drained in {took:?}");
        drained(stage, &outcomes)?;
        drop(outcomes);
        stage.gateway.start_again()?;
        stage.wait_serving()
    })
}

fn reloads_of_versions(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let running = under_way(stage)?;
        for (from, to) in [("auto", "conservative"), ("conservative", "full"), ("full", "auto")] {
            stage.reload(&format!("versions: {from}"), &format!("versions: {to}"))?;
            thread::sleep(Duration::from_millis(300));
        }
        let goes_on = running.seen.answers();
        thread::sleep(Duration::from_millis(200));
        let later = running.seen.answers();
        all_orderly(&stage.outcomes(running.stop()?)?)?;
        ensure!(later > goes_on, "no answers after the last reload");
        Ok(())
    })
}

/// Connections are drained by the process that has them, and new ones served by the next.
fn upgrades(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let times = if harness::tier() == Tier::Full { 8 } else { 1 };
        for _ in 0..times {
            let old = stage.gateway.status()?.pid;
            let running = under_way(stage)?;
            let new = stage.upgrade()?;
            ensure!(stage.gateway.status()?.pid == new && new != old, "{old} was not succeeded by {new}");
            let outcomes = stage.outcomes(running.wait()?)?;
            drained(stage, &outcomes)?;
            drop(outcomes);
            wait_gone(old)?;
            let ran = stage.run(Load::USUAL, stage.lasts(Duration::from_secs(1)))?;
            ensure!(!stage.is_spliced() || ran.share() > 0.2, "after the upgrade: {ran:?}");
        }
        Ok(())
    })
}

/// Spliced connections go on as the daemon's, with the programs that they still need; new ones are served by the daemon, and
/// don't notice that the kernel path comes back.
#[test]
fn the_kernel_path_goes_and_comes_back() -> Result<()> {
    need_kernel!();
    let (on, off) = ("mode: required", "mode: off");
    Setup::new(Mode::Kernel).run(|stage| {
        let spliced = under_way(stage)?;
        stage.reload(on, off)?;
        wait::until("every direction to be the daemon's", SOON, || {
            let connections = stage.gateway.connections()?;
            let is_kernels = |splice: &SessionStatus| splice.requests.kernel || splice.answers.kernel;
            let left = connections.iter().filter(|c| c.splice.as_ref().is_some_and(is_kernels)).count();
            ensure!(left == 0, "{left} of {}", connections.len());
            Ok(())
        })?;
        stage.wait_serving()?;
        let new = stage.load(LOAD)?;
        goes_on(&spliced, SOON)?;
        goes_on(&new, SOON)?;
        let before = stage.spliced_bytes()?;
        stage.reload(off, on)?;
        goes_on(&spliced, SOON)?;
        goes_on(&new, SOON)?;
        for running in [spliced, new] {
            all_orderly(&stage.outcomes(running.stop()?)?)?;
        }
        println!("{} bytes in the kernel until it was off, {} more then", before, stage.spliced_bytes()? - before);
        stage.wait_serving()?;
        let ran = stage.run(Load::USUAL, stage.lasts(Duration::from_secs(1)))?;
        ensure!(ran.share() > 0.2, "with the programs again: {ran:?}");
        Ok(())
    })
}
