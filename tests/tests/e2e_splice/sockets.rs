//! What either end does with its socket: reads slowly or not at all, half-closes it, resets it.

use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::wait;
use socket2::SockRef;

use crate::client::{End, Load, Outcome, PATIENCE, Running, all_orderly};
use crate::in_both_modes;
use crate::stage::{Mode, SOON, Setup, Stage, TOLD};

in_both_modes! {
    a_client_that_stops_reading_and_goes_on => |mode| a_client_stops_reading(mode, WARM);
    a_broker_that_stops_reading_and_goes_on => |mode| a_broker_stops_reading(mode, WARM);
    a_new_client_that_stops_reading_and_goes_on => |mode| a_client_stops_reading(mode, 0);
    a_new_broker_that_stops_reading_and_goes_on => |mode| a_broker_stops_reading(mode, 0);
    a_tiny_receive_buffer => a_tiny_receive_buffer;
    a_broker_that_ends_its_side => a_broker_that_ends_its_side;
    a_reset_by_the_broker => a_reset_by_the_broker;
    a_reset_by_the_client => a_reset_by_the_client;
}

const STALL: Duration = Duration::from_secs(3);
/// So many bytes later nothing is left of the windows that the gateway's own sockets announced at first.
const WARM: u64 = 50_000_000;
/// Long enough that windows fill.
const LARGE: Load = Load { connections: 4, depth: 16, largest: 400_000, ..Load::USUAL };

/// Stops somebody in mid-stream, after so many bytes, until windows are zero, and lets him go on.
fn stalls(stage: &Stage, after: u64, hold: impl Fn(&Running, bool)) -> Result<()> {
    let running = stage.load_to(&[1, 2, 1, 2], LARGE, Some(65_536))?;
    stage.wait_spliced(LARGE.connections)?;
    wait::until("many bytes", PATIENCE, || {
        let bytes = running.seen.bytes.load(Ordering::Relaxed);
        ensure!(bytes >= after || running.ended() > 0, "{bytes} of {after}");
        Ok(())
    })?;
    hold(&running, true);
    thread::sleep(STALL / 2);
    let before = running.seen.answers();
    thread::sleep(STALL / 2);
    let meanwhile = running.seen.answers() - before;
    hold(&running, false);
    let after = running.seen.answers();
    let went_on = wait::until("answers after the stall", SOON, || {
        ensure!(running.seen.answers() > after + 100, "{} answers", running.seen.answers() - after);
        Ok(())
    })
    .with_context(|| stage.now());
    let outcomes = stage.outcomes(running.stop()?)?;
    went_on?;
    all_orderly(&outcomes)?;
    let in_flight = (LARGE.connections * LARGE.depth) as u64;
    ensure!(meanwhile <= in_flight, "{meanwhile} answers while nothing was read: nobody was stopped");
    Ok(())
}

fn a_client_stops_reading(mode: Mode, after: u64) -> Result<()> {
    Setup::new(mode).run(|stage| stalls(stage, after, |running, on| running.control.hold.store(on, Ordering::Relaxed)))
}

fn a_broker_stops_reading(mode: Mode, after: u64) -> Result<()> {
    Setup::new(mode).run(|stage| stalls(stage, after, |_, on| stage.brokers.iter().for_each(|broker| broker.pause(on))))
}

fn a_tiny_receive_buffer(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let load = Load { connections: 4, largest: 30_000, ..Load::USUAL };
        let running = stage.load_to(&[1, 2, 1, 2], load, Some(2048))?;
        thread::sleep(Duration::from_secs(2));
        let answers = running.seen.answers();
        all_orderly(&stage.outcomes(running.stop()?)?)?;
        ensure!(answers > 100, "only {answers} answers");
        Ok(())
    })
}

/// A load that something happens to once it is spliced; how every connection ended, and when it happened.
fn struck(stage: &Stage, load: Load, strike: impl FnOnce(&Stage)) -> Result<(Vec<Outcome>, Instant)> {
    let running = stage.load(load)?;
    stage.wait_spliced(load.connections)?;
    thread::sleep(Duration::from_millis(500));
    let at = Instant::now();
    strike(stage);
    let ended = wait::until("the end of every connection", SOON, || {
        let ended = running.ended();
        ensure!(ended == load.connections as u64, "{ended} of {}", load.connections);
        Ok(())
    })
    .with_context(|| stage.now());
    let outcomes = stage.outcomes(running.stop()?)?;
    ended?;
    Ok((outcomes, at))
}

/// Every client was told in time.
pub(crate) fn told_in_time(outcomes: &[Outcome], since: Instant) -> Result<()> {
    for Outcome { number, end, at, .. } in outcomes {
        let after = at.saturating_duration_since(since);
        ensure!(after < TOLD, "connection {number} was told after {after:?}: {end:?}");
        ensure!(!matches!(end, End::Orderly | End::Wrong(_)), "connection {number} ended by itself: {end:?}");
    }
    Ok(())
}

/// FIN behind what was answered: clients get all of it, then the end.
fn a_broker_that_ends_its_side(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let load = Load { depth: 1, ..Load::USUAL };
        let (outcomes, at) = struck(stage, load, |stage| stage.brokers.iter().for_each(|b| b.finish_all()))?;
        told_in_time(&outcomes, at)?;
        for outcome in &outcomes {
            let served = stage.served(outcome.number).context("no broker knows of it")?;
            ensure!(
                outcome.answers >= served.answered(),
                "connection {} got {} of {} answers and then {:?}",
                outcome.number,
                outcome.answers,
                served.answered(),
                outcome.end
            );
        }
        Ok(())
    })
}

fn a_reset_by_the_broker(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        let (outcomes, at) = struck(stage, Load::USUAL, |stage| stage.brokers.iter().for_each(|b| b.reset_all()))?;
        told_in_time(&outcomes, at)
    })
}

/// Resets in mid-stream, and an end in mid-frame: brokers are told of either.
fn a_reset_by_the_client(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        for by_reset in [true, false] {
            let (number, stream) = stage.connect(1, None)?;
            let ours = stream.try_clone()?;
            let connection = (number, stream, stage.told());
            let load = Load { depth: 16, daemons: 0, ..Load::USUAL };
            let running = Running::start(vec![connection], load, stage.seed)?;
            stage.wait_spliced(1)?;
            thread::sleep(Duration::from_millis(300));
            let at = Instant::now();
            if by_reset {
                SockRef::from(&ours).set_linger(Some(Duration::ZERO))?;
                crate::broker::disconnect(&ours);
            } else {
                ours.shutdown(Shutdown::Both)?;
            }
            let outcomes = running.stop()?;
            for outcome in outcomes {
                if let End::Wrong(error) = outcome.end {
                    bail!("before it was struck: {error:#}");
                }
            }
            let served = stage.served(number).context("no broker knows of it")?;
            wait::until("the broker to be told", SOON, || served.ended().context("its connection is open"))
                .with_context(|| stage.now())?;
            let after = served.ended().map_or(Duration::MAX, |ended| ended.saturating_duration_since(at));
            ensure!(after < TOLD, "the broker was told after {after:?} (by reset: {by_reset})");
        }
        Ok(())
    })
}
