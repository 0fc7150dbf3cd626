//! A broker that knows what every request has to be, and can misbehave as a host or a process does.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use harness::netns::Netns;
use harness::raw::{RequestFrame, answer};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, MetadataRequest};
use socket2::{Domain, SockRef, Socket, Type};

use crate::frames::{self, API_VERSIONS, Addresses, Answers, Ask, CLIENT_ID, METADATA};

/// Largest request that anybody sends here.
const MAX_REQUEST: usize = 4 << 20;

/// Kafka's default of `socket.receive.buffer.bytes`.
const RECEIVE_BUFFER: usize = 102_400;

/// A connection of a test's client, as its broker sees it.
#[derive(Debug)]
pub(crate) struct Served {
    stream: TcpStream,
    /// Which connection of the test; none before the first request, or where it is the gateway's own.
    number: AtomicU32,
    /// Requests that are due an answer.
    received: AtomicU64,
    /// Produce requests: those that are due an answer, and all.
    produced: [AtomicU64; 2],
    /// Answers written whole.
    answered: AtomicU64,
    ended: Mutex<Option<Instant>>,
    wrong: Mutex<Option<String>>,
}

const NOBODYS: u32 = u32::MAX;

impl Served {
    /// Requests that are due an answer of this broker.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Produce requests that it got: those that are due an answer, and all.
    pub(crate) fn produced(&self) -> [u64; 2] {
        self.produced.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// When it ended, if it did.
    pub(crate) fn ended(&self) -> Option<Instant> {
        *lock(&self.ended)
    }

    fn is_clients(&self) -> bool {
        self.number.load(Ordering::Relaxed) != NOBODYS
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Shared {
    addresses: Addresses,
    connections: Mutex<Vec<Arc<Served>>>,
    /// Nothing is read.
    is_paused: AtomicBool,
    /// Whoever has nothing more to read ends by RST.
    resets: AtomicBool,
    over: AtomicBool,
}

/// See the module; its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    netns: String,
    at: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<(TcpListener, JoinHandle<()>)>,
}

impl Broker {
    /// Listens in a namespace. `addresses`: of all brokers, as this one tells them.
    pub(crate) fn start(netns: &Netns, at: SocketAddr, addresses: &Addresses) -> Result<Self> {
        let shared = Arc::new(Shared {
            addresses: addresses.clone(),
            connections: Mutex::default(),
            is_paused: AtomicBool::new(false),
            resets: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let mut broker = Self { netns: netns.name().to_owned(), at, shared, listener: None };
        broker.listen(netns)?;
        Ok(broker)
    }

    /// Begins to accept, again after a [`Self::kill`].
    pub(crate) fn listen(&mut self, netns: &Netns) -> Result<()> {
        ensure!(netns.name() == self.netns, "the broker lives in {}", self.netns);
        let at = self.at;
        let listener = netns.run(|| listen(at))?.with_context(|| format!("a broker at {at}"))?;
        let (accepts, shared) = (listener.try_clone()?, Arc::clone(&self.shared));
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = accepts.accept() {
                if let Err(error) = begin(&shared, stream) {
                    eprintln!("a broker's connection: {error:#}");
                }
            }
        });
        self.listener = Some((listener, thread));
        Ok(())
    }

    /// Connections of clients, those that have ended too.
    pub(crate) fn served(&self) -> Vec<Arc<Served>> {
        lock(&self.shared.connections).iter().filter(|served| served.is_clients()).cloned().collect()
    }

    /// The one with this number, the last one where several had it.
    pub(crate) fn served_to(&self, number: u32) -> Option<Arc<Served>> {
        self.served().into_iter().rfind(|served| served.number.load(Ordering::Relaxed) == number)
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        lock(&self.shared.connections).iter().filter(|served| served.ended().is_none()).count()
    }

    /// What was found wrong with requests, if anything was.
    pub(crate) fn check(&self) -> Result<()> {
        let wrongs: Vec<_> = self.served().iter().filter_map(|served| lock(&served.wrong).clone()).collect();
        ensure!(wrongs.is_empty(), "the broker at {} was sent {}: {}", self.at, wrongs.len(), wrongs.join("; "));
        Ok(())
    }

    /// Nothing is read until told otherwise.
    pub(crate) fn pause(&self, on: bool) {
        self.shared.is_paused.store(on, Ordering::Relaxed);
    }

    /// Ends what clients have with FIN where it stands, which answers that wait to be written don't survive.
    pub(crate) fn finish_all(&self) {
        self.served().iter().for_each(|served| drop(served.stream.shutdown(Shutdown::Write)));
    }

    /// Ends what clients have with RST.
    pub(crate) fn reset_all(&self) {
        self.shared.resets.store(true, Ordering::Relaxed);
        for served in self.served() {
            let _ = SockRef::from(&served.stream).set_linger(Some(Duration::ZERO));
            // Linux resets the connection of a socket that is "connected" to nobody.
            disconnect(&served.stream);
        }
        self.shared.resets.store(false, Ordering::Relaxed);
    }

    /// Ends as a process that is killed: nobody listens, and every connection is closed.
    pub(crate) fn kill(&mut self) {
        if let Some((listener, thread)) = self.listener.take() {
            // Wakes the thread, which holds the listener too.
            let _ = SockRef::from(&listener).shutdown(Shutdown::Both);
            let _ = thread.join();
        }
        for served in lock(&self.shared.connections).iter() {
            let _ = served.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.kill();
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(&at.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

/// `connect` to AF_UNSPEC: the kernel sends RST and forgets the connection.
pub(crate) fn disconnect(stream: &TcpStream) {
    use std::os::fd::AsRawFd as _;
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the address outlives the call, and its length is that of its type.
    unsafe { libc::connect(stream.as_raw_fd(), &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

fn begin(shared: &Arc<Shared>, stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let served = Arc::new(Served {
        stream: stream.try_clone()?,
        number: AtomicU32::new(NOBODYS),
        received: AtomicU64::new(0),
        produced: Default::default(),
        answered: AtomicU64::new(0),
        ended: Mutex::default(),
        wrong: Mutex::default(),
    });
    lock(&shared.connections).push(Arc::clone(&served));
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        if let Err(error) = serve(&shared, &served, stream) {
            // A connection that breaks is what some tests are about; bytes that are wrong never are.
            if error.downcast_ref::<io::Error>().is_none() {
                *lock(&served.wrong) = Some(format!("{error:#}"));
            }
        }
        let _ = served.stream.shutdown(Shutdown::Both);
        *lock(&served.ended) = Some(Instant::now());
    });
    Ok(())
}

fn serve(shared: &Shared, served: &Served, mut stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    let mut body = Vec::new();
    for number in 0u32.. {
        while shared.is_paused.load(Ordering::Relaxed) && !shared.over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        if !read_request(&mut reader, &mut body)? {
            return Ok(());
        }
        if number == 0 && client_id(&body) != Some(CLIENT_ID.as_bytes()) {
            return serve_gateway(shared, &mut reader, &mut stream, body);
        }
        let ask = Ask::read(&body).with_context(|| format!("request {number} of a connection"))?;
        ensure!(ask.id.follows(number), "request {ask:?} where number {number} is due");
        if number == 0 {
            served.number.store(ask.id.connection(), Ordering::Relaxed);
        }
        let first = served.number.load(Ordering::Relaxed);
        ensure!(ask.id.connection() == first, "request {ask:?} on connection {first}");
        let is_answered = ask.kind.answered_by() != Answers::Nobody;
        if ask.kind.is_produce() {
            served.produced[0].fetch_add(is_answered.into(), Ordering::Relaxed);
            served.produced[1].fetch_add(1, Ordering::Relaxed);
        }
        if !is_answered {
            continue;
        }
        let nth = served.received.fetch_add(1, Ordering::Relaxed) as u32;
        let bytes = ask.answer(nth, &shared.addresses)?.context("a request that a broker can't answer")?;
        stream.write_all(&bytes)?;
        served.answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads a request behind its size field. `false`: the connection ended before it.
fn read_request(reader: &mut impl Read, body: &mut Vec<u8>) -> Result<bool> {
    let mut size = [0; 4];
    match reader.read_exact(&mut size) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let size = usize::try_from(i32::from_be_bytes(size)).context("a negative size")?;
    ensure!(size <= MAX_REQUEST, "a request of {size} bytes");
    body.resize(size, 0);
    reader.read_exact(body)?;
    Ok(true)
}

fn client_id(body: &[u8]) -> Option<&[u8]> {
    let length = body.get(8..10).map(|length| i16::from_be_bytes([length[0], length[1]]))?;
    body.get(10..10 + usize::try_from(length).ok()?)
}

/// Answers the gateway's own client.
fn serve_gateway(shared: &Shared, reader: &mut impl Read, stream: &mut TcpStream, first: Vec<u8>) -> Result<()> {
    let mut body = first;
    loop {
        let frame = RequestFrame::new(Bytes::copy_from_slice(&body))?;
        let (version, id) = (frame.api_version, frame.correlation_id);
        let bytes = match frame.api_key {
            API_VERSIONS if version <= 4 => answer::<ApiVersionsRequest>(version, id, &frames::api_versions(0))?,
            API_VERSIONS => answer::<ApiVersionsRequest>(0, id, &ApiVersionsResponse::default().with_error_code(35))?,
            METADATA => answer::<MetadataRequest>(version, id, &frames::metadata_of(&shared.addresses))?,
            key => bail!("the gateway's own client asks {key}"),
        };
        stream.write_all(&bytes)?;
        if !read_request(reader, &mut body)? {
            return Ok(());
        }
    }
}
