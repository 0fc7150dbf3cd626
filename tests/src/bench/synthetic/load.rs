//! As fast as it goes: many connections, each with a fixed number of requests in flight.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::wire::Template;

/// A peer that is silent for this long fails the run.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const BUFFER: usize = 64 * 1024;
const MAX_ANSWER: usize = 16 << 20;

/// What a run moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Requests answered.
    pub(crate) requests: u64,
    /// Bytes of requests and answers, size fields included.
    pub(crate) bytes: u64,
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
}

/// Keeps `depth` requests in flight on each of `connections` for `duration`, then waits for the answers due.
///
/// # Errors
/// A connection is refused or closed, or an answer is out of order.
pub(crate) fn run(
    address: SocketAddr,
    template: &Template,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<Moved> {
    run_on(open(address, connections)?, template, depth, duration)
}

/// Opens so many connections.
///
/// # Errors
/// One is refused.
pub(crate) fn open(address: SocketAddr, connections: usize) -> Result<Vec<TcpStream>> {
    (0..connections).map(|_| connect(address)).collect()
}

/// As [`run`], on connections that are open and have nothing in flight.
///
/// # Errors
/// One is closed, or an answer is out of order.
pub(crate) fn run_on(streams: Vec<TcpStream>, template: &Template, depth: usize, duration: Duration) -> Result<Moved> {
    let start = Barrier::new(streams.len() + 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = streams
            .into_iter()
            .map(|stream| {
                let (start, stop, template) = (&start, &stop, template.clone());
                scope.spawn(move || {
                    start.wait();
                    one(stream, template, depth, stop)
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        let mut total = Moved::default();
        for thread in threads {
            let moved = thread.join().map_err(|_| anyhow::anyhow!("a load thread panicked"))??;
            total.requests += moved.requests;
            total.bytes += moved.bytes;
        }
        total.elapsed = begin.elapsed();
        Ok(total)
    })
}

fn one(mut output: TcpStream, mut template: Template, depth: usize, stop: &AtomicBool) -> Result<Moved> {
    let mut answers = Answers::new(output.try_clone()?);
    let mut moved = Moved::default();
    let mut sent = 0;
    while sent < depth as i32 {
        output.write_all(template.numbered(sent))?;
        sent += 1;
    }
    for id in 0.. {
        if id == sent {
            break;
        }
        moved.bytes += answers.expect(id)? as u64;
        moved.requests += 1;
        if !stop.load(Ordering::Relaxed) {
            output.write_all(template.numbered(sent))?;
            sent += 1;
        }
    }
    moved.bytes += moved.requests * template.size() as u64;
    Ok(moved)
}

pub(super) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The answers of one connection.
pub(super) struct Answers {
    input: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Answers {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { input: BufReader::with_capacity(BUFFER, stream), body: Vec::new() }
    }

    /// Reads the next answer, which must be to request `id`; its length, size field included.
    pub(super) fn expect(&mut self, id: i32) -> Result<usize> {
        let mut size = [0; 4];
        self.input.read_exact(&mut size).with_context(|| format!("waiting for answer {id}"))?;
        let size = usize::try_from(i32::from_be_bytes(size)).context("a negative size")?;
        ensure!((4..=MAX_ANSWER).contains(&size), "an answer of {size} bytes");
        self.body.resize(size.max(self.body.len()), 0);
        self.input.read_exact(&mut self.body[..size]).with_context(|| format!("inside answer {id}"))?;
        let found = i32::from_be_bytes([self.body[0], self.body[1], self.body[2], self.body[3]]);
        ensure!(found == id, "answer {found} where {id} was due");
        Ok(4 + size)
    }
}
