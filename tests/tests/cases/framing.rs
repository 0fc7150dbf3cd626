//! Bytes that are no requests, or requests at the edge of what is legal.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use harness::mock::{Mock, Reply};
use harness::raw::{frame, request_with_header};
use kafka_protocol::messages::RequestHeader;
use kafka_protocol::protocol::StrBytes;

use crate::support::*;

/// Sends bytes first on a connection: it ends promptly, for this reason, and without an answer.
async fn is_refused(bench: &Bench, bytes: &[u8], reason: &str, count: u32) -> Result<()> {
    let mut client = bench.client().await?;
    client.send(bytes).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new(), "{bytes:02x?}");
    wait_closed(&bench.gateway, reason, count)
}

// kroxylicious/kroxylicious#1009 and #997: a size that can't be made the proxy hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_that_no_request_can_have_is_refused() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    for (count, size) in [0i32, 1, 7, -1, i32::MIN].into_iter().enumerate() {
        let bytes = [&size.to_be_bytes()[..], &[0; 8]].concat();
        is_refused(&bench, &bytes, "bad_size", count as u32 + 1).await?;
    }
    assert_eq!(bench.received(0).len(), 0);
    check_serves(bench.gateway.bootstrap_addr()).await
}

// tulios/kafkajs#1643 ("Invalid receive (size = 369295617 larger than 104857600)"): refused by its size alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absurd_size_is_refused_before_its_bytes_come() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    for (count, size) in [104_857_601i32, i32::MAX].into_iter().enumerate() {
        is_refused(&bench, &size.to_be_bytes(), "frame_limit", count as u32 + 1).await?;
    }
    wait_limit(&bench.gateway, "frame", 2)?;
    bench.gateway.wait_log(&["WARN", "a request of 104857601 bytes is above 104857600 (limits.frame)"], SOON)?;
    ensure!(bench.gateway.resident_bytes()? < 64 << 20);
    Ok(())
}

// limits.frame is the largest body: a frame of that size passes, one byte more does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_frame_limit_is_exact() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        PRODUCE => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {frame: 64KiB, rewrite_frame: 64KiB}")).await?;
    let padded = |size: usize| {
        let mut payload = BytesMut::from(&heartbeat_frame(1)[4..]);
        payload.resize(size, 0);
        frame(&payload)
    };
    let mut client = bench.client().await?;
    client.send(&padded(64 * 1024)).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 1);
    assert_eq!(bench.received(HEARTBEAT)[0].frame.bytes.len(), 64 * 1024);
    is_refused(&bench, &padded(64 * 1024 + 1), "frame_limit", 1).await
}

// grepplabs/kafka-proxy#28, #108, #109, #146, #166 ("api key 31233 is invalid"): the client speaks TLS. The log says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_client_on_a_plaintext_port_is_named_in_the_log() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    is_refused(&bench, hello, "tls_on_plaintext", 1).await?;
    is_refused(&bench, b"\x15\x03\x03\x00\x02\x02\x28", "tls_on_plaintext", 2).await?;
    let line = bench.gateway.wait_log(&["WARN", "the client speaks TLS"], SOON)?;
    assert!(line.contains("security.protocol"), "{line}");
    Ok(())
}

// A browser, a load balancer's health check or a scanner on the port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_client_on_a_kafka_port_is_named_in_the_log() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    is_refused(&bench, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http_on_kafka", 1).await?;
    is_refused(&bench, b"POST /topics HTTP/1.1\r\n", "http_on_kafka", 2).await?;
    bench.gateway.wait_log(&["WARN", "the client speaks HTTP"], SOON)?;
    Ok(())
}

// A port check that connects and closes is no event: nothing is logged, no broker is dialled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_check_costs_no_broker_connection_and_no_log_line() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let before = bench.mock.connections();
    for _ in 0..20 {
        drop(bench.client().await?);
    }
    wait_closed(&bench.gateway, "client_closed", 20)?;
    assert_eq!(bench.mock.connections(), before);
    bench.gateway.check_quiet(&[])
}

// Rule of the protocol: a client id may be null, empty, or 32767 bytes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_client_id_passes_byte_for_byte() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    let long = "é".repeat(16_383);
    for id in [None, Some(String::new()), Some("a\u{0}b".to_owned()), Some(long)] {
        let header = RequestHeader::default()
            .with_request_api_key(HEARTBEAT)
            .with_request_api_version(0)
            .with_client_id(id.map(StrBytes::from_string));
        let bytes = request_with_header(&header, &heartbeat())?;
        client.send(&bytes).await?;
        client.read_answer().await?;
        let last = bench.received(HEARTBEAT).pop().map(|r| r.frame.bytes);
        assert_eq!(last, Some(bytes.slice(4..)));
    }
    Ok(())
}

// IBM/sarama#2107 ("non-empty tagged fields are not supported yet"): unknown tags pass, in headers and in bodies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_tagged_fields_pass_byte_for_byte() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        // Answer header v1 with an unknown tag, then a body with another one.
        HEARTBEAT => {
            let mut body = BytesMut::new();
            body.put_i32(request.frame.correlation_id);
            body.put_slice(b"\x01\x64\x03abc\0\0\0\0\0\0\x02\x64\x01x\x65\x00");
            Reply::Bytes(frame(&body))
        }
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    let header = RequestHeader::default()
        .with_request_api_key(HEARTBEAT)
        .with_request_api_version(4)
        .with_correlation_id(1)
        .with_unknown_tagged_field(100, Bytes::from_static(b"header"));
    let body = heartbeat().with_unknown_tagged_field(999, Bytes::from(vec![7; 300]));
    let bytes = request_with_header(&header, &body)?;
    client.send(&bytes).await?;
    let answer = client.read_frame().await?.unwrap_or_default();
    assert_eq!(&answer[4..], b"\x01\x64\x03abc\0\0\0\0\0\0\x02\x64\x01x\x65\x00");
    assert_eq!(bench.received(HEARTBEAT)[0].frame.bytes, bytes.slice(4..));
    Ok(())
}

// The same where the gateway rewrites: what it does not know stays as it was, where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_tagged_fields_survive_rewriting() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        METADATA if !is_own(&request.frame.bytes) => {
            use m::metadata_response::MetadataResponseBroker;
            let broker = MetadataResponseBroker::default()
                .with_node_id(1.into())
                .with_host(StrBytes::from_static_str("kafka-1.internal"))
                .with_port(9092)
                .with_unknown_tagged_field(50, Bytes::from_static(b"in the broker"));
            let body = m::MetadataResponse::default()
                .with_brokers(vec![broker])
                .with_unknown_tagged_field(51, Bytes::from_static(b"at the end"));
            match harness::raw::answer::<m::MetadataRequest>(12, request.frame.correlation_id, &body) {
                Ok(bytes) => Reply::Bytes(bytes),
                Err(_) => Reply::Reset,
            }
        }
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let metadata = bench.client().await?.call(12, &m::MetadataRequest::default()).await?;
    assert_eq!(metadata.brokers[0].unknown_tagged_fields[&50], "in the broker");
    assert_eq!(metadata.unknown_tagged_fields[&51], "at the end");
    assert_eq!(metadata.brokers[0].port, i32::from(bench.gateway.broker_addr(1)?.port()));
    Ok(())
}

// grepplabs/kafka-proxy#185, kroxylicious/kroxylicious#444: vendor keys (from 10000 on), keys of controllers and keys
// between brokers: not offered, and closed as a broker closes, once what was asked before is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_that_is_not_offered_ends_the_connection_behind_earlier_answers() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let keys = [4i16, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 93, 9_999, 10_000, 20_000, i16::MAX, -1];
    for (count, key) in keys.into_iter().enumerate() {
        let mut unknown = BytesMut::new();
        unknown.put_i16(key);
        unknown.put_slice(b"\0\0\0\0\0\x02\0\x01c");
        let mut client = bench.client().await?;
        client.send(&joined(&[heartbeat_frame(1), frame(&unknown)])).await?;
        assert_eq!(client.read_answer().await?.correlation_id, 1, "key {key}");
        assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new(), "key {key}");
        wait_closed(&bench.gateway, "unknown_request", count as u32 + 1)?;
        assert!(bench.received(key).is_empty(), "key {key} was forwarded");
    }
    Ok(())
}

// envoyproxy/envoy#26171 (what unknown requests are counted as): no number of strange keys may make series of metrics without bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strange_keys_do_not_multiply_metrics() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    check_serves(bench.gateway.bootstrap_addr()).await?;
    is_refused(&bench, &frame(b"\x27\x10\0\0\0\0\0\x01\0\x01c"), "unknown_request", 1).await?;
    let before = bench.gateway.metrics()?.series();
    for key in 1000..1100i16 {
        let mut unknown = BytesMut::new();
        unknown.put_i16(key);
        unknown.put_slice(b"\0\0\0\0\0\x02\0\x01c");
        let mut client = bench.client().await?;
        client.send(&frame(&unknown)).await?;
        ends_within(&mut client, PROMPT).await?;
    }
    wait_closed(&bench.gateway, "unknown_request", 101)?;
    assert_eq!(bench.gateway.metrics()?.series(), before);
    Ok(())
}

// kroxylicious/kroxylicious#2926: Produce v0–2 are offered for librdkafka's sake, and refused when used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_below_v3_is_refused_when_used() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    for version in 0..=2u8 {
        let bytes = [b"\0\0\0", &[version][..], b"\0\0\0\x01\0\x01c\0\x01\0\0\x03\xe8\0\0\0\0"].concat();
        is_refused(&bench, &frame(&bytes), "unknown_request", u32::from(version) + 1).await?;
    }
    bench.gateway.wait_log(&["WARN", "Produce v0 isn't served, v3 to v13 are"], SOON)?;
    Ok(())
}

// kroxylicious/kroxylicious#1009: "we should guard against a client that opens a connection and never sends any bytes".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_speaks_is_let_go() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line("limits: {first_byte: 1s}")).await?;
    let mut silent = bench.client().await?;
    let mut trickling = bench.client().await?;
    let begin = Instant::now();
    // A header that never gets complete counts as silence too.
    trickling.send(&[0, 0]).await?;
    assert_eq!(ends_within(&mut silent, Duration::from_secs(3)).await?, Bytes::new());
    assert_eq!(ends_within(&mut trickling, Duration::from_secs(3)).await?, Bytes::new());
    let took = begin.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_millis(2500)).contains(&took), "closed after {took:?}");
    wait_closed(&bench.gateway, "first_byte", 2)?;
    wait_limit(&bench.gateway, "first_byte", 2)
}

// kroxylicious/kroxylicious#1009, Slowloris: a frame that is begun must be finished in time, however lively it trickles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_trickles_a_frame_is_let_go() -> Result<()> {
    let bench = bench(heartbeats(), |gateway| gateway.virtual_line("limits: {incomplete_frame: 1s}")).await?;
    for body in [false, true] {
        let mut client = bench.client().await?;
        client.call(0, &heartbeat()).await?;
        let bytes = heartbeat_frame(2);
        let cut = if body { 14 } else { 2 };
        client.send(&bytes[..cut]).await?;
        let begin = Instant::now();
        let mut sent = cut;
        while client.stream().try_read(&mut [0; 1]).map_or(true, |n| n > 0) {
            ensure!(begin.elapsed() < Duration::from_secs(4), "the connection is still open; body: {body}");
            tokio::time::sleep(Duration::from_millis(200)).await;
            if sent < bytes.len() - 1 {
                let _ = client.send(&bytes[sent..=sent]).await;
                sent += 1;
            }
        }
        let took = begin.elapsed();
        assert!((Duration::from_millis(900)..Duration::from_millis(2500)).contains(&took), "closed after {took:?}");
        wait_closed(&bench.gateway, "incomplete_frame", 1 + u32::from(body))?;
    }
    wait_limit(&bench.gateway, "incomplete_frame", 2)
}

// A slow but honest client: 640 KiB at 200 KiB/s takes longer than incomplete_frame alone, and is let through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_honest_client_is_not_taken_for_slowloris() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        PRODUCE => Reply::Silence,
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {incomplete_frame: 1s}")).await?;
    let mut client = bench.client().await?;
    let bytes = &produce_frames(0, 1, 640 * 1024)?[0];
    let cuts: Vec<_> = (1..16).map(|n| n * 40 * 1024).collect();
    client.send_cut(bytes, &cuts, Duration::from_millis(200)).await?;
    assert_eq!(bench.wait_received(PRODUCE, 1)?[0].frame.bytes, bytes.slice(4..));
    Ok(())
}

// Hostile array lengths in a request that is held: no allocation by a length that was read, no panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_lengths_in_a_held_request_cost_only_its_connection() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    // AddRaftVoter v0, flexible: header v2, then a compact string whose length is 2 GiB.
    for (count, body) in
        [&b"\xff\xff\xff\xff\x0f"[..], b"\xff\xff\xff\xff\xff\xff", b"\xfe\xff\xff\xff\x07abc"].into_iter().enumerate()
    {
        let bytes = [b"\0\x50\0\0\0\0\0\x01\0\x01c\0", body].concat();
        is_refused(&bench, &frame(&bytes), "malformed_request", count as u32 + 1).await?;
    }
    check_sane(&bench).await
}

// Hostile array lengths in an answer that is rewritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_lengths_in_an_answer_cost_only_its_connection() -> Result<()> {
    // Metadata v1 and v12: a number of brokers, or the length of a host, that can't be.
    let bodies: [(i16, &[u8]); 6] = [
        (1, b"\x7f\xff\xff\xff"),
        (1, b"\xff\xff\xff\xff"),
        (1, b"\0\0\0\x01\0\0\0\x01\x7f\xffabc"),
        (12, b"\0\0\0\0\0\xff\xff\xff\xff\x0f"),
        (12, b"\0\0\0\0\0\xff\xff\xff\xff\xff\xff"),
        (12, b"\0\0\0\0\0\x02\0\0\0\x01\xff\xff\xff\xff\x07abc"),
    ];
    let mock = Mock::builder().script(move |request| match request.frame.api_key {
        METADATA if !is_own(&request.frame.bytes) => {
            let id = request.frame.correlation_id;
            let mut payload = BytesMut::new();
            payload.put_i32(id);
            payload.put_slice(bodies[id as usize].1);
            Reply::Bytes(frame(&payload))
        }
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    for (id, (version, _)) in bodies.into_iter().enumerate() {
        let mut client = bench.client().await?;
        client.send(&harness::raw::request(version, id as i32, &m::MetadataRequest::default())?).await?;
        assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new(), "case {id}");
        wait_closed(&bench.gateway, "malformed_answer", id as u32 + 1)?;
    }
    check_sane(&bench).await
}

// A Metadata answer cut at any byte, its size made to fit: refused, never half-rewritten (a partial list of brokers
// makes librdkafka restart its sequences).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_metadata_answer_is_never_passed_on() -> Result<()> {
    let mock = Mock::builder().brokers(&[1, 2]).script(|request| match request.frame.api_key {
        METADATA if !is_own(&request.frame.bytes) => {
            let brokers = [(1, "kafka-1.internal".to_owned(), 9092), (2, "kafka-2.internal".to_owned(), 9092)];
            let whole = metadata(&request.frame, &brokers);
            // The correlation id says how much is left.
            let left = 4 + request.frame.correlation_id as usize;
            if left < whole.len() { Reply::Bytes(frame(&whole[4..left])) } else { Reply::Bytes(whole) }
        }
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    for version in [0, 1, 8, 12] {
        let mut cut = 4;
        loop {
            let mut client = bench.client().await?;
            client.send(&harness::raw::request(version, cut, &m::MetadataRequest::default())?).await?;
            client.set_patience(PROMPT);
            match client.read_frame().await? {
                None => cut += 3,
                Some(answer) => {
                    let decoded = harness::raw::AnswerFrame::new(answer)?.decode::<m::MetadataRequest>(version)?;
                    assert_eq!(decoded.brokers.len(), 2, "v{version} cut to {cut} bytes");
                    break;
                }
            }
        }
        assert!(cut > 40, "v{version}: whole already at {cut}");
    }
    check_sane(&bench).await
}

/// It serves, has not panicked, and holds no memory to speak of.
async fn check_sane(bench: &Bench) -> Result<()> {
    check_serves(bench.gateway.bootstrap_addr()).await?;
    ensure!(!bench.gateway.log()?.contains("panicked"));
    let resident = bench.gateway.resident_bytes()?;
    ensure!(resident < 96 << 20, "{resident} bytes are resident");
    Ok(())
}
