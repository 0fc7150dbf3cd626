//! Which answer belongs to which request.

use std::time::Duration;

use anyhow::Result;
use bytes::{BufMut, Bytes, BytesMut};
use harness::mock::{Mock, Reply};
use harness::raw::frame;

use crate::support::*;

// Rule of the protocol: correlation ids are any int32, negative ones and repeats included; the Java client authenticates with
// ids from INT_MAX − 7 on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn negative_and_repeated_correlation_ids_confuse_nobody() -> Result<()> {
    let bench = plain_bench(heartbeats()).await?;
    let mut client = bench.client().await?;
    let ids = [i32::MAX - 7, i32::MAX, i32::MIN, -1, 0, 0, 7, 7, 7, -1];
    client.send(&joined(&ids.map(heartbeat_frame))).await?;
    assert_eq!(correlation_ids(&mut client, ids.len()).await?, ids);
    Ok(())
}

// Rule of the protocol: a broker answers in order, so match by order and verify by id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_in_another_order_than_the_requests_are_not_passed_on() -> Result<()> {
    // The second of two requests is answered first.
    let mock = Mock::builder().script(|request| match (request.frame.api_key, request.frame.correlation_id) {
        (HEARTBEAT, 1) => Reply::Silence,
        (HEARTBEAT, _) => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&joined(&[heartbeat_frame(1), heartbeat_frame(2)])).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "correlation", 1)?;
    bench.gateway.wait_log(&["WARN", "correlation id 2 where 1 was due"], SOON)?;
    Ok(())
}

// The same for an answer that was rewritten: Metadata is held whole, its id is checked before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_with_a_strange_correlation_id_ends_the_connection() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        METADATA if !is_own(&request.frame.bytes) => Reply::WrongCorrelation,
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send_request(1, &m::MetadataRequest::default()).await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "correlation", 1)
}

// Rule of the protocol: one answer to each request, none besides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_nobody_asked_for_does_not_reach_the_client() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => {
            let answer = heartbeat_answer(&request.frame);
            Reply::Bytes(joined(&[answer.clone(), answer]))
        }
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    client.send(&heartbeat_frame(5)).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 5);
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&bench.gateway, "unsolicited_answer", 1)
}

// grepplabs/kafka-proxy#54 and #23 ("open requests buffer is full"), shotover/shotover-proxy#1188.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_with_acks_0_waits_for_no_answer() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        PRODUCE => Reply::Silence,
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {in_flight: 4}")).await?;
    let mut client = bench.client().await?;
    let mut frames = produce_frames(0, 300, 100)?;
    frames.push(heartbeat_frame(1000));
    client.send(&joined(&frames)).await?;
    assert_eq!(client.read_answer().await?.correlation_id, 1000);
    assert_eq!(bench.received(PRODUCE).len(), 300);
    assert_eq!(bench.gateway.metrics()?.sum("turnout_limit_hits_total", &[("limit", "in_flight")]), 0.0);
    Ok(())
}

// Rule of the protocol: acks stands behind client_id and transactional_id, either of which may be null (length −1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_are_found_behind_null_and_long_strings() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        PRODUCE => Reply::Silence,
        HEARTBEAT => Reply::Bytes(heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = bench(mock, |gateway| gateway.virtual_line("limits: {in_flight: 1}")).await?;
    let long = "x".repeat(32_767);
    let texts = [None, Some(""), Some("name"), Some(long.as_str())];
    for version in [3i16, 9, 13] {
        for client_id in texts {
            for transactional_id in texts {
                let mut client = bench.client().await?;
                let mut payload = BytesMut::new();
                payload.put_i16(PRODUCE);
                payload.put_i16(version);
                payload.put_i32(1);
                put_text(&mut payload, client_id);
                if version >= 9 {
                    payload.put_u8(0);
                    put_compact_text(&mut payload, transactional_id);
                } else {
                    put_text(&mut payload, transactional_id);
                }
                payload.put_i16(0);
                payload.put_i32(1000);
                payload.put_slice(if version >= 9 { &[1, 0] } else { &[0, 0, 0, 0] });
                // Were an answer awaited, the heartbeat would wait for it: in_flight is 1.
                client.send(&joined(&[frame(&payload), heartbeat_frame(2)])).await?;
                client.set_patience(SOON);
                assert_eq!(client.read_answer().await?.correlation_id, 2, "v{version}");
            }
        }
    }
    Ok(())
}

fn put_text(to: &mut BytesMut, text: Option<&str>) {
    to.put_i16(text.map_or(-1, |text| text.len() as i16));
    to.put_slice(text.unwrap_or_default().as_bytes());
}

fn put_compact_text(to: &mut BytesMut, text: Option<&str>) {
    let mut length = text.map_or(0, |text| text.len() + 1);
    while length >= 0x80 {
        to.put_u8(length as u8 & 0x7f | 0x80);
        length >>= 7;
    }
    to.put_u8(length as u8);
    to.put_slice(text.unwrap_or_default().as_bytes());
}

// kroxylicious/kroxylicious#1635 (a proxy that answers ApiVersions by itself): its reply waits for its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateways_own_answer_does_not_overtake_the_brokers() -> Result<()> {
    let mock = Mock::builder().script(|request| match request.frame.api_key {
        HEARTBEAT => Reply::Delayed(Duration::from_millis(300), heartbeat_answer(&request.frame)),
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    let newer = frame(b"\x00\x12\x00\x63\x00\x00\x00\x02\x00\x01c\x00\x02c\x02v\x00");
    client.send(&joined(&[heartbeat_frame(1), newer, heartbeat_frame(3)])).await?;
    assert_eq!(correlation_ids(&mut client, 3).await?, [1, 2, 3]);
    Ok(())
}

// KIP-219: the answer carries throttle_time_ms and the broker mutes the channel afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_client_sees_the_brokers_throttle_time_and_its_pause() -> Result<()> {
    let pause = Duration::from_millis(700);
    let mock = Mock::builder().script(move |request| match (request.frame.api_key, request.frame.correlation_id) {
        (HEARTBEAT, id) => {
            let body = m::HeartbeatResponse::default().with_throttle_time_ms(if id == 1 { 700 } else { 0 });
            match harness::raw::answer::<m::HeartbeatRequest>(1, id, &body) {
                Ok(bytes) if id == 1 => Reply::Bytes(bytes),
                Ok(bytes) => Reply::Delayed(pause, bytes),
                Err(_) => Reply::Reset,
            }
        }
        _ => Reply::Default,
    });
    let bench = plain_bench(mock).await?;
    let mut client = bench.client().await?;
    assert_eq!(client.call(1, &heartbeat()).await?.throttle_time_ms, 700);
    let begin = std::time::Instant::now();
    assert_eq!(client.call(1, &heartbeat()).await?.throttle_time_ms, 0);
    assert!(begin.elapsed() >= pause, "answered after {:?}", begin.elapsed());
    Ok(())
}
