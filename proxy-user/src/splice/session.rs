//! A session in the kernel, as the daemon sees it: memory that both share, and a call to take a direction back.
//!
//! ```text
//!  Splicer::begin ─► Session ── place, turn, traffic … (reads of shared words)
//!                       │────── arm, disarm, notes     (writes of shared words, no system call)
//!                       │────── recall                 (a system call; afterwards the direction is LOCAL)
//!                       └ dropped ─► Splicer: flows stay until no packet of either connection can come any more
//! ```

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use proxy_common::flows::{Recalled, Role, Slot, Traffic};
use proxy_common::splice::arm::Armed;
use proxy_common::splice::mirror::Tally;
use proxy_common::splice::notes::Notes;
use proxy_common::splice::policy::Policy;
use proxy_common::splice::state::Side;

use super::eligible::Obstacle;
use super::mirror::Mirror;

/// Where the two streams of a connection were when its session began: sequence numbers of the local socket's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the next byte that is read from it.
    pub reads: u32,
    /// Of the next byte that is written to it.
    pub writes: u32,
}

/// A direction's turn: which it is, and what goes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Odd: the kernel's (PEER), even: the daemon's (LOCAL).
    pub epoch: u32,
    /// In LOCAL: raw bytes that come before the next frame begins.
    pub prefix: u32,
    /// In LOCAL: index of the frame that begins then. In PEER: of the next one, as of now.
    pub frames: u32,
}

impl Turn {
    /// Whether the kernel forwards.
    #[must_use]
    pub const fn is_peer(self) -> bool {
        self.epoch & 1 == 1
    }
}

/// What sockets must be opened with, so that their connections can be spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// `SO_MARK` of sockets that dial brokers; the programs know their SYNs by it.
    pub mark: u32,
    /// Bytes of receive buffer from the first packet on (`SO_RCVBUFFORCE`): a window that still grows holds large frames
    /// back when the kernel takes over.
    pub receive_buffer: u32,
}

/// Why no session began.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The connections can't be spliced, for the reason given.
    #[error("{0}")]
    Obstacle(Obstacle),
    /// All sessions are taken.
    #[error("all {0} sessions that the kernel's tables have room for are taken")]
    Full(u32),
    /// A socket or the kernel's tables refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl Refusal {
    /// A bounded label for metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Obstacle(obstacle) => obstacle.label(),
            Self::Full(_) => "full",
            Self::System { .. } => "system",
        }
    }
}

/// Where sessions come from. All calls are short and safe from any thread.
pub trait Splicer: Send + Sync + 'static {
    /// Begins a session on two connections, which stay as they are until a direction is armed. `policy`: by which frames
    /// go ([`Self::set_policy`]). Nobody may write to the sockets meanwhile.
    ///
    /// # Errors
    /// [`Refusal`]; the connections are as usable as before.
    fn begin(&self, client: BorrowedFd<'_>, broker: BorrowedFd<'_>, policy: u16) -> Result<Session, Refusal>;

    /// Says which frames of the sessions of a virtual cluster the kernel may pass on, from the next packet on.
    ///
    /// # Errors
    /// The kernel refused.
    fn set_policy(&self, policy: u16, table: &Policy) -> anyhow::Result<()>;

    /// Gives the kernel's copies of mirrored frames to this mirror from now on; the same one each time.
    ///
    /// # Errors
    /// There is no room for copies: the programs were loaded without.
    fn mirror_to(&self, mirror: &Arc<Mirror>) -> anyhow::Result<()> {
        let _ = mirror;
        anyhow::bail!("the kernel's programs were loaded without room for copies of frames")
    }

    /// How sockets are opened.
    fn opening(&self) -> Opening;
}

/// The memory of a session and its keeper; what is behind a [`Session`].
///
/// # Safety
/// `slot` gives a pointer that stays valid for the keeper's life, and to the same session until `end` is called. Nobody but
/// the kernel's programs writes to the slot meanwhile, other than through the words for sharing (arms and notes). A slot
/// that gets another session gets another generation.
pub unsafe trait Keeper: Send + Sync {
    /// Where the session lies.
    fn slot(&self, index: u32) -> *const Slot;

    /// Takes a direction back, under the session's lock.
    fn recall(&self, index: u32, generation: u32, side: Side) -> Recalled;

    /// What the sockets say now: whether nothing came in past the programs while the session began. Asked once, before
    /// the first arm, when every role was seen ([`Session::is_seen`]): from here on the sockets take only what has come by
    /// the programs, from their interfaces. `false`: the connections are as usable as before, and the session is dropped.
    fn is_whole(&self, index: u32, client: BorrowedFd<'_>, broker: BorrowedFd<'_>) -> bool;

    /// Whether the programs still stand where the session's packets come and go. Where they don't, nobody keeps its two
    /// connections in step, and both have to be reset.
    fn stands(&self, index: u32) -> bool;

    /// Of the rings that copies of frames come by: this one's number at the mirror ([`Mirror::ring`]).
    fn ring(&self) -> u64 {
        0
    }

    /// The daemon needs the session no more; its sockets are closed or will be at once.
    fn end(&self, index: u32, generation: u32);
}

/// See the module.
pub struct Session {
    keeper: Arc<dyn Keeper>,
    index: u32,
    generation: u32,
    /// The client's connection and the broker's.
    places: [Place; 2],
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("index", &self.index)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Of a keeper that has just entered it.
    pub fn new(keeper: Arc<dyn Keeper>, index: u32, generation: u32, places: [Place; 2]) -> Self {
        Self { keeper, index, generation, places }
    }

    fn slot(&self) -> *const Slot {
        self.keeper.slot(self.index)
    }

    /// Where the streams of a side's connection were at the beginning.
    #[must_use]
    pub fn place(&self, side: Side) -> Place {
        self.places[side.index()]
    }

    /// Number of the session, for operators.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Whether every role was seen on its interface: packets of both connections come and go past the programs.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        let all = Role::ALL.into_iter().fold(0, |bits, role| bits | 1 << role.number());
        // SAFETY: the pointer is valid by the keeper's promise; the kernel writes the word whole.
        let seen = unsafe { ptr::read_volatile(&raw const (*self.slot()).seen) };
        seen & all == all
    }

    /// Packets that were dropped for their form.
    #[must_use]
    pub fn malformed(&self) -> u32 {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(&raw const (*self.slot()).malformed) }
    }

    /// Whose turn it is in the direction that a side's data has. `prefix` and `frames` belong to the epoch only where
    /// that is even and the daemon has got bytes that came after, or has recalled: the kernel changes them with it.
    #[must_use]
    pub fn turn(&self, side: Side) -> Turn {
        // SAFETY: as above, three words that the kernel writes whole.
        unsafe {
            let d = &raw const (*self.slot()).session.dirs[side.index()];
            let epoch = ptr::read_volatile(&raw const (*d).epoch);
            let prefix = ptr::read_volatile(&raw const (*d).prefix);
            let frames = ptr::read_volatile(&raw const (*d).frames);
            Turn { epoch, prefix, frames }
        }
    }

    /// What went through the kernel in a direction.
    #[must_use]
    pub fn traffic(&self, side: Side) -> Traffic {
        // SAFETY: as above, two words that the kernel writes whole.
        unsafe {
            let traffic = &raw const (*self.slot()).traffic[side.index()];
            Traffic {
                packets: ptr::read_volatile(&raw const (*traffic).packets),
                bytes: ptr::read_volatile(&raw const (*traffic).bytes),
            }
        }
    }

    /// What was marked for the mirror in a direction: all of it where that is the daemon's.
    #[must_use]
    pub fn tally(&self, side: Side) -> Tally {
        // SAFETY: as above, two words that the kernel writes whole.
        unsafe { tally(self.slot(), side) }
    }

    /// For who wants to know what was marked, also after the session has ended.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { keeper: Arc::clone(&self.keeper), index: self.index, generation: self.generation }
    }

    /// What answers belong to.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        // SAFETY: as above; notes are words for sharing, and live as long as the session.
        unsafe { &(*self.slot()).session.notes }
    }

    /// Gives the kernel leave to forward from exactly this point on.
    pub fn arm(&self, side: Side, armed: &Armed) {
        // SAFETY: as above; an arm is made of words for sharing, and this is its only writer.
        unsafe { &(*self.slot()).session.arms[side.index()] }.arm(armed);
    }

    /// Takes the direction back: afterwards it is the daemon's, and [`Self::turn`] says where it goes on. `false`: the lock
    /// was not to be had, as when the CPU that holds it is not running; to be tried again.
    #[must_use]
    pub fn recall(&self, side: Side) -> bool {
        /// Each try waits for the lock itself, for some thousand rounds.
        const TRIES: u32 = 64;
        // SAFETY: as in `arm`.
        unsafe { &(*self.slot()).session.arms[side.index()] }.disarm();
        (0..TRIES).any(|_| match self.keeper.recall(self.index, self.generation, side) {
            Recalled::WasLocal | Recalled::WasPeer | Recalled::Unknown => true,
            Recalled::Busy => {
                std::thread::yield_now();
                false
            }
        })
    }

    /// See [`Keeper::stands`]. A session that the kernel has never forwarded on needs nobody.
    #[must_use]
    pub fn stands(&self) -> bool {
        let is_untouched = [Side::Client, Side::Broker].into_iter().all(|side| self.turn(side).epoch == 0);
        is_untouched || self.keeper.stands(self.index)
    }

    /// See [`Keeper::is_whole`].
    #[must_use]
    pub fn is_whole(&self, client: BorrowedFd<'_>, broker: BorrowedFd<'_>) -> bool {
        self.keeper.is_whole(self.index, client, broker)
    }
}

/// # Safety
/// The pointer is to a slot.
unsafe fn tally(slot: *const Slot, side: Side) -> Tally {
    // SAFETY: by the caller's promise; the words are written whole.
    unsafe {
        let tally = &raw const (*slot).tallies[side.index()];
        Tally {
            packets: ptr::read_volatile(&raw const (*tally).packets),
            frames: ptr::read_volatile(&raw const (*tally).frames),
        }
    }
}

/// What the kernel marked for the mirror on a session, which may have ended.
pub struct Watch {
    keeper: Arc<dyn Keeper>,
    index: u32,
    generation: u32,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("index", &self.index)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// See [`Keeper::ring`].
    #[must_use]
    pub fn ring(&self) -> u64 {
        self.keeper.ring()
    }

    /// The session's slot.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The slot's generation that is the session's.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// By direction; `None`: the slot has another session now.
    #[must_use]
    pub fn tallies(&self) -> Option<[Tally; 2]> {
        let slot = self.keeper.slot(self.index);
        // SAFETY: the pointer is valid by the keeper's promise; the words are written whole.
        unsafe {
            let tallies = [Side::Client, Side::Broker].map(|side| tally(slot, side));
            (ptr::read_volatile(&raw const (*slot).generation) == self.generation).then_some(tallies)
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for side in [Side::Client, Side::Broker] {
            // SAFETY: as in `arm`.
            unsafe { &(*self.slot()).session.arms[side.index()] }.disarm();
        }
        self.keeper.end(self.index, self.generation);
    }
}
