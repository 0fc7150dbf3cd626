//! A gateway with kernel programs on a host of its own, brokers beside it, and client hosts before it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::mock::{Mock, MockBuilder, Reply};
use harness::netns::{Netns, World};
use harness::raw::{answer, request};
use harness::turnout::{Gateway, GatewayBuilder};
use harness::wait;
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};
use socket2::{Domain, Socket, Type};

/// What must happen at once happens within this, on a busy host.
pub(crate) const PROMPT: Duration = Duration::from_millis(800);
/// What takes a moment.
pub(crate) const SOON: Duration = Duration::from_secs(10);

const HEARTBEAT: i16 = 12;

/// Leaves the calling test with a registered skip where programs can't be loaded at all.
macro_rules! need_edge {
    () => {
        harness::need_root!();
        if ::turnout::kernel::object().is_none() {
            return harness::skip("built without kernel programs");
        }
    };
}
pub(crate) use need_edge;

/// Mock brokers inside a namespace, for as long as this lives.
pub(crate) struct Brokers {
    pub(crate) mock: Arc<Mock>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Brokers {
    fn start(netns: &Netns, node_ids: &[i32]) -> Result<Self> {
        let builder: MockBuilder = Mock::builder().brokers(node_ids).script(|received| {
            let frame = &received.frame;
            // The node id comes back as the throttle time, so that a client sees which broker it reached.
            let body = HeartbeatResponse::default().with_throttle_time_ms(received.node_id);
            match frame.api_key {
                HEARTBEAT => answer::<HeartbeatRequest>(frame.api_version, frame.correlation_id, &body)
                    .map_or(Reply::Reset, Reply::Bytes),
                _ => Reply::Default,
            }
        });
        let (inside, (stop, stopped)) = (netns.open()?, tokio::sync::oneshot::channel());
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let started = inside.enter().context("entering the brokers' namespace").and_then(|()| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let mock = runtime.block_on(builder.start())?;
                Ok((runtime, Arc::new(mock)))
            });
            match started {
                Ok((runtime, mock)) => {
                    let _ = ready.send(Ok(Arc::clone(&mock)));
                    // Either word, or the sender's end, is the end.
                    let _ = runtime.block_on(stopped);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let mock = is_ready.recv().context("the mock's thread ended")??;
        Ok(Self { mock, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// Everything; ends in the order of its fields.
pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) brokers: Brokers,
    pub(crate) world: Arc<World>,
}

impl Stage {
    /// Two client hosts (10.90.0.2 and 10.90.1.2) and a gateway that requires its kernel programs.
    pub(crate) fn start(node_ids: &[i32], change: impl FnOnce(GatewayBuilder) -> GatewayBuilder) -> Result<Self> {
        Self::start_beside(node_ids, |_| Ok(()), change)
    }

    /// The same on a gateway host where something else came first.
    pub(crate) fn start_beside(
        node_ids: &[i32],
        before: impl FnOnce(&World) -> Result<()>,
        change: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
    ) -> Result<Self> {
        let world = Arc::new(World::builder().clients(2).brokers(1).build()?);
        before(&world)?;
        let brokers = Brokers::start(&world.gateway().netns, node_ids)?;
        let count = u16::try_from(node_ids.len())? + 20;
        let builder = Gateway::before_addresses(&brokers.mock.bootstrap(), node_ids[0])
            .world(&world)
            .broker_count(count)
            .fast_path("required");
        let stage = Self { gateway: change(builder).start()?, brokers, world };
        stage.wait_open(node_ids)?;
        Ok(stage)
    }

    fn wait_open(&self, node_ids: &[i32]) -> Result<()> {
        wait::until("every broker's port", SOON, || {
            let known = self.gateway.status()?.clusters.values().map(|c| c.brokers.len()).sum::<usize>();
            ensure!(known == node_ids.len(), "{known} brokers are known");
            let last = self.at(0, node_ids[node_ids.len() - 1], false);
            self.connect(0, None, last).map(drop).with_context(|| last.to_string())
        })
    }

    /// A virtual broker's address as a client host dials it.
    pub(crate) fn at(&self, client: usize, node: i32, v6: bool) -> SocketAddr {
        let port = self.gateway.broker_addr(node).map_or(0, |address| address.port());
        SocketAddr::new(self.host(client, v6), port)
    }

    pub(crate) fn bootstrap(&self, client: usize, v6: bool) -> SocketAddr {
        SocketAddr::new(self.host(client, v6), self.gateway.bootstrap_addr().port())
    }

    fn host(&self, client: usize, v6: bool) -> IpAddr {
        match v6 {
            false => self.world.gateway_seen_by(client).into(),
            true => self.world.gateway_v6_seen_by(client).into(),
        }
    }

    /// Connects from a client host, from one of its addresses if given.
    pub(crate) fn connect(&self, client: usize, from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
        let netns = &self.world.client(client).netns;
        netns.run(|| connect(from, to, Duration::from_secs(2))).map_err(io::Error::other)?
    }

    /// Puts a config with other rules in force.
    pub(crate) fn reload(&self, change: impl FnOnce(&str) -> String) -> Result<()> {
        self.gateway.write_config(&change(&self.gateway.config()?))?;
        self.gateway.cli(&["reload", "--socket", "{socket}"]).map(drop)
    }

    /// Packets or connections that the edge refused for a reason.
    pub(crate) fn refused(&self, reason: &str) -> Result<f64> {
        Ok(self.gateway.metrics()?.sum("turnout_edge_refused_total", &[("reason", reason)]))
    }
}

/// Connects from inside the namespace of the calling thread.
pub(crate) fn connect(from: Option<IpAddr>, to: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect_timeout(&to.into(), patience)?;
    socket.set_read_timeout(Some(SOON))?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// A request and its answer; the node id of the broker that gave it.
pub(crate) fn call(stream: &mut TcpStream) -> Result<i32> {
    stream.write_all(&request(1, 7, &HeartbeatRequest::default())?)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size).context("reading the answer's size")?;
    let mut bytes = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut bytes).context("reading the answer")?;
    // Correlation id, throttle time, error code.
    ensure!(bytes.len() == 10 && bytes[..4] == [0, 0, 0, 7], "{bytes:?}");
    Ok(i32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]))
}

/// Connections that each make a call, at a steady rate from a client host, until they are told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Vec<String>)>,
}

impl Load {
    /// To these addresses in turn.
    pub(crate) fn start(stage: &Stage, client: usize, to: Vec<SocketAddr>, per_second: u32) -> Result<Self> {
        let inside = stage.world.client(client).netns.open()?;
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut worked, mut failed) = (0, Vec::new());
            if let Err(error) = inside.enter() {
                return (0, vec![format!("entering the client's namespace: {error}")]);
            }
            let began = Instant::now();
            for (n, to) in (0u32..).zip(to.into_iter().cycle()) {
                if until.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep((Duration::from_secs(1) / per_second * n).saturating_sub(began.elapsed()));
                // One that waits for a repeated SYN was dropped: that counts as refused.
                match connect(None, to, PROMPT).map_err(Into::into).and_then(|mut stream| call(&mut stream)) {
                    Ok(_) => worked += 1,
                    Err(error) => failed.push(format!("{to}, {:?} after the start: {error:#}", began.elapsed())),
                }
            }
            (worked, failed)
        });
        Ok(Self { stop, thread })
    }

    /// How many worked; an error if one didn't.
    pub(crate) fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let (worked, failed) = self.thread.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
        ensure!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), worked, &failed[..failed.len().min(5)]);
        Ok(worked)
    }
}
