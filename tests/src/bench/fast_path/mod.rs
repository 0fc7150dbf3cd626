//! The fast path beside plain IP forwarding, the daemon alone and haproxy, all on one gateway host between network
//! namespaces.
//!
//! ```text
//!  client host ── gateway host: programs, gateway, gateway with mode off, haproxy ── broker host
//!  client host ── gateway host without anything ("bare") ────────────────────────── broker host
//! ```
//! Admission can't be had apart from the splice, and native XDP on a veth costs every packet (the sender can't leave it
//! to the other side to cut segments). So the programs stay where they are while the others are measured: routed packets
//! pass them too. What they cost those shows in routed beside bare.

mod frames;
mod hosts;
mod kafka;
mod links;
mod userspace;

use anyhow::{Context, Result};

use super::args::Args;
use super::report::Report;
use crate::is_root;

/// Runs the stage. Where the programs can't be loaded it is left out, and the report says so.
///
/// # Errors
/// A namespace or a subject can't be had, or breaks.
pub(super) fn run(args: &Args, report: &mut Report) -> Result<()> {
    if !is_root() || ::turnout::kernel::object().is_none() {
        report.conditions.push("fast path stage: left out, it needs root and a build with kernel programs".into());
        return Ok(());
    }
    report.conditions.push(
        "fast path stage: client, gateway and broker are network namespaces with veth between them; routed, fast path, \
         userspace and haproxy pass one gateway host whose interfaces have the kernel programs all the time, bare \
         passes one without; each veth has a queue of 1000 packets"
            .into(),
    );
    if !args.peers.is_empty() {
        report.conditions.push("fast path stage: peers take no part, they can't reach the namespaces".into());
    }
    frames::run(args, report).context("on a mock broker")?;
    if args.workload.is_none() {
        kafka::run(args, report).context("on Kafka")?;
    }
    Ok(())
}
