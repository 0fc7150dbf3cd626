//! Reading with nothing going wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::clients::Family;
use harness::{Tier, tier};

use crate::support::*;

/// All families that follow what they are told, in every kind of group that they have.
const READERS: [(Family, Way); 6] = [
    (Family::Java, Way::Classic),
    (Family::Java, Way::Kip848),
    (Family::Librdkafka, Way::Classic),
    (Family::Franz, Way::Classic),
    (Family::Sarama, Way::Classic),
    (Family::Kafkajs, Way::Classic),
];

/// Bytes that crossed racks though they could have been read in the rack, in per cent, may be at most this.
const MOST_ACROSS: f64 = 1.0;

/// Requests may be so many times those of the same client at the leader.
const MOST_REQUESTS: f64 = 3.0;

#[test]
fn every_family_reads_in_its_rack_with_no_client_rack_set() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama, Kafkajs);
    let Stage { gateway, cluster, .. } = stage()?;
    // In the full tier the shares are of one minute that begins one minute after the start.
    let (settle, measure) = if tier() == Tier::Full { (60, 60) } else { (3, 6) };
    let mut streams = Vec::new();
    for readers in READERS.chunks(3) {
        streams.extend(Stream::start_all(gateway, cluster, readers, settle + measure + 20)?);
    }
    std::thread::sleep(Duration::from_secs(settle));
    let before: Vec<_> = streams.iter().map(|stream| read(gateway, &stream.topic)).collect::<Result<_>>()?;
    std::thread::sleep(Duration::from_secs(measure));
    for (stream, before) in streams.iter().zip(before) {
        let after = read(gateway, &stream.topic)?;
        let (near, across) = (after.in_rack_bytes - before.in_rack_bytes, after.across_bytes - before.across_bytes);
        println!("{}: {near} bytes in its rack, {across} across", stream.family);
        ensure!(near > 100_000, "{} read only {near} bytes", stream.family);
        let share = 100.0 * across as f64 / (near + across) as f64;
        ensure!(share <= MOST_ACROSS, "{}: {share:.2} % crossed racks", stream.family);
        ensure!(after.saved_bytes <= after.in_rack_bytes && after.unknown_bytes == 0, "{after:?}");
        ensure!(after.redirects <= u64::from(2 * PARTITIONS), "{} was sent {} times", stream.family, after.redirects);
    }
    let said = gateway.cli(&["racks", "--topics", "--socket", "{socket}"])?;
    ensure!(said.contains("mode patch") && said.contains("USD saved") && said.contains("az3"), "{said}");
    let topic = streams[0].topic.clone();
    let why = gateway.cli(&["racks", "why", "--client", "127.0.0.1", "--topic", &topic, "--socket", "{socket}"])?;
    ensure!(why.contains("in-sync replica in the client's rack"), "{why}");
    let metrics = gateway.metrics()?;
    let of = |client: &str, broker: &str| {
        metrics.sum("turnout_rack_read_bytes_total", &[("client_rack", client), ("broker_rack", broker)])
    };
    ensure!(of("az3", "az3") > of("az3", "az1") + of("az3", "az2"), "metrics say otherwise");
    finish(streams)
}

/// It forgets where it was sent with every answer, so it would go back and forth.
#[test]
fn kafka_python_stays_at_the_leader() -> Result<()> {
    need_families!(KafkaPython, Librdkafka);
    let Stage { gateway, cluster, .. } = stage()?;
    let stream = Stream::start(gateway, cluster, Family::KafkaPython, Way::Classic, 6)?;
    let topic = stream.topic.clone();
    stream.finish()?;
    let counts = read(gateway, &topic)?;
    ensure!(counts.redirects == 0 && counts.in_rack_bytes == 0 && counts.across_bytes > 0, "{counts:?}");
    ensure!(report(gateway)?.stays.get("excluded_client").is_some_and(|n| *n > 0), "no reason is told");
    Ok(())
}

/// The brokers run a selector, which the gateway finds out by itself and makes use of.
#[test]
fn where_brokers_choose_the_rack_is_filled_in() -> Result<()> {
    need_families!(Java, Franz, Librdkafka);
    let cluster = &stage()?.cluster;
    let gateway = gateway(cluster, "auto", "").start()?;
    harness::wait::until("the selectors to be known", SOON, || {
        let brokers = report(&gateway)?.brokers;
        ensure!(brokers.values().all(|how| how == "stamp"), "{brokers:?}");
        Ok(())
    })?;
    let readers = [(Family::Java, Way::Kip848), (Family::Franz, Way::Classic), (Family::Librdkafka, Way::Assigned)];
    let streams = Stream::start_all(&gateway, cluster, &readers, 10)?;
    let topics: Vec<_> = streams.iter().map(|stream| stream.topic.clone()).collect();
    finish(streams)?;
    for topic in topics {
        let counts = read(&gateway, &topic)?;
        // The broker names a replica once it has looked at the offset: without records, so none crosses.
        ensure!(counts.in_rack_bytes > 0 && counts.across_bytes * 20 < counts.in_rack_bytes, "{counts:?}");
        ensure!(counts.redirects > 0, "{counts:?}");
    }
    Ok(())
}

/// A replica that is behind by a moment answers empty at once; that must not become a loop.
#[test]
fn a_reader_in_its_rack_asks_about_as_often_as_one_at_the_leader() -> Result<()> {
    need_families!(Java, Librdkafka, Franz, Sarama, Kafkajs);
    let Stage { gateway, plain, cluster, .. } = stage()?;
    let readers = [
        (Family::Java, Way::Kip848),
        (Family::Librdkafka, Way::Classic),
        (Family::Franz, Way::Classic),
        (Family::Sarama, Way::Classic),
        (Family::Kafkajs, Way::Classic),
    ];
    // Few clients at a time, so that what is counted is not how slow the host is.
    for readers in readers.chunks(if tier() == Tier::Full { 1 } else { 5 }) {
        let mut streams = Stream::start_all(gateway, cluster, readers, 45)?;
        streams.iter_mut().try_for_each(|stream| stream.add_control(plain))?;
        std::thread::sleep(Duration::from_secs(3));
        let count =
            |stream: &Stream| -> Result<_> { Ok((stream.flow().requests(gateway)?, stream.flow().requests(plain)?)) };
        let since = |before: &BTreeMap<u64, u64>, after: &BTreeMap<u64, u64>| -> u64 {
            after.iter().map(|(id, n)| n - before.get(id).copied().unwrap_or(0)).sum()
        };
        let before: Vec<_> = streams.iter().map(count).collect::<Result<_>>()?;
        std::thread::sleep(Duration::from_secs(10));
        for (stream, before) in streams.iter().zip(before) {
            let after = count(stream)?;
            let (ours, plain) = (since(&before.0, &after.0), since(&before.1, &after.1));
            println!("{}: {ours} requests in 10 s, {plain} at the leader", stream.family);
            ensure!(plain > 0 && ours as f64 <= MOST_REQUESTS * plain as f64, "{}: {ours}, {plain}", stream.family);
        }
        finish(streams)?;
    }
    Ok(())
}
