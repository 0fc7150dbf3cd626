//! The endpoints over real sockets.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use turnout::admin::server::{HEADER_TIMEOUT, MAX_AGE, MAX_CONNECTIONS, MAX_HEADER_BYTES};
use turnout::config::Admin;
use turnout::gateway::status::ReloadReport;

use crate::fake::Daemon;

const PATIENCE: Duration = Duration::from_secs(10);

/// An answer, read to the end of its connection.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("answered in time").expect("read");
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{headers}content-length: 0\r\n\r\n")
}

async fn over_tcp(address: SocketAddr, method: &str, path: &str) -> Answer {
    exchange(TcpStream::connect(address).await.expect("connected"), &request(method, path, "")).await
}

async fn over_socket(path: &Path, method: &str, target: &str) -> Answer {
    exchange(UnixStream::connect(path).await.expect("connected"), &request(method, target, "")).await
}

async fn get(daemon: &Daemon, path: &str) -> Answer {
    over_tcp(daemon.server.http_address().expect("HTTP is on"), "GET", path).await
}

#[tokio::test]
async fn metrics_are_openmetrics_text() {
    let daemon = Daemon::start();
    daemon.fake.metrics.virtual_cluster("orders").accepted.inc();
    let answer = get(&daemon, "/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(answer.body.contains("turnout_connections_accepted_total{virtual_cluster=\"orders\"} 1\n"));
    assert!(answer.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn readiness_is_200_or_503_with_the_reasons_as_text_or_json() {
    let daemon = Daemon::start();
    assert_eq!(get(&daemon, "/livez").await.status, 200);
    let ready = get(&daemon, "/readyz").await;
    assert_eq!((ready.status, ready.body.as_str()), (200, "ready\n- cluster west is degraded: no route\n"));

    daemon.fake.not_ready.store(true, Ordering::Relaxed);
    let not_ready = get(&daemon, "/readyz").await;
    assert_eq!(not_ready.status, 503);
    assert_eq!(not_ready.body, "not ready\n- cluster east was not reached yet\n");
    assert_eq!(get(&daemon, "/livez").await.status, 200, "alive is not ready");

    let address = daemon.server.http_address().expect("HTTP is on");
    let wanted = request("GET", "/readyz", "accept: application/json\r\n");
    let json = exchange(TcpStream::connect(address).await.expect("connected"), &wanted).await;
    assert_eq!(json.status, 503);
    assert_eq!(json.json()["reasons"][0], "cluster east was not reached yet");
}

#[tokio::test]
async fn status_is_the_read_model_as_it_stands() {
    let daemon = Daemon::start();
    let status = get(&daemon, "/status").await.json();
    assert_eq!(status["virtual_clusters"]["orders"]["cluster"], "east");
    assert_eq!(status["clusters"]["east"]["brokers"]["1"]["address"], "10.0.4.3:9092");
}

#[tokio::test]
async fn connections_come_in_pages_ordered_by_id() {
    let daemon = Daemon::start();
    daemon.fake.connections.store(250, Ordering::Relaxed);
    let ids = |page: &Value| -> Vec<u64> {
        page["connections"].as_array().expect("a list").iter().map(|c| c["id"].as_u64().expect("an id")).collect()
    };
    let first = get(&daemon, "/connections").await.json();
    assert_eq!((first["total"].as_u64(), first["next"].as_u64()), (Some(250), Some(99)));
    assert_eq!(ids(&first), (0..100).collect::<Vec<_>>());
    let last = get(&daemon, "/connections?after=239&limit=10").await.json();
    assert_eq!(ids(&last), (240..250).collect::<Vec<_>>());
    assert!(last["next"].is_null());
    let payments = get(&daemon, "/connections?virtual_cluster=payments&limit=2").await.json();
    assert_eq!((payments["total"].as_u64(), ids(&payments)), (Some(125), vec![1, 3]));
    daemon.fake.connections.store(5000, Ordering::Relaxed);
    assert_eq!(ids(&get(&daemon, "/connections?limit=99999999").await.json()).len(), 1000, "a page is bounded");
    assert_eq!(get(&daemon, "/connections?limit=many").await.status, 400);
}

#[tokio::test]
async fn the_index_names_every_page() {
    let daemon = Daemon::start();
    let index = get(&daemon, "/").await;
    for path in ["/metrics", "/livez", "/readyz", "/status", "/connections"] {
        assert!(index.body.contains(path));
        assert_eq!(get(&daemon, path).await.status, 200, "{path}");
    }
    assert_eq!(get(&daemon, "/nowhere").await.status, 404);
}

#[tokio::test]
async fn commands_are_refused_over_tcp_and_taken_on_the_control_socket() {
    let daemon = Daemon::start();
    let address = daemon.server.http_address().expect("HTTP is on");
    for path in ["/reload", "/drain"] {
        let refused = over_tcp(address, "POST", path).await;
        assert_eq!(refused.status, 403);
        assert!(refused.json()["error"].as_str().expect("a reason").contains("control socket"));
    }
    assert_eq!(over_tcp(address, "POST", "/status").await.status, 405);
    assert_eq!(daemon.fake.reloads_ended.load(Ordering::Relaxed), 0);
    assert!(daemon.fake.drained.lock().expect("unpoisoned").is_empty());

    let report = ReloadReport { changed: vec!["virtual cluster orders: added".into()], needs_restart: vec![] };
    *daemon.fake.reload.lock().expect("unpoisoned") = Some(Ok(report));
    let reloaded = over_socket(&daemon.socket(), "POST", "/reload").await;
    assert_eq!((reloaded.status, reloaded.json()["changed"][0].as_str()), (200, Some("virtual cluster orders: added")));

    *daemon.fake.reload.lock().expect("unpoisoned") = Some(Err("t.yaml:3:5: unknown key".into()));
    let refused = over_socket(&daemon.socket(), "POST", "/reload").await;
    assert_eq!((refused.status, refused.json()["error"].as_str()), (409, Some("t.yaml:3:5: unknown key")));

    let drained = over_socket(&daemon.socket(), "POST", "/drain?reason=upgrade").await;
    assert_eq!(drained.status, 202);
    assert_eq!(*daemon.fake.drained.lock().expect("unpoisoned"), ["upgrade"]);
    assert_eq!(over_socket(&daemon.socket(), "GET", "/drain").await.status, 405, "looking never steers");
}

#[tokio::test]
async fn a_reload_ends_even_if_whoever_asked_for_it_is_gone() {
    let daemon = Daemon::start();
    let gate = daemon.fake.reload_gate.lock().await;
    let mut impatient = UnixStream::connect(daemon.socket()).await.expect("connected");
    impatient.write_all(request("POST", "/reload", "").as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(impatient);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(daemon.fake.reloads_ended.load(Ordering::Relaxed), 0);
    drop(gate);
    let ended = async {
        while daemon.fake.reloads_ended.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the reload ended");
}

#[tokio::test]
async fn headers_without_end_are_cut_off() {
    let daemon = Daemon::start();
    let address = daemon.server.http_address().expect("HTTP is on");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(MAX_HEADER_BYTES * 4));
    // The server may close while this is still being written.
    let _ = stream.write_all(endless.as_bytes()).await;
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server ends it");
    let refused = String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 431");
    assert!(refused || read.is_err(), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(get(&daemon, "/livez").await.status, 200);
}

/// The clock is paused: it jumps to the next timer whenever nothing else is left to do.
#[tokio::test(start_paused = true)]
async fn headers_that_never_end_and_idle_connections_are_closed_in_time() {
    let daemon = Daemon::start();
    let address = daemon.server.http_address().expect("HTTP is on");
    for begun in ["", "GET /livez HTTP/1.1\r\nhost:", "GET /livez HTTP/1.1\r\nhost: t\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(begun.as_bytes()).await.expect("sent");
        let start = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = timeout(HEADER_TIMEOUT * 2, stream.read_to_end(&mut answer)).await.expect("closed in time");
        let waited = start.elapsed();
        assert!(waited >= HEADER_TIMEOUT && waited < HEADER_TIMEOUT * 2, "{begun:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_reads_nothing_is_closed_in_time() {
    let daemon = Daemon::start();
    daemon.fake.connections.store(1000, Ordering::Relaxed);
    let mut stream = TcpStream::connect(daemon.server.http_address().expect("HTTP is on")).await.expect("connected");
    let asked = 200;
    let one = "GET /connections?limit=1000 HTTP/1.1\r\nhost: t\r\n\r\n";
    stream.write_all(one.repeat(asked).as_bytes()).await.expect("sent");
    tokio::time::sleep(MAX_AGE * 2).await;
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers).await;
    let whole = String::from_utf8_lossy(&answers).matches("HTTP/1.1 200").count();
    assert!(whole > 0 && whole < asked, "{whole} of {asked} answers");
}

#[tokio::test]
async fn connections_are_bounded_and_those_beyond_are_told_so() {
    let daemon = Daemon::start();
    let address = daemon.server.http_address().expect("HTTP is on");
    let mut idle = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        idle.push(TcpStream::connect(address).await.expect("connected"));
    }
    let mut one_more = TcpStream::connect(address).await.expect("connected");
    let mut answer = String::new();
    timeout(PATIENCE, one_more.read_to_string(&mut answer)).await.expect("told in time").expect("read");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(over_socket(&daemon.socket(), "GET", "/livez").await.status, 200, "the control socket has its own");
    drop(idle);
    let free_again = async {
        loop {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let _ = stream.write_all(request("GET", "/livez", "").as_bytes()).await;
            let mut answer = String::new();
            if stream.read_to_string(&mut answer).await.is_ok() && answer.starts_with("HTTP/1.1 200") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, free_again).await.expect("there is room again");
}

#[tokio::test]
async fn a_reload_moves_the_listeners_and_an_address_that_is_taken_changes_nothing() {
    let mut daemon = Daemon::start();
    let (old_address, old_socket) = (daemon.server.http_address().expect("HTTP is on"), daemon.socket());

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let next_socket = daemon.folder.path().join("next.sock");
    let bad = Admin { http: Some(taken.local_addr().expect("an address")), socket: next_socket.clone() };
    let error = daemon.server.prepare(&bad).expect_err("taken").to_string();
    assert!(error.starts_with("admin.http: can't listen on 127.0.0.1:"), "{error}");
    assert_eq!(over_tcp(old_address, "GET", "/livez").await.status, 200);
    assert!(!next_socket.exists());

    let good = Admin { http: Some(([127, 0, 0, 2], 0).into()), socket: next_socket.clone() };
    let prepared = daemon.server.prepare(&good).expect("both are free");
    daemon.server.apply(prepared).expect("applied");
    assert_eq!(get(&daemon, "/livez").await.status, 200);
    assert_eq!(over_socket(&next_socket, "GET", "/livez").await.status, 200);
    let gone = async {
        while old_socket.exists() || TcpStream::connect(old_address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the old listeners go");

    let off = Admin { http: None, socket: next_socket.clone() };
    let prepared = daemon.server.prepare(&off).expect("nothing to bind");
    daemon.server.apply(prepared).expect("applied");
    assert!(daemon.server.http_address().is_none());
    daemon.server.stop().await;
    assert!(!next_socket.exists(), "removed on exit");
}

#[tokio::test]
async fn stopping_finishes_the_answer_that_is_under_way() {
    let daemon = Daemon::start();
    let gate = daemon.fake.reload_gate.lock().await;
    let mut asking = UnixStream::connect(daemon.socket()).await.expect("connected");
    asking.write_all(request("POST", "/reload", "").as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopped = tokio::spawn(daemon.server.stop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(gate);
    let mut answer = String::new();
    timeout(PATIENCE, asking.read_to_string(&mut answer)).await.expect("in time").expect("read");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    timeout(PATIENCE, stopped).await.expect("stopped in time").expect("stopped");
}
