//! Who is slow costs nobody else anything, and no memory.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use harness::mock::{Mock, Reply};
use harness::raw::frame;
use harness::wait;

use crate::support::*;

/// Memory that a connection may cost the gateway; its buffers are 2 × 128 KiB.
const PER_CONNECTION: u64 = 1 << 20;

/// A mock that sends endless answers to Fetch, swallows Produce, and answers heartbeats.
fn endless() -> harness::mock::MockBuilder {
    Mock::builder().script(|request| match request.frame.api_key {
        FETCH => Reply::Endless,
        PRODUCE => Reply::Silence,
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    })
}

// Rule of the protocol: do not read ahead without bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_cost_no_memory_and_stall_nobody() -> Result<()> {
    // One worker: a connection that blocked it would block all.
    let bench = bench(endless(), |gateway| gateway.top_line("workers: 1")).await?;
    check_serves(bench.gateway.bootstrap_addr()).await?;
    let before = bench.gateway.resident_bytes()?;
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let mut client = bench.client().await?;
        client.send_request(4, &m::FetchRequest::default()).await?;
        deaf.push(client);
    }
    wait::until("back-pressure on the broker", SOON, || {
        let pauses = bench.gateway.metrics()?.sum("turnout_read_pauses_total", &[("side", "broker")]);
        ensure!(pauses >= 20.0, "{pauses} pauses");
        Ok(())
    })?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let grown = bench.gateway.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 20 * PER_CONNECTION, "20 deaf clients cost {grown} bytes");
    for _ in 0..5 {
        let begin = Instant::now();
        check_serves(bench.gateway.bootstrap_addr()).await?;
        ensure!(begin.elapsed() < PROMPT, "another client waited {:?}", begin.elapsed());
    }
    Ok(())
}

// The other direction: a broker that stops reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_do_not_read_cost_no_memory_and_stall_nobody() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        PRODUCE => Reply::Stall(Duration::from_secs(60)),
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.top_line("workers: 1")).await?;
    check_serves(bench.gateway.bootstrap_addr()).await?;
    let before = bench.gateway.resident_bytes()?;
    let flood = joined(&produce_frames(0, 100, 100_000)?);
    let mut writers = Vec::new();
    for _ in 0..4 {
        let (mut client, flood) = (bench.client().await?, flood.clone());
        // Far more than fits into all socket buffers on the way.
        writers.push(tokio::spawn(async move {
            for _ in 0..6 {
                client.send(&flood).await?;
            }
            anyhow::Ok(())
        }));
    }
    wait::until("back-pressure on the clients", SOON, || {
        let pauses = bench.gateway.metrics()?.sum("turnout_read_pauses_total", &[("side", "client")]);
        ensure!(pauses >= 4.0, "{pauses} pauses");
        Ok(())
    })?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let grown = bench.gateway.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 4 * PER_CONNECTION, "4 stalled brokers cost {grown} bytes");
    assert!(writers.iter().all(|writer| !writer.is_finished()), "the gateway took more than it could pass on");
    let begin = Instant::now();
    check_serves(bench.gateway.bootstrap_addr()).await?;
    ensure!(begin.elapsed() < PROMPT, "another client waited {:?}", begin.elapsed());
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

// A long poll on one connection must not delay another client of the same broker (no multiplexing).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_poll_delays_no_other_connection() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        FETCH => Reply::Stall(Duration::from_secs(60)),
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut polling = bench.broker_client(1).await?;
    polling.send_request(4, &m::FetchRequest::default()).await?;
    bench.wait_received(FETCH, 1)?;
    let begin = Instant::now();
    assert_eq!(bench.broker_client(1).await?.call(0, &heartbeat()).await?.error_code, 0);
    ensure!(begin.elapsed() < PROMPT, "it took {:?}", begin.elapsed());
    // Behind the poll on its own connection, a request waits, as at the broker.
    polling.send(&heartbeat_frame(9)).await?;
    polling.set_patience(Duration::from_millis(300));
    assert!(polling.read_frame().await.is_err());
    Ok(())
}

// Answers above limits.frame, which bounds requests: a consumer with a large fetch.max.bytes gets them, streamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_larger_than_the_frame_limit_streams_through() -> Result<()> {
    const SIZE: usize = 48 << 20;
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        FETCH => {
            let mut body = BytesMut::with_capacity(SIZE);
            body.put_i32(request.frame.correlation_id);
            body.put_bytes(7, SIZE - 4);
            Reply::Bytes(frame(&body))
        }
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {frame: 1MiB, rewrite_frame: 1MiB}")).await?;
    check_serves(bench.gateway.bootstrap_addr()).await?;
    let before = bench.gateway.resident_bytes()?;
    let mut client = bench.client().await?;
    client.send_request(4, &m::FetchRequest::default()).await?;
    let answer = client.read_frame().await?.unwrap_or_default();
    assert_eq!(answer.len(), SIZE);
    assert!(answer[4..].iter().all(|byte| *byte == 7));
    let grown = bench.gateway.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 2 * PER_CONNECTION, "an answer of {SIZE} bytes cost {grown}");
    Ok(())
}

// 100 MB in one Produce pass with the memory of one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_produce_of_100_mb_streams_through() -> Result<()> {
    let bench = plain_bench(endless()).await?;
    check_serves(bench.gateway.bootstrap_addr()).await?;
    let before = bench.gateway.resident_bytes()?;
    let mut payload = BytesMut::from(&harness::raw::request(7, 1, &produce(0, Bytes::new()))?[4..]);
    payload.resize(104_857_600, 3);
    let mut client = bench.client().await?;
    let sampler = tokio::spawn(async move {
        client.send(&frame(&payload)).await?;
        anyhow::Ok(payload.freeze())
    });
    let mut peak = 0;
    while !sampler.is_finished() {
        peak = peak.max(bench.gateway.resident_bytes()?);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let payload = sampler.await??;
    let received = wait::until("the frame at the broker", Duration::from_secs(20), || {
        bench.received(PRODUCE).pop().ok_or_else(|| anyhow::anyhow!("not yet"))
    })?;
    ensure!(received.frame.bytes == payload, "other bytes came");
    let grown = peak.saturating_sub(before);
    ensure!(grown < 2 * PER_CONNECTION, "100 MB cost {grown} bytes");
    Ok(())
}

// A client that is slow to read is not idle: it keeps its connection as long as something moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_slowly_is_not_idle() -> Result<()> {
    let bench = bench(endless(), |gateway| gateway.virtual_line("limits: {idle: 2s}")).await?;
    let mut client = bench.client().await?;
    client.send_request(4, &m::FetchRequest::default()).await?;
    let begin = Instant::now();
    // The gateway sees progress once a third of its socket's send buffer (4 MiB here) is free again, so the pace leaves
    // a wide margin to the limit.
    let mut buffer = vec![0; 1024 * 1024];
    let mut read = 0;
    while begin.elapsed() < Duration::from_millis(4500) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        match client.stream().try_read(&mut buffer) {
            Ok(0) => anyhow::bail!("closed after {:?} and {read} bytes", begin.elapsed()),
            Ok(n) => read += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    drop(client);
    // One that reads nothing at all is let go.
    let mut deaf = bench.client().await?;
    deaf.send_request(4, &m::FetchRequest::default()).await?;
    wait_closed(&bench.gateway, "stalled", 1)
}
