//! Damaged frames, by the thousand and from a seed, on both sides of a gateway: it never panics or ends, holds no
//! memory, and serves everybody else meanwhile.
//!
//! A failing run prints its seed; `TURNOUT_SEED=<seed>` repeats it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use harness::mock::{Mock, Reply};
use harness::raw::batch::Batch;
use harness::raw::{Client, answer, frame, request};
use harness::turnout::Gateway;
use harness::{Tier, tier};
use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Memory that all of it may cost the gateway.
const MEMORY: u64 = 32 << 20;

/// Whether a request (without its size field) is of the gateway's own client.
fn is_own(bytes: &[u8]) -> bool {
    bytes.get(8..17) == Some(b"\x00\x07turnout")
}

fn seed() -> u64 {
    let given = std::env::var("TURNOUT_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("TURNOUT_SEED={seed}");
    seed
}

/// Misbehaving clients of a run.
fn connections() -> u32 {
    if tier() == Tier::Full { 50_000 } else { 3000 }
}

/// Well-formed requests that take every way through the gateway: streamed, held, answered by itself, SASL.
fn requests() -> Result<Vec<Bytes>> {
    let text = StrBytes::from_static_str;
    let topic =
        m::produce_request::TopicProduceData::default().with_name(m::TopicName(text("t"))).with_partition_data(vec![
            m::produce_request::PartitionProduceData::default().with_records(Some(Batch::numbered(0, 5).encode()?)),
        ]);
    let produce = |acks| m::ProduceRequest::default().with_acks(acks).with_topic_data(vec![topic.clone()]);
    let voter = m::AddRaftVoterRequest::default().with_cluster_id(Some(text("some-cluster")));
    Ok(vec![
        request(3, 1, &m::ApiVersionsRequest::default().with_client_software_name(text("raw")))?,
        request(0, 2, &m::ApiVersionsRequest::default())?,
        frame(b"\x00\x12\x00\x63\x00\x00\x00\x02\x00\x01c\x00"),
        request(1, 3, &m::MetadataRequest::default())?,
        request(12, 4, &m::MetadataRequest::default())?,
        request(7, 5, &produce(0))?,
        request(7, 6, &produce(-1))?,
        request(12, 7, &produce(1))?,
        request(4, 8, &m::FetchRequest::default())?,
        request(17, 9, &m::FetchRequest::default())?,
        request(1, 10, &m::ShareFetchRequest::default())?,
        request(3, 11, &m::FindCoordinatorRequest::default())?,
        request(5, 12, &m::FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]))?,
        request(2, 13, &m::DescribeClusterRequest::default())?,
        request(2, 14, &m::DescribeQuorumRequest::default())?,
        request(0, 15, &voter)?,
        request(0, 16, &m::SaslHandshakeRequest::default().with_mechanism(text("PLAIN")))?,
        request(1, 17, &m::SaslHandshakeRequest::default().with_mechanism(text("SCRAM-SHA-256")))?,
        request(2, 18, &m::SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from_static(b"token")))?,
        frame(b"\x60\x20a gssapi token"),
        request(0, 19, &m::HeartbeatRequest::default())?,
    ])
}

/// An answer of the right schema, with addresses in it, to whatever was asked.
fn whole_answer(request: &harness::raw::RequestFrame, mock_answer: Option<Bytes>) -> Option<Bytes> {
    let (version, id) = (request.api_version, request.correlation_id);
    let host = || StrBytes::from_static_str("kafka.internal");
    let built = match request.api_key {
        0 => {
            let endpoint = m::produce_response::NodeEndpoint::default().with_node_id(1.into()).with_host(host());
            let body = m::ProduceResponse::default();
            let body = if version >= 10 { body.with_node_endpoints(vec![endpoint]) } else { body };
            answer::<m::ProduceRequest>(version, id, &body)
        }
        1 => {
            let endpoint = m::fetch_response::NodeEndpoint::default().with_node_id(1.into()).with_host(host());
            let body = m::FetchResponse::default();
            let body = if version >= 16 { body.with_node_endpoints(vec![endpoint]) } else { body };
            answer::<m::FetchRequest>(version, id, &body)
        }
        10 => {
            let one = m::find_coordinator_response::Coordinator::default().with_node_id(1.into()).with_host(host());
            let body = m::FindCoordinatorResponse::default();
            let body = if version >= 4 { body.with_coordinators(vec![one]) } else { body.with_host(host()) };
            answer::<m::FindCoordinatorRequest>(version, id, &body)
        }
        12 => answer::<m::HeartbeatRequest>(version, id, &m::HeartbeatResponse::default()),
        17 => answer::<m::SaslHandshakeRequest>(version, id, &m::SaslHandshakeResponse::default()),
        36 => answer::<m::SaslAuthenticateRequest>(version, id, &m::SaslAuthenticateResponse::default()),
        55 => answer::<m::DescribeQuorumRequest>(version, id, &m::DescribeQuorumResponse::default()),
        60 => {
            let one = m::describe_cluster_response::DescribeClusterBroker::default().with_host(host());
            answer::<m::DescribeClusterRequest>(
                version,
                id,
                &m::DescribeClusterResponse::default().with_brokers(vec![one]),
            )
        }
        78 => {
            let endpoint = m::share_fetch_response::NodeEndpoint::default().with_node_id(1.into()).with_host(host());
            answer::<m::ShareFetchRequest>(
                version,
                id,
                &m::ShareFetchResponse::default().with_node_endpoints(vec![endpoint]),
            )
        }
        _ => return mock_answer,
    };
    built.ok()
}

/// One to four damages: bits, numbers at their ends, lengths, cuts, doublings.
fn damage(rng: &mut StdRng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.random_range(1..=4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = *[0, 1, 0x7f, 0x80, 0xff].get(rng.random_range(0..5)).unwrap_or(&0),
            2 => {
                let number: u32 =
                    [0, 1, 7, 8, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, rng.random()][rng.random_range(0..8)];
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&number.to_be_bytes()[..end - at]);
            }
            3 => bytes.truncate(at),
            4 => bytes.extend_from_within(..at),
            5 => drop(bytes.splice(at..at, (0..rng.random_range(1..20)).map(|_| 0xff))),
            6 => drop(bytes.drain(at..(at + rng.random_range(1..8)).min(bytes.len()))),
            // The size field stays right more often than chance would have it, so that what is inside is looked at.
            _ => {
                let size = (bytes.len().saturating_sub(4) as u32).to_be_bytes();
                if let Some(field) = bytes.first_chunk_mut::<4>() {
                    *field = size;
                }
            }
        }
    }
    bytes
}

/// One client's life: some good frames, some damaged ones, and one of several ends.
async fn misbehave(address: std::net::SocketAddr, frames: &[Bytes], seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut client = Client::connect(address).await?;
    let mut bytes = BytesMut::new();
    for _ in 0..rng.random_range(1..6) {
        let frame = &frames[rng.random_range(0..frames.len())];
        match rng.random_bool(0.5) {
            true => bytes.put_slice(&damage(&mut rng, frame)),
            false => bytes.put_slice(frame),
        }
    }
    // The gateway may close at any moment: what a client sees then is no matter here.
    if rng.random_bool(0.2) && bytes.len() > 2 {
        let cut = rng.random_range(1..bytes.len());
        let _ = client.send_cut(&bytes, &[cut], Duration::from_millis(1)).await;
    } else {
        let _ = client.send(&bytes).await;
    }
    match rng.random_range(0..4) {
        0 => drop(client.reset()),
        1 => drop(client),
        _ => {
            let _ = client.half_close().await;
            client.set_patience(Duration::from_secs(20));
            client.read_to_end().await.map(drop).or_else(|error| match error.is::<std::io::Error>() {
                true => Ok(()),
                false => Err(error.context(format!("the connection of seed {seed} does not end"))),
            })?;
        }
    }
    Ok(())
}

/// A well-behaved client, all the while: each answer is right and comes soon.
async fn behave(address: std::net::SocketAddr, until: Arc<AtomicU64>) -> Result<u64> {
    let mut client = Client::connect(address).await?;
    client.set_patience(Duration::from_secs(10));
    let mut calls = 0;
    let mut slowest = Duration::ZERO;
    while until.load(Ordering::Relaxed) == 0 {
        let begin = Instant::now();
        let metadata = client.call(1, &m::MetadataRequest::default()).await.context("the well-behaved client")?;
        slowest = slowest.max(begin.elapsed());
        ensure!(metadata.brokers.len() == 1 && metadata.brokers[0].host.as_str() == "127.0.0.1", "{metadata:?}");
        calls += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ensure!(slowest < Duration::from_secs(2), "an answer took {slowest:?}");
    Ok(calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_frames_cost_only_their_own_connection() -> Result<()> {
    let seed = seed();
    let answered = AtomicU64::new(0);
    // Even the broker is not to be trusted: it damages half of what it answers to the misbehaving.
    let inner = Arc::new(Mock::builder().start().await?);
    let default = Arc::clone(&inner);
    let mock = Mock::builder().script(move |received| {
        let whole = whole_answer(&received.frame, default.default_answer(&received.frame).ok());
        if is_own(&received.frame.bytes) {
            return Reply::Default;
        }
        let mut rng = StdRng::seed_from_u64(seed ^ answered.fetch_add(1, Ordering::Relaxed));
        let Some(whole) = whole else { return Reply::CloseAfter(Bytes::new()) };
        match rng.random_range(0..20) {
            0 => Reply::Reset,
            1 => Reply::CloseAfter(damage(&mut rng, &whole).into()),
            2..=10 => Reply::Bytes(damage(&mut rng, &whole).into()),
            _ => Reply::Bytes(whole),
        }
    });
    let mock = mock.start().await?;
    let limits = "versions: full\nlimits: {first_byte: 2s, incomplete_frame: 2s, drain: 2s, rewrite_frame: 1MiB}";
    let gateway = Gateway::before_addresses(&mock.bootstrap(), 1).virtual_line(limits).start()?;
    // Behind the same gateway, a virtual cluster whose broker is sound.
    let honest = Mock::builder().brokers(&[2]).start().await?;
    let (real, seen, port) = second_cluster(&honest.bootstrap())?;
    let text = gateway.config()?;
    gateway.write_config(&text.replace("virtual_clusters:\n", &format!("{real}virtual_clusters:\n{seen}")))?;
    gateway.cli(&["reload", "--socket", "{socket}"])?;

    let done = Arc::new(AtomicU64::new(0));
    let polite = tokio::spawn(behave(([127, 0, 0, 1], port).into(), Arc::clone(&done)));
    let frames: Arc<[Bytes]> = requests()?.into();
    let before = gateway.resident_bytes()?;
    let address = gateway.bootstrap_addr();
    let mut peak = 0;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..connections() {
        let frames = Arc::clone(&frames);
        running.spawn(async move { misbehave(address, &frames, seed.wrapping_add(u64::from(number))).await });
        while running.len() >= 32 {
            running.join_next().await.context("a client")???;
        }
        if number % 100 == 0 {
            ensure!(gateway.process().is_running(), "the gateway ended");
            peak = peak.max(gateway.resident_bytes()?);
        }
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    done.store(1, Ordering::Relaxed);
    let calls = polite.await??;
    ensure!(calls > 20, "the well-behaved client was served only {calls} times");

    let log = gateway.log()?;
    ensure!(!log.contains("panicked") && !log.contains("a bug in turnout"), "the log tells of a bug");
    let grown = peak.saturating_sub(before);
    ensure!(grown < MEMORY, "{grown} bytes more than at the start");
    // Nothing is left behind: every connection ends by itself or by its limits.
    harness::wait::until("all connections to end", Duration::from_secs(20), || {
        let metrics = gateway.metrics()?;
        for gauge in ["turnout_connections", "turnout_in_flight_requests", "turnout_held_bytes"] {
            let left = metrics.sum(gauge, &[("virtual_cluster", "virtual")]);
            ensure!(left == 0.0, "{gauge} is {left}");
        }
        Ok(())
    })?;
    println!("{} damaged connections beside {calls} good calls, {} KiB more", connections(), grown / 1024);
    Ok(())
}

/// Lines of config for a second virtual cluster, and its bootstrap port.
fn second_cluster(bootstrap: &str) -> Result<(String, String, u16)> {
    let port = harness::ports::block(4)?;
    let real = format!("  honest:\n    bootstrap: [\"{bootstrap}\"]\n");
    let seen = format!(
        "  polite:\n    cluster: honest\n    listen: [\"127.0.0.1\"]\n    bootstrap_port: {port}\n    \
         broker_ports: {{first: {}, count: 3, first_node_id: 1}}\n",
        port + 1
    );
    Ok((real, seen, port))
}
