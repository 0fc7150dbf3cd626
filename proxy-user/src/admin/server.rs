//! Listens on `admin.http` and `admin.socket`, within bounds, and moves to other addresses when a reload says so.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::Operator;
use super::control::{ControlError, ControlSocket, SocketFile};
use super::http::{Control, router};
use crate::config;
use crate::log_gate::LogGate;

/// Connections that one listener serves at once; one more is told so and closed.
pub const MAX_CONNECTIONS: usize = 64;
/// Bytes of a request's line and headers.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Headers of a request.
pub const MAX_HEADERS: usize = 64;
/// From a connection's start, or its last answer, to the end of the next request's headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection is closed after this long, in use or not: who reads nothing can't hold it.
pub const MAX_AGE: Duration = Duration::from_secs(600);
/// What an answer that is under way gets at [`MAX_AGE`] or when the listener goes.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept (for want of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// The same trouble is logged this often.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Why the admin server could not listen. The message is whole: it has no source that a chain would repeat.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// `admin.http`.
    #[error("admin.http: can't listen on {address}: {reason}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The host's.
        reason: io::Error,
    },
    /// `admin.socket`.
    #[error("admin.socket: {0}")]
    Control(ControlError),
}

impl From<ControlError> for BindError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

/// The running admin server. [`stop`](Self::stop) it, or drop it to end it at once.
pub struct AdminServer {
    operator: Arc<dyn Operator>,
    http: Option<Listening<SocketAddr>>,
    control: Listening<PathBuf>,
    name: Name,
}

/// What changes hands in a restart without a gap: the sockets that are open, and by which names.
#[derive(Debug, Default)]
pub struct AdminParcel {
    /// `admin.http` and its socket.
    pub http: Option<(SocketAddr, OwnedFd)>,
    /// `admin.socket`, its socket, and the lock that says whose the name is.
    pub control: Option<(PathBuf, OwnedFd, OwnedFd)>,
}

/// One listener and its task.
struct Listening<A> {
    /// As configured; port 0 stays 0.
    configured: A,
    bound: A,
    /// Another handle of the socket, for a successor.
    handle: OwnedFd,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What the file of the control socket needs when it changes hands.
struct Name {
    lock: OwnedFd,
    given: Arc<AtomicBool>,
}

impl<A> Listening<A> {
    async fn stop(self) {
        drop(self.handle);
        // The receivers are the task and its connections; none left means nothing to stop.
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

/// Listeners that a new config asks for, bound but not serving yet. Dropping them undoes the binding.
#[derive(Debug)]
pub struct Prepared {
    http: Change<Option<Http>>,
    control: Change<Bound>,
}

#[derive(Debug)]
enum Change<T> {
    Keep,
    Replace(T),
}

#[derive(Debug)]
struct Http {
    configured: SocketAddr,
    listener: TcpListener,
}

#[derive(Debug)]
struct Bound {
    configured: PathBuf,
    socket: ControlSocket,
}

impl AdminServer {
    /// Listens and serves. To be called in a tokio runtime.
    ///
    /// # Errors
    /// An address or the socket can't be had; nothing is left behind.
    pub fn start(config: &config::Admin, operator: Arc<dyn Operator>) -> Result<Self, BindError> {
        let http = config.http.map(bind_http).transpose()?;
        let control = bind_control(&config.socket)?;
        Self::serve(http, control, operator)
    }

    /// The same with what a predecessor handed over, whose part ends with it: what the config doesn't want any more is
    /// closed, and the names are ours from now on.
    ///
    /// # Errors
    /// As for [`Self::start`]; the predecessor's sockets and names are untouched then.
    pub fn start_from(
        config: &config::Admin,
        operator: Arc<dyn Operator>,
        parcel: AdminParcel,
    ) -> Result<Self, BindError> {
        let AdminParcel { http, control } = parcel;
        let http = match (config.http, http) {
            (Some(wanted), Some((address, socket))) if wanted == address => {
                Some(Http { configured: wanted, listener: TcpListener::from(socket) })
            }
            (wanted, _) => wanted.map(bind_http).transpose()?,
        };
        let inherited = |(path, socket, lock): (PathBuf, OwnedFd, OwnedFd)| {
            let socket = ControlSocket::inherited(&path, socket, lock)?;
            Ok::<_, ControlError>(Bound { configured: path, socket })
        };
        let (control, left) = match control.map(inherited).transpose()? {
            Some(bound) if bound.configured == config.socket => (bound, None),
            other => (bind_control(&config.socket)?, other),
        };
        let server = Self::serve(http, control, operator)?;
        server.name.given.store(false, Relaxed);
        // Dropped as ours, so that its file goes.
        if let Some(left) = left {
            left.socket.into_parts().1.claim();
        }
        Ok(server)
    }

    fn serve(http: Option<Http>, control: Bound, operator: Arc<dyn Operator>) -> Result<Self, BindError> {
        let http = http.map(|http| serve_http(http, &operator)).transpose()?;
        let (control, name) = serve_control(control, &operator)?;
        Ok(Self { operator, http, control, name })
    }

    /// Other handles of what is open, for a successor.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn parcel(&self) -> io::Result<AdminParcel> {
        let http = self.http.as_ref().map(|http| Ok::<_, io::Error>((http.configured, http.handle.try_clone()?)));
        let control = (self.control.configured.clone(), self.control.handle.try_clone()?, self.name.lock.try_clone()?);
        Ok(AdminParcel { http: http.transpose()?, control: Some(control) })
    }

    /// As [`Self::stop`], while a successor has the sockets: the control socket's file stays.
    pub async fn stop_behind_successor(self) {
        self.name.given.store(true, Relaxed);
        self.stop().await;
    }

    /// Where HTTP is served, the port that was chosen for port 0 included.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|http| http.bound)
    }

    /// Path of the control socket.
    #[must_use]
    pub fn control_path(&self) -> &Path {
        &self.control.bound
    }

    /// Binds what a new config asks for and this server doesn't have, so that a reload can be refused as a whole
    /// before anything changed.
    ///
    /// # Errors
    /// An address or the socket can't be had.
    pub fn prepare(&self, next: &config::Admin) -> Result<Prepared, BindError> {
        let http = if self.http.as_ref().map(|http| http.configured) == next.http {
            Change::Keep
        } else {
            Change::Replace(next.http.map(bind_http).transpose()?)
        };
        let control = if self.control.configured == next.socket {
            Change::Keep
        } else {
            Change::Replace(bind_control(&next.socket)?)
        };
        Ok(Prepared { http, control })
    }

    /// Serves on what was prepared and lets go of what it replaces: no new connections there, the answers under way
    /// are finished (the answer to the reload itself may be one).
    ///
    /// # Errors
    /// The runtime didn't take a listener; the one that it would have replaced goes on.
    pub fn apply(&mut self, Prepared { http, control }: Prepared) -> Result<(), BindError> {
        if let Change::Replace(http) = http {
            let next = http.map(|http| serve_http(http, &self.operator)).transpose()?;
            if let Some(old) = std::mem::replace(&mut self.http, next) {
                tokio::spawn(old.stop());
            }
        }
        if let Change::Replace(control) = control {
            let (next, name) = serve_control(control, &self.operator)?;
            self.name = name;
            tokio::spawn(std::mem::replace(&mut self.control, next).stop());
        }
        Ok(())
    }

    /// Stops accepting, finishes the answers under way (bounded), removes the control socket's file.
    pub async fn stop(self) {
        if let Some(http) = self.http {
            http.stop().await;
        }
        self.control.stop().await;
    }
}

fn bind_http(address: SocketAddr) -> Result<Http, BindError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = bind().map_err(|reason| BindError::Http { address, reason })?;
    Ok(Http { configured: address, listener })
}

fn bind_control(path: &Path) -> Result<Bound, BindError> {
    Ok(Bound { configured: path.to_owned(), socket: ControlSocket::bind(path)? })
}

fn serve_http(http: Http, operator: &Arc<dyn Operator>) -> Result<Listening<SocketAddr>, BindError> {
    let Http { configured, listener } = http;
    let start = || {
        let bound = listener.local_addr()?;
        let handle = listener.as_fd().try_clone_to_owned()?;
        Ok((bound, handle, tokio::net::TcpListener::from_std(listener)?))
    };
    let (bound, handle, listener) = start().map_err(|reason| BindError::Http { address: configured, reason })?;
    let (stop, stopping) = watch::channel(false);
    let router = router(Arc::clone(operator), Control::Refused);
    let task = tokio::spawn(accept_loop(Listener::Tcp(listener), router, stopping));
    Ok(Listening { configured, bound, handle, stop, task })
}

fn serve_control(bound: Bound, operator: &Arc<dyn Operator>) -> Result<(Listening<PathBuf>, Name), BindError> {
    let Bound { configured, socket } = bound;
    let (listener, file) = socket.into_parts();
    let start = || {
        let handle = listener.as_fd().try_clone_to_owned()?;
        let name = Name { lock: file.lock()?, given: file.given() };
        Ok((handle, name, tokio::net::UnixListener::from_std(listener)?))
    };
    let (handle, name, listener) =
        start().map_err(|reason| ControlError::Io { path: configured.clone(), action: "serve it", reason })?;
    let (stop, stopping) = watch::channel(false);
    let router = router(Arc::clone(operator), Control::Allowed);
    let task = tokio::spawn(accept_loop(Listener::Unix { listener, _file: file }, router, stopping));
    Ok((Listening { bound: configured.clone(), configured, handle, stop, task }, name))
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    /// The file goes when the listener does, before the last connections end.
    Unix {
        listener: tokio::net::UnixListener,
        _file: SocketFile,
    },
}

enum Socket {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => Socket::Tcp(listener.accept().await?.0),
            Self::Unix { listener, .. } => Socket::Unix(listener.accept().await?.0),
        })
    }
}

/// Accepts until told to stop, then waits for the connections (each ends by itself within [`GRACE`]).
async fn accept_loop(listener: Listener, router: Router, mut stopping: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let gate = LogGate::new(LOG_INTERVAL);
    let handle = stopping.clone();
    loop {
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stop| *stop) => break,
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                if let Some(suppressed) = gate.pass("accept", Instant::now()) {
                    tracing::warn!(%error, suppressed, "admin: accept failed, trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            if let Some(suppressed) = gate.pass("full", Instant::now()) {
                tracing::warn!(suppressed, "admin: {MAX_CONNECTIONS} connections are open; one more was refused");
            }
            tokio::spawn(async move {
                match socket {
                    Socket::Tcp(stream) => refuse(stream).await,
                    Socket::Unix(stream) => refuse(stream).await,
                }
            });
            continue;
        };
        let (router, stopping) = (router.clone(), handle.clone());
        tokio::spawn(async move {
            match socket {
                Socket::Tcp(stream) => serve(stream, router, stopping).await,
                Socket::Unix(stream) => serve(stream, router, stopping).await,
            }
            drop(permit);
        });
    }
    drop(listener);
    // All permits back: every connection has ended. The semaphore is never closed.
    let _ = permits.acquire_many(MAX_CONNECTIONS as u32).await;
}

/// Tells a connection beyond [`MAX_CONNECTIONS`] why it is closed, without reading from it.
async fn refuse<S: AsyncWrite + Unpin>(mut stream: S) {
    let body = format!("{MAX_CONNECTIONS} admin connections are open already\n");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whoever doesn't take it in time is closed without it.
    let _ = tokio::time::timeout(Duration::from_secs(1), write).await;
}

/// Serves one connection within the bounds above.
async fn serve<S>(stream: S, router: Router, mut stopping: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = tokio::time::sleep(MAX_AGE) => None,
        _ = stopping.wait_for(|stop| *stop) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin: a connection ended early");
    }
}
