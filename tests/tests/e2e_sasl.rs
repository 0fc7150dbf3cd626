//! Authentication against real brokers: clients' own through the gateway, and that of the gateway's own client.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use harness::clients::{Client, Consume, Family, Produce};
use harness::kafka::{self, Cluster, Listener};
use harness::paths::FileLock;
use harness::turnout::{CLUSTER, Gateway};
use harness::{need_kafka, raw, wait};
use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest};
use kafka_protocol::protocol::StrBytes;
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);
/// Kafka's `connections.max.reauth.ms`: Java clients authenticate again after 85 to 95 % of it.
const REAUTH_MS: u64 = 2000;

/// One cluster of one broker, whose sessions are short (KIP-368), for all tests of this binary.
fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: OnceLock<Result<(Cluster, FileLock), String>> = OnceLock::new();
    let started = CLUSTER.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    started.as_ref().map(|(cluster, _)| cluster).map_err(|error| anyhow::anyhow!("no cluster: {error}"))
}

fn start() -> Result<(Cluster, FileLock)> {
    let heavy = kafka::heavy()?;
    let users = ["alice", "turnout"];
    let cluster = Cluster::builder()
        .listeners(&[Listener::Sasl, Listener::SaslTls])
        .users(&users)
        .authorizer(&users)
        .property("connections.max.reauth.ms", &REAUTH_MS.to_string())
        .name("sasl")
        .start()?;
    Ok((cluster, heavy))
}

fn plain(user: &str, password: &str) -> Bytes {
    format!("\0{user}\0{password}").into()
}

fn handshake(mechanism: &'static str) -> SaslHandshakeRequest {
    SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism))
}

/// Handshake v0, then the token without a Kafka header (before KIP-152): the broker's answer to the token, `None` when
/// it closed, and the brokers that it lists afterwards.
async fn log_in_with_bare_token(at: SocketAddr, token: &[u8]) -> Result<(Option<Bytes>, Vec<String>)> {
    let mut client = raw::Client::connect(at).await?;
    client.call(0, &ApiVersionsRequest::default()).await?;
    let answer = client.call(0, &handshake("PLAIN")).await?;
    ensure!(answer.error_code == 0, "SaslHandshake answers error {}", answer.error_code);
    client.send(&raw::frame(token)).await?;
    let Some(reply) = client.read_frame().await? else { return Ok((None, Vec::new())) };
    let metadata = client.call(12, &MetadataRequest::default().with_topics(Some(Vec::new()))).await?;
    Ok((
        Some(reply),
        metadata.brokers.iter().map(|broker| format!("{}:{}", broker.host.as_str(), broker.port)).collect(),
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshake_v0_with_bare_tokens_logs_in() -> Result<()> {
    need_kafka!();
    let cluster = cluster()?;
    let gateway = Gateway::before(cluster).bootstrap(&cluster.bootstrap_of(Listener::Sasl)?).start()?;
    let broker = cluster.broker(1)?.address(Listener::Sasl)?;

    let token = plain("alice", "alice-secret");
    let (direct, listed) = log_in_with_bare_token(broker, &token).await?;
    ensure!(direct.is_some() && listed.len() == 1, "directly: {direct:?}, {listed:?}");
    let (through, listed) = log_in_with_bare_token(gateway.bootstrap_addr(), &token).await?;
    assert_eq!(through, direct);
    ensure!(listed.len() == 1 && listed.iter().all(|address| gateway.owns(address)), "{listed:?}");

    let wrong = plain("alice", "guessed");
    assert_eq!(log_in_with_bare_token(broker, &wrong).await?, (None, Vec::new()));
    assert_eq!(log_in_with_bare_token(gateway.bootstrap_addr(), &wrong).await?, (None, Vec::new()));
    Ok(())
}

/// Without credentials of its own the gateway knows nothing until a client's Metadata passes; then it serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_credentials_learns_from_answers_that_pass() -> Result<()> {
    need_kafka!();
    let cluster = cluster()?;
    let gateway = Gateway::before(cluster).bootstrap(&cluster.bootstrap_of(Listener::Sasl)?).start()?;
    let status = gateway.status()?;
    let own = &status.clusters[CLUSTER];
    ensure!(own.state == "passive" && own.brokers.is_empty(), "{own:?}");
    ensure!(own.reason.as_ref().is_some_and(|reason| reason.contains("authenticat")), "{own:?}");

    let mut client = raw::Client::connect(gateway.bootstrap_addr()).await?;
    client.call(0, &ApiVersionsRequest::default()).await?;
    client.call(1, &handshake("PLAIN")).await?;
    let token = SaslAuthenticateRequest::default().with_auth_bytes(plain("alice", "alice-secret"));
    let answer = client.call(2, &token).await?;
    ensure!(answer.error_code == 0, "{:?}", answer.error_message);
    client.call(12, &MetadataRequest::default().with_topics(Some(Vec::new()))).await?;

    let learnt = wait::until("the broker to be known", SOON, || {
        let brokers = gateway.status()?.clusters.remove(CLUSTER).context("no cluster")?.brokers;
        ensure!(brokers.len() == 1, "{brokers:?}");
        Ok(brokers)
    })?;
    for broker in cluster.brokers() {
        assert_eq!(learnt[&broker.node_id()].address, broker.address(Listener::Sasl)?.to_string());
        wait::until("a virtual broker's port", SOON, || {
            Ok(std::net::TcpStream::connect(gateway.broker_addr(broker.node_id())?)?)
        })?;
    }
    Ok(())
}

fn alice() -> serde_json::Value {
    json!({"mechanism": "SCRAM-SHA-512", "username": "alice", "password": "alice-secret"})
}

#[test]
fn clients_renew_their_session_on_live_connections() -> Result<()> {
    need_kafka!();
    let cluster = cluster()?;
    let gateway = Gateway::before(cluster).bootstrap(&cluster.bootstrap_of(Listener::Sasl)?).start()?;
    let mut client = Client::start(Family::Java)?;
    client.connect_with(&gateway.bootstrap(), json!({"sasl": alice()}))?;
    let topic = kafka::unique("reauth");
    cluster.create_topic(&mut client, &topic, 2)?;
    let handshakes =
        || Ok::<_, anyhow::Error>(gateway.metrics()?.sum("turnout_requests_total", &[("api", "SaslHandshake")]));
    let accepted = || Ok::<_, anyhow::Error>(gateway.metrics()?.sum("turnout_connections_accepted_total", &[]));
    // Four lifetimes of a session, on the producer's own connections.
    let seconds = 4 * REAUTH_MS / 1000;
    let produce = Produce::to(&topic).partitions(2).count(200 * seconds).rate(200).idempotent(true);
    let (logins, connections) = (handshakes()?, accepted()?);
    let written = client.produce(&produce)?;
    let (logins, connections) = (handshakes()? - logins, accepted()? - connections);
    ensure!(written.delivered == 200 * seconds);
    ensure!(logins > 0.0, "no handshake was counted; {:?}", gateway.get("/metrics")?.1);
    ensure!(logins >= connections + 2.0, "{logins} handshakes on {connections} connections: no session was renewed");
    let read = client.consume(&Consume::from(&topic).group(&topic).count(200 * seconds))?;
    read.check_complete(200 * seconds)?;
    client.close()
}

fn own_client_is(gateway: &Gateway, state: &str) -> Result<String> {
    wait::until(&format!("the cluster to be {state}"), SOON, || {
        let own = gateway.status()?.clusters.remove(CLUSTER).context("no cluster")?;
        ensure!(own.state == state, "{own:?}");
        Ok(own.reason.unwrap_or_default())
    })
}

fn works(gateway: &Gateway) -> Result<()> {
    let mut client = Client::start(Family::Java)?;
    client.connect_with(&gateway.bootstrap(), json!({"sasl": alice()}))?;
    let topic = kafka::unique("own");
    cluster()?.create_topic(&mut client, &topic, 1)?;
    client.produce(&Produce::to(&topic).count(20))?;
    client.consume(&Consume::from(&topic).count(20))?.check_complete(20)?;
    client.close()
}

#[test]
fn the_gateways_own_client_speaks_every_mechanism() -> Result<()> {
    need_kafka!();
    let cluster = cluster()?;
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let gateway = Gateway::before(cluster)
            .bootstrap(&cluster.bootstrap_of(Listener::Sasl)?)
            .cluster_line(&format!(
                "sasl: {{mechanism: {mechanism}, username: turnout, password: \"${{OWN_PASSWORD}}\"}}"
            ))
            .env("OWN_PASSWORD", "turnout-secret")
            .start()?;
        own_client_is(&gateway, "reached").context(mechanism)?;
        let log = gateway.log()?;
        ensure!(!log.contains("turnout-secret"), "the log tells the password");
        ensure!(!gateway.get("/status")?.1.contains("turnout-secret"), "the status tells the password");
    }
    Ok(())
}

#[test]
fn the_gateways_own_client_speaks_tls_with_sasl() -> Result<()> {
    need_kafka!();
    let cluster = cluster()?;
    let ca = cluster.certificates()?.ca_pem();
    let gateway = Gateway::before(cluster)
        .bootstrap(&cluster.bootstrap_of(Listener::Sasl)?)
        .cluster_line(&format!(
            "tls: {{ca: {}, bootstrap: [\"{}\"]}}",
            ca.display(),
            cluster.bootstrap_of(Listener::SaslTls)?
        ))
        .cluster_line("sasl: {mechanism: SCRAM-SHA-512, username: turnout, password: turnout-secret}")
        .start()?;
    own_client_is(&gateway, "reached")?;
    // Clients' connections go to the plaintext listener all the same.
    works(&gateway)?;
    let brokers = gateway.status()?.clusters.remove(CLUSTER).context("no cluster")?.brokers;
    assert_eq!(brokers[&1].address, cluster.broker(1)?.address(Listener::Sasl)?.to_string());
    Ok(())
}

#[test]
fn a_wrong_password_of_its_own_is_said_and_serves_clients_all_the_same() -> Result<()> {
    need_kafka!();
    let cluster = cluster()?;
    let gateway = Gateway::before(cluster)
        .bootstrap(&cluster.bootstrap_of(Listener::Sasl)?)
        .cluster_line("sasl: {mechanism: SCRAM-SHA-512, username: turnout, password: guessed}")
        .start()?;
    let reason = own_client_is(&gateway, "degraded").or_else(|_| own_client_is(&gateway, "passive"))?;
    ensure!(reason.to_lowercase().contains("authentic") && !reason.contains("guessed"), "{reason}");
    works(&gateway)
}
