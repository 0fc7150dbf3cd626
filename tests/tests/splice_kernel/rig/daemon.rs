//! The daemon's part of a session: relays what reaches its sockets, changes what is its own, gives leave for the rest.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proxy_common::flows::Slot;
use proxy_common::splice::arm::{Arm, Armed};
use proxy_common::splice::notes::{Kind, Note, Notes};
use proxy_common::splice::seq::{InLocal, OutLocal};
use proxy_common::splice::state::Side;

use super::origin::Place;
use super::traffic::{TRAILER, tag};
use crate::session::{LOCAL, MAX_FRAME};
use turnout::splice::mirror::Tap;
use turnout::splice::session::Session;

/// Bytes that wait for a slow receiver before the sender isn't read any more.
const BACKLOG: usize = 1 << 20;
/// API key, version and correlation id behind the size.
const HEADER: usize = 12;

/// What daemons saw, all together.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    pub(super) requests: AtomicU64,
    pub(super) answers: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Sessions that ended in order.
    pub(super) ended: AtomicU64,
}

/// The shared part of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared(pub(super) *mut Slot);

// SAFETY: what is done with the pointer from several threads is below: whole words, read and written as such.
unsafe impl Send for Shared {}

impl Shared {
    fn arm(&self, side: Side) -> &Arm {
        // SAFETY: the slot is mapped for the test's time, and an arm is made of words for sharing.
        unsafe { &(*self.0).session.arms[side.index()] }
    }

    fn notes(&self) -> &Notes {
        // SAFETY: as above.
        unsafe { &(*self.0).session.notes }
    }

    /// The epoch, and what goes with it: bytes to relay before the next frame, and that frame's index.
    fn epoch(&self, side: Side) -> (u32, u32, u32) {
        // SAFETY: the words lie in a mapped slot. The kernel changes the other two with the epoch only, and the daemon
        // asks once it has got bytes that came after.
        unsafe {
            let d = &raw const (*self.0).session.dirs[side.index()];
            let epoch = (&raw const (*d).epoch).read_volatile();
            (epoch, (&raw const (*d).prefix).read_volatile(), (&raw const (*d).frames).read_volatile())
        }
    }
}

/// One direction: what the daemon knows of it.
struct Lane {
    /// Place in x's stream and in y's.
    reads: u32,
    writes: u32,
    epoch: u32,
    /// Bytes to be relayed as they are.
    raw: usize,
    /// A header, or a frame of the daemon's, that isn't whole yet.
    held: Vec<u8>,
    /// Index of the next frame.
    index: u32,
    out: VecDeque<u8>,
    /// The last read found nothing more.
    drained: bool,
    ended: bool,
    shut: bool,
    armed: Option<Armed>,
}

impl Lane {
    fn new(reads: u32, writes: u32) -> Self {
        Self {
            reads,
            writes,
            epoch: 0,
            raw: 0,
            held: vec![],
            index: 0,
            out: VecDeque::new(),
            drained: false,
            ended: false,
            shut: false,
            armed: None,
        }
    }
}

/// A session, by the daemon.
pub(super) struct Daemon {
    shared: Shared,
    /// To the client and to the broker.
    sockets: [TcpStream; 2],
    lanes: [Lane; 2],
    /// Indexes of requests whose answers get a tag.
    mine: VecDeque<u32>,
    /// Whether the kernel is given leave at all.
    arms: bool,
    relayed: Arc<Relayed>,
    /// Takes what is mirrored.
    tap: Option<(Tap, Session)>,
}

const SIDES: [Side; 2] = [Side::Client, Side::Broker];

impl Daemon {
    pub(super) fn new(
        shared: Shared,
        sockets: [TcpStream; 2],
        places: [Place; 2],
        arms: bool,
        relayed: Arc<Relayed>,
        tap: Option<(Tap, Session)>,
    ) -> Self {
        let [client, broker] = places;
        let lanes = [Lane::new(client.reads(), broker.writes()), Lane::new(broker.reads(), client.writes())];
        Self { shared, sockets, lanes, mine: VecDeque::new(), arms, relayed, tap }
    }

    /// Runs until both streams have ended.
    pub(super) fn run(mut self) -> io::Result<()> {
        self.sockets.iter().try_for_each(|s| s.set_nonblocking(true))?;
        let mut buffer = vec![0; 1 << 18];
        loop {
            let mut progress = false;
            for side in SIDES {
                progress |= self.read(side, &mut buffer)?;
            }
            for side in SIDES {
                progress |= self.write(side)?;
            }
            if self.lanes.iter().all(|l| l.shut) {
                self.relayed.ended.fetch_add(1, Ordering::Relaxed);
                return self.linger();
            }
            if !progress {
                SIDES.into_iter().for_each(|side| self.arm(side));
                self.wait()?;
            }
        }
    }

    /// Waits until the other hosts have everything, for a socket that is closed answers for itself.
    fn linger(self) -> io::Result<()> {
        for _ in 0..500 {
            let waiting: io::Result<u32> = self.sockets.iter().map(|s| crate::sys::queued(s, 0x5411)).sum();
            if waiting? == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn wants_to_read(&self, side: Side) -> bool {
        let lane = &self.lanes[side.index()];
        !lane.ended && lane.out.len() < BACKLOG
    }

    fn wait(&self) -> io::Result<()> {
        let mut polls = SIDES.map(|side| {
            let mut events = 0;
            if self.wants_to_read(side) {
                events |= libc::POLLIN;
            }
            if !self.lanes[side.other().index()].out.is_empty() {
                events |= libc::POLLOUT;
            }
            libc::pollfd { fd: self.sockets[side.index()].as_raw_fd(), events, revents: 0 }
        });
        // SAFETY: the pointer is to two of them.
        if unsafe { libc::poll(polls.as_mut_ptr(), 2, 1_000) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn read(&mut self, side: Side, buffer: &mut [u8]) -> io::Result<bool> {
        if !self.wants_to_read(side) {
            return Ok(false);
        }
        let length = match (&self.sockets[side.index()]).read(buffer) {
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.lanes[side.index()].drained = true;
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        let (epoch, prefix, frames) = self.shared.epoch(side);
        let lane = &mut self.lanes[side.index()];
        lane.drained = false;
        if epoch != lane.epoch {
            // The kernel has forwarded since the last read, and has stopped where these bytes begin.
            assert_eq!(epoch, lane.epoch.wrapping_add(2), "{side:?}: one turn of the kernel's at a time");
            assert!(lane.held.is_empty() && lane.out.is_empty(), "{side:?}: leave was given in an even moment");
            (lane.epoch, lane.raw, lane.index, lane.armed) = (epoch, prefix as usize, frames, None);
            if let Some((tap, session)) = &mut self.tap {
                let mirrored = session.notes().get(frames.wrapping_sub(1)).mirrored;
                tap.resume(side, session.tally(side), prefix, mirrored);
            }
        }
        lane.ended = length == 0;
        lane.reads = lane.reads.wrapping_add(length as u32);
        self.relayed.bytes.fetch_add(length as u64, Ordering::Relaxed);
        self.take(side, &buffer[..length]);
        Ok(true)
    }

    /// Looks at bytes of a stream, and puts what is to be written where it is written from.
    fn take(&mut self, side: Side, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let lane = &mut self.lanes[side.index()];
            if lane.raw > 0 {
                let length = lane.raw.min(bytes.len());
                lane.out.extend(&bytes[..length]);
                self.tap.iter_mut().for_each(|(tap, _)| tap.bytes(side, &bytes[..length]));
                lane.raw -= length;
                bytes = &bytes[length..];
                continue;
            }
            let header = if side == Side::Client { HEADER } else { 8 };
            let mine = lane.held.len() >= header;
            let whole = if mine { size(&lane.held) } else { header };
            let length = (whole - lane.held.len()).min(bytes.len());
            lane.held.extend(&bytes[..length]);
            bytes = &bytes[length..];
            if lane.held.len() < whole {
                return;
            }
            match side {
                Side::Client => self.take_request(mine),
                Side::Broker => self.take_answer(mine),
            }
        }
    }

    /// `whole`: not only the header.
    fn take_request(&mut self, whole: bool) {
        let lane = &mut self.lanes[Side::Client.index()];
        if u16::from_be_bytes([lane.held[4], lane.held[5]]) != LOCAL {
            self.shared.notes().set(lane.index, Note { kind: Kind::Plain, mirrored: self.tap.is_some() });
            lane.raw = size(&lane.held) - lane.held.len();
            mirror(&mut self.tap, Side::Client, lane);
        } else if whole {
            self.shared.notes().set(lane.index, Note { kind: Kind::Local, mirrored: false });
            self.mine.push_back(lane.index);
            let kept = lane.held.len() - TRAILER;
            assert_eq!(lane.held[kept..], [1, 2, 3, 4, 5], "the trailer");
            lane.held.truncate(kept);
            let size = (kept - 4) as u32;
            lane.held[..4].copy_from_slice(&size.to_be_bytes());
        } else {
            return;
        }
        lane.out.extend(lane.held.drain(..));
        lane.index = lane.index.wrapping_add(1);
        self.relayed.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn take_answer(&mut self, whole: bool) {
        let lane = &mut self.lanes[Side::Broker.index()];
        if self.mine.front() != Some(&lane.index) {
            lane.raw = size(&lane.held) - lane.held.len();
            mirror(&mut self.tap, Side::Broker, lane);
        } else if whole {
            self.mine.pop_front();
            let correlation = u32::from_be_bytes(lane.held[4..8].try_into().expect("four bytes"));
            lane.held.extend(tag(correlation));
            let size = (lane.held.len() - 4) as u32;
            lane.held[..4].copy_from_slice(&size.to_be_bytes());
        } else {
            return;
        }
        lane.out.extend(lane.held.drain(..));
        lane.index = lane.index.wrapping_add(1);
        self.shared.notes().set_answered(lane.index);
        self.relayed.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&mut self, side: Side) -> io::Result<bool> {
        let lane = &mut self.lanes[side.index()];
        let mut socket = &self.sockets[side.other().index()];
        let mut progress = false;
        while !lane.out.is_empty() {
            match socket.write(lane.out.as_slices().0) {
                Ok(length) => {
                    lane.out.drain(..length);
                    lane.writes = lane.writes.wrapping_add(length as u32);
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if lane.ended && lane.out.is_empty() && !lane.shut {
            lane.shut = true;
            socket.shutdown(Shutdown::Write)?;
            progress = true;
        }
        Ok(progress)
    }

    /// Gives the kernel leave, where the direction is even: all read is written, and nothing is held.
    fn arm(&mut self, side: Side) {
        let lane = &mut self.lanes[side.index()];
        let even = lane.out.is_empty() && lane.held.is_empty() && lane.drained && !lane.ended;
        if !even || !self.arms {
            return;
        }
        let armed = Armed {
            at: InLocal(lane.reads),
            sent: OutLocal(lane.writes),
            frames: lane.index,
            remain: lane.raw as u32,
            epoch: lane.epoch,
        };
        if lane.armed != Some(armed) {
            self.shared.arm(side).arm(&armed);
            lane.armed = Some(armed);
        }
    }
}

/// The frame whose header is held is mirrored.
fn mirror(tap: &mut Option<(Tap, Session)>, side: Side, lane: &Lane) {
    if let Some((tap, _)) = tap {
        tap.begin(side, Some(lane.index), size(&lane.held) as u64);
        tap.bytes(side, &lane.held);
    }
}

/// Bytes of a frame, by its first four.
fn size(frame: &[u8]) -> usize {
    let size = u32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
    assert!((8..=MAX_FRAME).contains(&size), "a frame of {size} bytes: the stream is out of step");
    size as usize + 4
}
