// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The model test of the splice: everything around the state machine is simulated, deterministically, from a seed.
//!
//! ```text
//!   Client ── link ── Gateway: kernel's part (the functions under test), two sockets, daemon ── link ── Broker
//! ```
//! Held in every run, after every event:
//! - every byte reaches its right receiver once and in order ([`script`] says which bytes those are);
//! - nobody is acknowledged what the receiver does not have;
//! - a packet that the gate refuses leaves the state as it was, and genuine traffic is not refused;
//! - the machine's invariants ([`gateway`]);
//! - when the faults have ended everything arrives and every connection closes.
//!
//! `SPLICE_SEEDS=n` runs that many seeds, from `SPLICE_FIRST` on; `SPLICE_SEED=n` runs one, with `SPLICE_TRACE=1` packet
//! by packet. A failing seed is made smaller before it is shown.

mod broker;
mod client;
mod gateway;
mod net;
mod scenario;
mod script;
mod tcp;

use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::Broker;
use client::Client;
use gateway::{Counts, Gateway};
use net::{Host, Link, Network, Rng};
use scenario::Scenario;
use tcp::{Endpoint, MILLI, Micros, State};

const CLIENT: Host = Host(0);
const GATEWAY: Host = Host(1);
const BROKER: Host = Host(2);

/// Seeds of an ordinary run.
const SEEDS: u64 = 10_000;
/// After so many a long run says how far it is.
const PROGRESS: u64 = 10_000;
/// Events, and virtual time, that a run may take once everything goes right.
const MAX_EVENTS: usize = 500_000;
const MAX_TIME: Micros = 3_600_000 * MILLI;

/// What must happen in an ordinary run, or it proves less than it says.
const HAPPENINGS: [&str; 26] = [
    "opened",
    "frame",
    "hole",
    "fin",
    "reset",
    "too large",
    "again",
    "straddling",
    "probe",
    "withheld",
    "bad checksum",
    "bad sequence",
    "bad ack",
    "bad reset",
    "bad flags",
    "ring full",
    "no note",
    "opened in mid-frame",
    "frame in turns",
    "recalled",
    "own request",
    "→ untouched",
    "→ local, bare",
    "→ both",
    "→ split",
    "→ echo",
];

/// Runs a scenario; the error says what went wrong, be it a panic.
fn run(scenario: &Scenario, trace: bool) -> Result<Counts, String> {
    std::panic::catch_unwind(|| simulate(scenario, trace))
        .unwrap_or_else(|panic| Err(format!("panic: {:?}", panic.downcast_ref::<String>())))
}

fn simulate(scenario: &Scenario, trace: bool) -> Result<Counts, String> {
    let mut rng = Rng::new(scenario.seed ^ 0x5eed);
    let script = Rc::new(scenario.shape.script(&mut rng));
    let [[to_client, client], [to_broker, broker]] = &scenario.configs;
    let buffers = [client.send_buffer, broker.send_buffer];
    let endpoint = Endpoint::new(client, to_client);
    let mut client = Client::new(endpoint, scenario.client.clone(), buffers[0], script.clone(), rng.fork());
    let endpoint = Endpoint::new(broker, to_broker);
    let mut broker = Broker::new(endpoint, scenario.broker.clone(), buffers[1], scenario.serial, script, rng.fork());
    let policy = scenario.shape.policy();
    let mut gateway = Gateway::new(scenario.configs.clone(), scenario.manner.clone(), policy, rng.fork(), trace);
    let mut network = Network::default();
    let ways = [(CLIENT, GATEWAY, 0), (GATEWAY, CLIENT, 0), (BROKER, GATEWAY, 1), (GATEWAY, BROKER, 1)];
    for ((from, to, side), faults) in ways.into_iter().zip(&scenario.links) {
        let link = Link::new(rng.fork(), faults.clone(), scenario.delays[side], scenario.rates[side]);
        network.connect(from, to, link);
    }
    let (mut events, mut calm_at) = (0, 0);
    while network.step(&mut [&mut client, &mut gateway, &mut broker]) {
        events += 1;
        if events == scenario.storm {
            network.calm();
            gateway.calm();
        }
        gateway.check_acknowledgments(&client.endpoint, &broker.endpoint);
        let wrong = [&client.wrong, &broker.wrong, &gateway.wrong].into_iter().flatten().next();
        if let Some(wrong) = wrong {
            return Err(wrong.clone());
        }
        calm_at = if events <= scenario.storm { network.now() } else { calm_at };
        if events > scenario.storm + MAX_EVENTS || network.now() > calm_at + MAX_TIME {
            break;
        }
    }
    finished(scenario, &client, &broker, &gateway)?;
    gateway.counts.took = client.satisfied_at;
    Ok(gateway.counts)
}

/// What must have come of a run.
fn finished(scenario: &Scenario, client: &Client, broker: &Broker, gateway: &Gateway) -> Result<(), String> {
    let endpoints = [&client.endpoint, &gateway.sockets[0], &gateway.sockets[1], &broker.endpoint];
    let states = endpoints.map(Endpoint::state);
    let ended = states.iter().all(|state| matches!(state, State::Closed | State::TimeWait));
    let all = client.is_satisfied() && broker.is_satisfied();
    let aborted = scenario.client.aborts_at.is_some() || scenario.broker.aborts_at.is_some();
    let cut_short = scenario.broker.closes_after != usize::MAX;
    // Whoever is alive after an abort may not have heard of it, but is waiting for nothing that was sent.
    let waits = endpoints.iter().any(|end| !matches!(end.state(), State::Failed(_)) && end.unacked() > 0);
    let fine = if aborted { !waits } else { ended && (all || cut_short) };
    if fine {
        return Ok(());
    }
    let (client, broker, gateway) = (client.progress(), broker.progress(), gateway.progress());
    Err(format!("no end: {states:?}\n{client}\n{broker}\n{gateway}"))
}

/// The simplest scenario found that fails as well, and how.
fn shrink(mut scenario: Scenario, mut wrong: String) -> (Scenario, String) {
    'smaller: loop {
        for simpler in scenario.simpler() {
            if let Err(also) = run(&simpler, false) {
                (scenario, wrong) = (simpler, also);
                continue 'smaller;
            }
        }
        return (scenario, wrong);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// Runs one seed; on failure says how a smaller version of it fails.
fn run_seed(seed: u64) -> Result<Counts, String> {
    let scenario = Scenario::of(seed);
    run(&scenario, false).map_err(|wrong| {
        eprintln!("seed {seed}: {wrong}\n--- looking for a smaller version");
        let (smaller, also) = shrink(scenario, wrong.clone());
        if std::env::var_os("SPLICE_TRACE").is_some() {
            let _ = run(&smaller, true);
        }
        format!("seed {seed}: {wrong}\n--- made smaller:\n{smaller:#?}\n--- {also}\nrun it with SPLICE_SEED={seed}")
    })
}

#[test]
fn every_byte_arrives_once_and_in_order_whatever_happens() {
    if let Some(seed) = number("SPLICE_SEED") {
        run_seed(seed).unwrap_or_else(|wrong| panic!("{wrong}"));
        return;
    }
    let first = number("SPLICE_FIRST").unwrap_or(0);
    let last = first + number("SPLICE_SEEDS").unwrap_or(SEEDS);
    let (next, failure, total) = (AtomicU64::new(first), Mutex::new(None), Mutex::new(Counts::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failure.lock().expect("no panic").is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        return;
                    }
                    if seed > first && (seed - first).is_multiple_of(PROGRESS) {
                        println!("{} seeds done", seed - first);
                    }
                    match run_seed(seed) {
                        Ok(counts) => total.lock().expect("no panic").add(&counts),
                        Err(wrong) => {
                            failure.lock().expect("no panic").get_or_insert(wrong);
                        }
                    }
                }
            });
        }
    });
    if let Some(wrong) = failure.into_inner().expect("no panic") {
        panic!("{wrong}");
    }
    let total = total.into_inner().expect("no panic");
    println!("{} seeds: {total:#?}", last - first);
    if last - first >= SEEDS {
        for what in HAPPENINGS {
            assert!(total.reasons.get(what).is_some_and(|count| *count >= 100), "hardly ever: {what}");
        }
        assert!(total.frames > last - first, "too few frames were the kernel's");
    }
}

/// Without faults no timer has to come to the rescue, whatever is switched. (A connection that is still slow-starting does
/// so over the sum of both round trips: that is why it may take twice as long.)
#[test]
fn without_faults_a_spliced_connection_never_waits_for_a_timeout() {
    let trace = std::env::var_os("SPLICE_TRACE").is_some();
    let only = number("SPLICE_SEED");
    for seed in only.map_or(0..1_000, |seed| seed..seed + 1) {
        let spliced = Scenario::of(seed).without_faults();
        let mut relayed = spliced.clone();
        relayed.manner.splices_at = Micros::MAX / 2;
        let [with, without] = [&spliced, &relayed].map(|scenario| run(scenario, trace).expect("no faults").took);
        assert!(with < 2 * without + 100 * MILLI, "seed {seed}: {with} µs spliced, {without} µs relayed");
    }
}
