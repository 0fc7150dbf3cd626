//! A restart without a gap: the running daemon starts its successor, hands it every listening socket, and drains once
//! the successor serves. If that doesn't come about, it goes on as before.
//!
//! ```text
//!  turnout upgrade ─► old ── starts the binary at its own path, with a socket as its stdin
//!                      │ ── sockets, locks, what it knows ──► new: starts, serves beside the old, takes the kernel's
//!                      │ ◄───────────── ready ──────────────       tables, answers operators
//!                      └─ drains and ends; or, after `failed`, silence or the end of the new: serves on
//! ```
//!
//! Both take connections from the same queues meanwhile, so that none is lost.

mod wire;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::admin::server::AdminParcel;
use crate::gateway::parcel::{Knowledge, Parcel};

/// Set for a process whose stdin is the socket of a predecessor.
const VARIABLE: &str = "TURNOUT_HANDOVER";

/// The form of the message. A process that doesn't know the other's refuses, and the old one goes on.
const FORM: u32 = 1;

/// How long a successor has from its start to its `ready`. Above what it waits for its clusters.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long a successor waits for its clusters before it takes over all the same.
pub const CLUSTERS_PATIENCE: Duration = Duration::from_secs(15);

/// How long each step of the message may take.
const STEP: Duration = Duration::from_secs(10);

/// Bytes of a successor's last words.
const MAX_WORDS: u64 = 16 * 1024;

/// Everything that one process hands to the next.
#[derive(Debug, Default)]
pub struct Handover {
    /// Of the gateway.
    pub gateway: Parcel,
    /// Of the admin server.
    pub admin: AdminParcel,
}

/// What each descriptor is, in their order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    Port(SocketAddr),
    Shared,
    KernelLock,
    Http(SocketAddr),
    Control(PathBuf),
    ControlLock(PathBuf),
}

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    form: u32,
    version: String,
    pid: u32,
    roles: Vec<Role>,
    knowledge: Knowledge,
}

/// A successor at work.
#[derive(Debug)]
pub struct Successor {
    child: tokio::process::Child,
    socket: UnixStream,
}

impl Successor {
    /// Starts the binary at this process's own path, as it is there now, with the same arguments.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start() -> anyhow::Result<Self> {
        let binary = own_path()?;
        let (ours, theirs) = UnixStream::pair().context("a pair of sockets")?;
        ours.set_write_timeout(Some(STEP))?;
        ours.set_read_timeout(Some(PATIENCE))?;
        let child = tokio::process::Command::new(&binary)
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, "stdin")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .with_context(|| format!("can't start {}", binary.display()))?;
        Ok(Self { child, socket: ours })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Hands everything over and waits until it serves.
    ///
    /// # Errors
    /// It failed, ended, or took too long; it is ended then.
    pub async fn hand_over(mut self, handover: &Handover) -> anyhow::Result<u32> {
        let pid = self.pid().context("it ended at once")?;
        let (message, descriptors) = message(handover);
        let descriptors: Vec<OwnedFd> =
            descriptors.iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>().context("descriptors")?;
        let socket = self.socket.try_clone()?;
        let talk = tokio::task::spawn_blocking(move || {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let mut line = String::new();
            let sent = wire::send(&socket, &message, &borrowed);
            // What it said before it ended is there to be read, also when it did not read to the end.
            let mut words = std::io::Read::take(BufReader::new(&socket), MAX_WORDS);
            match words.read_line(&mut line).and(sent) {
                Ok(()) => Ok(line),
                Err(_) if !line.is_empty() => Ok(line),
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(line),
                Err(error) => Err(error).context("no word from it in time"),
            }
        });
        let answer = tokio::time::timeout(PATIENCE + STEP, talk).await;
        let refusal = match answer {
            Ok(Ok(Ok(line))) => match line.trim_end() {
                "ready" => return Ok(pid),
                "" => return Err(self.ended().await),
                other => other.strip_prefix("failed: ").unwrap_or(other).replace('\u{1f}', "\n"),
            },
            Ok(Ok(Err(error))) => format!("{error:#}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it was not ready within {} s", PATIENCE.as_secs()),
        };
        // It may have ended by itself.
        let _ = self.child.start_kill();
        let _ = self.child.wait().await;
        bail!("{refusal}")
    }
}

impl Successor {
    /// Why there was no word from it.
    async fn ended(&mut self) -> anyhow::Error {
        // It closed its socket: it has ended, or is about to. Whatever else it is, it must not live on.
        let ended = tokio::time::timeout(STEP, self.child.wait()).await;
        let _ = self.child.start_kill();
        match ended {
            Ok(Ok(status)) => anyhow!("it ended before it was ready ({status}); its log says why"),
            _ => anyhow!("it hung up before it was ready, and was ended; its log says why"),
        }
    }
}

fn message(handover: &Handover) -> (Message, Vec<BorrowedFd<'_>>) {
    let Handover { gateway: Parcel { ports, shared, lock, knowledge }, admin } = handover;
    let AdminParcel { http, control } = admin;
    let mut all: Vec<(Role, BorrowedFd<'_>)> = Vec::new();
    all.extend(ports.iter().map(|(address, fd)| (Role::Port(*address), fd.as_fd())));
    all.extend(shared.iter().map(|fd| (Role::Shared, fd.as_fd())));
    all.extend(lock.iter().map(|fd| (Role::KernelLock, fd.as_fd())));
    all.extend(http.iter().map(|(address, fd)| (Role::Http(*address), fd.as_fd())));
    if let Some((path, socket, lock)) = control {
        all.push((Role::Control(path.clone()), socket.as_fd()));
        all.push((Role::ControlLock(path.clone()), lock.as_fd()));
    }
    let (roles, descriptors) = all.into_iter().unzip();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    (Message { form: FORM, version, pid: std::process::id(), roles, knowledge: knowledge.clone() }, descriptors)
}

/// The line back to the predecessor.
#[derive(Debug)]
pub struct Predecessor {
    socket: UnixStream,
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
}

/// What a predecessor hands over, if this process was started as a successor.
///
/// # Errors
/// It is not what this version understands. The predecessor has been told.
pub fn receive() -> anyhow::Result<Option<(Predecessor, Handover)>> {
    if std::env::var_os(VARIABLE).is_none_or(|value| value != "stdin") {
        return Ok(None);
    }
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("the predecessor's socket")?;
    receive_from(UnixStream::from(stdin)).map(Some)
}

fn receive_from(socket: UnixStream) -> anyhow::Result<(Predecessor, Handover)> {
    socket.set_read_timeout(Some(STEP)).context("stdin is no socket of a predecessor")?;
    socket.set_write_timeout(Some(STEP))?;
    let received = wire::receive(&socket, |message: &Message| message.roles.len());
    let mut predecessor = Predecessor { socket, pid: 0, version: String::new() };
    let (message, descriptors) = match received {
        Ok(received) => received,
        Err(error) => {
            predecessor.failed(&error.to_string());
            return Err(error).context("taking over from the predecessor");
        }
    };
    let Message { form, version, pid, roles, knowledge } = message;
    if form != FORM {
        let why = format!("it hands over in form {form}, this version takes {FORM}: restart it instead");
        predecessor.failed(&why);
        bail!("the predecessor is turnout {version}: {why}");
    }
    (predecessor.pid, predecessor.version) = (pid, version);
    let mut handover = Handover { gateway: Parcel { knowledge, ..Parcel::default() }, ..Handover::default() };
    let (mut control, mut lock) = (None, None);
    for (role, descriptor) in roles.into_iter().zip(descriptors) {
        match role {
            Role::Port(address) => handover.gateway.ports.push((address, descriptor)),
            Role::Shared => handover.gateway.shared.push(descriptor),
            Role::KernelLock => handover.gateway.lock = Some(descriptor),
            Role::Http(address) => handover.admin.http = Some((address, descriptor)),
            Role::Control(path) => control = Some((path, descriptor)),
            Role::ControlLock(path) => lock = Some((path, descriptor)),
        }
    }
    handover.admin.control = match (control, lock) {
        (Some((path, socket)), Some((_, lock))) => Some((path, socket, lock)),
        _ => None,
    };
    Ok((predecessor, handover))
}

impl Predecessor {
    /// This process serves.
    ///
    /// # Errors
    /// The predecessor has given up on it: it serves on itself, so this process must end.
    pub fn ready(mut self) -> anyhow::Result<()> {
        self.socket.write_all(b"ready\n").context("the predecessor does not wait any more")
    }

    /// This process can't serve, and ends.
    pub fn failed(&mut self, why: &str) {
        // One line; if the predecessor is gone there is nobody to tell.
        let _ = writeln!(self.socket, "failed: {}", why.replace('\n', "\u{1f}"));
    }
}

/// Where this process's binary is found now: a file that was replaced is the new one.
fn own_path() -> anyhow::Result<PathBuf> {
    let named = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let found = find(&named, std::env::var_os("PATH").as_deref());
    let current = std::env::current_exe().ok().filter(|path| path.is_file());
    let path = found.or(current);
    let path = path.with_context(|| format!("{} is not there any more: no binary to start", named.display()))?;
    ensure!(path.is_file(), "{} is no file", path.display());
    Ok(path)
}

/// A program by the name it was called by: a path, or a name to be found in `PATH`.
fn find(named: &Path, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    if named.as_os_str().is_empty() {
        return None;
    }
    if named.components().count() > 1 || named.is_absolute() {
        return named.is_file().then(|| named.to_owned());
    }
    std::env::split_paths(path?).map(|folder| folder.join(named)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpListener;

    use super::*;
    use crate::gateway::parcel::KnownCluster;

    fn handover() -> Handover {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (a, b) = (socket(), socket());
        let known = KnownCluster { cluster_id: Some("id".into()), brokers: vec![(1, "b".into(), 9092, None)] };
        Handover {
            gateway: Parcel {
                ports: vec![(a.local_addr().unwrap(), a.into()), (b.local_addr().unwrap(), b.into())],
                shared: vec![socket().into()],
                lock: Some(tempfile::tempfile().unwrap().into()),
                knowledge: Knowledge {
                    slots: BTreeMap::from([("orders".to_owned(), 7)]),
                    clusters: BTreeMap::from([("east".to_owned(), known)]),
                },
            },
            admin: AdminParcel {
                http: Some((([127, 0, 0, 1], 1).into(), socket().into())),
                control: Some(("/run/t.sock".into(), socket().into(), tempfile::tempfile().unwrap().into())),
            },
        }
    }

    #[test]
    fn everything_arrives_as_what_it_is() {
        let sent = handover();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (message, descriptors) = message(&sent);
        wire::send(&ours, &message, &descriptors).unwrap();
        let (predecessor, got) = receive_from(theirs).unwrap();
        assert_eq!(predecessor.pid, std::process::id());
        assert_eq!(got.gateway.knowledge, sent.gateway.knowledge);
        assert_eq!((got.gateway.shared.len(), got.gateway.lock.is_some()), (1, true));
        for (address, fd) in got.gateway.ports {
            assert_eq!(TcpListener::from(fd).local_addr().unwrap(), address);
        }
        assert_eq!(got.admin.http.unwrap().0, SocketAddr::from(([127, 0, 0, 1], 1)));
        assert_eq!(got.admin.control.unwrap().0, PathBuf::from("/run/t.sock"));
        predecessor.ready().unwrap();
        let mut line = String::new();
        BufReader::new(&ours).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    #[test]
    fn another_form_is_refused_and_the_predecessor_is_told() {
        let sent = handover();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut message, descriptors) = message(&sent);
        message.form = FORM + 1;
        wire::send(&ours, &message, &descriptors).unwrap();
        let error = receive_from(theirs).unwrap_err().to_string();
        assert!(error.contains("form 2, this version takes 1"), "{error}");
        let mut line = String::new();
        BufReader::new(&ours).read_line(&mut line).unwrap();
        assert!(line.starts_with("failed: it hands over in form 2"), "{line}");
    }

    #[test]
    fn the_binary_is_found_as_it_was_called() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("turnout");
        std::fs::write(&binary, "").unwrap();
        let path = std::env::join_paths([Path::new("/nonexistent"), folder.path()]).unwrap();
        assert_eq!(find(&binary, None), Some(binary.clone()));
        assert_eq!(find(Path::new("turnout"), Some(&path)), Some(binary));
        assert_eq!(find(Path::new("turnout"), Some("/nonexistent".as_ref())), None);
        assert_eq!(find(Path::new("./turnout-of-nobody"), Some(&path)), None);
        assert_eq!(find(Path::new(""), Some(&path)), None);
    }
}
