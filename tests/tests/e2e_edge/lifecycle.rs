//! Programs that come, go and are replaced while clients connect.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::wait;

use crate::support::*;

const RATE: u32 = 200;

fn everywhere(stage: &Stage) -> Vec<std::net::SocketAddr> {
    let nodes = [1, 2].into_iter().flat_map(|node| [stage.at(0, node, false), stage.at(0, node, true)]);
    nodes.chain([stage.bootstrap(0, false)]).collect()
}

/// What is loaded, by program: its ids.
fn programs_of(stage: &Stage) -> Result<String> {
    let edge = stage.gateway.status()?.edge.context("no kernel programs")?;
    Ok(format!("{:?}", edge.programs))
}

fn steers(stage: &Stage) -> Result<bool> {
    Ok(stage.gateway.status()?.edge.is_some_and(|edge| edge.steering))
}

#[test]
fn ten_upgrades_under_load_refuse_and_reset_nobody() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1, 2], |builder| builder)?;
    let load = Load::start(&stage, 0, everywhere(&stage), RATE)?;
    let mut pid = stage.gateway.status()?.pid;
    let mut programs = programs_of(&stage)?;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(500));
        stage.gateway.cli(&["upgrade", "--socket", "{socket}"])?;
        let now = stage.gateway.status()?;
        ensure!(now.pid != pid, "the same process answers");
        let loaded = programs_of(&stage)?;
        ensure!(loaded != programs, "the programs were not replaced");
        (pid, programs) = (now.pid, loaded);
    }
    let worked = load.finish()?;
    ensure!(worked > 1_000, "only {worked} connections were tried");
    stage.gateway.cli(&["drain", "--wait", "--socket", "{socket}"]).map(drop)
}

#[test]
fn the_kernel_path_comes_and_goes_by_reload_under_load() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1, 2], |builder| builder)?;
    let load = Load::start(&stage, 0, everywhere(&stage), RATE)?;
    for (from, to) in [("required", "off"), ("off", "auto"), ("auto", "off"), ("off", "required")] {
        std::thread::sleep(Duration::from_millis(400));
        stage.reload(|config| config.replace(&format!("mode: {from}"), &format!("mode: {to}")))?;
        ensure!(steers(&stage)? == (to != "off"), "after `mode: {to}`");
    }
    std::thread::sleep(Duration::from_millis(400));
    let worked = load.finish()?;
    ensure!(worked > 250, "only {worked} connections were tried");
    Ok(())
}

/// A `turnout detach --force` on the gateway host: with the daemon on, its ports are bound within some seconds, and a
/// reload steers again, both without touching a connection that is open.
#[test]
fn programs_taken_off_by_force_under_load_are_done_without_and_come_back_by_reload() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1, 2], |builder| builder)?;
    let mut open = stage.connect(0, None, stage.at(0, 1, true))?;
    ensure!(call(&mut open)? == 1);
    let pin = stage.gateway.status()?.edge.context("no kernel programs")?.pin;
    let netns = &stage.world.gateway().netns;
    let detach = |flags: &[&str]| {
        let command = ["detach", "--pin", &pin].into_iter().chain(flags.iter().copied()).collect::<Vec<_>>();
        netns.run(|| stage.gateway.cli(&command))?
    };
    let refused = detach(&[]).err().context("detached under a daemon")?.to_string();
    ensure!(refused.contains("--force"), "{refused}");

    detach(&["--force"])?;
    wait::until("every port to be bound", SOON, || {
        for to in everywhere(&stage) {
            call(&mut stage.connect(0, None, to).with_context(|| to.to_string())?)?;
        }
        Ok(())
    })?;
    ensure!(call(&mut open)? == 1);
    let said = stage.gateway.status()?.fast_path;
    ensure!(said.starts_with("off: ") && said.contains("gone"), "{said}");

    let load = Load::start(&stage, 0, everywhere(&stage), RATE)?;
    std::thread::sleep(Duration::from_millis(300));
    // Nothing has changed in the file.
    stage.reload(str::to_owned)?;
    ensure!(steers(&stage)?, "{}", stage.gateway.status()?.fast_path);
    std::thread::sleep(Duration::from_millis(300));
    ensure!(load.finish()? > 50);
    ensure!(call(&mut open)? == 1);
    Ok(())
}

#[test]
fn with_the_daemon_gone_connections_are_refused_at_once_and_the_next_one_takes_over() -> Result<()> {
    need_edge!();
    let mut stage = Stage::start(&[1, 2], |builder| builder)?;
    stage.gateway.process().kill();
    for to in everywhere(&stage) {
        let begin = Instant::now();
        wait::until("a refusal", PROMPT, || {
            // The socket goes a moment after the process.
            let error = stage.connect(0, None, to).err().context("somebody accepted")?;
            ensure!(error.kind() == std::io::ErrorKind::ConnectionRefused, "{error}");
            Ok(())
        })?;
        ensure!(begin.elapsed() < PROMPT, "{to}: {:?}", begin.elapsed());
    }
    stage.gateway.start_again()?;
    wait::until("every port", SOON, || {
        for to in everywhere(&stage) {
            call(&mut stage.connect(0, None, to).with_context(|| to.to_string())?)?;
        }
        Ok(())
    })?;
    ensure!(steers(&stage)?, "the next one binds its ports");
    Ok(())
}
