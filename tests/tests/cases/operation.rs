//! Draining, reloading, several virtual clusters, and what operators are told.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use harness::mock::{Mock, Reply};
use harness::raw::Client;
use harness::turnout::Gateway;
use harness::{ports, wait};

use crate::support::*;

// A drain finishes what was begun: the rest of a frame is read, its answer delivered, then FIN.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_the_frame_that_was_begun() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Delayed(Duration::from_millis(200), heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.call(0, &heartbeat()).await?;
    let mut idle = bench.client().await?;
    idle.call(0, &heartbeat()).await?;
    let frame = heartbeat_frame(77);
    let cut = frame.len() - 2;
    client.send(&frame[..cut]).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.gateway.signal(libc::SIGTERM)?;
    assert_eq!(ends_within(&mut idle, PROMPT).await?, Bytes::new(), "nothing was under way");
    assert!(Client::connect(bench.gateway.bootstrap_addr()).await.is_err(), "no new connections");
    client.send(&frame[cut..]).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 77);
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    drop((client, idle));
    assert_eq!(bench.gateway.wait(SOON)?.code(), Some(0));
    Ok(())
}

// Requests behind the one that was begun are not taken; the client sends them again elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_begins_nothing_new() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Delayed(Duration::from_millis(500), heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&heartbeat_frame(1)).await?;
    bench.wait_received(HEARTBEAT, 1)?;
    bench.gateway.signal(libc::SIGTERM)?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.send(&heartbeat_frame(2)).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 1);
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    drop(client);
    assert_eq!(bench.gateway.wait(SOON)?.code(), Some(0));
    assert_eq!(bench.received(HEARTBEAT).len(), 1);
    Ok(())
}

// A drain is bounded: what a broker never answers is cut after limits.drain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_although_a_broker_never_answers() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {drain: 1s}")).await?;
    let mut client = bench.client().await?;
    client.send(&heartbeat_frame(1)).await?;
    bench.wait_received(HEARTBEAT, 1)?;
    let begin = Instant::now();
    bench.gateway.signal(libc::SIGTERM)?;
    assert_eq!(ends_within(&mut client, Duration::from_secs(3)).await?, Bytes::new());
    let took = begin.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_millis(2500)).contains(&took), "cut after {took:?}");
    drop(client);
    assert_eq!(bench.gateway.wait(SOON)?.code(), Some(0));
    bench.gateway.wait_log(&["1 requests in flight", "limits.drain"], SOON)?;
    Ok(())
}

// A second signal does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_drain() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&heartbeat_frame(1)).await?;
    bench.wait_received(HEARTBEAT, 1)?;
    bench.gateway.signal(libc::SIGTERM)?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(bench.gateway.process().is_running());
    bench.gateway.signal(libc::SIGTERM)?;
    drop(client);
    bench.gateway.wait(Duration::from_secs(3))?;
    Ok(())
}

/// Reloads, and waits until it is applied.
fn reload(gateway: &Gateway, text: &str) -> Result<()> {
    let before = gateway.status()?.config_generation;
    gateway.write_config(text)?;
    gateway.signal(libc::SIGHUP)?;
    wait::until("the reload", SOON, || {
        let status = gateway.status()?;
        ensure!(status.config_generation == before + 1, "{:?}", status.last_reload_error);
        Ok(())
    })
}

// A reload drops no connection that it does not concern, with answers in flight or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_keeps_connections_and_answers_in_flight() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Delayed(Duration::from_millis(800), heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {in_flight: 100}")).await?;
    let mut client = bench.client().await?;
    client.send(&joined(&[1, 2].map(heartbeat_frame))).await?;
    bench.wait_received(HEARTBEAT, 1)?;
    let text = bench.gateway.config()?;
    reload(&bench.gateway, &text.replace("in_flight: 100", "in_flight: 50, connections: 1"))?;
    assert_eq!(correlation_ids(&mut client, 2).await?, [1, 2]);
    // The new bound holds for those who come.
    let mut refused = bench.client().await?;
    assert_eq!(ends_within(&mut refused, PROMPT).await?, Bytes::new());
    client.send(&heartbeat_frame(3)).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 3);
    Ok(())
}

// A bad file changes nothing, and says where it is bad.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_of_a_bad_file_changes_nothing() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    client.call(0, &heartbeat()).await?;
    let good = bench.gateway.config()?;
    bench.gateway.write_config(&good.replace("bootstrap_port:", "bootstrap_prot:"))?;
    bench.gateway.signal(libc::SIGHUP)?;
    wait::until("the refusal", SOON, || {
        let status = bench.gateway.status()?;
        let error = status.last_reload_error.unwrap_or_default();
        ensure!(error.contains("turnout.yaml:8:5") && error.contains("did you mean `bootstrap_port`?"), "{error}");
        ensure!(status.config_generation == 1);
        Ok(())
    })?;
    assert_eq!(bench.gateway.metrics()?.sum("turnout_config_reloads_total", &[("result", "refused")]), 1.0);
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    check_serves(bench.gateway.bootstrap_addr()).await
}

/// A second virtual cluster, before other brokers, in the same gateway.
fn second_cluster(bootstrap: &str, port: u16) -> (String, String) {
    let real = format!("  other:\n    bootstrap: [\"{bootstrap}\"]\n");
    let seen = format!(
        "  second:\n    cluster: other\n    listen: [\"127.0.0.1\"]\n    bootstrap_port: {port}\n    \
         broker_ports: {{first: {}, count: 3, first_node_id: 1}}\n    limits: {{connections: 2}}\n",
        port + 1
    );
    (real, seen)
}

// Several virtual clusters in one gateway: neither addresses, limits nor metrics mix, and one is taken away by a
// reload without the other noticing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn virtual_clusters_do_not_mix() -> Result<()> {
    let (first, second) = (heartbeats().start().await?, heartbeats().start().await?);
    let port = ports::block(4)?;
    let gateway = Gateway::before_addresses(&first.bootstrap(), 1).start()?;
    let alone = gateway.config()?;
    let (real, seen) = second_cluster(&second.bootstrap(), port);
    let both = alone.replace("virtual_clusters:\n", &format!("{real}virtual_clusters:\n{seen}"));
    reload(&gateway, &both)?;

    let other = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut of_first = Client::connect(gateway.bootstrap_addr()).await?;
    let mut of_second = dial(other).await?;
    of_second.call(0, &heartbeat()).await?;
    let metadata = of_second.call(1, &m::MetadataRequest::default()).await?;
    let told: Vec<_> = metadata.brokers.iter().map(|b| b.port).collect();
    assert_eq!(told, [i32::from(port) + 1]);
    let metadata = of_first.call(1, &m::MetadataRequest::default()).await?;
    assert_eq!(metadata.brokers[0].port, i32::from(gateway.broker_addr(1)?.port()));
    let at = |mock: &Mock| mock.received().iter().filter(|r| r.frame.api_key == HEARTBEAT).count();
    assert_eq!((at(&first), at(&second)), (0, 1));

    // The second one is full; the first one is not.
    let _another = Client::connect(other).await?;
    wait::until_true("two connections", SOON, || {
        gateway.metrics().is_ok_and(|m| m.sum("turnout_connections", &[("virtual_cluster", "second")]) == 2.0)
    })?;
    let mut refused = Client::connect(other).await?;
    assert_eq!(ends_within(&mut refused, PROMPT).await?, Bytes::new());
    check_serves(gateway.bootstrap_addr()).await?;
    let refusals = |name: &str| -> Result<f64> {
        Ok(gateway.metrics()?.sum("turnout_connections_refused_total", &[("virtual_cluster", name)]))
    };
    assert_eq!((refusals("second")?, refusals("virtual")?), (1.0, 0.0));

    reload(&gateway, &alone)?;
    ends_within(&mut of_second, SOON).await?;
    assert!(Client::connect(other).await.is_err());
    assert_eq!(of_first.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// envoyproxy/envoy#26171: the numbers are right. Bytes are those of the client's socket, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_and_requests_are_counted_exactly() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        PRODUCE => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let frames = [produce_frames(0, 5, 300_000)?, (0..7).map(heartbeat_frame).collect()].concat();
    let sent: usize = frames.iter().map(Bytes::len).sum();
    let mut client = bench.client().await?;
    client.send(&joined(&frames)).await?;
    correlation_ids(&mut client, 7).await?;
    let answer = harness::raw::answer::<m::HeartbeatRequest>(0, 0, &m::HeartbeatResponse::default())?;
    // What was written is counted behind the write.
    wait::until("the answers' bytes", SOON, || {
        let counted = bench.gateway.metrics()?.sum("turnout_answer_bytes_total", &[]);
        ensure!(counted == (7 * answer.len()) as f64, "{counted}");
        Ok(())
    })?;
    let metrics = bench.gateway.metrics()?;
    assert_eq!(metrics.sum("turnout_request_bytes_total", &[]), sent as f64);
    assert_eq!(metrics.sum("turnout_requests_total", &[("api", "Produce")]), 5.0);
    assert_eq!(metrics.sum("turnout_requests_total", &[("api", "Heartbeat")]), 7.0);
    assert_eq!(metrics.sum("turnout_requests_total", &[]), 12.0);
    assert_eq!(metrics.sum("turnout_frames_rewritten_total", &[]), 0.0, "nothing here needs rewriting");
    assert_eq!(metrics.sum("turnout_connections_accepted_total", &[]), 1.0);
    Ok(())
}
