//! The ring that the programs put copies into, and the thread that reads it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};

use super::sessions::Shared;
use super::sys::wait_readable;
use crate::splice::mirror::{LOOK, Mirror};

/// How long the thread sleeps at most, so that it sees when nobody needs it any more.
const SLEEP: Duration = Duration::from_millis(250);

/// Bytes of a ring for so much: a power of two, in whole pages.
pub(super) fn size(buffer: u64) -> u32 {
    const LEAST: u64 = 64 << 10;
    const MOST: u64 = 1 << 30;
    buffer.clamp(LEAST, MOST).next_power_of_two() as u32
}

/// A ring, and how much it has room for.
pub(super) struct Ring {
    pub(super) map: RingBuf<MapData>,
    pub(super) size: u32,
}

/// Reads the ring for as long as the sessions, or who waits for the rest of one, are there. `number`: the ring's, at the
/// mirror.
pub(super) fn start(ring: Ring, number: u64, mirror: &Arc<Mirror>, shared: &Arc<Shared>) -> io::Result<()> {
    let (mirror, shared) = (Arc::clone(mirror), Arc::downgrade(shared));
    thread::Builder::new().name("mirror".into()).spawn(move || read(ring, number, &mirror, &shared)).map(drop)
}

fn read(Ring { map: mut ring, size }: Ring, number: u64, mirror: &Mirror, shared: &Weak<Shared>) {
    let mut next = Instant::now();
    while shared.strong_count() > 0 {
        // Under a load that never lets it become empty, all that stood in it is read after its size in bytes.
        let mut read = 0;
        while read < size as usize
            && let Some(record) = ring.next()
        {
            mirror.piece(number, &record);
            read += record.len();
        }
        let is_waiting = mirror.is_waiting();
        let now = Instant::now();
        if is_waiting && now >= next {
            mirror.look(now);
            next = now + LOOK;
        }
        if read >= size as usize {
            continue;
        }
        if let Err(error) = wait_readable(ring.as_fd().as_raw_fd(), if is_waiting { LOOK } else { SLEEP }) {
            tracing::warn!("waiting for copies of frames: {error}");
            thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_power_of_two() {
        assert_eq!(size(0), 64 << 10);
        assert_eq!(size(32 << 20), 32 << 20);
        assert_eq!(size((32 << 20) + 1), 64 << 20);
        assert_eq!(size(u64::MAX), 1 << 30);
    }
}
