//! Bounds: what happens at them, and that it ends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use harness::mock::{Mock, Reply};
use harness::raw::Client;
use harness::wait;
use tokio::net::TcpSocket;

use crate::support::*;

// A full house refuses the next one at once, tells the operator, and takes one again when one has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_limit_refuses_at_once_and_recovers() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line("limits: {connections: 3}")).await?;
    let mut inside = Vec::new();
    for _ in 0..3 {
        let mut client = bench.client().await?;
        client.call(0, &heartbeat()).await?;
        inside.push(client);
    }
    let mut refused = bench.client().await?;
    assert_eq!(ends_within(&mut refused, PROMPT).await?, Bytes::new());
    wait_limit(&bench.gateway, "connections", 1)?;
    let metrics = bench.gateway.metrics()?;
    assert_eq!(metrics.sum("turnout_connections_refused_total", &[("reason", "connections")]), 1.0);
    bench.gateway.wait_log(&["WARN", "3 are open already", "limits.connections"], SOON)?;
    for client in &mut inside {
        assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    }
    inside.pop();
    wait::until("a place", SOON, || {
        let open = bench.gateway.metrics()?.sum("turnout_connections", &[]);
        ensure!(open == 2.0, "{open} open");
        Ok(())
    })?;
    check_serves(bench.gateway.bootstrap_addr()).await
}

/// A client that dials from this address of the loopback network.
async fn client_from(source: &str, to: SocketAddr) -> Result<Client> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source.parse()?, 0))?;
    Client::over(socket.connect(to).await?)
}

// One source that opens too many takes nothing from another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_one_source_is_not_another_sources() -> Result<()> {
    let limits = "limits: {connections: 100, connections_per_source: 2}";
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line(limits)).await?;
    let to = bench.gateway.bootstrap_addr();
    let mut greedy = Vec::new();
    for _ in 0..2 {
        let mut client = client_from("127.0.0.7", to).await?;
        client.call(0, &heartbeat()).await?;
        greedy.push(client);
    }
    let mut refused = client_from("127.0.0.7", to).await?;
    assert_eq!(ends_within(&mut refused, PROMPT).await?, Bytes::new());
    wait_limit(&bench.gateway, "connections_per_source", 1)?;
    assert_eq!(client_from("127.0.0.8", to).await?.call(0, &heartbeat()).await?.error_code, 0);
    greedy.clear();
    wait::until_true("the source's places", SOON, || {
        bench.gateway.metrics().is_ok_and(|m| m.sum("turnout_connections", &[]) == 0.0)
    })?;
    assert_eq!(client_from("127.0.0.7", to).await?.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// kubernetes/kubernetes#5461 ("accept: too many open files", thousands of log lines a second), and proxies that exit:
// accepting pauses, what is open goes on, the log says what to raise, and it recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_out_of_file_descriptors_breaks_nothing_that_is_open() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.open_files(100)).await?;
    let mut served = bench.client().await?;
    served.call(0, &heartbeat()).await?;
    let mut crowd = Vec::new();
    for _ in 0..120 {
        crowd.push(bench.client().await?);
    }
    wait::until("a pause of accepting", SOON, || {
        // The admin server may want for descriptors too: the log tells.
        ensure!(bench.gateway.log()?.contains("accepting pauses"));
        Ok(())
    })?;
    for _ in 0..10 {
        assert_eq!(served.call(0, &heartbeat()).await?.error_code, 0);
    }
    let line = bench.gateway.wait_log(&["WARN", "accepting pauses"], SOON)?;
    assert!(line.contains("LimitNOFILE"), "{line}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lines = bench.gateway.log()?.lines().filter(|line| line.contains("accepting pauses")).count();
    assert!(lines <= 3, "{lines} lines in about a second");
    drop(crowd);
    wait::until("the crowd to be gone", SOON, || {
        let metrics = bench.gateway.metrics()?;
        ensure!(metrics.sum("turnout_accept_pauses_total", &[]) >= 1.0);
        let open = metrics.sum("turnout_connections", &[]);
        ensure!(open == 1.0, "{open} open");
        Ok(())
    })?;
    check_serves(bench.gateway.bootstrap_addr()).await?;
    assert_eq!(served.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// At limits.in_flight the client is not read: nothing is refused, nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_requests_than_may_be_in_flight_wait_their_turn() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Delayed(Duration::from_millis(20), heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {in_flight: 2}")).await?;
    let mut client = bench.client().await?;
    let ids: Vec<_> = (0..30).collect();
    client.send(&joined(&ids.iter().map(|id| heartbeat_frame(*id)).collect::<Vec<_>>())).await?;
    client.half_close().await?;
    for id in ids {
        assert_eq!(client.read_answer().await?.correlation_id, id);
        let metrics = bench.gateway.metrics()?;
        let in_flight = metrics.sum("turnout_in_flight_requests", &[]);
        assert!(in_flight <= 2.0, "{in_flight} in flight");
    }
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_limit(&bench.gateway, "in_flight", 1)?;
    wait_closed(&bench.gateway, "client_closed", 1)?;
    assert_eq!(bench.gateway.metrics()?.sum("turnout_in_flight_requests", &[]), 0.0);
    Ok(())
}

// kroxylicious/kroxylicious#3046: idle is nothing in flight and nothing moving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        FETCH => Reply::Delayed(Duration::from_millis(2500), heartbeat_answer(&request.frame)),
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {idle: 1s}")).await?;
    let mut waiting = bench.client().await?;
    let id = waiting.send_request(4, &m::FetchRequest::default()).await?;
    let mut idle = bench.client().await?;
    idle.call(0, &heartbeat()).await?;
    let begin = Instant::now();
    assert_eq!(ends_within(&mut idle, Duration::from_secs(3)).await?, Bytes::new());
    let took = begin.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_millis(2200)).contains(&took), "closed after {took:?}");
    wait_closed(&bench.gateway, "idle", 1)?;
    assert_eq!(waiting.read_answer().await?.correlation_id, id, "a long poll is no idle connection");
    ends_within(&mut waiting, Duration::from_secs(3)).await?;
    wait_closed(&bench.gateway, "idle", 2)
}

// A connection that keeps talking stays, however short the limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_talks_outlives_every_timeout() -> Result<()> {
    let limits = "limits: {idle: 500ms, first_byte: 500ms, incomplete_frame: 500ms}";
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line(limits)).await?;
    let mut client = bench.client().await?;
    for _ in 0..8 {
        assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok(())
}

// An answer that must be rewritten is bounded; above, the connection ends and the knob is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_too_large_to_be_rewritten_is_not_passed_on() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        METADATA if !is_own(&request.frame.bytes) => {
            let many: Vec<_> = (1..=3000).map(|id| (id, format!("broker-{id}.kafka.internal"), 9092)).collect();
            Reply::Bytes(metadata(&request.frame, &many))
        }
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {rewrite_frame: 64KiB}")).await?;
    let mut client = bench.client().await?;
    client.send_request(1, &m::MetadataRequest::default()).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "rewrite_limit", 1)?;
    wait_limit(&bench.gateway, "rewrite_frame", 1)?;
    bench.gateway.wait_log(&["WARN", "limits.rewrite_frame"], SOON)?;
    Ok(())
}
