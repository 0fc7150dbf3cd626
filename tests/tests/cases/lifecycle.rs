//! How connections begin and end without losing a byte.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use harness::mock::{Mock, Reply};
use harness::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

/// A mock that never answers a Produce.
fn silent_produce() -> harness::mock::MockBuilder {
    Mock::builder().script(|request| match request.frame.api_key {
        PRODUCE => Reply::Silence,
        _ => Reply::Default,
    })
}

// kroxylicious/kroxylicious#4094: acks=0, close, and the records are gone. Here the FIN even comes before the
// gateway has connected to the broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_sent_with_acks_0_survive_the_clients_close() -> Result<()> {
    let bench = plain_bench(silent_produce()).await?;
    for round in 1..=5 {
        let mut client = bench.client().await?;
        client.send(&joined(&produce_frames(0, 100, 4_000)?)).await?;
        drop(client);
        let received = bench.wait_received(PRODUCE, 100 * round)?;
        let last: Vec<_> = received[100 * (round - 1)..].iter().map(|r| r.frame.correlation_id).collect();
        ensure!(last == (0..100).collect::<Vec<_>>(), "round {round}: {last:?}");
    }
    wait_closed(&bench.gateway, "client_closed", 5)
}

// The same with a broker that reads slower than the client wrote: nothing is dropped with the client's socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_sent_with_acks_0_survive_a_close_while_the_broker_is_slow() -> Result<()> {
    let mock = silent_produce().slow_reading(64 * 1024, Duration::from_millis(2));
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&joined(&produce_frames(0, 60, 50_000)?)).await?;
    drop(client);
    assert_eq!(bench.wait_received(PRODUCE, 60)?.len(), 60);
    Ok(())
}

// A reset may cost what the gateway had not read yet, never what it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_the_gateway_has_read_survive_the_clients_reset() -> Result<()> {
    let mock = silent_produce().slow_reading(16 * 1024, Duration::from_millis(1));
    let bench = plain_bench(mock).await?;
    let frames = produce_frames(0, 120, 10_000)?;
    let size = frames[0].len();
    let mut client = bench.client().await?;
    client.send(&joined(&frames)).await?;
    bench.wait_received(PRODUCE, 3)?;
    client.reset()?;
    wait::until("the end of the connection", Duration::from_secs(20), || {
        let open = bench.gateway.metrics()?.sum("turnout_connections", &[]);
        ensure!(open == 0.0, "{open} connections open");
        Ok(())
    })?;
    let read = bench.gateway.metrics()?.sum("turnout_request_bytes_total", &[]) as usize;
    // The broker still reads what the kernel holds for it.
    wait::until("all that was read", Duration::from_secs(20), || {
        let received = bench.received(PRODUCE).len();
        ensure!(received == read / size, "{received} of {}", read / size);
        Ok(())
    })?;
    let ids: Vec<_> = bench.received(PRODUCE).iter().map(|r| r.frame.correlation_id).collect();
    assert_eq!(ids, (0..(read / size) as i32).collect::<Vec<_>>(), "{read} bytes were read from the client");
    Ok(())
}

// Rule of the protocol: a broker closes the connection when a Produce with acks=0 fails; the client must learn it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_produce_with_acks_0_closes_the_clients_connection() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        PRODUCE => Reply::CloseAfter(Bytes::new()),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&produce_frames(0, 1, 100)?[0]).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "broker_closed", 1)
}

// Rule of the protocol: two well-known proxies answer none of the requests in flight when the client half-closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_in_flight_reach_a_client_that_half_closed() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Delayed(Duration::from_millis(100), heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&joined(&[1, 2, 3, 4, 5].map(heartbeat_frame))).await?;
    client.half_close().await?;
    assert_eq!(correlation_ids(&mut client, 5).await?, [1, 2, 3, 4, 5]);
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "client_closed", 1)
}

// A FIN in the middle of a frame: the whole frames before it are answered, the rest is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_cut_short_by_the_clients_close_leaves_no_connection_behind() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    let frame = heartbeat_frame(2);
    client.send(&joined(&[heartbeat_frame(1), frame.slice(..frame.len() - 3)])).await?;
    client.half_close().await?;
    assert_eq!(client.read_answer().await?.correlation_id, 1);
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "client_gone", 1)?;
    wait::until("the broker's end", SOON, || {
        let to_broker = bench.gateway.metrics()?.sum("turnout_connections", &[]);
        ensure!(to_broker == 0.0, "{to_broker} open");
        Ok(())
    })
}

// Rule of the protocol: frames that arrive while the upstream is still connecting are queued or left unread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_sent_while_the_gateway_still_connects_are_not_lost() -> Result<()> {
    let hole = BlackHole::open().await?;
    let gateway = harness::turnout::Gateway::before_addresses(&hole.address.to_string(), 1)
        .cluster_line("connect_timeout: 20s")
        .without_waiting()
        .start()?;
    let mut client = dial(gateway.bootstrap_addr()).await?;
    // More than the gateway buffers, so that the tail stays in the sockets.
    let frames = produce_frames(0, 60, 10_000)?;
    let all = joined(&frames);
    let expected = all.clone();
    let writer = tokio::spawn(async move {
        client.send(&all).await?;
        client.half_close().await?;
        anyhow::Ok(client)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let listener = hole.clear()?;
    let got = tokio::time::timeout(Duration::from_secs(15), async {
        loop {
            let (mut stream, _) = listener.accept().await?;
            let mut start = [0; 21];
            if stream.read_exact(&mut start).await.is_err() || is_own(&start[4..]) {
                continue;
            }
            let mut bytes = start.to_vec();
            stream.read_to_end(&mut bytes).await?;
            return anyhow::Ok(bytes);
        }
    });
    let got = got.await.context("the gateway did not connect")??;
    ensure!(got == expected, "{} of {} bytes came", got.len(), expected.len());
    writer.await??;
    Ok(())
}

// Rule of the protocol: frames are what counts, wherever TCP cuts them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_arrives_byte_by_byte_is_the_same_frame() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    let frames = joined(&[heartbeat_frame(1), heartbeat_frame(2)]);
    let cuts: Vec<_> = (1..frames.len()).collect();
    client.send_cut(&frames, &cuts, Duration::from_millis(1)).await?;
    assert_eq!(correlation_ids(&mut client, 2).await?, [1, 2]);
    let received: Vec<_> = bench.received(HEARTBEAT).iter().map(|r| r.frame.bytes.clone()).collect();
    assert_eq!(received, [heartbeat_frame(1).slice(4..), heartbeat_frame(2).slice(4..)]);
    Ok(())
}

// The broker's side of the same: an answer in pieces of one byte, held whole or streamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_arrives_byte_by_byte_is_the_same_answer() -> Result<()> {
    let broker = RawBroker::start(|mut stream| {
        Box::pin(async move {
            stream.set_nodelay(true)?;
            loop {
                let frame = harness::raw::RequestFrame::new(read_frame(&mut stream).await?)?;
                let bytes = match frame.api_key {
                    METADATA => metadata(&frame, &[(1, "10.1.1.1".to_owned(), 9092)]),
                    _ => heartbeat_answer(&frame),
                };
                for byte in bytes {
                    stream.write_u8(byte).await?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        })
    })
    .await?;
    let gateway = broker.gateway().start()?;
    let mut client = harness::raw::Client::connect(gateway.bootstrap_addr()).await?;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    let metadata = client.call(1, &m::MetadataRequest::default()).await?;
    assert_eq!(metadata.brokers[0].port, i32::from(gateway.broker_addr(1)?.port()));
    Ok(())
}
