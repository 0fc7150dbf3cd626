//! SASL passes as it is: the gateway must only know which frames have no Kafka header.

use anyhow::Result;
use bytes::Bytes;
use harness::raw::{Client, RequestFrame, answer, frame};
use kafka_protocol::protocol::StrBytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// A broker that answers SaslHandshake and SaslAuthenticate, then bare tokens as `tokens` says: for each the length
/// expected and the answer, `None` for none. Later frames are heartbeats.
async fn broker(tokens: &'static [(usize, Option<&'static [u8]>)]) -> Result<RawBroker> {
    RawBroker::start(move |mut stream| Box::pin(async move { serve(&mut stream, tokens).await })).await
}

async fn serve(stream: &mut TcpStream, tokens: &[(usize, Option<&[u8]>)]) -> Result<()> {
    let mut raw = false;
    let mut tokens = tokens.iter();
    loop {
        let bytes = read_frame(stream).await?;
        if raw && let Some((length, reply)) = tokens.next() {
            if bytes.len() != *length {
                return Ok(());
            }
            if let Some(reply) = reply {
                stream.write_all(&frame(reply)).await?;
            }
            continue;
        }
        let request = RequestFrame::new(bytes)?;
        let (version, id) = (request.api_version, request.correlation_id);
        let bytes = match request.api_key {
            17 => {
                raw = version == 0;
                let names = vec![StrBytes::from_static_str("PLAIN"), StrBytes::from_static_str("SCRAM-SHA-256")];
                answer::<m::SaslHandshakeRequest>(
                    version,
                    id,
                    &m::SaslHandshakeResponse::default().with_mechanisms(names),
                )?
            }
            36 => {
                let body = m::SaslAuthenticateResponse::default()
                    .with_auth_bytes(Bytes::from_static(b"ok"))
                    .with_session_lifetime_ms(if version >= 1 { 60_000 } else { 0 });
                answer::<m::SaslAuthenticateRequest>(version, id, &body)?
            }
            _ => heartbeat_answer(&request),
        };
        stream.write_all(&bytes).await?;
    }
}

fn handshake(mechanism: &'static str) -> m::SaslHandshakeRequest {
    m::SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism))
}

// kroxylicious/kroxylicious#2988: handshake v0 is followed by tokens without a Kafka header.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bare_tokens_after_handshake_v0_pass_both_ways() -> Result<()> {
    let broker = broker(&[(12, Some(b"challenge")), (300_000, Some(b""))]).await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    assert_eq!(client.call(0, &handshake("SCRAM-SHA-256")).await?.error_code, 0);
    client.send(&frame(b"n,,n=a,r=abc")).await?;
    assert_eq!(client.read_frame().await?.unwrap_or_default(), &b"challenge"[..]);
    client.send(&frame(&vec![b'x'; 300_000])).await?;
    // A bare answer may be empty: size 0.
    assert_eq!(client.read_frame().await?.unwrap_or(Bytes::from_static(b"closed")), Bytes::new());
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// apache/kafka#2330 ("you can have empty message body in SASL exchanges"): the client's token may be empty too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_bare_token_is_legal_after_handshake_v0() -> Result<()> {
    let broker = broker(&[(0, Some(b"challenge")), (3, None)]).await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    assert_eq!(client.call(0, &handshake("GSSAPI")).await?.error_code, 0);
    client.send(&frame(b"")).await?;
    assert_eq!(client.read_frame().await?.unwrap_or_default(), &b"challenge"[..]);
    // The last token of some mechanisms gets no answer; the request behind it does.
    client.send(&frame(b"end")).await?;
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// A client that sends its token without waiting for the handshake's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_pipelined_behind_handshake_v0_is_no_request() -> Result<()> {
    let broker = broker(&[(8, Some(b""))]).await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    let asked = harness::raw::request(0, 1, &handshake("PLAIN"))?;
    client.send(&joined(&[asked, frame(b"\0user\0pw")])).await?;
    assert_eq!(client.read_answer().await?.decode::<m::SaslHandshakeRequest>(0)?.error_code, 0);
    assert_eq!(client.read_frame().await?.unwrap_or(Bytes::from_static(b"closed")), Bytes::new());
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// Rule of the protocol: a bare GSSAPI token (60 …) may be the very first frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gssapi_token_without_a_handshake_passes() -> Result<()> {
    const TOKEN: &[u8] = b"\x60\x82\x02\x8a\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02rest of it";
    let broker = RawBroker::start(|mut stream| {
        Box::pin(async move {
            let mut got = vec![0; 4 + TOKEN.len()];
            stream.read_exact(&mut got).await?;
            let right = got == frame(TOKEN);
            stream.write_all(&frame(if right { b"challenge" } else { b"wrong" })).await?;
            let request = RequestFrame::new(read_frame(&mut stream).await?)?;
            stream.write_all(&heartbeat_answer(&request)).await?;
            Ok(())
        })
    })
    .await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    client.send(&frame(TOKEN)).await?;
    assert_eq!(client.read_frame().await?.unwrap_or_default(), &b"challenge"[..]);
    assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
    Ok(())
}

// Rule of the protocol: during SASL a broker takes no frame above 524288 bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_above_512_kib_is_refused_by_its_size() -> Result<()> {
    let broker = broker(&[(524_288, Some(b"ok"))]).await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    client.call(0, &handshake("PLAIN")).await?;
    client.send(&frame(&vec![1; 524_288])).await?;
    assert_eq!(client.read_frame().await?.unwrap_or_default(), &b"ok"[..]);

    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    client.call(0, &handshake("PLAIN")).await?;
    client.send(&524_289i32.to_be_bytes()).await?;
    client.send(b"t").await?;
    assert_eq!(ends_within(&mut client, PROMPT).await?, Bytes::new());
    wait_closed(&gateway, "malformed_request", 1)?;
    gateway.wait_log(&["WARN", "524288"], SOON)?;
    Ok(())
}

// kroxylicious/kroxylicious#4519 (KIP-368): re-authentication on a live connection, between other requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reauthentication_on_a_live_connection_passes() -> Result<()> {
    let broker = broker(&[]).await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    for _ in 0..3 {
        assert_eq!(client.call(1, &handshake("PLAIN")).await?.mechanisms.len(), 2);
        let token = m::SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from_static(b"\0user\0pw"));
        let answer = client.call(2, &token).await?;
        assert_eq!((answer.session_lifetime_ms, &answer.auth_bytes[..]), (60_000, &b"ok"[..]));
        for _ in 0..3 {
            assert_eq!(client.call(0, &heartbeat()).await?.error_code, 0);
        }
    }
    Ok(())
}

// A refused mechanism: the client may ask for another one on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_handshake_after_a_refused_one_is_a_request_again() -> Result<()> {
    let broker = RawBroker::start(|mut stream| {
        Box::pin(async move {
            for error in [33, 0] {
                let request = RequestFrame::new(read_frame(&mut stream).await?)?;
                let body = m::SaslHandshakeResponse::default().with_error_code(error);
                stream.write_all(&answer::<m::SaslHandshakeRequest>(0, request.correlation_id, &body)?).await?;
            }
            let token = read_frame(&mut stream).await?;
            stream.write_all(&frame(&token)).await?;
            Ok(())
        })
    })
    .await?;
    let gateway = broker.gateway().start()?;
    let mut client = Client::connect(gateway.bootstrap_addr()).await?;
    assert_eq!(client.call(0, &handshake("SCRAM-SHA-1")).await?.error_code, 33);
    assert_eq!(client.call(0, &handshake("PLAIN")).await?.error_code, 0);
    client.send(&frame(b"\0u\0p")).await?;
    assert_eq!(client.read_frame().await?.unwrap_or_default(), &b"\0u\0p"[..]);
    Ok(())
}
