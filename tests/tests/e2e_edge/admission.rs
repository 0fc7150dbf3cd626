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
    // Whole milliseconds are waited for, so a little less than was said.
    let waited = begin.elapsed() + Duration::from_millis(2);
    ensure!(error.kind() == ErrorKind::TimedOut && waited >= PROMPT, "dropped, not answered: {error}, {waited:?}");
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
fn an_allow_list_is_for_new_connections_of_its_family_and_of_the_other() -> Result<()> {
    need_edge!();
    let stage = Stage::start(&[1], with(OPEN))?;
    let client = |index: usize, v6| stage.connect(index, None, stage.at(index, 1, v6));
    let refused = |index: usize, v6| {
        let (netns, to) = (&stage.world.client(index).netns, stage.at(index, 1, v6));
        Ok::<_, anyhow::Error>(netns.run(|| connect(None, to, PROMPT))?.is_err())
    };
    let mut old = [client(1, false)?, client(1, true)?];
    for stream in &mut old {
        ensure!(call(stream)? == 1);
    }

    let host = stage.world.client(0);
    stage.reload(|config| config.replace("allow: []", &format!("allow: [{}/32]", host.v4)))?;
    for stream in &mut old {
        ensure!(call(stream)? == 1, "what is open stays open");
    }
    ensure!(call(&mut client(0, false)?)? == 1);
    ensure!(refused(1, false)?, "not on the list");
    ensure!(refused(1, true)? && refused(0, true)?, "a list of IPv4 alone lets in nobody else");

    stage.reload(|config| config.replace(&format!("{}/32", host.v4), &format!("\"{}/128\"", host.v6)))?;
    ensure!(call(&mut client(0, true)?)? == 1);
    ensure!(refused(1, true)?, "not on the list");
    ensure!(refused(0, false)?, "a list of IPv6 alone lets in nobody else");
    ensure!(stage.refused("not_allowed")? > 0.0);
    Ok(())
}

#[test]
fn over_ipv6_the_addresses_of_a_prefix_share_a_rate() -> Result<()> {
    need_edge!();
    let rules = "admission: {new_connections: {rate: 1/s, burst: 10, per_v6: /64}}";
    let stage = Stage::start(&[1], with(rules))?;
    let (one, two) = (stage.world.client(0), stage.world.client(1));
    let mut crowd = Vec::new();
    for n in 0..40u16 {
        let mut words = one.v6.segments();
        words[7] = 0x100 + n;
        let address = std::net::Ipv6Addr::from(words);
        one.netns.ip(&["addr", "add", &format!("{address}/64"), "dev", "gateway", "nodad"])?;
        crowd.push(IpAddr::V6(address));
    }
    let to = stage.bootstrap(0, true);
    let begin = Instant::now();
    let accepted = one.netns.run(|| {
        let patience = Duration::from_millis(20);
        crowd.iter().filter(|from| connect(Some(**from), to, patience).is_ok()).count()
    })?;
    let most = 10 + begin.elapsed().as_secs() as usize + 1;
    ensure!((1..=most).contains(&accepted), "{accepted} of {} addresses of one /64 got in; {most} may", crowd.len());
    let (netns, to) = (&two.netns, stage.bootstrap(1, true));
    for _ in 0..5 {
        netns.run(|| connect(None, to, PROMPT))?.context("another /64 has a rate of its own")?;
    }
    ensure!(stage.refused("rate")? > 0.0);
    Ok(())
}

/// One source hammers; two hundred others connect and close at once, thousands of times in all. Nobody sends a byte, so
/// no broker hears of it.
#[test]
fn an_abuser_is_limited_and_thousands_of_others_connections_are_not() -> Result<()> {
    need_edge!();
    const OTHERS: u8 = 200;
    const EACH: u32 = 30;
    let rules = "admission: {new_connections: {rate: 20/s, burst: 40}}";
    let stage = Stage::start(&[1, 2], with(rules))?;
    for n in 0..OTHERS {
        let address = format!("10.90.1.{}/24", 20 + n);
        stage.world.client(1).netns.ip(&["addr", "add", &address, "dev", "gateway"])?;
    }
    let at_brokers = stage.brokers.mock.connections();
    let (abused, to_abuse, to) = (stage.world.client(0), stage.bootstrap(0, false), stage.bootstrap(1, false));
    let begin = Instant::now();
    let admitted = || Ok::<_, anyhow::Error>(stage.gateway.metrics()?.sum("turnout_edge_admitted_total", &[]));
    let before = admitted()?;
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
                        let from = IpAddr::V4(Ipv4Addr::new(10, 90, 1, 20 + n));
                        if let Err(error) = connect(Some(from), to, PROMPT) {
                            failed.push(format!("round {round}, {from}: {error}"));
                        }
                    }
                }
                (failed, begin.elapsed())
            })
        });
        (abuser.join(), others.join())
    });
    let (tried, accepted) = hammered.map_err(|_| anyhow::anyhow!("the abuser panicked"))??;
    let (failed, took) = others.map_err(|_| anyhow::anyhow!("the others panicked"))??;
    let made = u32::from(OTHERS) * EACH;
    println!("{made} connections of {OTHERS} sources in {took:?}, {tried} attempts of the abuser");
    ensure!(failed.is_empty(), "{} of {made}: {:?}", failed.len(), &failed[..failed.len().min(5)]);
    ensure!(admitted()? - before >= f64::from(made), "admission saw them");
    // Burst and rate, and a margin for the time the last round took. The stage itself used some of the burst.
    let most = 40 + (begin.elapsed().as_secs_f64() * 20.0) as u64 + 5;
    ensure!(tried > 4 * most && accepted <= most && accepted > 0, "{accepted} of {tried} got in; {most} may");
    ensure!(stage.refused("rate")? > 0.0);
    ensure!(stage.brokers.mock.connections() == at_brokers, "a broker was dialled for a client that said nothing");

    let top = stage.gateway.cli(&["admission", "top", "--once", "--format", "json", "--socket", "{socket}"])?;
    let top: serde_json::Value = serde_json::from_str(&top)?;
    let named = top.to_string();
    ensure!(named.contains("10.90.0.2") && named.contains("rate"), "{named}");
    ensure!(!named.contains("10.90.1.2"), "the others are in nobody's list: {named}");
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
