//! One listening socket for every virtual broker's port.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use harness::netns::World;

use crate::support::*;

/// Says one word to whoever connects.
fn stranger(world: &World, port: u16) -> Result<()> {
    let listener = world.gateway().netns.run(|| TcpListener::bind(("0.0.0.0", port)))??;
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"stranger");
        }
    });
    Ok(())
}

fn greets(stage: &Stage, to: SocketAddr) -> Result<()> {
    let mut word = [0; 8];
    stage.connect(0, None, to)?.read_exact(&mut word).context("the stranger's word")?;
    ensure!(&word == b"stranger", "{word:?}");
    Ok(())
}

#[test]
fn three_hundred_virtual_brokers_are_reached_through_one_listener_for_each_family() -> Result<()> {
    need_edge!();
    let nodes: Vec<i32> = (1..=300).collect();
    let stage = Stage::start(&nodes, |builder| builder)?;
    for &node in &nodes {
        for v6 in [false, true] {
            let to = stage.at(0, node, v6);
            let mut stream = stage.connect(0, None, to).with_context(|| format!("node {node} at {to}"))?;
            ensure!(call(&mut stream)? == node, "{to} leads elsewhere");
        }
    }
    // Nothing is bound to those ports: what takes them is the shared sockets.
    let (first, last) = (stage.at(0, 1, false).port(), stage.at(0, 300, false).port());
    let pid = stage.gateway.process().pid();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let port = u16::from_str_radix(fields[1].rsplit(':').next().context("a port")?, 16)?;
            // State 0A: listening.
            ensure!(fields[3] != "0A" || !(first..=last).contains(&port), "{port} is bound: {line}");
        }
    }
    let status = stage.gateway.status()?;
    let listeners = &status.virtual_clusters.values().next().context("no virtual cluster")?.listeners;
    ensure!(listeners.len() >= 2 * 301 && listeners.iter().all(|l| l.steered), "{} listeners", listeners.len());
    Ok(())
}

#[test]
fn a_port_without_a_broker_is_refused_at_once_and_a_strangers_port_stays_the_strangers() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1, 2], |builder| builder)?;
    for v6 in [false, true] {
        // Node 9 has a port of the range and does not exist.
        let (to, begin) = (stage.at(0, 9, v6), Instant::now());
        let error = stage.connect(0, None, to).err().context("somebody accepted")?;
        ensure!(error.kind() == ErrorKind::ConnectionRefused && begin.elapsed() < PROMPT, "{error} at {to}");
    }
    ensure!(stage.refused("no_broker")? >= 2.0, "the refusals are counted");
    let beside = stage.at(0, 1, false).port() - 1;
    stranger(&stage.world, beside)?;
    greets(&stage, SocketAddr::new(stage.at(0, 1, false).ip(), beside))?;
    let mut ours = stage.connect(0, None, stage.at(0, 2, false))?;
    ensure!(call(&mut ours)? == 2);
    Ok(())
}

/// sk_lookup runs before the host's sockets: a port of the range that was somebody's must not be taken from them.
#[test]
fn a_port_of_the_range_that_a_service_already_holds_stays_that_services() -> Result<()> {
    need_edge!();
    // Broker ports begin at 9200 with node 1; there is no node 7.
    let held = 9206;
    let stage = Stage::start_beside(&[1, 2], |world| stranger(world, held), |builder| builder)?;
    let at = stage.at(0, 7, false);
    ensure!(at.port() == held, "the harness's ports moved: {at}");
    greets(&stage, at)?;
    ensure!(call(&mut stage.connect(0, None, stage.at(0, 2, false))?)? == 2);
    let status = stage.gateway.status()?;
    let told = format!("{:?}", status.virtual_clusters.values().next().context("no virtual cluster")?.strangers);
    ensure!(told.contains("9206"), "status names the port: {told}");
    Ok(())
}
