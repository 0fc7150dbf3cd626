//! Copies of Produce requests and their answers, out of the real gateway, compared with what was sent.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::mirror::{Given, read};
use harness::wait;
use proxy_common::splice::state::Side;
use turnout::splice::mirror::Cause;

use crate::broker::{Broker, Served};
use crate::client::Load;
use crate::faults::lose;
use crate::frames::{Answers, Ask};
use crate::in_both_modes;
use crate::stage::{Mode, SOON, Setup, Stage};

in_both_modes! {
    every_produce_and_its_answer_is_copied => |mode| copied(mode, 0);
    loss_on_the_way_costs_no_copy => |mode| copied(mode, 5_000);
}

/// Loads over links that lose so many packets in a million.
fn copied(mode: Mode, per_million: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("mirror");
    Setup::new(mode).mirrored(&file).run(|stage| {
        let losses = lose(stage, per_million)?;
        for (depth, largest, daemons, in_pieces) in
            [(4, 30_000, 30, false), (16, 400_000, 200, true), (1, 400, 0, false)]
        {
            let load = Load { connections: 6, depth, largest, daemons, in_pieces, ..Load::USUAL };
            let ran = stage.run(load, stage.lasts(Duration::from_secs(2)))?;
            ensure!(ran.spliced > 0 || !stage.is_spliced(), "{load:?}: nothing went through the kernel");
        }
        drop(losses);
        check(stage, &file)
    })
}

/// Compares what was copied with what the brokers got and said.
fn check(stage: &Stage, file: &Path) -> Result<()> {
    let served: Vec<Arc<Served>> = stage.brokers.iter().flat_map(Broker::served).collect();
    let [answered, all] = [0, 1].map(|which| served.iter().map(|s| s.produced()[which]).sum::<u64>());
    ensure!(answered > 100, "{answered} Produce requests");
    let count = |side: &str| -> Result<u64> {
        Ok(stage.gateway.metrics()?.sum("turnout_mirrored_frames_total", &[("side", side)]) as u64)
    };
    let came = wait::until("the last copies", SOON, || {
        let came = [count("client")?, count("broker")?];
        ensure!(came == [all, answered], "{came:?} of {all} requests and {answered} answers");
        Ok(())
    });
    let metrics = stage.gateway.metrics()?;
    let lost = Cause::ALL
        .map(|cause| (cause, metrics.sum("turnout_mirror_lost_frames_total", &[("reason", cause.label())]) as u64));
    came.with_context(|| format!("lost: {lost:?}"))?;
    ensure!(lost.iter().all(|(_, frames)| *frames == 0), "lost: {lost:?}");

    let mut asked = HashMap::new();
    let mut next = HashMap::new();
    let (mut requests, mut answers) = (0, 0);
    // An answer may come before its request.
    let (answer_events, events): (Vec<_>, Vec<_>) =
        read(file)?.into_iter().partition(|(_, given)| matches!(given, Given::Frame { side: Side::Broker, .. }));
    for (connection, given) in events.into_iter().chain(answer_events) {
        match given {
            Given::Frame { side: Side::Client, index, frame } => {
                let ask = Ask::read(&frame[4..])?;
                ensure!(ask.kind.is_produce(), "{ask:?} is copied");
                ensure!(index.is_some() == (ask.kind.answered_by() == Answers::Broker), "{ask:?} has index {index:?}");
                if let Some(index) = index {
                    let due = next.entry(connection).or_insert(index);
                    ensure!(index >= *due, "{ask:?} with index {index} comes after {due}");
                    *due = index + 1;
                    ensure!(asked.insert((connection, index), ask).is_none(), "{ask:?} comes twice");
                }
                requests += 1;
            }
            Given::Frame { side: Side::Broker, index, frame } => {
                let index = index.context("an answer without an index")?;
                let ask = asked.remove(&(connection, index)).with_context(|| format!("answer {index} to nothing"))?;
                let said = ask.answer(index, stage.real())?.context("it has no answer")?;
                ensure!(said == frame, "the answer to {ask:?} is not what the broker sent");
                answers += 1;
            }
            Given::Lost(frames) => ensure!(frames == 0, "{frames} frames are lost"),
            Given::Ended => {}
        }
    }
    ensure!((requests, answers) == (all, answered), "{requests} requests and {answers} answers are in the file");
    ensure!(asked.is_empty(), "without an answer: {asked:?}");
    println!("{requests} requests and {answers} answers were copied");
    Ok(())
}
