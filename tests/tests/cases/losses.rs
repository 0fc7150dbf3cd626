//! The other side goes away: nobody is left on a dead connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use harness::mock::{Mock, Reply};
use harness::raw::{Client, RequestFrame};
use harness::turnout::Gateway;
use harness::wait;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use crate::support::*;

/// A broker that answers one heartbeat, waits to be told, and ends the connection as `end` does.
async fn broker_that_ends(told: &Arc<Notify>, end: fn(tokio::net::TcpStream) -> Result<()>) -> Result<RawBroker> {
    let told = Arc::clone(told);
    RawBroker::start(move |mut stream| {
        let told = Arc::clone(&told);
        Box::pin(async move {
            let frame = RequestFrame::new(read_frame(&mut stream).await?)?;
            stream.write_all(&heartbeat_answer(&frame)).await?;
            told.notified().await;
            end(stream)
        })
    })
    .await
}

// shotover/shotover-proxy#1971 and #1752: the broker's idle timeout closes, and the proxy sits in CLOSE-WAIT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_close_of_an_idle_connection_reaches_the_client_promptly() -> Result<()> {
    let told = Arc::new(Notify::new());
    let broker = broker_that_ends(&told, |stream| {
        drop(stream);
        Ok(())
    })
    .await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    client.call(0, &heartbeat()).await?;
    told.notify_one();
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&gateway, "broker_closed", 1)?;
    wait::until("nothing in CLOSE-WAIT", SOON, || {
        let open = gateway.metrics()?.sum("turnout_connections", &[]);
        ensure!(open == 0.0, "{open} open");
        Ok(())
    })
}

// The same with requests in flight, which will never be answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_close_with_requests_in_flight_reaches_the_client_promptly() -> Result<()> {
    let mock = Mock::builder().script(|request| match (request.frame.api_key, request.frame.correlation_id) {
        (HEARTBEAT, 3) => Reply::CloseAfter(Bytes::new()),
        (HEARTBEAT, _) => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&joined(&[1, 2, 3].map(heartbeat_frame))).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "broker_closed", 1)?;
    bench.gateway.wait_log(&["WARN", "the broker closed with 3 requests in flight"], SOON)?;
    Ok(())
}

// The same by RST, as a killed broker's host sends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_reset_reaches_the_client_promptly() -> Result<()> {
    for in_flight in [false, true] {
        let told = Arc::new(Notify::new());
        let broker =
            broker_that_ends(&told, |stream| Ok(socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?));
        let broker = broker.await?;
        let gateway = broker.gateway().start()?;
        let mut client = Client::connect(gateway.bootstrap_addr()).await?;
        client.call(0, &heartbeat()).await?;
        if in_flight {
            client.send(&heartbeat_frame(9)).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        told.notify_one();
        assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new(), "in flight: {in_flight}");
        wait_closed(&gateway, "broker_error", 1)?;
    }
    Ok(())
}

// Rule of the protocol: a broker's FIN stands behind its last answers and must not cut these off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_before_a_brokers_half_close_are_delivered() -> Result<()> {
    let mock = Mock::builder().script(|request| match (request.frame.api_key, request.frame.correlation_id) {
        (HEARTBEAT, 3) => Reply::CloseAfter(heartbeat_answer(&request.frame)),
        (HEARTBEAT, _) => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&joined(&[1, 2, 3].map(heartbeat_frame))).await?;
    assert_eq!(correlation_ids(&mut client, 3).await?, [1, 2, 3]);
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "broker_closed", 1)
}

// A broker that dies in the middle of an answer: what came of a streamed answer may be delivered, then the connection
// ends; of an answer that had to be rewritten, nothing half-rewritten is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_dies_within_an_answer_does_not_leave_the_client_waiting() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => {
            let answer = heartbeat_answer(&request.frame);
            Reply::CloseAfter(answer.slice(..answer.len() - 1))
        }
        METADATA if !is_own(&request.frame.bytes) => {
            let answer = metadata(&request.frame, &[(1, "10.1.1.1".to_owned(), 9092)]);
            Reply::CloseAfter(answer.slice(..answer.len() - 1))
        }
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&heartbeat_frame(1)).await?;
    let whole = harness::raw::answer::<m::HeartbeatRequest>(0, 1, &m::HeartbeatResponse::default())?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, whole.slice(..whole.len() - 1));
    let mut client = bench.client().await?;
    client.send_request(1, &m::MetadataRequest::default()).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "broker_closed", 2)
}

// A client that resets with answers in flight must not leave its broker connection behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_reset_frees_the_broker_connection() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        FETCH => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let before = bench.mock.open_connections();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = bench.client().await?;
        client.send_request(4, &m::FetchRequest::default()).await?;
        clients.push(client);
    }
    bench.wait_received(FETCH, 20)?;
    for client in clients {
        client.reset()?;
    }
    wait::until_true("the broker's connections to end", SOON, || bench.mock.open_connections() <= before)?;
    let ended = bench.gateway.metrics()?.sum("turnout_connections_closed_total", &[("reason", "client_error")]);
    assert_eq!(ended, 20.0);
    Ok(())
}

// A bootstrap address that swallows every SYN: the next one is tried within the client's patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_among_the_bootstrap_addresses_costs_no_request() -> Result<()> {
    let hole = BlackHole::open().await?;
    let mock = heartbeats().start().await?;
    let bootstrap = format!("{},{}", hole.address, mock.bootstrap());
    let gateway = Gateway::before_addresses(&bootstrap, 1).cluster_line("connect_timeout: 2s").start()?;
    for _ in 0..6 {
        let begin = Instant::now();
        check_serves(gateway.bootstrap_addr()).await?;
        assert!(begin.elapsed() < Duration::from_secs(2), "answered after {:?}", begin.elapsed());
    }
    assert_eq!(gateway.metrics()?.sum("turnout_dial_failures_total", &[]), 0.0);
    Ok(())
}

// A bootstrap broker that is frozen (SIGSTOP, a long GC): its host still accepts for it. Whoever lands there has to give
// up once; those who come later are led elsewhere first, until the broker speaks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_broker_that_accepts_and_says_nothing_is_tried_last_from_then_on() -> Result<()> {
    let mute = RawBroker::start(|stream| {
        Box::pin(async move {
            // Open for as long as the test, whatever the other side does.
            let _stream = stream;
            std::future::pending().await
        })
    })
    .await?;
    let mock = heartbeats().start().await?;
    let bootstrap = format!("{},{}", mute.address, mock.bootstrap());
    // The gateway's own client must not be the one that finds out.
    let gateway = Gateway::before_addresses(&bootstrap, 1).cluster_line("refresh: 1h").without_waiting().start()?;
    let mut given_up = 0;
    for round in 0..40 {
        let mut client = dial(gateway.bootstrap_addr()).await?;
        client.send(&heartbeat_frame(1)).await?;
        let answer = tokio::time::timeout(Duration::from_millis(700), client.read_frame()).await;
        if let Ok(answer) = answer {
            ensure!(answer?.is_some(), "round {round}: closed without an answer");
        } else {
            given_up += 1;
            client.reset()?;
        }
        // The next may come before the gateway has read the reset.
        ensure!(given_up <= 2, "round {round}: {given_up} clients were led to the broker that says nothing");
    }
    ensure!(given_up > 0, "no client was led to the broker that says nothing: nothing was proven");
    Ok(())
}

// A bootstrap address where nothing listens: the same, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_bootstrap_address_costs_no_time() -> Result<()> {
    let mock = heartbeats().start().await?;
    let bootstrap = format!("127.0.0.1:{},{}", harness::ports::one()?, mock.bootstrap());
    let gateway = Gateway::before_addresses(&bootstrap, 1).start()?;
    for _ in 0..6 {
        let begin = Instant::now();
        check_serves(gateway.bootstrap_addr()).await?;
        assert!(begin.elapsed() < PROMPT, "answered after {:?}", begin.elapsed());
    }
    Ok(())
}

// Nothing but a black hole: the client is told by a close, in bounded time, and the operator by name and knob.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_broker_closes_the_client_in_bounded_time() -> Result<()> {
    let hole = BlackHole::open().await?;
    let gateway = Gateway::before_addresses(&hole.address.to_string(), 1)
        .cluster_line("connect_timeout: 500ms")
        .without_waiting()
        .start()?;
    let mut client = dial(gateway.bootstrap_addr()).await?;
    let begin = Instant::now();
    client.send(&heartbeat_frame(1)).await?;
    assert_eq!(ends_within(&mut client, Duration::from_secs(3)).await?, Bytes::new());
    assert!(begin.elapsed() < Duration::from_millis(1800), "closed after {:?}", begin.elapsed());
    wait_closed(&gateway, "unreachable", 1)?;
    wait_limit(&gateway, "connect_timeout", 1)?;
    gateway.wait_log(&["WARN", &hole.address.to_string()], SOON)?;
    assert_eq!(gateway.metrics()?.sum("turnout_dial_failures_total", &[]), 1.0);
    Ok(())
}

// Brokers down at start: the port is open, the reason is visible, and it heals by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_started_before_its_brokers_heals_by_itself() -> Result<()> {
    let port = harness::ports::one()?;
    let gateway = Gateway::before_addresses(&format!("127.0.0.1:{port}"), 1).without_waiting().start()?;
    let mut client = dial(gateway.bootstrap_addr()).await?;
    client.send(&heartbeat_frame(1)).await?;
    assert_eq!(ends_within(&mut client, SOON).await?, Bytes::new());
    let status = gateway.status()?.clusters["real"].clone();
    assert_eq!(status.state, "degraded");
    assert!(status.reason.unwrap_or_default().contains(&port.to_string()));

    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                loop {
                    let frame = RequestFrame::new(read_frame(&mut stream).await?)?;
                    let bytes = match frame.api_key {
                        API_VERSIONS => api_versions_of_all(&frame),
                        METADATA => metadata(&frame, &[(1, address.ip().to_string(), address.port().into())]),
                        _ => heartbeat_answer(&frame),
                    };
                    stream.write_all(&bytes).await?;
                }
                #[allow(unreachable_code)]
                anyhow::Ok(())
            });
        }
    });
    wait::until("the cluster to be reached", Duration::from_secs(10), || {
        let state = gateway.status()?.clusters["real"].state.clone();
        ensure!(state == "reached", "it is {state}");
        Ok(())
    })?;
    check_serves(gateway.bootstrap_addr()).await?;
    let mut client = dial(gateway.broker_addr(1)?).await?;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}
