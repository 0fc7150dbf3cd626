//! Clients that put a load on connections and check every answer: a thread that asks and one that reads, each.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::content::Random;
use crate::frames::{Addresses, Answers, Ask, Id, Kind};

/// Longest silence; far above what any retransmission takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Largest answer that anybody asks for.
const MAX_ANSWER: usize = 4 << 20;

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// Requests of a connection that wait for their answers.
    pub(crate) depth: usize,
    /// Requests in a thousand that are the daemon's.
    pub(crate) daemons: u64,
    /// Largest payload of a request, and of an answer.
    pub(crate) largest: usize,
    /// Whether requests are written in pieces of any size, so that headers are split.
    pub(crate) in_pieces: bool,
    /// Between two requests.
    pub(crate) pause: Duration,
}

impl Load {
    pub(crate) const USUAL: Self =
        Self { connections: 8, depth: 4, daemons: 30, largest: 30_000, in_pieces: false, pause: Duration::ZERO };
}

/// What clients saw so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Answers, and of those to the daemon's requests.
    pub(crate) answers: AtomicU64,
    pub(crate) daemons: AtomicU64,
    /// Of requests and answers.
    pub(crate) bytes: AtomicU64,
}

impl Seen {
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

/// How a connection ended.
#[derive(Debug)]
#[expect(dead_code, reason = "what a socket said is for the reports of failures")]
pub(crate) enum End {
    /// The client had all its answers and ended it; the gateway followed.
    Orderly,
    /// FIN, with answers outstanding or before the client ended it.
    Closed {
        /// Inside an answer.
        inside: bool,
    },
    /// Its socket failed.
    Failed(io::Error),
    /// What must never be: wrong bytes, or silence.
    Wrong(anyhow::Error),
}

/// A connection after its end. Its socket stays open, so that the gateway can still be asked about it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) number: u32,
    pub(crate) end: End,
    pub(crate) at: Instant,
    /// Whole answers of the broker.
    pub(crate) answers: u64,
    pub(crate) stream: TcpStream,
}

/// Tells clients what to do meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Ask nothing more.
    pub(crate) stop: AtomicBool,
    /// Read nothing for now.
    pub(crate) hold: AtomicBool,
}

/// A load that goes on until it is stopped.
pub(crate) struct Running {
    pub(crate) seen: Arc<Seen>,
    pub(crate) control: Arc<Control>,
    threads: Vec<JoinHandle<Outcome>>,
    /// Of whom the end is known.
    ended: Arc<AtomicU64>,
}

impl Running {
    /// Begins on connections, each with its number in the test and what its client is told of the brokers.
    pub(crate) fn start(connections: Vec<(u32, TcpStream, Arc<Addresses>)>, load: Load, seed: u64) -> Result<Self> {
        let (seen, control, ended) = (Arc::<Seen>::default(), Arc::<Control>::default(), Arc::<AtomicU64>::default());
        let mut threads = Vec::new();
        for (number, stream, brokers) in connections {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let client = Client {
                number,
                load,
                brokers,
                random: Random::new(seed ^ u64::from(number) << 32),
                seen: Arc::clone(&seen),
                control: Arc::clone(&control),
            };
            let ended = Arc::clone(&ended);
            threads.push(thread::spawn(move || {
                let outcome = client.run(stream);
                ended.fetch_add(1, Ordering::Relaxed);
                outcome
            }));
        }
        Ok(Self { seen, control, threads, ended })
    }

    /// How many connections have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Asks nothing more and waits for every connection's end, which is bounded by [`PATIENCE`].
    pub(crate) fn stop(self) -> Result<Vec<Outcome>> {
        self.control.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    /// Waits for every connection's end.
    pub(crate) fn wait(self) -> Result<Vec<Outcome>> {
        let outcomes = self.threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client panicked")));
        outcomes.collect()
    }
}

struct Client {
    number: u32,
    load: Load,
    brokers: Arc<Addresses>,
    random: Random,
    seen: Arc<Seen>,
    control: Arc<Control>,
}

impl Client {
    fn run(self, stream: TcpStream) -> Outcome {
        let number = self.number;
        let (tell, asked) = sync_channel(self.load.depth - 1);
        let (seen, control, brokers) = (Arc::clone(&self.seen), Arc::clone(&self.control), Arc::clone(&self.brokers));
        let answers = AtomicU64::new(0);
        let failed = Mutex::new(None);
        let (end, at) = thread::scope(|scope| {
            let writer = &stream;
            let failed = &failed;
            scope.spawn(move || {
                if let Err(error) = self.ask(writer, &tell) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            });
            let end = read_all(&stream, &asked, &answers, &seen, &control, &brokers);
            let at = Instant::now();
            // Whoever asks hears of it by this, or by the socket.
            drop(asked);
            if matches!(end, End::Closed { .. } | End::Failed(_)) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            (end, at)
        });
        let writer = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let end = match (end, writer) {
            // The reader had all that was asked for, which was not all.
            (End::Orderly, Some(error)) if is_timeout(&error) => End::Wrong(anyhow!("nothing was taken: {error}")),
            (End::Orderly, Some(error)) => End::Failed(error),
            (end, _) => end,
        };
        let end = match end {
            End::Wrong(error) => End::Wrong(error.context(format!("connection {number}"))),
            end => end,
        };
        Outcome { number, end, at, answers: answers.into_inner(), stream }
    }

    /// The first request is one that the connection is known by, the second one that makes it eligible.
    fn kind(&mut self, number: u32) -> Kind {
        match number {
            0 => Kind::ApiVersions,
            1 => Kind::Plain(0),
            _ if self.random.below(1000) < self.load.daemons => Kind::daemons(&mut self.random),
            _ => Kind::forwarded(&mut self.random),
        }
    }

    /// Mostly small, now and then as large as allowed.
    fn size(&mut self) -> usize {
        let largest = self.load.largest as u64;
        let bound = match self.random.below(10) {
            0..=5 => largest / 60,
            6..=7 => largest / 8,
            _ => largest,
        };
        self.random.below(bound.max(largest.min(500)) + 1) as usize
    }

    fn ask(mut self, mut stream: &TcpStream, tell: &SyncSender<Ask>) -> io::Result<()> {
        // Numbered by themselves: who is answered by the gateway, and all others.
        let mut next = [0u32; 2];
        while !self.control.stop.load(Ordering::Relaxed) {
            let kind = self.kind(next[0]);
            let by_gateway = kind.answered_by() == Answers::Gateway;
            let counter = &mut next[usize::from(by_gateway)];
            let id = Id::new(self.number, *counter, by_gateway);
            *counter += 1;
            let (payload, wanted) = if kind.has_payload() { (self.size(), self.size()) } else { (0, 0) };
            let ask = Ask { id, kind, payload, wanted };
            let out = ask.encode().map_err(io::Error::other)?;
            if kind.answered_by() != Answers::Nobody && tell.send(ask).is_err() {
                return Ok(());
            }
            self.write(stream, &out)?;
            self.seen.bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
            if !self.load.pause.is_zero() {
                thread::sleep(self.load.pause);
            }
        }
        stream.flush()?;
        stream.shutdown(Shutdown::Write)
    }

    fn write(&mut self, mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = if self.load.in_pieces {
                let bound = [9, 100, 3_000, 60_000][self.random.below(4) as usize];
                rest.len().min(1 + self.random.below(bound) as usize)
            } else {
                rest.len()
            };
            stream.write_all(&rest[..length])?;
            rest = &rest[length..];
        }
        Ok(())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    // SO_RCVTIMEO; TimedOut would be what TCP itself gave up.
    error.kind() == io::ErrorKind::WouldBlock
}

fn read_all(
    stream: &TcpStream,
    asked: &Receiver<Ask>,
    answers: &AtomicU64,
    seen: &Seen,
    control: &Control,
    brokers: &Addresses,
) -> End {
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let mut body = Vec::new();
    while let Ok(ask) = asked.recv() {
        while control.hold.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        if let Err(end) = read_answer(&mut reader, &mut body) {
            return end.about(&ask);
        }
        let nth = answers.load(Ordering::Relaxed) as u32;
        if let Err(error) = ask.check(&body, nth, brokers) {
            return End::Wrong(error);
        }
        let by_broker = ask.kind.answered_by() == Answers::Broker;
        answers.fetch_add(by_broker.into(), Ordering::Relaxed);
        seen.answers.fetch_add(1, Ordering::Relaxed);
        seen.daemons.fetch_add(ask.kind.is_daemons().into(), Ordering::Relaxed);
        seen.bytes.fetch_add(body.len() as u64 + 4, Ordering::Relaxed);
    }
    match reader.read(&mut [0]) {
        Ok(0) => End::Orderly,
        Ok(_) => End::Wrong(anyhow!("something follows the last answer")),
        Err(error) if is_timeout(&error) => End::Wrong(anyhow!("no end in {PATIENCE:?} after the last answer")),
        Err(error) => End::Failed(error),
    }
}

impl End {
    fn about(self, ask: &Ask) -> Self {
        match self {
            Self::Wrong(error) => Self::Wrong(error.context(format!("the answer to {ask:?}"))),
            end => end,
        }
    }
}

/// Reads an answer behind its size field.
fn read_answer(reader: &mut impl Read, body: &mut Vec<u8>) -> Result<(), End> {
    let mut size = [0; 4];
    fill(reader, &mut size, true)?;
    let length = i32::from_be_bytes(size);
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= MAX_ANSWER) else {
        return Err(End::Wrong(anyhow!("an answer of {length} bytes")));
    };
    body.resize(length, 0);
    fill(reader, body, false)
}

fn fill(reader: &mut impl Read, to: &mut [u8], is_first: bool) -> Result<(), End> {
    let mut done = 0;
    while done < to.len() {
        match reader.read(&mut to[done..]) {
            Ok(0) => return Err(End::Closed { inside: !is_first || done > 0 }),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => {
                return Err(End::Wrong(anyhow!("nothing came for {PATIENCE:?}, at byte {done} of {}", to.len())));
            }
            Err(error) => return Err(End::Failed(error)),
        }
    }
    Ok(())
}

/// One request and its answer on a connection that nobody else uses; `number`: which request of it, `nth`: which answer
/// of the broker.
pub(crate) fn call(stream: &TcpStream, ask: Ask, nth: u32, brokers: &Addresses) -> Result<()> {
    (&mut &*stream).write_all(&ask.encode()?).context("asking")?;
    let mut body = Vec::new();
    read_answer(&mut &*stream, &mut body).map_err(|end| anyhow!("{end:?} instead of the answer to {ask:?}"))?;
    ask.check(&body, nth, brokers)
}

/// Fails unless every one of these ended in good order.
pub(crate) fn all_orderly(outcomes: &[Outcome]) -> Result<()> {
    for outcome in outcomes {
        ensure!(matches!(outcome.end, End::Orderly), "connection {}: {:?}", outcome.number, outcome.end);
    }
    Ok(())
}
