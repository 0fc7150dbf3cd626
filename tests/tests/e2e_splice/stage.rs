//! A gateway on a host of its own between a client host and two broker hosts, and what must be gone after a test.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use harness::netns::{Link, World};
use harness::turnout::{Gateway, GatewayBuilder};
use harness::{Tier, procfs, wait};
use socket2::{Domain, Socket, Type};

use crate::broker::{Broker, Served};
use crate::client::{Load, Outcome, Running, all_orderly, call};
use crate::frames::{Addresses, Ask, Id, Kind};
use crate::sys::without_offloads;

/// What takes a moment.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// A load lasts no longer in CI.
const LONG: Duration = Duration::from_secs(12);
/// A peer is told within this that the other one is gone.
pub(crate) const TOLD: Duration = Duration::from_secs(2);

const NODES: [i32; 2] = [1, 2];
const BROKER_PORT: u16 = 9092;
/// The gateway's interfaces, as the harness calls them.
pub(crate) const INTERFACES: [&str; 2] = ["client0", "fabric"];

/// Who passes bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The daemon: `fast_path: off`.
    Daemon,
    /// The kernel wherever it can: `fast_path: required`.
    Kernel,
}

/// What a test wants of its stage.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) v6: bool,
    /// Links with a relay in them.
    pub(crate) relays: Vec<Link>,
    /// Whether interfaces merge and cut packets and leave checksums to others.
    pub(crate) offloads: bool,
    /// Copies of frames are written to this file.
    pub(crate) mirror: Option<PathBuf>,
}

impl Setup {
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode, v6: false, relays: Vec::new(), offloads: true, mirror: None }
    }

    pub(crate) fn v6(mut self) -> Self {
        self.v6 = true;
        self
    }

    pub(crate) fn relays(mut self, links: &[Link]) -> Self {
        self.relays = links.to_vec();
        self
    }

    pub(crate) fn without_offloads(mut self) -> Self {
        self.offloads = false;
        self
    }

    pub(crate) fn mirrored(mut self, file: &Path) -> Self {
        self.mirror = Some(file.to_owned());
        self
    }

    /// Runs a test on a stage, and checks that it leaves nothing behind. A failure tells the seed, the connections and the
    /// end of the gateway's log.
    pub(crate) fn run(self, test: impl FnOnce(&mut Stage) -> Result<()>) -> Result<()> {
        let given = std::env::var("TURNOUT_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(rand::random::<u32>()));
        println!("TURNOUT_SEED={seed}");
        let mut stage = Stage::start(self, seed).with_context(|| format!("TURNOUT_SEED={seed}"))?;
        let result = test(&mut stage).and_then(|()| stage.finish());
        result.map_err(|error| anyhow!("{error:#}\n{}", stage.explain()))
    }
}

/// Everything; ends in the order of its fields.
pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) brokers: Vec<Broker>,
    pub(crate) world: Arc<World>,
    pub(crate) setup: Setup,
    pub(crate) seed: u64,
    /// What clients are told.
    told: Arc<Addresses>,
    /// What brokers say.
    real: Addresses,
    next_connection: AtomicU32,
    /// Processes that took the gateway's place.
    successors: Mutex<Vec<u32>>,
    pin: Option<PathBuf>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let config = self.gateway.config_path().display().to_string();
        for pid in self.successors.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.contains(&config) {
                // SAFETY: plain syscall; the process was started by this test, as its command line says.
                unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
            }
        }
    }
}

impl Stage {
    fn start(setup: Setup, seed: u64) -> Result<Self> {
        let builder = World::builder().brokers(NODES.len() as u8);
        let relay =
            |builder: harness::netns::WorldBuilder, (n, link): (usize, &Link)| builder.relay(*link, seed + n as u64);
        let world = Arc::new(setup.relays.iter().enumerate().fold(builder, relay).build()?);
        if !setup.offloads {
            let hosts = [(world.client(0), &["gateway"][..]), (world.gateway(), &INTERFACES)];
            let brokers = world.brokers().iter().map(|host| (host, &["fabric"][..]));
            for (host, devices) in hosts.into_iter().chain(brokers) {
                host.netns.run(|| devices.iter().try_for_each(|device| without_offloads(device)))??;
            }
        }
        let of = |v4: IpAddr, v6: IpAddr| if setup.v6 { v6 } else { v4 };
        let hosts: Vec<_> = world.brokers().iter().map(|host| of(host.v4.into(), host.v6.into())).collect();
        let real = NODES.iter().zip(&hosts).map(|(node, host)| (*node, host.to_string(), BROKER_PORT)).collect();
        let real = Addresses(real);
        let brokers = world.brokers().iter().zip(&hosts);
        let brokers: Vec<_> = brokers
            .map(|(host, at)| Broker::start(&host.netns, SocketAddr::new(*at, BROKER_PORT), &real))
            .collect::<Result<_>>()?;
        let bootstrap: Vec<_> = hosts.iter().map(|at| SocketAddr::new(*at, BROKER_PORT).to_string()).collect();
        let builder = Gateway::before_addresses(&bootstrap.join(","), NODES[0]).world(&world).broker_count(4);
        let builder = match &setup.mirror {
            Some(file) => builder
                .binary(Path::new(env!("CARGO_BIN_EXE_turnout-mirroring")))
                .env(harness::mirror::FILE, &file.display().to_string()),
            None => builder,
        };
        let gateway = configured(builder, setup.mode).start()?;

        let host = of(world.gateway_seen_by(0).into(), world.gateway_v6_seen_by(0).into());
        let port = |node: i32| Ok::<_, anyhow::Error>((node, host.to_string(), gateway.broker_addr(node)?.port()));
        let told = Addresses(NODES.into_iter().map(port).collect::<Result<_>>()?);
        let pin = gateway.status()?.edge.map(|edge| PathBuf::from(edge.pin));
        let stage = Self {
            gateway,
            brokers,
            world,
            setup,
            seed,
            told: Arc::new(told),
            real,
            next_connection: AtomicU32::new(0),
            successors: Mutex::default(),
            pin,
        };
        stage.wait_serving()?;
        Ok(stage)
    }

    /// How long a load lasts here that lasts this long in the kernel in CI: shorter where the daemon does everything, which
    /// other suites try too.
    pub(crate) fn lasts(&self, in_ci: Duration) -> Duration {
        let lasts = if self.is_spliced() { in_ci } else { in_ci / 2 };
        if harness::tier() == Tier::Full { lasts * 8 } else { lasts }
    }

    /// Whether bytes are to go through the kernel.
    pub(crate) fn is_spliced(&self) -> bool {
        self.setup.mode == Mode::Kernel
    }

    /// Waits until every virtual broker answers.
    pub(crate) fn wait_serving(&self) -> Result<()> {
        for node in NODES {
            wait::until(&format!("an answer of broker {node}"), SOON, || self.answers(node))?;
        }
        Ok(())
    }

    /// Whether a new connection to a virtual broker is served.
    pub(crate) fn answers(&self, node: i32) -> Result<()> {
        let (number, stream) = self.connect(node, None)?;
        stream.set_read_timeout(Some(TOLD))?;
        for (kind, nth) in [(Kind::ApiVersions, 0), (Kind::Plain(0), 1)] {
            call(&stream, Ask { id: Id::new(number, nth, false), kind, payload: 10, wanted: 10 }, nth, &self.told)?;
        }
        Ok(())
    }

    /// A client's connection to a virtual broker, with its number in the test.
    pub(crate) fn connect(&self, node: i32, receive_buffer: Option<usize>) -> Result<(u32, TcpStream)> {
        let (_, host, port) = self.told.0.iter().find(|(n, ..)| *n == node).context("a node id")?;
        let to = SocketAddr::new(host.parse()?, *port);
        let stream = self.world.client(0).netns.run(|| -> std::io::Result<TcpStream> {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            if let Some(bytes) = receive_buffer {
                socket.set_recv_buffer_size(bytes)?;
            }
            socket.connect_timeout(&to.into(), Duration::from_secs(5))?;
            Ok(socket.into())
        })?;
        let stream = stream.with_context(|| format!("connecting to virtual broker {node} at {to}"))?;
        Ok((self.next_connection.fetch_add(1, Ordering::Relaxed), stream))
    }

    /// What clients are told of the brokers.
    pub(crate) fn told(&self) -> Arc<Addresses> {
        Arc::clone(&self.told)
    }

    /// What brokers say of each other.
    pub(crate) fn real(&self) -> &Addresses {
        &self.real
    }

    /// Begins a load on new connections, to each virtual broker in turn.
    pub(crate) fn load(&self, load: Load) -> Result<Running> {
        let nodes: Vec<_> = NODES.into_iter().cycle().take(load.connections).collect();
        self.load_to(&nodes, load, None)
    }

    /// The same to these virtual brokers, one connection each.
    pub(crate) fn load_to(&self, nodes: &[i32], load: Load, receive_buffer: Option<usize>) -> Result<Running> {
        let mut connections = 0..;
        let connect = |node: &i32| {
            // As of Java's consumers, and as the host likes it.
            let usual = connections.next().and_then(|nth| (nth % 2 == 1).then_some(65_536));
            let (number, stream) = self.connect(*node, receive_buffer.or(usual))?;
            Ok((number, stream, self.told()))
        };
        Running::start(nodes.iter().map(connect).collect::<Result<_>>()?, load, self.seed)
    }

    /// Puts a load on new connections for a while, and tells what came of it; every one must end in good order.
    pub(crate) fn run(&self, load: Load, lasts: Duration) -> Result<Ran> {
        let (before, others) = (self.spliced_bytes()?, self.gateway.connections()?.len());
        let running = self.load(load)?;
        let began = Instant::now();
        // On a busy host it takes longer until what happens at the beginning of a connection is the smaller part.
        let enough = (load.connections * load.depth * 10) as u64;
        let is_over = || began.elapsed() >= lasts && (running.seen.answers() >= enough || began.elapsed() >= LONG);
        while !is_over() && running.ended() == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let seen = Arc::clone(&running.seen);
        let outcomes = self.outcomes(running.stop()?)?;
        all_orderly(&outcomes)?;
        drop(outcomes);
        self.wait_left(others)?;
        let ran = Ran {
            answers: seen.answers(),
            daemons: seen.daemons.load(Ordering::Relaxed),
            bytes: seen.bytes.load(Ordering::Relaxed),
            spliced: self.spliced_bytes()? - before,
        };
        println!(
            "{load:?}: {} answers ({} the daemon's), {} kB, {:.1} % of it in the kernel",
            ran.answers,
            ran.daemons,
            ran.bytes / 1000,
            ran.share() * 100.0
        );
        ensure!(ran.answers > 0, "{load:?}: nothing was answered");
        ensure!(self.is_spliced() || ran.spliced == 0, "{} bytes are counted as spliced", ran.spliced);
        Ok(ran)
    }

    /// Passes outcomes on if nothing is wrong with them; else tells what the gateway says of those connections.
    pub(crate) fn outcomes(&self, outcomes: Vec<Outcome>) -> Result<Vec<Outcome>> {
        let mut wrong = Vec::new();
        for outcome in &outcomes {
            let crate::client::End::Wrong(error) = &outcome.end else { continue };
            let client = outcome.stream.local_addr().map(|address| address.to_string()).unwrap_or_default();
            let connections = self.gateway.connections().unwrap_or_default();
            let status = connections.iter().find(|connection| connection.client == client);
            let status = status.map_or_else(|| "unknown to the gateway".to_owned(), |status| format!("{status:?}"));
            let broker = self.served(outcome.number).map_or_else(
                || "unknown to the broker".to_owned(),
                |served| format!("the broker got {} and answered {}", served.received(), served.answered()),
            );
            let sockets = if wrong.len() < 2 { self.sockets() } else { String::new() };
            wrong.push(format!("{client}: {error:#}; {} answers; {broker}; {status}{sockets}", outcome.answers));
        }
        let count = wrong.len();
        wrong.truncate(5);
        self.check_brokers()?;
        ensure!(count == 0, "{count} of {} connections failed:\n{}", outcomes.len(), wrong.join("\n"));
        Ok(outcomes)
    }

    /// What the broker knows of a client's connection.
    pub(crate) fn served(&self, number: u32) -> Option<Arc<Served>> {
        self.brokers.iter().find_map(|broker| broker.served_to(number))
    }

    /// No broker was sent anything wrong.
    pub(crate) fn check_brokers(&self) -> Result<()> {
        self.brokers.iter().try_for_each(Broker::check)
    }

    /// Bytes that the kernel has passed on, as the gateway counts them.
    pub(crate) fn spliced_bytes(&self) -> Result<u64> {
        let metrics = self.gateway.metrics()?;
        let sum = |name| metrics.sum(name, &[]) as u64;
        Ok(sum("turnout_spliced_request_bytes_total") + sum("turnout_spliced_answer_bytes_total"))
    }

    /// Waits until so many connections are spliced, where they are to be.
    pub(crate) fn wait_spliced(&self, count: usize) -> Result<()> {
        if !self.is_spliced() {
            return Ok(());
        }
        wait::until(&format!("{count} spliced connections"), SOON, || {
            let connections = self.gateway.connections()?;
            let spliced = connections.iter().filter(|connection| connection.splice.is_some()).count();
            let why: BTreeSet<_> = connections.iter().map(|connection| connection.path.as_str()).collect();
            ensure!(spliced >= count, "{spliced} of {}: {why:?}", connections.len());
            Ok(())
        })
    }

    /// Waits until no client is connected any more but so many.
    pub(crate) fn wait_left(&self, others: usize) -> Result<()> {
        wait::until("the end of connections", SOON, || {
            let left = self.gateway.connections()?;
            ensure!(left.len() <= others, "{} are left, the last: {:?}", left.len(), left.last());
            Ok(())
        })
    }

    /// Puts a changed config in force.
    pub(crate) fn reload(&self, from: &str, to: &str) -> Result<()> {
        let config = self.gateway.config()?;
        ensure!(config.contains(from), "the config has no {from:?}:\n{config}");
        self.gateway.write_config(&config.replace(from, to))?;
        self.gateway.cli(&["reload", "--socket", "{socket}"]).map(drop)
    }

    /// `turnout upgrade`; the new process.
    pub(crate) fn upgrade(&self) -> Result<u32> {
        let text = self.gateway.cli(&["upgrade", "--format", "json", "--socket", "{socket}"])?;
        let report: ::turnout::gateway::status::UpgradeReport = serde_json::from_str(&text)?;
        self.successors.lock().unwrap_or_else(PoisonError::into_inner).push(report.new_pid);
        Ok(report.new_pid)
    }

    /// Nothing is left of what tests do: no connection, no session; and after the gateway's end no pin and no program.
    fn finish(&self) -> Result<()> {
        self.check_brokers()?;
        self.wait_left(0)?;
        let metrics = self.gateway.metrics()?;
        let spliced = metrics.sum("turnout_spliced_connections", &[]);
        ensure!(spliced == 0.0, "{spliced} connections are spliced, and none is there");
        let pid = self.gateway.status()?.pid;
        wait::until("the gateway's sockets to be closed", SOON, || {
            let peers = procfs::peers(pid.cast_signed())?;
            let is_client = |peer: &&SocketAddr| peer.port() != BROKER_PORT && !peer.ip().is_loopback();
            let clients: Vec<_> = peers.iter().filter(is_client).collect();
            ensure!(clients.is_empty(), "it holds sockets of clients: {clients:?}");
            let held = peers.iter().filter(|peer| peer.port() == BROKER_PORT).count();
            let open: usize = self.brokers.iter().map(Broker::open).sum();
            let served: usize =
                self.brokers.iter().map(|b| b.served().iter().filter(|s| s.ended().is_none()).count()).sum();
            ensure!(served == 0, "{served} connections of clients are open at brokers");
            ensure!(held <= open, "it holds {held} sockets of brokers, who know of {open}");
            Ok(())
        })?;
        self.stop(pid)?;
        // An edge stays for the next daemon, until it is told not to.
        if let Some(pin) = self.pin.as_deref() {
            let detach = ["detach", "--pin", &pin.display().to_string()];
            self.world.gateway().netns.run(|| self.gateway.cli(&detach))??;
            let pins = pins_in(pin);
            ensure!(pins.is_empty(), "pins stay behind: {pins:?}");
        }
        let programs = self.programs()?;
        ensure!(programs.is_empty(), "programs stay behind: {programs:?}");
        Ok(())
    }

    /// Ends the gateway, whichever process it is by now.
    fn stop(&self, pid: u32) -> Result<()> {
        if self.gateway.process().pid().cast_unsigned() == pid {
            let status = self.gateway.stop(SOON)?;
            ensure!(status.success(), "the gateway ends with {status}");
            return Ok(());
        }
        // SAFETY: plain syscall; a process that the gateway of this test started in its place.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGTERM) };
        wait_gone(pid)
    }

    /// Names of the programs at the gateway's interfaces.
    pub(crate) fn programs(&self) -> Result<Vec<String>> {
        self.world.gateway().netns.run(|| {
            let mut names = Vec::new();
            for interface in INTERFACES {
                for way in [TcAttachType::Ingress, TcAttachType::Egress] {
                    let (_, programs) = SchedClassifier::query_tcx(interface, way)?;
                    let name = |program: &aya::programs::ProgramInfo| program.name_as_str().unwrap_or("?").to_owned();
                    names.extend(programs.iter().map(|program| format!("{} on {interface}", name(program))));
                }
            }
            Ok(names)
        })?
    }

    /// What TCP says of every connection, host by host.
    fn sockets(&self) -> String {
        let brokers = self.world.brokers().iter().map(|host| ("a broker", host));
        let hosts =
            [("the client", self.world.client(0)), ("the gateway", self.world.gateway())].into_iter().chain(brokers);
        let ask = || std::process::Command::new("ss").args(["-tinmoH", "state", "connected"]).output();
        hosts
            .map(|(who, host)| {
                let said =
                    host.netns.run(ask).ok().and_then(Result::ok).map(|output| output.stdout).unwrap_or_default();
                format!("\nsockets of {who}:\n{}", String::from_utf8_lossy(&said))
            })
            .collect()
    }

    /// What everybody says of the connections that are open, for the report of a failure.
    pub(crate) fn now(&self) -> String {
        let connections = self.gateway.connections().unwrap_or_default();
        let shown: Vec<_> = connections.iter().take(8).map(|connection| format!("{connection:?}")).collect();
        format!("{}{}", shown.join("\n"), self.sockets())
    }

    /// For the report of a failure.
    fn explain(&self) -> String {
        let connections = self.gateway.connections().unwrap_or_default();
        let shown: Vec<_> = connections.iter().take(8).map(|connection| format!("{connection:?}")).collect();
        let log = self.gateway.log().unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        format!(
            "TURNOUT_SEED={} {:?}\n{} connections: {}\nthe end of the gateway's log:\n{}",
            self.seed,
            self.setup,
            connections.len(),
            shown.join("\n  "),
            lines[lines.len().saturating_sub(30)..].join("\n")
        )
    }
}

/// What a load came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) answers: u64,
    pub(crate) daemons: u64,
    pub(crate) bytes: u64,
    pub(crate) spliced: u64,
}

impl Ran {
    /// Of its bytes, by how many the kernel passed on.
    pub(crate) fn share(&self) -> f64 {
        self.spliced as f64 / self.bytes as f64
    }
}

fn configured(builder: GatewayBuilder, mode: Mode) -> GatewayBuilder {
    let builder = builder.virtual_line("versions: auto").virtual_line("limits: {drain: 10s}");
    builder.fast_path(match mode {
        Mode::Daemon => "off",
        Mode::Kernel => "required",
    })
}

/// Waits until a process that this one did not start has ended.
pub(crate) fn wait_gone(pid: u32) -> Result<()> {
    wait::until(&format!("the end of pid {pid}"), SOON, || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie waits for whoever started it.
        ensure!(state.is_empty() || state.rsplit(") ").next().is_some_and(|s| s.starts_with('Z')), "{state}");
        Ok(())
    })
}

/// Everything under a folder of pins.
fn pins_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() { [vec![path.clone()], pins_in(&path)].concat() } else { vec![path] }
        })
        .collect()
}
