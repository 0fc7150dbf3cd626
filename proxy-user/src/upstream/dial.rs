//! TCP connections to the first of several candidates that answers.
//!
//! As in RFC 8305 (happy eyeballs), attempts are staggered: the next candidate starts when the last one failed, or has
//! been silent for [`STAGGER`]; those begun earlier keep going, and the first to connect wins. A candidate's name is
//! resolved to all of its addresses, which are raced the same way among themselves.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::endpoint::Endpoint;
use crate::splice::session::Opening;

/// Silence after which the next candidate is tried too.
pub const STAGGER: Duration = Duration::from_millis(500);

/// The same among the addresses of one name.
const ADDRESS_STAGGER: Duration = Duration::from_millis(250);

/// Dead peers are noticed after 60 s + 5 × 10 s of silence, below the idle limits of brokers and balancers (4–10 min).
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 5);

/// Why an attempt failed.
#[derive(Debug)]
pub enum AttemptError {
    /// The name could not be resolved.
    Resolve(io::Error),
    /// The name has no address.
    NoAddress,
    /// Connecting to this address failed.
    Connect(SocketAddr, io::Error),
    /// Nothing heard for this long.
    Timeout(Duration),
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve(e) => write!(f, "the name can't be resolved: {e}"),
            Self::NoAddress => f.write_str("the name has no address"),
            Self::Connect(_, e) => e.fmt(f),
            Self::Timeout(after) => write!(f, "no answer within {after:?}"),
        }
    }
}

/// A failed attempt.
#[derive(Debug)]
pub struct Attempt {
    /// What was dialled.
    pub endpoint: Endpoint,
    /// Why it failed.
    pub why: AttemptError,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, why } = self;
        match why {
            // A name may have several addresses, and which one failed matters.
            AttemptError::Connect(address, _) if endpoint.ip().is_none() => write!(f, "{endpoint} ({address}: {why})"),
            _ => write!(f, "{endpoint} ({why})"),
        }
    }
}

/// Why no candidate could be reached.
#[derive(Debug)]
pub enum DialError {
    /// There was none to try.
    NoCandidates,
    /// This process or host can open no more files: nothing is wrong with the candidates.
    OutOfFiles(io::Error),
    /// Each attempt that was begun, and why it failed; in the order in which they failed.
    Failed(Vec<Attempt>),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A log line names this many attempts.
        const NAMED: usize = 6;
        match self {
            Self::NoCandidates => f.write_str("no address to connect to is known"),
            Self::OutOfFiles(e) if e.raw_os_error() == Some(libc::ENFILE) => {
                write!(f, "this host is out of file descriptors ({e}): raise fs.file-max")
            }
            Self::OutOfFiles(e) => {
                write!(
                    f,
                    "this process is out of file descriptors ({e}): raise LimitNOFILE in the service (ulimit -n), or \
                     lower limits.connections"
                )
            }
            Self::Failed(attempts) => {
                f.write_str("no address could be connected to: ")?;
                for (n, attempt) in attempts.iter().take(NAMED).enumerate() {
                    write!(f, "{}{attempt}", if n == 0 { "" } else { ", " })?;
                }
                match attempts.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl std::error::Error for DialError {}

impl DialError {
    /// A candidate took longer than `connect_timeout`.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        matches!(self, Self::Failed(attempts) if attempts.iter().any(|a| matches!(a.why, AttemptError::Timeout(_))))
    }

    /// Short name of the kind, for a metric label: `no_candidates`, `out_of_files`, `unreachable`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoCandidates => "no_candidates",
            Self::OutOfFiles(_) => "out_of_files",
            Self::Failed(_) => "unreachable",
        }
    }
}

/// Connects to the first of `candidates` that answers, tried in their order, and says which it was.
///
/// `per_attempt` bounds one candidate (its name's resolution and all of its addresses), `overall` all of them. The
/// connection has TCP_NODELAY and keepalive on. `opening`: how its socket is opened so that it can be spliced.
///
/// # Errors
/// [`DialError`], which lists each attempt. Running out of file descriptors ends the dial at once, as no other
/// candidate could do better.
pub async fn dial(
    candidates: &[Endpoint],
    per_attempt: Duration,
    overall: Duration,
    opening: Option<Opening>,
) -> Result<(TcpStream, Endpoint), DialError> {
    if candidates.is_empty() {
        return Err(DialError::NoCandidates);
    }
    let began = Instant::now();
    let deadline = began + overall;
    let mut race = Race::new(candidates.iter(), STAGGER);
    let mut failed = Vec::new();
    loop {
        let next = race.next(|endpoint| Box::pin(attempt(endpoint, per_attempt, opening)));
        match timeout_at(deadline, next).await {
            Ok(None) => return Err(DialError::Failed(failed)),
            Ok(Some((endpoint, Ok(stream)))) => return Ok((stream, endpoint.clone())),
            Ok(Some((_, Err(AttemptError::Resolve(e) | AttemptError::Connect(_, e))))) if is_out_of_files(&e) => {
                return Err(DialError::OutOfFiles(e));
            }
            Ok(Some((endpoint, Err(why)))) => failed.push(Attempt { endpoint: endpoint.clone(), why }),
            Err(_) => {
                let silent = race.running.into_iter().map(|endpoint| Attempt {
                    endpoint: endpoint.clone(),
                    why: AttemptError::Timeout(overall.min(began.elapsed())),
                });
                failed.extend(silent);
                return Err(DialError::Failed(failed));
            }
        }
    }
}

/// This process (EMFILE) or this host (ENFILE) can open no more files.
#[must_use]
pub fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

async fn attempt(endpoint: &Endpoint, bound: Duration, opening: Option<Opening>) -> Result<TcpStream, AttemptError> {
    timeout(bound, resolve_and_connect(endpoint, opening)).await.unwrap_or(Err(AttemptError::Timeout(bound)))
}

async fn resolve_and_connect(endpoint: &Endpoint, opening: Option<Opening>) -> Result<TcpStream, AttemptError> {
    let addresses: Vec<SocketAddr> = match endpoint.ip() {
        Some(ip) => vec![SocketAddr::new(ip, endpoint.port)],
        None => tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port))
            .await
            .map_err(AttemptError::Resolve)?
            .collect(),
    };
    let addresses = interleave(addresses);
    let mut race = Race::new(addresses.into_iter(), ADDRESS_STAGGER);
    let mut last = AttemptError::NoAddress;
    while let Some((address, outcome)) = race.next(|address| Box::pin(connect(address, opening))).await {
        match outcome {
            Ok(stream) => return Ok(stream),
            Err(e) => {
                let stop = is_out_of_files(&e);
                last = AttemptError::Connect(address, e);
                if stop {
                    break;
                }
            }
        }
    }
    Err(last)
}

async fn connect(address: SocketAddr, opening: Option<Opening>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(opening) = opening
        && let Err(error) = opening.prepare(socket.as_fd())
    {
        // The connection serves all the same; `status` says why it isn't spliced.
        tracing::debug!(%address, "a socket can't be prepared for the splice: {error}");
    }
    let stream = socket.connect(address).await?;
    // A loopback dial to a free port can pick that very port as its own and connect to itself (simultaneous open).
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    let (time, interval, retries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// Alternates between the address families, the resolver's first choice first (RFC 8305, section 4).
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(six_first) = addresses.first().map(SocketAddr::is_ipv6) else { return addresses };
    let total = addresses.len();
    let (mut preferred, mut other): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|a| a.is_ipv6() == six_first);
    let mut mixed = Vec::with_capacity(total);
    while mixed.len() < total {
        mixed.extend(preferred.pop_front());
        mixed.extend(other.pop_front());
    }
    mixed
}

type Running<'a, K, T, E> = Pin<Box<dyn Future<Output = (K, Result<T, E>)> + Send + 'a>>;

/// Starts one attempt after another; yields them as they end.
struct Race<'a, I, K, T, E> {
    waiting: I,
    attempts: FuturesUnordered<Running<'a, K, T, E>>,
    /// Keys of the attempts under way.
    running: Vec<K>,
    stagger: Duration,
    next_start: Instant,
}

impl<'a, I, K, T, E> Race<'a, I, K, T, E>
where
    I: ExactSizeIterator<Item = K>,
    K: Copy + PartialEq + Send + 'a,
    T: 'a,
    E: 'a,
{
    fn new(waiting: I, stagger: Duration) -> Self {
        Self { waiting, attempts: FuturesUnordered::new(), running: Vec::new(), stagger, next_start: Instant::now() }
    }

    /// The next attempt that ends, `None` when all have. Starts what is due meanwhile.
    async fn next<S>(&mut self, start: S) -> Option<(K, Result<T, E>)>
    where
        S: Fn(K) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>,
    {
        loop {
            let due = self.attempts.is_empty() || self.next_start <= Instant::now();
            if due && let Some(key) = self.waiting.next() {
                let attempt = start(key);
                self.running.push(key);
                self.attempts.push(Box::pin(async move { (key, attempt.await) }));
                self.next_start = Instant::now() + self.stagger;
            }
            if self.attempts.is_empty() {
                return None;
            }
            let more = self.waiting.len() > 0;
            tokio::select! {
                biased;
                ended = self.attempts.next() => {
                    let (key, outcome) = ended?;
                    if let Some(at) = self.running.iter().position(|k| *k == key) {
                        self.running.swap_remove(at);
                    }
                    if outcome.is_err() {
                        self.next_start = Instant::now();
                    }
                    return Some((key, outcome));
                }
                () = sleep_until(self.next_start), if more => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
