//! A connection between real sockets on loopback: a client and a broker that do what they are told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use proxy_common::splice::state::Side;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::{Accepted, Connection, serve};
use super::shared::{Phase, Shared};
use super::splicing::Access;
use super::splicing_tests::{Kernel, Source};
use crate::config::{self, Environment};
use crate::kafka::ids::NodeId;
use crate::metrics::Metrics;
use crate::upstream::{Cluster, Target};

/// Far above what any of this takes, below what anyone would wait.
const SOON: Duration = Duration::from_secs(10);

const HEARTBEAT: i16 = 12;

/// A connection under test: the client's socket, and the task that serves it.
struct Served {
    client: TcpStream,
    phase: watch::Sender<Phase>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Served {
    /// Takes one connection whose broker listens at `broker`, under these `limits` (YAML, in braces).
    async fn with(limits: &str, broker: SocketAddr) -> Self {
        let text = format!(
            "clusters: {{east: {{bootstrap: ['{broker}']}}}}\n\
             virtual_clusters:\n  orders: {{cluster: east, bootstrap_port: 9092, \
             broker_ports: {{first: 9200, count: 9}}, limits: {limits}}}\n"
        );
        let mut config = config::load_str(&text, "test.yaml", &Environment::empty()).unwrap();
        let cluster = Cluster::spawn("east", config.clusters.remove("east").unwrap());
        // The gateway's own client would be one more connection at the broker.
        cluster.stop().await;
        let metrics = Metrics::default();
        let orders = config.virtual_clusters.remove("orders").unwrap();
        let shared = Arc::new(Shared::new("orders", orders, cluster, metrics.virtual_cluster("orders")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(local), listener.accept());
        let (stream, peer) = accepted.unwrap();
        let (phase, listening) = watch::channel(Phase::Serve);
        let record = shared.registry.admit(peer, Target::Bootstrap, 100, None).unwrap();
        let accepted = Accepted {
            client: stream,
            peer,
            local,
            target: Target::Bootstrap,
            shared: Arc::clone(&shared),
            phase: listening,
            record,
        };
        Self { client: client.unwrap(), phase, shared, task: tokio::spawn(serve(Connection::new(accepted))) }
    }

    /// Times the connection was closed for this reason.
    fn closed_as(&self, label: &str) -> u64 {
        self.shared.metrics.closed.snapshot().get(label).copied().unwrap_or(0)
    }

    async fn ends(&mut self) {
        timeout(SOON, &mut self.task).await.expect("the connection ends").unwrap();
        assert_eq!(self.shared.registry.len(), 0, "its record is gone");
        assert_eq!(self.shared.metrics.in_flight.get(), 0);
        assert_eq!(self.shared.metrics.held_bytes.get(), 0);
    }
}

/// A spliced connection whose first request was answered, the broker's end of it, and the kernel that has leave.
async fn spliced(limits: &str) -> (Served, TcpStream, Arc<Kernel>) {
    let (listener, address) = broker().await;
    let mut served = Served::with(limits, address).await;
    let kernel = Kernel::new();
    served.shared.set_splice(Ok(Access { splicer: Arc::new(Source(Arc::clone(&kernel))), policy: 0 }));
    served.client.write_all(&request(HEARTBEAT, 0, 1, b"")).await.unwrap();
    let mut far = accept(&listener).await;
    frame(&mut far).await;
    far.write_all(&answer(1, b"")).await.unwrap();
    frame(&mut served.client).await;
    wait_for(|| served.shared.metrics.spliced.get() == 1).await;
    kernel.change(|slot| slot.seen = 0b1111);
    // Leave is given when it is looked at next.
    served.shared.registry.recall_spliced();
    wait_for(|| kernel.arm(Side::Client).is_some() && kernel.arm(Side::Broker).is_some()).await;
    (served, far, kernel)
}

async fn wait_for(is_so: impl Fn() -> bool) {
    timeout(SOON, async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it comes to that");
}

#[tokio::test]
async fn a_spliced_connection_ends_at_the_idle_limit() {
    let (mut served, _far, _kernel) = spliced("{idle: 300ms}").await;
    served.ends().await;
    assert_eq!(served.closed_as("idle"), 1);
    assert_eq!(served.shared.metrics.spliced.get(), 0);
}

#[tokio::test]
async fn a_spliced_connection_that_is_owed_an_answer_becomes_the_daemons_at_the_idle_limit() {
    let (mut served, mut far, kernel) = spliced("{idle: 300ms}").await;
    served.client.write_all(&request(HEARTBEAT, 0, 2, b"")).await.unwrap();
    frame(&mut far).await;
    wait_for(|| kernel.arm(Side::Client).is_none() && kernel.arm(Side::Broker).is_none()).await;
    far.write_all(&answer(2, b"")).await.unwrap();
    frame(&mut served.client).await;
}

#[tokio::test]
async fn answers_come_by_the_daemon_while_it_waits_for_one_to_read_on() {
    let (mut served, mut far, kernel) = spliced("{in_flight: 1}").await;
    let two = [request(HEARTBEAT, 0, 2, b""), request(HEARTBEAT, 0, 3, b"")].concat();
    served.client.write_all(&two).await.unwrap();
    frame(&mut far).await;
    wait_for(|| kernel.arm(Side::Broker).is_none()).await;
    far.write_all(&answer(2, b"")).await.unwrap();
    frame(&mut served.client).await;
    frame(&mut far).await;
}

#[tokio::test]
async fn an_idle_spliced_connection_is_taken_back_when_it_may_be_spliced_no_more() {
    let (mut served, mut far, kernel) = spliced("{}").await;
    served.shared.set_splice(Err("fast_path.mode is off".to_owned()));
    served.shared.registry.recall_spliced();
    wait_for(|| kernel.arm(Side::Client).is_none() && kernel.arm(Side::Broker).is_none()).await;
    served.client.write_all(&request(HEARTBEAT, 0, 2, b"")).await.unwrap();
    frame(&mut far).await;
    assert_eq!((kernel.arm(Side::Client), kernel.arm(Side::Broker)), (None, None), "for good");
}

async fn broker() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    timeout(SOON, listener.accept()).await.expect("the gateway dials").unwrap().0
}

fn request(key: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_i32(10 + body.len() as i32);
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(correlation);
    frame.put_i16(-1);
    frame.put_slice(body);
    frame.to_vec()
}

fn answer(correlation: i32, body: &[u8]) -> Vec<u8> {
    [&(4 + body.len() as i32).to_be_bytes()[..], &correlation.to_be_bytes(), body].concat()
}

/// Produce v3 with acks 0 and `records` bytes that nobody looks at.
fn unacknowledged(correlation: i32, records: usize) -> Vec<u8> {
    let body = [&[0xff, 0xff, 0, 0, 0, 0, 0x75, 0x30][..], &vec![correlation as u8; records]].concat();
    request(0, 3, correlation, &body)
}

async fn frame(stream: &mut TcpStream) -> Vec<u8> {
    timeout(SOON, async {
        let size = stream.read_u32().await.unwrap();
        let mut frame = vec![0; size as usize];
        stream.read_exact(&mut frame).await.unwrap();
        [&size.to_be_bytes()[..], &frame].concat()
    })
    .await
    .expect("a frame comes")
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    timeout(SOON, stream.read_to_end(&mut all)).await.expect("the stream ends").unwrap();
    all
}

/// Closes with a reset.
fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Where the broker's socket is full in the moment of the client's FIN depends on the size of buffers on the way, so
/// many sizes are tried.
#[tokio::test]
async fn unacknowledged_bytes_behind_a_full_broker_socket_reach_it_before_the_fin() {
    for size in (50_000..6_000_000).step_by(100_000) {
        let (listener, address) = broker().await;
        let Served { mut client, phase: _phase, task, .. } = Served::with("{}", address).await;
        let sent: Vec<u8> = (0..5).flat_map(|id| unacknowledged(id, size / 5)).collect();
        let expected = sent.len();
        let producer = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            rest(&mut client).await
        });
        let mut at_broker = accept(&listener).await;
        sleep(Duration::from_millis(20)).await;
        assert_eq!(rest(&mut at_broker).await.len(), expected);
        drop(at_broker);
        assert!(producer.await.unwrap().is_empty());
        timeout(SOON, task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_reset_while_dialling_loses_none_of_the_unacknowledged_bytes() {
    // With its queue full, the broker lets the dial wait for a repeated SYN.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let _first_in_queue = TcpStream::connect(address).await.unwrap();
    let mut served = Served::with("{}", address).await;
    let sent = [unacknowledged(1, 5000), unacknowledged(2, 5000)].concat();
    served.client.write_all(&sent).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let Served { client, phase: _phase, task, .. } = served;
    reset(client);
    sleep(Duration::from_millis(200)).await;
    drop(accept(&listener).await);
    let mut at_broker = accept(&listener).await;
    assert!(rest(&mut at_broker).await == sent);
    timeout(SOON, task).await.unwrap().unwrap();
}

#[tokio::test]
async fn one_request_in_flight_at_a_time_still_flows() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{in_flight: 1}", address).await;
    let mut at_broker = None;
    for id in 1..=5 {
        served.client.write_all(&request(HEARTBEAT, 0, id, b"x")).await.unwrap();
        if at_broker.is_none() {
            at_broker = Some(accept(&listener).await);
        }
        let at_broker = at_broker.as_mut().unwrap();
        assert_eq!(frame(at_broker).await, request(HEARTBEAT, 0, id, b"x"));
        sleep(Duration::from_millis(10)).await;
        at_broker.write_all(&answer(id, b"y")).await.unwrap();
        assert_eq!(frame(&mut served.client).await, answer(id, b"y"));
    }
}

#[tokio::test]
async fn a_client_that_resets_while_it_is_not_read_loses_nothing_it_sent() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{in_flight: 1}", address).await;
    let first = request(HEARTBEAT, 0, 1, b"");
    served.client.write_all(&first).await.unwrap();
    let mut at_broker = accept(&listener).await;
    assert_eq!(frame(&mut at_broker).await, first);
    // Part of it is in the gateway's buffer, part still in its socket.
    let later: Vec<u8> = (2..8).flat_map(|id| unacknowledged(id, 4000)).collect();
    let (read, unread) = later.split_at(10_000);
    served.client.write_all(read).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    served.client.write_all(unread).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    let Served { client, phase: _phase, task, .. } = served;
    reset(client);
    sleep(Duration::from_millis(50)).await;
    at_broker.write_all(&answer(1, b"")).await.unwrap();
    assert!(rest(&mut at_broker).await == later);
    timeout(SOON, task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_left_while_the_broker_is_frozen_does_not_stay() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{in_flight: 1, drain: 200ms}", address).await;
    let sent = [request(HEARTBEAT, 0, 1, b""), request(HEARTBEAT, 0, 2, b"")].concat();
    served.client.write_all(&sent).await.unwrap();
    let _frozen = accept(&listener).await;
    sleep(Duration::from_millis(50)).await;
    served.client.shutdown().await.unwrap();
    served.ends().await;
    assert_eq!(served.closed_as("client_gone"), 1);
}

#[tokio::test]
async fn a_slow_client_gets_its_answers_after_its_fin_however_long_it_takes() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{drain: 300ms}", address).await;
    served.client.write_all(&request(HEARTBEAT, 0, 1, b"")).await.unwrap();
    served.client.shutdown().await.unwrap();
    let mut at_broker = accept(&listener).await;
    let told = answer(1, &vec![7; 16 << 20]);
    let expected = told.len();
    let writer = tokio::spawn(async move {
        assert_eq!(rest(&mut at_broker).await, request(HEARTBEAT, 0, 1, b""));
        at_broker.write_all(&told).await.unwrap();
        at_broker
    });
    let mut got = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match timeout(SOON, served.client.read(&mut buffer)).await.unwrap().unwrap() {
            0 => break,
            n => got += n,
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(got, expected);
    drop(writer.await.unwrap());
    served.ends().await;
    assert_eq!(served.closed_as("client_closed"), 1);
}

#[tokio::test]
async fn the_brokers_last_bytes_are_delivered_before_the_end() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{}", address).await;
    served.client.write_all(&request(HEARTBEAT, 0, 1, b"")).await.unwrap();
    let mut at_broker = accept(&listener).await;
    frame(&mut at_broker).await;
    // An answer cut short, then the FIN.
    let told = answer(1, &vec![7; 3 << 20]);
    let half = told.len() / 2;
    at_broker.write_all(&told[..half]).await.unwrap();
    drop(at_broker);
    assert!(rest(&mut served.client).await == told[..half]);
    served.ends().await;
    assert_eq!(served.closed_as("broker_closed"), 1);
}

#[tokio::test]
async fn a_broker_that_closes_takes_the_client_along_at_once() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{}", address).await;
    served.client.write_all(&unacknowledged(1, 10)).await.unwrap();
    let mut at_broker = accept(&listener).await;
    frame(&mut at_broker).await;
    let began = Instant::now();
    drop(at_broker);
    assert!(rest(&mut served.client).await.is_empty());
    assert!(began.elapsed() < Duration::from_secs(1));
    served.ends().await;
}

#[tokio::test]
async fn a_drain_lets_the_answer_in_flight_out_and_counts_no_timeout_for_what_it_does_not_begin() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{incomplete_frame: 100ms, drain: 5s}", address).await;
    served.client.write_all(&request(HEARTBEAT, 0, 1, b"")).await.unwrap();
    let mut at_broker = accept(&listener).await;
    frame(&mut at_broker).await;
    served.phase.send_replace(Phase::Drain { until: Instant::now() + Duration::from_secs(5) });
    // A whole request that is not begun any more, and the beginning of another.
    served.client.write_all(&request(HEARTBEAT, 0, 2, b"")).await.unwrap();
    served.client.write_all(&[0, 0]).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    at_broker.write_all(&answer(1, b"late")).await.unwrap();
    assert_eq!(rest(&mut served.client).await, answer(1, b"late"));
    served.ends().await;
    assert_eq!(served.closed_as("drained"), 1);
}

#[tokio::test]
async fn what_cannot_be_passed_on_waits_for_the_answers_before_it_and_is_no_timeout() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{incomplete_frame: 100ms}", address).await;
    let sent = [request(HEARTBEAT, 0, 1, b""), request(9999, 0, 2, b"")].concat();
    served.client.write_all(&sent).await.unwrap();
    let mut at_broker = accept(&listener).await;
    frame(&mut at_broker).await;
    sleep(Duration::from_millis(300)).await;
    at_broker.write_all(&answer(1, b"")).await.unwrap();
    assert_eq!(rest(&mut served.client).await, answer(1, b""));
    served.ends().await;
    assert_eq!(served.closed_as("unknown_request"), 1);
}

#[tokio::test]
async fn a_trickling_client_is_closed_and_each_frame_has_its_own_time() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{incomplete_frame: 400ms}", address).await;
    // Each frame takes 300 ms; the next begins in the same segment in which the last one ends.
    let frames: Vec<u8> = (1..=3).flat_map(|id| request(HEARTBEAT, 0, id, b"0123456789")).collect();
    let len = frames.len() / 3;
    let mut at = 0;
    for end in [5, len + 5, 2 * len + 5, 3 * len] {
        served.client.write_all(&frames[at..end]).await.unwrap();
        at = end;
        sleep(Duration::from_millis(300)).await;
    }
    let mut at_broker = accept(&listener).await;
    for _ in 0..3 {
        frame(&mut at_broker).await;
    }
    served.client.write_all(&[0]).await.unwrap();
    at_broker.write_all(&[answer(1, b""), answer(2, b""), answer(3, b"")].concat()).await.unwrap();
    served.ends_with_linger().await;
    assert_eq!(served.closed_as("incomplete_frame"), 1);
}

impl Served {
    async fn ends_with_linger(&mut self) {
        rest(&mut self.client).await;
        self.client.shutdown().await.unwrap();
        self.ends().await;
    }
}

#[tokio::test]
async fn silence_is_closed_by_the_knob_it_concerns() {
    let (listener, address) = broker().await;
    let mut silent = Served::with("{first_byte: 100ms}", address).await;
    silent.ends_with_linger().await;
    assert_eq!(silent.closed_as("first_byte"), 1);

    let mut idle = Served::with("{idle: 200ms}", address).await;
    idle.client.write_all(&request(HEARTBEAT, 0, 1, b"")).await.unwrap();
    let mut at_broker = accept(&listener).await;
    sleep(Duration::from_millis(400)).await;
    at_broker.write_all(&answer(1, b"")).await.unwrap();
    assert_eq!(frame(&mut idle.client).await, answer(1, b""), "a request in flight is not idleness");
    idle.ends_with_linger().await;
    assert_eq!(idle.closed_as("idle"), 1);
}

#[tokio::test]
async fn a_lingering_connection_still_counts() {
    let (_listener, address) = broker().await;
    let mut served = Served::with("{}", address).await;
    served.client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(rest(&mut served.client).await.is_empty());
    assert_eq!(served.closed_as("http_on_kafka"), 1);
    assert_eq!(served.shared.registry.len(), 1, "its socket is still open");
    drop(std::mem::replace(&mut served.client, TcpStream::connect(address).await.unwrap()));
    served.ends().await;
}

/// As after a panic: nothing runs to its end, everything is dropped.
#[tokio::test]
async fn a_task_that_is_cut_takes_its_share_of_the_gauges_along() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{}", address).await;
    served.client.write_all(&request(HEARTBEAT, 0, 1, b"")).await.unwrap();
    let mut at_broker = accept(&listener).await;
    frame(&mut at_broker).await;
    assert_eq!(served.shared.metrics.in_flight.get(), 1);
    served.task.abort();
    assert!((&mut served.task).await.unwrap_err().is_cancelled());
    assert_eq!(served.shared.metrics.in_flight.get(), 0);
    assert_eq!(served.shared.registry.len(), 0);
}

/// One connection that never runs out of bytes shares its thread with one that asks little.
#[tokio::test]
async fn a_bulk_connection_leaves_others_their_turn() {
    let (listener, address) = broker().await;
    let Served { client: mut bulk, phase: _phase, task: _task, .. } = Served::with("{}", address).await;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    // Its client and its broker have threads of their own, so that the task under test is always ready.
    let mut small = Served::with("{}", address).await;
    bulk.write_all(&unacknowledged(1, 1000)).await.unwrap();
    let at_broker = accept(&listener).await.into_std().unwrap();
    let bulk = bulk.into_std().unwrap();
    for socket in [&at_broker, &bulk] {
        socket.set_nonblocking(false).unwrap();
    }
    let reader = std::thread::spawn(move || std::io::copy(&mut &at_broker, &mut std::io::sink()));
    let writer = std::thread::spawn(move || {
        let frame = unacknowledged(2, 1 << 20);
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            std::io::Write::write_all(&mut &bulk, &frame).unwrap();
        }
    });
    let mut slowest = Duration::ZERO;
    let mut at_broker = None;
    for id in 0..50 {
        let began = Instant::now();
        small.client.write_all(&request(HEARTBEAT, 0, id, b"")).await.unwrap();
        if at_broker.is_none() {
            at_broker = Some(accept(&listener).await);
        }
        let at_broker = at_broker.as_mut().unwrap();
        frame(at_broker).await;
        at_broker.write_all(&answer(id, b"")).await.unwrap();
        frame(&mut small.client).await;
        slowest = slowest.max(began.elapsed());
    }
    drop(stop);
    let ended = tokio::task::spawn_blocking(move || {
        writer.join().unwrap();
        reader.join().unwrap().unwrap();
    });
    timeout(SOON, ended).await.expect("both end").unwrap();
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

/// Rewritten answers are longer than they came, so some of them wait unparsed when the broker's reset is seen.
#[tokio::test]
async fn whole_answers_before_the_brokers_reset_are_delivered_though_they_had_to_wait() {
    const ANSWERS: i32 = 14;
    let (listener, address) = broker().await;
    let mut served = Served::with("{}", address).await;
    let asked: Vec<u8> = (0..ANSWERS).flat_map(|id| request(3, 0, id, &[0, 0, 0, 0])).collect();
    served.client.write_all(&asked).await.unwrap();
    let mut at_broker = accept(&listener).await;
    at_broker.read_exact(&mut vec![0; asked.len()]).await.unwrap();
    // Broker 1 at "":9092, and again, and again; no topics.
    let brokers = [&700i32.to_be_bytes()[..], &b"\0\0\0\x01\0\0\0\0\x23\x84".repeat(700), &[0; 4]].concat();
    let told: Vec<u8> = (0..ANSWERS).flat_map(|id| answer(id, &brokers)).collect();
    at_broker.write_all(&told).await.unwrap();
    reset(at_broker);
    for id in 0..ANSWERS {
        assert_eq!(frame(&mut served.client).await[4..8], id.to_be_bytes());
    }
    served.ends_with_linger().await;
}

/// The task of a connection and its state are what an idle connection costs.
#[tokio::test]
async fn a_connections_task_is_small() {
    let (_listener, address) = broker().await;
    let Served { client: _client, task, .. } = Served::with("{}", address).await;
    task.abort();
    fn size_of_output<T>(_: fn(Box<Connection>) -> T) -> usize {
        size_of::<T>()
    }
    let size = size_of::<Connection>() + size_of_output(serve);
    assert!(size < 2048, "{size} bytes");
}

#[tokio::test]
async fn answers_before_the_brokers_fault_are_delivered() {
    for fault in [answer(99, b"strange"), vec![0xff; 9]] {
        let (listener, address) = broker().await;
        let mut served = Served::with("{}", address).await;
        served
            .client
            .write_all(&[request(HEARTBEAT, 0, 1, b""), request(HEARTBEAT, 0, 2, b"")].concat())
            .await
            .unwrap();
        let mut broker = accept(&listener).await;
        frame(&mut broker).await;
        frame(&mut broker).await;
        broker.write_all(&[answer(1, b"good"), fault].concat()).await.unwrap();
        assert_eq!(rest(&mut served.client).await, answer(1, b"good"));
        drop(served.client.shutdown().await);
        assert_eq!(served.closed_as("correlation") + served.closed_as("malformed_answer"), 1);
    }
}

/// The broker closes when it reads the FIN: that isn't news of the broker.
#[tokio::test]
async fn a_client_that_leaves_within_a_frame_is_not_the_brokers_fault() {
    let (listener, address) = broker().await;
    let mut served = Served::with("{}", address).await;
    let whole = request(HEARTBEAT, 0, 1, b"whatever");
    served.client.write_all(&whole[..whole.len() - 1]).await.unwrap();
    let mut broker = accept(&listener).await;
    served.client.shutdown().await.unwrap();
    assert_eq!(rest(&mut broker).await, whole[..whole.len() - 1]);
    drop(broker);
    assert!(rest(&mut served.client).await.is_empty());
    served.ends().await;
    assert_eq!((served.closed_as("client_gone"), served.closed_as("broker_closed")), (1, 0));
}

/// A Metadata v1 answer: one broker without a rack, its own controller, no topics.
fn metadata_answer(correlation: i32, node: i32, port: u16) -> Vec<u8> {
    let mut body = BytesMut::new();
    body.put_i32(1);
    body.put_i32(node);
    body.put_i16(9);
    body.put_slice(b"127.0.0.1");
    body.put_i32(i32::from(port));
    body.put_i16(-1);
    body.put_i32(node);
    body.put_i32(0);
    answer(correlation, &body)
}

#[tokio::test]
async fn a_client_is_told_of_a_broker_when_its_port_is_open() {
    let (listener, at) = broker().await;
    let mut served = Served::with("{}", at).await;
    served.client.write_all(&request(3, 1, 7, &0i32.to_be_bytes())).await.unwrap();
    let mut broker = accept(&listener).await;
    broker.read_exact(&mut [0; 18]).await.unwrap();
    broker.write_all(&metadata_answer(7, 4, at.port())).await.unwrap();

    let early = timeout(Duration::from_millis(300), served.client.read_u8()).await;
    assert!(early.is_err(), "nobody has opened the port that the answer names");
    let told = served.shared.cluster().topology();
    assert!(told.brokers.contains_key(&NodeId(4)), "the gateway has read the answer");
    served.shared.saw_to(&told);
    let size = timeout(Duration::from_secs(1), served.client.read_u32()).await.expect("the answer at once").unwrap();
    let mut body = vec![0; size as usize];
    served.client.read_exact(&mut body).await.unwrap();
    let port = 4 + 4 + 4 + 2 + "127.0.0.1".len();
    assert_eq!(body[port..port + 4], 9204i32.to_be_bytes());

    // A broker that is known holds nothing up.
    served.client.write_all(&request(3, 1, 8, &0i32.to_be_bytes())).await.unwrap();
    broker.read_exact(&mut [0; 18]).await.unwrap();
    broker.write_all(&metadata_answer(8, 4, at.port())).await.unwrap();
    timeout(Duration::from_secs(1), served.client.read_u32()).await.expect("the answer at once").unwrap();
    drop((broker, served.client.shutdown().await));
    served.ends().await;
}
