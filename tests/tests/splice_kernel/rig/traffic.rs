//! Clients and brokers that know what every byte has to be.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use proxy_common::splice::state::Side;

use crate::session::{FORWARDED, LOCAL};

/// Bytes of a request of the daemon's that the daemon takes off.
pub(super) const TRAILER: usize = 5;
const REQUEST_FIXED: usize = 12;
const ANSWER_FIXED: usize = 8;
/// Longest silence; far above what any retransmission takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that the daemon puts behind an answer of its own.
pub(super) fn tag(correlation: u32) -> Vec<u8> {
    vec![0xa5; (correlation % 97 + 1) as usize]
}

/// What every payload is a piece of.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        (0..1 << 18).flat_map(|_| random.next().to_le_bytes()).collect()
    })
}

fn piece(of: u32, length: usize) -> &'static [u8] {
    let noise = noise();
    let at = Random(u64::from(of) << 17 | 1).next() as usize % (noise.len() - length);
    &noise[at..at + length]
}

/// Xorshift.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    /// Mostly small, now and then as large as allowed.
    fn size(&mut self, largest: usize) -> usize {
        let bound = match self.below(10) {
            0..=5 => 500,
            6..=7 => 4_000,
            8 => 30_000,
            _ => largest as u64,
        };
        self.below(bound.min(largest as u64)) as usize
    }
}

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    /// Requests of a connection that wait for their answers.
    pub(super) depth: usize,
    /// Requests in a thousand that are the daemon's.
    pub(super) daemons: u64,
    /// Largest payload of a request, and of an answer.
    pub(super) largest: usize,
    /// Whether streams are written in pieces of any size, so that headers are split.
    pub(super) in_pieces: bool,
    pub(super) lasts: Duration,
}

/// What clients saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) frames: AtomicU64,
    pub(super) daemons: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Answers that took longer than 150 ms.
    pub(super) slow: AtomicU64,
}

fn write_all(stream: &mut TcpStream, bytes: &[u8], random: &mut Random, in_pieces: bool) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let bound = if in_pieces { [9, 100, 3_000, 60_000][random.below(4) as usize] } else { u64::MAX };
        let length = rest.len().min(1 + random.below(bound) as usize);
        let length = if in_pieces { length } else { rest.len() };
        stream.write_all(&rest[..length])?;
        rest = &rest[length..];
    }
    Ok(())
}

/// Answers every connection of a listener until it is closed.
pub(super) fn serve(listener: TcpListener, in_pieces: bool) {
    thread::spawn(move || {
        for (nth, stream) in listener.incoming().enumerate() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || answer(stream, Random(nth as u64 * 31 + 7), in_pieces));
        }
    });
}

fn answer(mut stream: TcpStream, mut random: Random, in_pieces: bool) {
    stream.set_nodelay(true).expect("no delay");
    let mut reader = io::BufReader::with_capacity(1 << 16, stream.try_clone().expect("a copy"));
    let mut body = vec![];
    for nth in 0u32.. {
        let mut size = [0; 4];
        match reader.read_exact(&mut size) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return,
            Err(e) => return eprintln!("broker, request {nth}: {e}"),
        }
        body.resize(u32::from_be_bytes(size) as usize, 0);
        reader.read_exact(&mut body).unwrap_or_else(|e| panic!("broker, request {nth}: {e}"));
        let word = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().expect("four bytes"));
        let (correlation, length) = (word(4), word(8) as usize);
        let payload = &body[REQUEST_FIXED..];
        assert!(payload == piece(correlation, payload.len()), "broker: request {nth} ({correlation}) is damaged");
        let mut out = ((ANSWER_FIXED + length) as u32).to_be_bytes().to_vec();
        out.extend(correlation.to_be_bytes());
        out.extend(nth.to_be_bytes());
        out.extend(piece(!correlation, length));
        if write_all(&mut stream, &out, &mut random, in_pieces).is_err() {
            return;
        }
    }
}

/// A copied frame, which [`FORWARDED`] requests and their answers are.
pub(super) fn check_copy(side: Side, index: u32, frame: &[u8]) {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0) as usize + 4, frame.len(), "{side:?} {index}: the size");
    let (head, payload, of) = match side {
        Side::Client => {
            assert_eq!(u16::from_be_bytes([frame[4], frame[5]]), FORWARDED, "request {index} is not mirrored");
            assert_eq!(word(8) & 0x00ff_ffff, index + 1, "request {index} has another's number");
            (4 + REQUEST_FIXED, &frame[4 + REQUEST_FIXED..], word(8))
        }
        Side::Broker => {
            assert_eq!(word(8), index, "answer {index} is another's");
            (4 + ANSWER_FIXED, &frame[4 + ANSWER_FIXED..], !word(4))
        }
    };
    assert!(payload == piece(of, frame.len() - head), "{side:?} {index} is damaged");
}

struct Asked {
    correlation: u32,
    daemons: bool,
    length: usize,
    at: Instant,
}

/// Puts a load on connections, checks every answer, and ends each connection in order.
pub(super) fn run(connections: Vec<TcpStream>, load: Load, seen: &Arc<Seen>) {
    let ends = Instant::now() + load.lasts;
    thread::scope(|scope| {
        for (nth, stream) in connections.into_iter().enumerate() {
            stream.set_nodelay(true).expect("no delay");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            let (tell, asked) = sync_channel(load.depth);
            let writer = stream.try_clone().expect("a copy");
            let counts = Arc::clone(seen);
            scope.spawn(move || ask(writer, nth as u32, load, ends, &tell, &counts));
            let counts = Arc::clone(seen);
            scope.spawn(move || check(stream, nth, &asked, &counts));
        }
    });
}

fn ask(mut stream: TcpStream, nth: u32, load: Load, ends: Instant, tell: &SyncSender<Asked>, seen: &Seen) {
    let mut random = Random(u64::from(nth) * 77 + 0xabcdef);
    for number in 1u32.. {
        if Instant::now() >= ends {
            break;
        }
        let correlation = nth << 24 | number;
        let daemons = random.below(1_000) < load.daemons;
        let (length, payload) = (random.size(load.largest), random.size(load.largest));
        let trailer = if daemons { TRAILER } else { 0 };
        let mut out = ((REQUEST_FIXED + payload + trailer) as u32).to_be_bytes().to_vec();
        out.extend(if daemons { LOCAL } else { FORWARDED }.to_be_bytes());
        out.extend(9u16.to_be_bytes());
        out.extend(correlation.to_be_bytes());
        out.extend((length as u32).to_be_bytes());
        out.extend(piece(correlation, payload));
        out.extend(&[1, 2, 3, 4, 5][..trailer]);
        seen.bytes.fetch_add((out.len() + length) as u64, Ordering::Relaxed);
        if tell.send(Asked { correlation, daemons, length, at: Instant::now() }).is_err() {
            return;
        }
        write_all(&mut stream, &out, &mut random, load.in_pieces).unwrap_or_else(|e| panic!("client {nth}: {e}"));
    }
    stream.shutdown(Shutdown::Write).unwrap_or_else(|e| panic!("client {nth}: {e}"));
}

fn check(stream: TcpStream, nth: usize, asked: &Receiver<Asked>, seen: &Seen) {
    let mut reader = io::BufReader::with_capacity(1 << 16, stream);
    let mut body = vec![];
    let mut number = 0u32;
    while let Ok(Asked { correlation, daemons, length, at }) = asked.recv() {
        let what = format!("client {nth}, answer {number} (daemon's: {daemons})");
        let mut size = [0; 4];
        reader.read_exact(&mut size).unwrap_or_else(|e| panic!("{what}: {e}"));
        let tag = if daemons { tag(correlation) } else { vec![] };
        let expected = ANSWER_FIXED + length + tag.len();
        assert_eq!(u32::from_be_bytes(size) as usize, expected, "{what}: its size");
        body.resize(expected, 0);
        reader.read_exact(&mut body).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(body[..4], correlation.to_be_bytes(), "{what}: its correlation id");
        assert_eq!(body[4..8], number.to_be_bytes(), "{what}: its place");
        let payload = &body[ANSWER_FIXED..ANSWER_FIXED + length];
        assert!(payload == piece(!correlation, length), "{what} is damaged");
        assert!(body[ANSWER_FIXED + length..] == tag[..], "{what}: its tag");
        number += 1;
        seen.frames.fetch_add(1, Ordering::Relaxed);
        seen.daemons.fetch_add(daemons.into(), Ordering::Relaxed);
        seen.slow.fetch_add((at.elapsed() > Duration::from_millis(150)).into(), Ordering::Relaxed);
    }
    let mut rest = [0; 1];
    let end = reader.read(&mut rest).unwrap_or_else(|e| panic!("client {nth}, the end: {e}"));
    assert_eq!(end, 0, "client {nth}: something follows the last answer");
}
