//! What a real cluster answers is the same through the gateway: for every API and version that both speak, one request
//! goes to the broker directly and through gateways with both policies that change answers; the answers must be equal
//! once the addresses are undone.
//!
//! Requests and answers are written and read by Kafka's own schemas, so no version is left out for want of a library.

mod cases;
mod codec;
mod schema;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use harness::kafka::Listener;
use harness::raw::frame;
use harness::turnout::Gateway;
use serde_json::{Value, json};
use turnout::kafka::api;
use turnout::kafka::ids::{ApiKey, ApiVersion};

use cases::Case;
use world::{Answer, LEADER, Side, World, connect, transfer};

/// Versions that were compared at least; a change that loses some must say so here. The table of 4.3.1 has them all.
const LEAST_PAIRS: usize = 275;

/// Highest Fetch that `auto` offers.
const AUTO_FETCH: i64 = 15;

/// The tag under which endpoints pass that were blanked (`kafka::hints`).
const BLANKED_TAG: &str = "127";

#[test]
fn every_api_and_version_that_both_speak_is_answered_alike() -> Result<()> {
    harness::need_kafka!();
    let mut world = World::new()?;
    let offered = offered(&mut world)?;
    let mut left: BTreeSet<i16> = offered.keys().copied().collect();
    let (mut pairs, mut closed, mut wrong) = (0, Vec::new(), Vec::new());
    for case in cases::all() {
        let Some(&(min, max)) = offered.get(&case.key) else { continue };
        left.remove(&case.key);
        let schema = world.apis[&case.key].request.versions;
        for version in (min..=max).filter(|version| schema.contains(*version)) {
            let name = format!("{} v{version}", world.apis[&case.key].name);
            match compare(&mut world, &case, version).with_context(|| name.clone()) {
                Ok(Compared::Answers) => pairs += 1,
                Ok(Compared::Closed) => closed.push(name),
                Err(error) => wrong.push(format!("{error:#}")),
            }
        }
    }
    println!("{pairs} (api, version) pairs compared over {} apis", offered.len() - left.len());
    println!("closed alike: {closed:?}");
    ensure!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    ensure!(left.is_empty(), "no request for the APIs {left:?}, which both speak");
    ensure!(closed.is_empty(), "{closed:?} were closed and not answered: the requests are no good");
    ensure!(pairs >= LEAST_PAIRS, "only {pairs} pairs were compared");
    world.check_quiet(&[])
}

/// What both the broker offers and the gateway's table serves.
fn offered(world: &mut World) -> Result<BTreeMap<i16, (i16, i16)>> {
    let body = json!({"clientSoftwareName": "eq", "clientSoftwareVersion": "1"});
    let Answer::Body(answer) = world.exchange(Side::Direct, LEADER, 18, 4, &body)? else { bail!("closed") };
    let range = |key: &Value| {
        let of = |name: &str| key[name].as_i64().unwrap_or(-1) as i16;
        let spec = api::spec(ApiKey(of("apiKey")))?;
        let served = spec.served();
        let (min, max) = (of("minVersion").max(served.min.0), of("maxVersion").min(served.max.0));
        (min <= max).then_some((spec.key.0, (min, max)))
    };
    let offered: BTreeMap<_, _> = answer["apiKeys"].as_array().into_iter().flatten().filter_map(range).collect();
    ensure!(offered.len() > 60, "the broker offers only {offered:?}");
    Ok(offered)
}

enum Compared {
    Answers,
    Closed,
}

fn compare(world: &mut World, case: &Case, version: i16) -> Result<Compared> {
    let node = world.node(case.to);
    let mut answers = BTreeMap::new();
    for side in Side::ALL {
        for before in &case.before {
            let (node, body) = (world.node(before.to), world.filled(&before.body, side, version)?);
            let Answer::Body(answer) = world.exchange(side, node, before.key, before.version, &body)? else {
                bail!("closed at the request {} before, by way of {side:?}", before.key)
            };
            for (pointer, name) in &before.keep {
                let value = answer.pointer(pointer).with_context(|| format!("no {pointer} in {answer}"))?;
                world.remember(name, value);
            }
        }
        let body = world.filled(&case.body, side, version)?;
        let mut answer = world.exchange(side, node, case.key, version, &body)?;
        if let Answer::Body(tree) = &mut answer {
            undo(world, side, case, tree).with_context(|| format!("by way of {side:?}"))?;
        }
        answers.insert(format!("{side:?}"), answer);
    }
    let direct = &answers["Direct"];
    for side in [Side::Auto, Side::Full] {
        let (mut expected, mut got) = (direct.clone(), answers[&format!("{side:?}")].clone());
        for (answer, is_expected) in [(&mut expected, true), (&mut got, false)] {
            if let Answer::Body(tree) = answer {
                by_design(case.key, version, side, is_expected, tree)?;
            }
        }
        ensure!(expected == got, "by way of {side:?}\n   direct: {expected:?}\n  gateway: {got:?}");
    }
    Ok(match direct {
        Answer::Closed => Compared::Closed,
        Answer::Body(_) => Compared::Answers,
    })
}

/// Undoes the rewriting of addresses, and drops what differs each time.
fn undo(world: &World, side: Side, case: &Case, tree: &mut Value) -> Result<()> {
    match tree {
        Value::Object(fields) => {
            let id = ["nodeId", "brokerId"].iter().find_map(|name| fields.get(*name)?.as_i64());
            if let (Some(id), true) = (id, fields.contains_key("host") && fields.contains_key("port"))
                && id >= 0
            {
                let told = format!("{}:{}", fields["host"].as_str().unwrap_or_default(), fields["port"]);
                let right = world.address(side, id as i32)?.to_string();
                ensure!(told == right, "node {id} is told to be at {told}; {right} would be right");
                fields.insert("port".into(), json!(format!("that of node {id}")));
            }
            for (name, value) in fields.iter_mut() {
                if name == "throttleTimeMs" || case.volatile.contains(&name.as_str()) {
                    *value = json!("differs");
                }
                undo(world, side, case, value)?;
                if let (true, Value::Array(items)) = (case.sorted.contains(&name.as_str()), value) {
                    items.sort_by_key(Value::to_string);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                undo(world, side, case, item)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Where the gateway's answer differs on purpose: brings the expected one, and where it must the other, to that form.
fn by_design(key: i16, version: i16, side: Side, is_expected: bool, tree: &mut Value) -> Result<()> {
    match key {
        // Fetch above what `auto` offers, sent nevertheless: hints are blanked as the answer streams.
        1 if side == Side::Auto && i64::from(version) > AUTO_FETCH => {
            if let Some(tags) = tree.get(codec::UNKNOWN_TAGS) {
                let blanked = tags[BLANKED_TAG].as_str().context("an unknown tag of another number")?;
                ensure!(!is_expected && blanked.bytes().all(|digit| digit == b'0'), "{blanked}");
            }
            without(tree, &["nodeEndpoints", "currentLeader", codec::UNKNOWN_TAGS]);
        }
        // Controllers can't be reached through the gateway.
        55 if version >= 2 && is_expected => {
            for node in tree["nodes"].as_array_mut().into_iter().flatten() {
                node["listeners"] = json!([]);
            }
        }
        // Beside an error without a hint the leader is left at the number's default, 0: a broker that isn't there.
        79 if is_expected => blank_leader_0(tree),
        18 if is_expected => {
            let offered = tree["apiKeys"].as_array().into_iter().flatten().filter_map(|api| shown(api, side)).collect();
            tree["apiKeys"] = Value::Array(offered);
            tree["apiKeys"].as_array_mut().context("an array")?.sort_by_key(Value::to_string);
        }
        _ => {}
    }
    Ok(())
}

/// What a policy shows of one API that the broker offers.
fn shown(offered: &Value, side: Side) -> Option<Value> {
    let of = |name: &str| offered[name].as_i64().unwrap_or(-1);
    let spec = api::spec(ApiKey(of("apiKey") as i16))?;
    let cap = if side == Side::Auto && spec.key.0 == 1 { AUTO_FETCH } else { i64::from(i16::MAX) };
    let min = of("minVersion").max(spec.versions.min.0.into());
    let max = of("maxVersion").min(spec.versions.max.0.into()).min(cap);
    (min <= max).then(|| json!({"apiKey": of("apiKey"), "minVersion": min, "maxVersion": max}))
}

fn blank_leader_0(tree: &mut Value) {
    match tree {
        Value::Object(fields) => {
            if fields.get("currentLeader") == Some(&json!({"leaderId": 0, "leaderEpoch": 0})) {
                fields.insert("currentLeader".into(), json!({"leaderId": -1, "leaderEpoch": -1}));
            }
            fields.values_mut().for_each(blank_leader_0);
        }
        Value::Array(items) => items.iter_mut().for_each(blank_leader_0),
        _ => {}
    }
}

fn without(tree: &mut Value, names: &[&str]) {
    match tree {
        Value::Object(fields) => {
            fields.retain(|name, _| !names.contains(&name.as_str()));
            fields.values_mut().for_each(|value| without(value, names));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| without(item, names)),
        _ => {}
    }
}

/// Keys between brokers and of vendors, and versions outside of what is served: the broker closes, and so does the
/// gateway.
#[test]
fn what_a_broker_does_not_serve_is_closed_alike() -> Result<()> {
    harness::need_kafka!();
    let mut world = World::bare()?;
    let offered = offered(&mut world)?;
    let strange = [4i16, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 93, 999, 10_000, i16::MAX, -1];
    let not_offered = strange.into_iter().filter(|key| !offered.contains_key(key)).map(|key| (key, 0));
    // One below and one above every range, where the broker's and the gateway's agree.
    let outside = offered.iter().flat_map(|(&key, &(min, max))| [(key, min - 1), (key, max + 1)]);
    let mut tried = 0;
    let outside: Vec<_> = outside.filter(|(key, version)| *key != 18 && !is_served(*key, *version)).collect();
    for (key, version) in not_offered.chain(outside) {
        for side in Side::ALL {
            let flexible = api::spec(ApiKey(key)).is_some_and(|spec| spec.is_flexible(ApiVersion(version)));
            let bytes = world::request(key, version, 1, flexible, &[0; 8]);
            let answer = world.transfer(side, LEADER, &bytes)?;
            ensure!(answer.is_none(), "key {key} v{version} is answered by way of {side:?}: {answer:?}");
        }
        tried += 1;
    }
    println!("{tried} (api, version) pairs closed alike");
    ensure!(tried > 80, "only {tried} were tried");
    Ok(())
}

fn is_served(key: i16, version: i16) -> bool {
    version >= 0 && api::spec(ApiKey(key)).is_some_and(|spec| spec.served().contains(ApiVersion(version)))
}

/// Each step of a SASL exchange with a real broker, byte for byte: bare tokens after handshake v0, wrapped ones after
/// v1, wrong passwords and unknown mechanisms.
#[test]
fn sasl_exchanges_are_the_same_byte_for_byte() -> Result<()> {
    harness::need_kafka!();
    let cluster = world::cluster()?;
    let direct = cluster.broker(LEADER)?.address(Listener::Sasl)?;
    let gateway = Gateway::before(cluster)
        .bootstrap(&direct.to_string())
        .cluster_line("sasl: {mechanism: PLAIN, username: alice, password: alice-secret}")
        .start()?;
    let apis = schema::load()?;
    let handshake = |version: i16, mechanism: &str| -> Result<Vec<u8>> {
        let body = codec::write(&apis[&17].request, version, &json!({"mechanism": mechanism}))?;
        Ok(world::request(17, version, 1, false, &body).to_vec())
    };
    let authenticate = |version: i16, token: &[u8]| -> Result<Vec<u8>> {
        let body = codec::write(&apis[&36].request, version, &json!({"authBytes": codec::hex(token)}))?;
        Ok(world::request(36, version, 2, version >= 2, &body).to_vec())
    };
    let list_groups = || world::request(16, 0, 3, false, b"").to_vec();
    let (right, wrong) = (b"\0alice\0alice-secret", b"\0alice\0guess");
    let mut exchanges = vec![
        vec![handshake(0, "PLAIN")?, frame(right).to_vec(), list_groups()],
        vec![handshake(0, "PLAIN")?, frame(wrong).to_vec()],
        vec![handshake(0, "NONESUCH")?, handshake(0, "PLAIN")?, frame(right).to_vec(), list_groups()],
        vec![handshake(1, "NONESUCH")?],
        vec![list_groups()],
    ];
    for version in 0..=2 {
        exchanges.push(vec![handshake(1, "PLAIN")?, authenticate(version, right)?, list_groups()]);
        exchanges.push(vec![handshake(1, "PLAIN")?, authenticate(version, wrong)?, list_groups()]);
    }
    for (number, exchange) in exchanges.iter().enumerate() {
        let run = |address| -> Result<Vec<_>> {
            let mut stream = connect(address)?;
            exchange.iter().map(|frame| transfer(&mut stream, frame)).collect()
        };
        let (expected, got) = (run(direct)?, run(gateway.bootstrap_addr())?);
        ensure!(expected == got, "exchange {number}\n   direct: {expected:?}\n  gateway: {got:?}");
        ensure!(expected[0].is_some() || exchange.len() == 1, "exchange {number} got no answer at all");
    }
    Ok(())
}
