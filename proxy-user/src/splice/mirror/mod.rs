//! The mirror: exact copies of frames that pass, whoever passes them on, given to who wants them.
//!
//! ```text
//!  kernel ── pieces in a ring ── thread ─┐
//!                                        ├─► Assembly (one for each connection) ─► Mirrored
//!  gateway ── Tap: what it relays ───────┘
//! ```
//! The kernel's copies and the daemon's own are put together in the order of the stream ([`assembly`]); what is given is
//! whole frames, each once, and what could not be had is counted by cause. Passing frames on never waits for any of it.

pub mod assembly;
mod desk;
mod tap;
mod way;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use proxy_common::splice::state::Side;

pub use self::desk::{LOOK, Mirror};
pub use self::tap::Tap;

/// A connection, for as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a frame was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The ring had no room for the kernel's copy: the reader is too slow for it (`fast_path.mirror_buffer`).
    Ring,
    /// The daemon had no room to keep it until it is whole (`fast_path.mirror_buffer`).
    Memory,
    /// Its parts did not fit together: the kernel no longer knew that the frame under way is mirrored.
    Torn,
    /// The connection ended within it.
    Cut,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 4] = [Self::Ring, Self::Memory, Self::Torn, Self::Cut];

    /// A bounded label for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Memory => "memory",
            Self::Torn => "torn",
            Self::Cut => "cut",
        }
    }
}

/// What a mirror gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A whole frame, size field included.
    Frame {
        /// The client's: a request; the broker's: an answer.
        side: Side,
        /// Which of the connection's requests that get an answer, or which answer; indexes wrap. `None`: a request that
        /// gets none.
        index: Option<u32>,
        /// The frame.
        frame: Bytes,
    },
    /// So many frames are missing here.
    Lost {
        /// Of which direction.
        side: Side,
        /// How many.
        frames: u32,
        /// Why.
        cause: Cause,
    },
    /// Nothing more comes of the connection.
    Ended,
}

/// Who wants the copies of which virtual cluster.
pub trait Consumers: Send + Sync + 'static {
    /// `None`: nobody, and nothing is copied.
    fn of(&self, virtual_cluster: &str) -> Option<Arc<dyn Mirrored>>;
}

/// Who wants copies. Called by the threads that pass frames on, for one connection at a time and in the order of each
/// direction's stream: it must not block, and not call the mirror. An answer may come before its request, where that
/// waits for something missing.
pub trait Mirrored: Send + Sync + 'static {
    /// See [`Event`].
    fn take(&self, connection: ConnectionId, event: Event);
}
