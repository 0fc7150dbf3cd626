//! The demo without Java: a small broker in memory and a client of the harness's own, with turnout between them.

mod broker;
mod client;
mod log;

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Args, PARTITIONS, Place, RACKS, TOPIC, conclude, introduce, plan, watch};
use crate::turnout::Gateway;
use broker::Embedded;

/// Topic of the records that measure latency.
const LATENCY_TOPIC: &str = "demo-latency";

/// Runs it.
///
/// # Errors
/// As [`super::run`].
pub(super) fn run(args: &Args) -> Result<()> {
    let place = Place::loopback("the embedded broker and its client are part of this program");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let topics = [(TOPIC, PARTITIONS), (LATENCY_TOPIC, 1)];
    let cluster = runtime.block_on(Embedded::start(&RACKS, &topics)).context("starting the embedded broker")?;
    let gateway = place.settle(Gateway::before_addresses(&cluster.bootstrap(), 1)).start()?;
    introduce(&gateway, &cluster.bootstrap())?;
    println!("starting a client (the test harness's own)\n");
    let (send, reports) = std::sync::mpsc::channel();
    let traffic = runtime.spawn(client::run(plan(args, cluster.bootstrap(), &gateway), send));
    let report = watch(args, &gateway, &reports)?;
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), traffic).await })
        .context("the client")??;
    conclude(args, &place, &gateway, &report)
}
