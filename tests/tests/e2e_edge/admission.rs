//! Who may connect, and who no longer.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::turnout::GatewayBuilder;
use harness::wait;

use crate::support::*;

const OPEN: &str = "admission: {deny: [], allow: []}";

fn with(rules: &'static str) -> impl FnOnce(GatewayBuilder) -> GatewayBuilder {
    move |builder| builder.top_line(rules)
}

/// The connection has ended: by FIN, by RST, or by silence that the kernel's drops make of either.
fn is_cut(stream: &mut std::net::TcpStream) -> bool {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(300)));
    call(stream).is_err()
}

fn deny_cuts(v6: bool, denied: &'static str) -> Result<()> {
    let stage = Stage::start(&[1, 2], with(OPEN))?;
    let to = |client| stage.at(client, 1, v6);
    let mut bad = stage.connect(0, None, to(0))?;
    let mut good = stage.connect(1, None, to(1))?;
    ensure!(call(&mut bad)? == 1 && call(&mut good)? == 1);
    let open = stage.brokers.mock.open_connections();

    stage.reload(|config| config.replace("deny: []", &format!("deny: [\"{denied}\"]")))?;
    wait::until("the broker's leg to end", SOON, || {
        let now = stage.brokers.mock.open_connections();
        ensure!(now < open, "{now} of {open} are open");
        Ok(())
    })?;
    ensure!(is_cut(&mut bad), "the denied client's connection goes on");
    let begin = Instant::now();
    let netns = &stage.world.client(0).netns;
    let error = netns.run(|| connect(None, to(0), PROMPT))?.err().context("a denied client is let in")?;
    ensure!(error.kind() == ErrorKind::TimedOut && begin.elapsed() >= PROMPT, "dropped, not answered: {error}");
    // The reset that ended the old connection keeps that client from sending more, so these are the SYNs.
    ensure!(stage.refused("deny")? > 0.0, "the kernel counts what it drops");
    ensure!(call(&mut good)? == 1, "another client's connection is untouched");
    ensure!(call(&mut stage.connect(1, None, to(1))?)? == 1);

    stage.reload(|config| config.replace(&format!("deny: [\"{denied}\"]"), "deny: []"))?;
    ensure!(call(&mut stage.connect(0, None, to(0))?)? == 1, "forgiven");
    Ok(())
}

#[test]
fn a_deny_by_reload_cuts_live_connections_and_leaves_others_alone() -> Result<()> {
    need_edge!();
    deny_cuts(false, "10.90.0.0/24")
}

#[test]
fn a_deny_by_reload_cuts_live_connections_over_ipv6_too() -> Result<()> {
    need_edge!();
    let world = harness::netns::World::builder().clients(1).brokers(1).build()?;
    // Every world has the same addresses.
    let denied: &'static str = format!("{}/128", world.client(0).v6).leak();
    drop(world);
    deny_cuts(true, denied)
}

#[test]
fn an_allow_list_is_for_new_connections() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1], with(OPEN))?;
    let mut old = stage.connect(1, None, stage.at(1, 1, false))?;
    ensure!(call(&mut old)? == 1);
    stage.reload(|config| config.replace("allow: []", "allow: [10.90.0.0/24]"))?;
    ensure!(call(&mut old)? == 1, "what is open stays open");
    ensure!(call(&mut stage.connect(0, None, stage.at(0, 1, false))?)? == 1);
    let (netns, to) = (&stage.world.client(1).netns, stage.at(1, 1, false));
    ensure!(netns.run(|| connect(None, to, PROMPT))?.is_err(), "not on the list");
    ensure!(stage.refused("not_allowed")? > 0.0);
    Ok(())
}

/// One source hammers; fifty others connect now and then. Nobody sends a byte, so no broker hears of it.
#[test]
fn an_abuser_is_limited_and_others_are_not() -> Result<()> {
    need_edge!();
    const OTHERS: u8 = 50;
    const EACH: u32 = 6;
    let rules = "admission: {new_connections: {rate: 20/s, burst: 20}}";
    let stage = Stage::start(&[1, 2], with(rules))?;
    for n in 0..OTHERS {
        let address = format!("10.90.1.{}/24", 100 + n);
        stage.world.client(1).netns.ip(&["addr", "add", &address, "dev", "gateway"])?;
    }
    let at_brokers = stage.brokers.mock.connections();
    let (abused, to_abuse, to) = (stage.world.client(0), stage.bootstrap(0, false), stage.bootstrap(1, false));
    let begin = Instant::now();
    let (hammered, others) = std::thread::scope(|scope| {
        let abuser = scope.spawn(|| {
            abused.netns.run(|| {
                let mut accepted = 0u64;
                let mut tried = 0u64;
                while begin.elapsed() < Duration::from_secs(3) {
                    // A drop shows as silence; a millisecond is much for a host next door.
                    accepted += u64::from(connect(None, to_abuse, Duration::from_millis(2)).is_ok());
                    tried += 1;
                }
                (tried, accepted)
            })
        });
        let others = scope.spawn(|| {
            stage.world.client(1).netns.run(|| {
                let mut failed = Vec::new();
                for round in 0..EACH {
                    for n in 0..OTHERS {
                        let from = IpAddr::V4(Ipv4Addr::new(10, 90, 1, 100 + n));
                        if let Err(error) = connect(Some(from), to, PROMPT) {
                            failed.push(format!("round {round}, {from}: {error}"));
                        }
                    }
                }
                failed
            })
        });
        (abuser.join(), others.join())
    });
    let (tried, accepted) = hammered.map_err(|_| anyhow::anyhow!("the abuser panicked"))??;
    let failed = others.map_err(|_| anyhow::anyhow!("the others panicked"))??;
    ensure!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), u32::from(OTHERS) * EACH);
    // Burst and rate, and a margin for the time the last round took. The stage itself used some of the burst.
    let most = 20 + (begin.elapsed().as_secs_f64() * 20.0) as u64 + 5;
    ensure!(tried > 4 * most && accepted <= most && accepted > 0, "{accepted} of {tried} got in; {most} may");
    ensure!(stage.refused("rate")? > 0.0);
    ensure!(stage.brokers.mock.connections() == at_brokers, "a broker was dialled for a client that said nothing");

    let top = stage.gateway.cli(&["admission", "top", "--once", "--format", "json", "--socket", "{socket}"])?;
    let top: serde_json::Value = serde_json::from_str(&top)?;
    let named = top.to_string();
    ensure!(named.contains("10.90.0.2") && named.contains("rate"), "{named}");
    ensure!(!named.contains("10.90.1.1"), "the others are in nobody's list: {named}");
    Ok(())
}

#[test]
fn whoever_keeps_to_the_rate_and_says_nothing_is_let_go_by_the_limit_of_the_first_byte() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1], |builder| builder.virtual_line("limits: {first_byte: 1s}"))?;
    let mut silent = stage.connect(0, None, stage.bootstrap(0, true))?;
    ensure!(silent.read(&mut [0])? == 0, "closed by the gateway");
    Ok(())
}
