//! `turnout upgrade`: the real binary takes its own place, and nobody who connects notices.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::mock::{Mock, MockBuilder, Reply};
use harness::raw::{RequestFrame, answer, request};
use harness::turnout::{self, Gateway, GatewayBuilder};
use harness::wait;
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};
use kafka_protocol::protocol::StrBytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEARTBEAT: i16 = 12;
const SOON: Duration = Duration::from_secs(20);

/// New connections a second, and restarts while they come.
const RATE: u32 = 200;
const RESTARTS: usize = 10;

fn heartbeat_frame(id: i32) -> Result<bytes::Bytes> {
    request(0, id, &HeartbeatRequest::default().with_group_id(StrBytes::from_static_str("g").into()))
}

fn heartbeat_answer(frame: &RequestFrame) -> bytes::Bytes {
    answer::<HeartbeatRequest>(frame.api_version, frame.correlation_id, &HeartbeatResponse::default())
        .unwrap_or_default()
}

fn heartbeats(delay: Duration) -> MockBuilder {
    Mock::builder().brokers(&[1, 2]).script(move |received| match received.frame.api_key {
        HEARTBEAT => Reply::Delayed(delay, heartbeat_answer(&received.frame)),
        _ => Reply::Default,
    })
}

/// A gateway that may be succeeded by others, which end with it.
struct Line {
    gateway: Gateway,
    binary: PathBuf,
    pids: Mutex<Vec<u32>>,
    _folder: tempfile::TempDir,
}

impl Drop for Line {
    fn drop(&mut self) {
        let config = self.gateway.config_path().display().to_string();
        for pid in self.pids.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.contains(&config) {
                // SAFETY: plain syscall; the process was started by this test, as its command line says.
                unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
            }
        }
    }
}

impl Line {
    /// Starts a gateway from a copy of the binary, so that it can be replaced.
    fn start(mock: &Mock, change: impl FnOnce(GatewayBuilder) -> GatewayBuilder) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let binary = folder.path().join("turnout");
        install(&turnout::binary()?, &binary)?;
        let builder = Gateway::before_addresses(&mock.bootstrap(), 1).binary(&binary);
        let gateway = change(builder).start()?;
        Ok(Self { gateway, binary, pids: Mutex::default(), _folder: folder })
    }

    /// The process that answers operators.
    fn pid(&self) -> Result<u32> {
        Ok(self.gateway.status()?.pid)
    }

    /// Upgrades; the new process.
    fn upgrade(&self) -> Result<u32> {
        let text = self.gateway.cli(&["upgrade", "--format", "json", "--socket", "{socket}"])?;
        let report: ::turnout::gateway::status::UpgradeReport = serde_json::from_str(&text)?;
        self.pids.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(report.new_pid);
        ensure!(report.new_pid != report.old_pid, "{text}");
        Ok(report.new_pid)
    }

    /// The ports of all virtual brokers and of bootstrap.
    fn ports(&self) -> Result<Vec<SocketAddr>> {
        Ok(vec![self.gateway.bootstrap_addr(), self.gateway.broker_addr(1)?, self.gateway.broker_addr(2)?])
    }

    fn wait_ports(&self) -> Result<()> {
        wait::until("every port", SOON, || {
            for port in self.ports()? {
                std::net::TcpStream::connect(port).with_context(|| port.to_string())?;
            }
            Ok(())
        })
    }
}

/// Puts a file in the place of another, as a package manager does: in one step.
fn install(from: &Path, to: &Path) -> Result<()> {
    let draft = to.with_extension("new");
    fs::copy(from, &draft)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    Ok(fs::rename(draft, to)?)
}

/// Waits until a process has ended.
fn wait_gone(pid: u32) -> Result<()> {
    wait::until(&format!("the end of pid {pid}"), SOON, || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie waits for whoever started it.
        ensure!(state.is_empty() || state.rsplit(") ").next().is_some_and(|s| s.starts_with('Z')), "{state}");
        Ok(())
    })
}

/// A connection that is used: a request goes to the broker, its answer comes back.
async fn use_once(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).await.context("connecting")?;
    call(&mut stream).await
}

async fn call(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&heartbeat_frame(7)?).await.context("sending")?;
    let size = stream.read_u32().await.context("the answer")?;
    let mut answer = vec![0; size as usize];
    stream.read_exact(&mut answer).await.context("the answer's rest")?;
    ensure!(answer[..4] == [0, 0, 0, 7], "{answer:?}");
    Ok(())
}

/// Connects at a steady rate until it is told to end; how many worked, and why others didn't.
fn connect_steadily(ports: Vec<SocketAddr>, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<(u64, Vec<String>)> {
    tokio::spawn(async move {
        let (worked, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut running = tokio::task::JoinSet::new();
        for port in ports.into_iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            tick.tick().await;
            let (worked, failed) = (Arc::clone(&worked), Arc::clone(&failed));
            running.spawn(async move {
                match tokio::time::timeout(SOON, use_once(port)).await {
                    Ok(Ok(())) => drop(worked.fetch_add(1, Ordering::Relaxed)),
                    Ok(Err(error)) => failed.lock().unwrap().push(format!("{port}: {error:#}")),
                    Err(_) => failed.lock().unwrap().push(format!("{port}: no answer")),
                }
            });
            while running.try_join_next().is_some() {}
        }
        while running.join_next().await.is_some() {}
        let failed = std::mem::take(&mut *failed.lock().unwrap());
        (worked.load(Ordering::Relaxed), failed)
    })
}

/// Ten restarts under load: every connection attempt of 200 a second is served, and so is whoever asks for health.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_refused_across_ten_restarts() -> Result<()> {
    let mock = heartbeats(Duration::ZERO).start().await?;
    let line = Arc::new(Line::start(&mock, |builder| builder)?);
    line.wait_ports()?;
    let first = line.pid()?;
    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let connects = connect_steadily(line.ports()?, Arc::clone(&stop));
    let health = {
        let (line, stop) = (Arc::clone(&line), Arc::clone(&stop));
        tokio::task::spawn_blocking(move || -> Result<u32> {
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                let (code, body) = line.gateway.get("/livez").context("the admin server")?;
                ensure!(code == 200, "{code}: {body}");
                asked += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(asked)
        })
    };
    let upgrades = {
        let line = Arc::clone(&line);
        tokio::task::spawn_blocking(move || -> Result<Vec<u32>> {
            let mut pids = vec![first];
            for _ in 0..RESTARTS {
                std::thread::sleep(Duration::from_millis(300));
                pids.push(line.upgrade()?);
                ensure!(line.pid()? == pids[pids.len() - 1], "the new process answers operators");
            }
            Ok(pids)
        })
    };
    let pids = upgrades.await?;
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    let (worked, failed) = connects.await?;
    let pids = pids?;
    ensure!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), worked, &failed[..failed.len().min(5)]);
    let expected = began.elapsed().as_secs_f64() * f64::from(RATE);
    ensure!(worked as f64 > expected * 0.7, "only {worked} connections in {:?}: too few to tell", began.elapsed());
    ensure!(health.await?? > 20);
    let unique: std::collections::BTreeSet<_> = pids.iter().collect();
    ensure!(unique.len() == RESTARTS + 1, "{pids:?}");
    for pid in &pids[..RESTARTS] {
        wait_gone(*pid)?;
    }
    eprintln!("{worked} connections in {:?} over {RESTARTS} restarts, none refused", began.elapsed());
    line.gateway.check_quiet(&[])
}

/// The old process ends only when what was in flight is answered; a connection that is idle is closed by FIN.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_answered_by_the_old_process() -> Result<()> {
    let mock = heartbeats(Duration::from_secs(3)).start().await?;
    let line = Line::start(&mock, |builder| builder)?;
    line.wait_ports()?;
    let old = line.pid()?;
    let mut waiting = TcpStream::connect(line.gateway.broker_addr(1)?).await?;
    waiting.write_all(&heartbeat_frame(7)?).await?;
    mock.wait_received(HEARTBEAT, 1, SOON).await?;
    let new = tokio::task::block_in_place(|| line.upgrade())?;
    ensure!(Path::new(&format!("/proc/{old}")).exists(), "it waits for the answer");
    let size = tokio::time::timeout(SOON, waiting.read_u32()).await??;
    let mut frame = vec![0; size as usize];
    waiting.read_exact(&mut frame).await?;
    ensure!(frame[..4] == [0, 0, 0, 7]);
    ensure!(tokio::time::timeout(SOON, waiting.read(&mut [0; 1])).await?? == 0, "drained");
    let ended = line.gateway.wait(SOON)?;
    ensure!(ended.code() == Some(0), "{ended}");
    ensure!(line.pid()? == new);
    use_once(line.gateway.broker_addr(2)?).await
}

/// What is not fit to take over doesn't, the command says why, and the old process serves on, ready for the next try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_fails_leaves_the_old_process_serving() -> Result<()> {
    let mock = heartbeats(Duration::ZERO).start().await?;
    let line = Line::start(&mock, |builder| builder)?;
    line.wait_ports()?;
    let pid = line.pid()?;
    let mut client = TcpStream::connect(line.gateway.bootstrap_addr()).await?;
    call(&mut client).await?;
    let config = line.gateway.config()?;

    // A binary that ends, one that is none, and one that is not there; a config that is wrong, and one that can't be
    // had: another service listens on its port.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    let bootstrap = format!("bootstrap_port: {}", line.gateway.bootstrap_addr().port());
    type Spoil<'a> = Box<dyn Fn() -> Result<()> + 'a>;
    let spoils: Vec<(&str, Spoil<'_>)> = vec![
        (
            "ended before it was ready",
            Box::new(|| {
                let script = line.binary.with_extension("script");
                fs::write(&script, "#!/bin/sh\nexit 3\n")?;
                install(&script, &line.binary)
            }),
        ),
        (
            "can't start",
            Box::new(|| {
                let nothing = line.binary.with_extension("nothing");
                fs::write(&nothing, "no program")?;
                install(&nothing, &line.binary)
            }),
        ),
        ("turnout.yaml:", Box::new(|| line.gateway.write_config(&config.replace("bootstrap_port", "bootstrap_prot")))),
        (
            "can't be opened",
            Box::new(|| line.gateway.write_config(&config.replace(&bootstrap, &format!("bootstrap_port: {port}")))),
        ),
    ];
    for (said, spoil) in spoils {
        spoil()?;
        match tokio::task::block_in_place(|| line.upgrade()) {
            Ok(pid) => bail!("{pid} took over, instead of: {said}"),
            Err(error) => ensure!(format!("{error:#}").contains(said), "not {said:?} but {error:#}"),
        }
        ensure!(line.pid()? == pid, "the old process answers");
        call(&mut client).await.context("the old connection")?;
        for port in line.ports()? {
            use_once(port).await?;
        }
        install(&turnout::binary()?, &line.binary)?;
        line.gateway.write_config(&config)?;
    }
    // A reload is taken again, and so is an upgrade.
    tokio::task::block_in_place(|| line.gateway.cli(&["reload", "--socket", "{socket}"]))?;
    let new = tokio::task::block_in_place(|| line.upgrade())?;
    ensure!(line.pid()? == new && new != pid);
    use_once(line.gateway.bootstrap_addr()).await
}

/// The successor goes by the config as it stands in the file: ports that are new are opened, others closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_config_is_taken_with_the_upgrade() -> Result<()> {
    let mock = heartbeats(Duration::ZERO).start().await?;
    let line = Line::start(&mock, |builder| builder)?;
    line.wait_ports()?;
    let old = line.gateway.bootstrap_addr();
    let new = SocketAddr::new(old.ip(), harness::ports::one()?);
    let config = line.gateway.config()?;
    let (from, to) = (format!("bootstrap_port: {}", old.port()), format!("bootstrap_port: {}", new.port()));
    line.gateway.write_config(&config.replace(&from, &to))?;
    let before = line.pid()?;
    tokio::task::block_in_place(|| line.upgrade())?;
    use_once(new).await?;
    wait_gone(before)?;
    ensure!(TcpStream::connect(old).await.is_err(), "the old port is closed");
    use_once(line.gateway.broker_addr(2)?).await
}

/// The service manager follows the process that serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_manager_is_told_of_the_new_main_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mock = heartbeats(Duration::ZERO).start().await?;
    let line = Line::start(&mock, |builder| builder.env("NOTIFY_SOCKET", &path.display().to_string()))?;
    let old = line.pid()?;
    let new = tokio::task::block_in_place(|| line.upgrade())?;
    wait_gone(old)?;
    let mut told: BTreeMap<String, u32> = BTreeMap::new();
    let mut buffer = [0; 256];
    while let Ok(length) = manager.recv(&mut buffer) {
        *told.entry(String::from_utf8_lossy(&buffer[..length]).into_owned()).or_default() += 1;
    }
    ensure!(told.get(&format!("MAINPID={new}")) == Some(&1), "{told:?}");
    ensure!(told.get("READY=1") == Some(&2), "each says once that it serves: {told:?}");
    ensure!(!told.contains_key("STOPPING=1"), "the service does not stop: {told:?}");
    Ok(())
}
