//! Processes that are killed or frozen, and cables that are cut.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::netns::Link;
use harness::wait;

use crate::client::{End, Load, Running, all_orderly};
use crate::in_both_modes;
use crate::sockets::told_in_time;
use crate::stage::{Mode, SOON, Setup, Stage, TOLD};

in_both_modes! {
    the_daemon_is_killed => the_daemon_is_killed;
    the_daemon_is_frozen => the_daemon_is_frozen;
    a_broker_is_killed => a_broker_is_killed;
    a_cable_is_cut => a_cable_is_cut;
}

const LOAD: Load = Load { daemons: 100, ..Load::USUAL };
const FROZEN: Duration = Duration::from_secs(3);
const CUT: Duration = Duration::from_secs(2);

fn ended(running: &Running, count: usize) -> Result<()> {
    wait::until("the end of every connection", SOON, || {
        ensure!(running.ended() >= count as u64, "{} of {count}", running.ended());
        Ok(())
    })
}

/// Answers go on coming.
pub(crate) fn goes_on(running: &Running, patience: Duration) -> Result<()> {
    let before = running.seen.answers();
    wait::until("more answers", patience, || {
        ensure!(running.seen.answers() > before + 50, "{} answers", running.seen.answers() - before);
        Ok(())
    })
}

fn the_daemon_is_killed(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let running = stage.load(LOAD)?;
        stage.wait_spliced(LOAD.connections)?;
        thread::sleep(Duration::from_millis(500));
        let at = Instant::now();
        stage.gateway.process().kill();
        let all = ended(&running, LOAD.connections).with_context(|| stage.now());
        let outcomes = running.stop()?;
        // Nobody can be asked any more.
        stage.check_brokers()?;
        all?;
        told_in_time(&outcomes, at)?;
        for outcome in &outcomes {
            let served = stage.served(outcome.number).context("no broker knows of it")?;
            wait::until("the broker to be told", SOON, || served.ended().context("its connection is open"))?;
            let after = served.ended().map_or(Duration::MAX, |ended| ended.saturating_duration_since(at));
            ensure!(after < TOLD, "the broker of connection {} was told after {after:?}", outcome.number);
        }
        drop(outcomes);

        // Its ports are free at once; programs take a while to load on a busy host.
        stage.gateway.start_again().context("the restart")?;
        stage.wait_serving()?;
        let ran = stage.run(Load::USUAL, stage.lasts(Duration::from_secs(1)))?;
        ensure!(!stage.is_spliced() || ran.share() > 0.2, "after the restart: {ran:?}");
        Ok(())
    })
}

/// While the daemon stands still, what needs it waits, what doesn't goes on, and nothing is lost.
fn the_daemon_is_frozen(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        // One request at a time: where many are in one packet, its end may split a header, which is the daemon's.
        let forwarded = Load { connections: 4, depth: 1, daemons: 0, ..Load::USUAL };
        let mixed = Load { connections: 4, ..LOAD };
        let (forwarded, mixed) = (stage.load(forwarded)?, stage.load(mixed)?);
        stage.wait_spliced(8)?;
        wait_in_kernel(stage)?;
        stage.gateway.process().freeze()?;
        thread::sleep(FROZEN / 3);
        let before = (forwarded.seen.answers(), mixed.seen.answers());
        thread::sleep(FROZEN * 2 / 3);
        let meanwhile = (forwarded.seen.answers() - before.0, mixed.seen.answers() - before.1);
        stage.gateway.process().thaw()?;
        let went_on = [goes_on(&forwarded, SOON), goes_on(&mixed, SOON)];
        for running in [forwarded, mixed] {
            all_orderly(&stage.outcomes(running.stop()?)?)?;
        }
        went_on.into_iter().collect::<Result<()>>()?;
        println!("while the daemon stood still: {} answers, {} of mixed loads", meanwhile.0, meanwhile.1);
        let expected = if stage.is_spliced() { meanwhile.0 > 500 } else { meanwhile.0 == 0 };
        ensure!(expected, "{} answers while the daemon stood still", meanwhile.0);
        ensure!(meanwhile.1 == 0, "{} answers of mixed loads while the daemon stood still", meanwhile.1);
        Ok(())
    })
}

/// Waits until some connections have both directions in the kernel.
fn wait_in_kernel(stage: &Stage) -> Result<()> {
    if !stage.is_spliced() {
        return Ok(());
    }
    wait::until("connections in the kernel", SOON, || {
        let connections = stage.gateway.connections()?;
        let both = connections.iter().filter_map(|connection| connection.splice.as_ref());
        let both = both.filter(|splice| splice.requests.kernel && splice.answers.kernel).count();
        ensure!(both >= 4, "{both} of {}", connections.len());
        Ok(())
    })
}

/// Its clients are told; those of the other broker don't notice; it serves again when it is back.
fn a_broker_is_killed(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let load = Load { connections: 4, ..LOAD };
        let (victims, others) = (stage.load_to(&[1; 4], load, None)?, stage.load_to(&[2; 4], load, None)?);
        stage.wait_spliced(8)?;
        thread::sleep(Duration::from_millis(300));
        let at = Instant::now();
        stage.brokers[0].kill();
        let all = ended(&victims, 4);
        let outcomes = stage.outcomes(victims.stop()?)?;
        all?;
        told_in_time(&outcomes, at)?;
        goes_on(&others, SOON)?;
        let netns = &stage.world.brokers()[0].netns;
        stage.brokers[0].listen(netns)?;
        wait::until("the broker to serve again", SOON, || stage.answers(1))?;
        let again = stage.load_to(&[1; 4], load, None)?;
        goes_on(&again, SOON)?;
        for running in [again, others] {
            all_orderly(&stage.outcomes(running.stop()?)?)?;
        }
        Ok(())
    })
}

/// Packets vanish on one link, then on the other, for a while: a connection goes on, or its client is told; no byte is
/// wrong.
fn a_cable_is_cut(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        for link in [Link::Client(0), Link::Gateway] {
            let running = stage.load(LOAD)?;
            stage.wait_spliced(LOAD.connections)?;
            thread::sleep(Duration::from_millis(300));
            stage.world.cut(link)?;
            thread::sleep(CUT);
            stage.world.restore(link)?;
            let went_on = goes_on(&running, SOON);
            let outcomes = stage.outcomes(running.stop()?)?;
            let orderly = outcomes.iter().filter(|outcome| matches!(outcome.end, End::Orderly)).count();
            println!("{link:?} was cut for {CUT:?}: {orderly} of {} connections outlived it", outcomes.len());
            ensure!(orderly == outcomes.len(), "{link:?}: {outcomes:?}");
            went_on.with_context(|| format!("{link:?}"))?;
            drop(outcomes);
            wait::until("an answer", SOON, || stage.answers(1))?;
            stage.run(Load::USUAL, Duration::from_millis(500))?;
        }
        Ok(())
    })
}
