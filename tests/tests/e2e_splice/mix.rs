//! Loads of all kinds over links that work.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::Tier;

use crate::client::{Load, call};
use crate::frames::{Ask, Id, Kind};
use crate::in_both_modes;
use crate::stage::{Mode, SOON, Setup, Stage};

in_both_modes! {
    a_table_of_loads => |mode| table(Setup::new(mode));
    a_table_of_loads_over_ipv6 => |mode| table(Setup::new(mode).v6());
    every_combination => every_combination;
}

/// Idle for this long, a connection is as good as new.
const IDLE: Duration = Duration::from_secs(20);
const IDLE_FULL: Duration = Duration::from_secs(5 * 60);

/// Connections, depth, largest payload, requests in a thousand that are the daemon's; whether most bytes must go through the
/// kernel.
type Row = (usize, usize, usize, u64, bool);

const TABLE: [Row; 8] = [
    (1, 1, 20, 0, true),
    (1, 16, 1_000_000, 100, true),
    (8, 1, 1_000_000, 0, true),
    (8, 4, 30_000, 100, true),
    (8, 16, 4_000, 500, false),
    (64, 4, 4_000, 0, true),
    (64, 16, 60_000, 100, true),
    (1, 4, 500, 1_000, false),
];

/// A header that is split is the daemon's, so that streams in pieces are none that must go through the kernel.
fn load(&(connections, depth, largest, daemons, mostly): &Row) -> Load {
    Load { connections, depth, largest, daemons, in_pieces: !mostly, pause: Duration::ZERO }
}

/// Puts loads on, one after the other. What is wrong with bytes fails at once, shares at the end.
fn check_all(stage: &Stage, rows: impl Iterator<Item = Row>, lasts: Duration) -> Result<()> {
    let mut few = Vec::new();
    for row in rows {
        let load = load(&row);
        let ran = stage.run(load, lasts)?;
        // With many requests under way a daemon's frame is often among them, and what is behind it waits with it.
        let least = if load.daemons > 0 && load.depth > 4 { 0.25 } else { 0.5 };
        if stage.is_spliced() && row.4 && ran.share() < least {
            few.push(format!("{load:?}: {:.1} % went through the kernel", ran.share() * 100.0));
        }
        let expected = ran.answers * load.daemons / 1000;
        ensure!(load.daemons == 0 || ran.daemons * 2 > expected, "{load:?}: {ran:?}");
    }
    ensure!(few.is_empty(), "{}", few.join("\n"));
    Ok(())
}

/// Every row of the table, while two connections idle.
fn table(setup: Setup) -> Result<()> {
    // What is idle is so in both families, and where the daemon has all the bytes there is nothing to it.
    let idles = !setup.v6 && setup.mode == Mode::Kernel;
    let idle = match harness::tier() {
        _ if !idles => Duration::ZERO,
        Tier::Ci => IDLE,
        Tier::Full => IDLE_FULL,
    };
    let lasts = Duration::from_millis(if setup.v6 { 600 } else { 1500 });
    setup.run(|stage| {
        let lasts = stage.lasts(lasts);
        let mut sleepers = Vec::new();
        for node in [1, 2] {
            let (number, stream) = stage.connect(node, None)?;
            stream.set_read_timeout(Some(SOON))?;
            for nth in 0..3 {
                say(stage, &stream, number, nth)?;
            }
            sleepers.push((number, stream));
        }
        stage.wait_spliced(2)?;
        let began = Instant::now();
        check_all(stage, TABLE.into_iter(), lasts)?;
        std::thread::sleep(idle.saturating_sub(began.elapsed()));
        for (number, stream) in &sleepers {
            for nth in 3..6 {
                say(stage, stream, *number, nth)?;
            }
        }
        Ok(())
    })
}

/// The nth request of a connection and its answer: ApiVersions first, then Heartbeats.
fn say(stage: &Stage, stream: &TcpStream, number: u32, nth: u32) -> Result<()> {
    let (kind, length) = if nth == 0 { (Kind::ApiVersions, 0) } else { (Kind::Plain(0), 100) };
    let ask = Ask { id: Id::new(number, nth, false), kind, payload: length, wanted: length };
    call(stream, ask, nth, &stage.told())
}

/// All numbers of connections with all depths, sizes and shares of the daemon's.
fn every_combination(mode: Mode) -> Result<()> {
    harness::full_tier!();
    let mut rows = Vec::new();
    for connections in [1, 8, 64] {
        for depth in [1, 4, 16] {
            for largest in [20, 500, 4_000, 60_000, 1_000_000] {
                for daemons in [0, 100, 500, 1_000] {
                    let mostly = daemons == 0 || daemons == 100 && largest >= 30_000;
                    rows.push((connections, depth, largest, daemons, mostly));
                }
            }
        }
    }
    Setup::new(mode).run(|stage| check_all(stage, rows.into_iter(), Duration::from_secs(3)))
}
