//! Sessions begun, looked after and ended: what the gateway has of the splice.
//!
//! **No byte may be unknown.** A session is made from what its sockets say (`Place`), and packets reach the programs from
//! the moment its flows are entered. Packets that come in between, the programs don't know of. Of these
//! - bytes in order are harmless: a direction is armed at the place where the daemon's read found nothing more, and so
//!   behind them;
//! - acknowledgments and windows are repeated by any later packet;
//! - bytes *behind a hole* are not: the socket keeps them, and once the hole is filled by packets that the programs do
//!   know of, an arm at the hole would hold, and the socket would deliver the rest in the middle of another segment.
//!
//! So [`Keeper::is_whole`] says no where a socket has got anything out of order since its place was read
//! (`tcpi_rcv_ooopack`), unless nothing of that can be left: all that its host was allowed to send at that time has come
//! in order, or the direction began with a window's margin (`Origin::x_had_early`) and the window has not moved on until
//! the flows were there.
//!
//! **Until the first arm the connections are as they were.** What can't be taken back, or would harm a connection whose
//! packets come by another way than was thought, waits for [`Keeper::is_whole`]: the filter that takes stamped packets
//! only, the tie to the interface, and the end of keepalives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aya::programs::ProgramFd;
use proxy_common::flows::{FlowEntry, POLICIES, Recalled, SESSIONS, Slot};
use proxy_common::splice::policy::Policy;
use proxy_common::splice::state::{Dir, Leg, Session as State, Side};
use proxy_common::tables::Address;
use socket2::SockRef;

use super::place::{Place, origin};
use super::ring::{self, Ring};
use super::route::{Question, Routes};
use super::slots::{Ended, Slots, next_generation};
use super::sys::{Memory, option, run_classifier, set_option, tcp_info};
use super::tables::Tables;
use crate::kernel::EdgeError;
use crate::splice::eligible::{self, Obstacle, TcpInfo};
use crate::splice::mirror::Mirror;
use crate::splice::session::{self, Keeper, Opening, Refusal, Session, Splicer};

/// How sockets are opened. The mark is "turn": unlikely to be anybody else's.
///
/// The buffer is what a host is promised before its connection is spliced, and a promise is not taken back: that much it
/// may send at once to a receiver that has less room. 4 MiB, which let large frames pass without a pause, made hosts
/// overrun brokers and clients with Kafka's default of 64 KiB to 100 KiB by megabytes.
const OPENING: Opening = Opening { mark: 0x7475_726e, receive_buffer: 256 << 10 };
/// include/uapi/asm-generic/socket.h
const SO_BINDTOIFINDEX: libc::c_int = 62;
const SIDES: [Side; 2] = [Side::Client, Side::Broker];

/// What programs and daemon share, and who uses it.
pub(super) struct Shared {
    memory: Memory,
    recall: ProgramFd,
    stamped: ProgramFd,
    routes: Routes,
    book: Mutex<Book>,
    mirror: Mutex<Mirroring>,
    /// The ring's number at the mirror, once there is one.
    ring: AtomicU64,
}

/// Where copies of frames go.
enum Mirroring {
    /// There are none.
    Without,
    /// Nobody has asked for them yet.
    Unread(Ring),
    /// There.
    To(Arc<Mirror>),
}

struct Book {
    tables: Tables,
    slots: Slots,
    /// Of sessions that haven't ended.
    begun: BTreeMap<u32, Begun>,
    /// Interfaces that the programs stand on as they should.
    usable: BTreeSet<u32>,
    /// Interfaces that they stand on, first or not.
    standing: BTreeSet<u32>,
    /// Why no session begins any more.
    closed: Option<String>,
}

/// What is remembered of a session's beginning.
#[derive(Clone, Copy, Debug)]
struct Begun {
    interfaces: [u32; 2],
    places: [Place; 2],
    /// All that may have come out of order is within the margin.
    covered: [bool; 2],
}

/// Sessions in use, and those whose flows are still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) in_use: u32,
    pub(super) is_idle: bool,
}

impl Shared {
    /// Of what was loaded.
    pub(super) fn new(
        memory: Memory,
        [recall, stamped]: [ProgramFd; 2],
        mut tables: Tables,
        ring: Option<Ring>,
    ) -> Result<Self, EdgeError> {
        tables.dial_with(OPENING.mark)?;
        let routes =
            Routes::open().map_err(|source| EdgeError::System { what: "opening a socket for routes", source })?;
        let book = Book {
            tables,
            slots: Slots::new(SESSIONS),
            begun: BTreeMap::new(),
            usable: BTreeSet::new(),
            standing: BTreeSet::new(),
            closed: None,
        };
        let mirror = Mutex::new(ring.map_or(Mirroring::Without, Mirroring::Unread));
        Ok(Self { memory, recall, stamped, routes, book: Mutex::new(book), mirror, ring: AtomicU64::new(0) })
    }

    /// A poisoned lock means that a call panicked; the kernel's tables are still what the kernel says.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the tables.
    pub(super) fn tables<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> T {
        work(&mut self.book().tables)
    }

    /// Sessions begin on these interfaces only.
    pub(super) fn set_usable(&self, usable: BTreeSet<u32>) {
        self.book().usable = usable;
    }

    /// Sessions are kept in step on these interfaces only. A program that stands before ours is no reason to end them: what
    /// it takes away is lost, and what comes past ours the sockets don't take.
    pub(super) fn set_standing(&self, standing: BTreeSet<u32>) {
        self.book().standing = standing;
    }

    /// No session begins any more.
    pub(super) fn close(&self, why: &str) {
        self.book().closed = Some(why.to_owned());
    }

    /// Why none does.
    pub(super) fn closed(&self) -> Option<String> {
        self.book().closed.clone()
    }

    pub(super) fn usage(&self) -> Use {
        let book = self.book();
        Use { in_use: book.slots.in_use(), is_idle: book.slots.is_idle() }
    }

    /// Removes the flows of sessions that ended long enough ago.
    pub(super) fn expire(&self, now: Instant) {
        let mut book = self.book();
        while let Some(Ended { index, generation, .. }) = book.slots.due(now) {
            book.tables.leave(&self.memory.flows(index), index, generation);
            book.slots.give_back(index);
        }
    }

    /// Whether packets of the daemon's sockets still have to be translated: the kernel forwarded on their sessions, which
    /// have not ended, or not longer ago than this.
    pub(super) fn is_needed(&self, now: Instant, since: Duration) -> bool {
        let book = self.book();
        let mut living = book.begun.keys().copied();
        let mut recent = book.slots.ended().take_while(|ended| now.saturating_duration_since(ended.at) < since);
        living.any(|index| self.memory.was_forwarded(index))
            || recent.any(|ended| self.memory.was_forwarded(ended.index))
    }

    /// Whether there are sessions on which the kernel forwarded and that have not ended.
    pub(super) fn has_forwarded(&self) -> bool {
        self.is_needed(Instant::now(), Duration::ZERO)
    }

    fn leg(&self, socket: BorrowedFd<'_>, side: Side, usable: &BTreeSet<u32>) -> Result<(eligible::Leg, u32), Refusal> {
        let (ours, theirs) = addresses(socket).map_err(|e| not_connected(e, side))?;
        let info = tcp_info(socket).map_err(system("asking TCP about a connection"))?;
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let tcp = TcpInfo::read(&info).ok_or_else(odd).map_err(system("asking TCP about a connection"))?;
        let mark = option(socket, libc::SOL_SOCKET, libc::SO_MARK).map_err(system("asking for a socket's mark"))?;
        let what = match side {
            Side::Client => "asking for the route to the client",
            Side::Broker => "asking for the route to the broker",
        };
        let interface = self.routes.interface(&Question { ours, theirs, mark }).map_err(system(what))?;
        let attached = usable.contains(&interface);
        Ok((eligible::Leg { ours, theirs, tcp, attached }, interface))
    }

    /// Reads the places, fills the slot and enters the flows.
    fn enter(
        &self,
        index: u32,
        sockets: [BorrowedFd<'_>; 2],
        legs: [Leg; 2],
        policy: u16,
    ) -> Result<(u32, Begun), Refusal> {
        let mut places = Vec::with_capacity(2);
        for (socket, side) in sockets.into_iter().zip(SIDES) {
            let place = Place::of(socket).map_err(system("reading where a connection is"))?;
            if place.state != eligible::ESTABLISHED {
                return Err(Refusal::Obstacle(Obstacle::NotEstablished(side)));
            }
            places.push(place);
        }
        let places = [places[0], places[1]];
        let [client, broker] = &places;
        let generation = next_generation(self.memory.generation(index));
        let dirs = [origin(client, broker), origin(broker, client)].each_ref().map(Dir::new);
        let interfaces = legs.map(|leg| leg.interface);
        let session = State { legs, dirs, ..State::default() };
        self.memory.put(index, Slot { generation, session, ..Slot::default() });
        let keys = self.memory.flows(index);
        let entry = |role| FlowEntry { session: index, generation, role, policy: policy.into() };
        self.tables(|tables| tables.enter(&keys, entry))
            .map_err(|error| system("entering a session's flows")(io::Error::other(error)))?;
        let mut covered = [false; 2];
        for ((socket, place), covered) in sockets.into_iter().zip(&places).zip(&mut covered) {
            // With the flows in: a window that grew until now was told to the host unseen.
            let now = if place.had_early() { Place::of(socket).ok() } else { None };
            *covered = now.is_some_and(|now| !is_after(now.edge(), place.edge()));
        }
        Ok((generation, Begun { interfaces, places, covered }))
    }

    /// Whether a socket can hold nothing that the programs don't know of; see the module.
    fn is_known(socket: BorrowedFd<'_>, place: &Place, covered: bool) -> io::Result<bool> {
        if covered || Place::out_of_order(socket)? == place.out_of_order {
            return Ok(true);
        }
        Ok(!is_after(place.edge(), Place::of(socket)?.rcv_nxt))
    }

    /// Ties a socket to the interface, and lets it have stamped packets only.
    fn guard(&self, socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
        let filter = self.stamped.as_fd().as_raw_fd();
        set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, filter)?;
        // The last step, because it can't be taken back without a further right (CAP_NET_RAW).
        let tied = match option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX) {
            Ok(tied) if tied == interface => Ok(()),
            Ok(_) => set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, interface as i32),
            Err(error) => Err(error),
        };
        if tied.is_err() {
            release(socket);
        }
        tied
    }

    fn make_whole(&self, index: u32, sockets: [BorrowedFd<'_>; 2]) -> io::Result<bool> {
        let Some(begun) = self.book().begun.get(&index).copied() else { return Ok(false) };
        for (nth, socket) in sockets.into_iter().enumerate() {
            if !Self::is_known(socket, &begun.places[nth], begun.covered[nth])? {
                return Ok(false);
            }
        }
        let [client, broker] = sockets;
        self.guard(client, begun.interfaces[0])?;
        self.guard(broker, begun.interfaces[1]).inspect_err(|_| release(client))?;
        for socket in sockets {
            // Their probes would be answered to nobody; the gateway judges idleness by the session's traffic.
            set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0)?;
            set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0)?;
        }
        Ok(true)
    }
}

// SAFETY: the memory stays mapped as long as this value lives, which every session has a share of; a slot is given to
// another session only after `end`, and is written by the programs alone meanwhile.
unsafe impl Keeper for Shared {
    fn slot(&self, index: u32) -> *const Slot {
        self.memory.at(index)
    }

    fn recall(&self, index: u32, generation: u32, side: Side) -> Recalled {
        match run_classifier(self.recall.as_fd(), [index, side as u32, generation]) {
            Ok(0) => Recalled::WasLocal,
            Ok(1) => Recalled::WasPeer,
            Ok(2) => Recalled::Unknown,
            Ok(_) => Recalled::Busy,
            Err(error) => {
                if error.kind() != io::ErrorKind::Interrupted {
                    tracing::warn!("a session could not be taken back from the kernel: {error}");
                }
                Recalled::Busy
            }
        }
    }

    fn is_whole(&self, index: u32, client: BorrowedFd<'_>, broker: BorrowedFd<'_>) -> bool {
        self.make_whole(index, [client, broker]).unwrap_or_else(|error| {
            tracing::debug!("a session is not taken to the kernel: {error}");
            false
        })
    }

    fn stands(&self, index: u32) -> bool {
        let book = self.book();
        book.begun.get(&index).is_none_or(|begun| begun.interfaces.iter().all(|i| book.standing.contains(i)))
    }

    fn ring(&self) -> u64 {
        self.ring.load(Ordering::Relaxed)
    }

    fn end(&self, index: u32, generation: u32) {
        let mut book = self.book();
        if book.begun.remove(&index).is_some() {
            book.slots.end(Ended { index, generation, at: Instant::now() });
        }
    }
}

/// See [`Splicer`].
pub(super) struct Sessions(pub(super) Arc<Shared>);

impl Splicer for Sessions {
    fn begin(&self, client: BorrowedFd<'_>, broker: BorrowedFd<'_>, policy: u16) -> Result<Session, Refusal> {
        let shared = &self.0;
        if u32::from(policy) >= POLICIES {
            return Err(system("choosing a policy")(io::ErrorKind::InvalidInput.into()));
        }
        let usable = {
            let book = shared.book();
            if let Some(why) = &book.closed {
                return Err(system("beginning a session")(io::Error::other(why.clone())));
            }
            book.usable.clone()
        };
        let (client_leg, client_interface) = shared.leg(client, Side::Client, &usable)?;
        let (broker_leg, broker_interface) = shared.leg(broker, Side::Broker, &usable)?;
        eligible::check(&client_leg, &broker_leg).map_err(Refusal::Obstacle)?;
        let legs = [leg(client_interface, &client_leg), leg(broker_interface, &broker_leg)];
        for socket in [client, broker] {
            set_option(socket, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).map_err(system("preparing a socket"))?;
        }
        let index = shared.book().slots.take().ok_or(Refusal::Full(SESSIONS))?;
        match shared.enter(index, [client, broker], legs, policy) {
            Ok((generation, begun)) => {
                shared.book().begun.insert(index, begun);
                let places = begun.places.map(|p| session::Place { reads: p.reads(), writes: p.write_seq });
                let keeper: Arc<dyn Keeper> = Arc::<Shared>::clone(shared);
                Ok(Session::new(keeper, index, generation, places))
            }
            Err(refusal) => {
                shared.book().slots.give_back(index);
                Err(refusal)
            }
        }
    }

    fn set_policy(&self, policy: u16, table: &Policy) -> anyhow::Result<()> {
        Ok(self.0.tables(|tables| tables.set_policy(policy, table))?)
    }

    fn mirror_to(&self, mirror: &Arc<Mirror>) -> anyhow::Result<()> {
        let mut now = self.0.mirror.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *now, Mirroring::Without) {
            Mirroring::Without => {
                anyhow::bail!("the kernel's programs were loaded without room for copies of frames; restart turnout")
            }
            Mirroring::Unread(copies) => {
                let number = mirror.ring();
                self.0.ring.store(number, Ordering::Relaxed);
                ring::start(copies, number, mirror, &self.0)?;
                *now = Mirroring::To(Arc::clone(mirror));
                Ok(())
            }
            Mirroring::To(there) => {
                let is_same = Arc::ptr_eq(&there, mirror);
                *now = Mirroring::To(there);
                anyhow::ensure!(is_same, "copies of frames go to another mirror already");
                Ok(())
            }
        }
    }

    fn opening(&self) -> Opening {
        OPENING
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |source| Refusal::System { what, source }
}

fn not_connected(error: io::Error, side: Side) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotConnected => Refusal::Obstacle(Obstacle::NotEstablished(side)),
        _ => system("asking a socket for its addresses")(error),
    }
}

/// Its own address and the peer's, as on the wire.
fn addresses(socket: BorrowedFd<'_>) -> io::Result<(SocketAddr, SocketAddr)> {
    let socket = SockRef::from(&socket);
    let canonical = |address: socket2::SockAddr| match address.as_socket() {
        Some(SocketAddr::V6(v6)) if v6.ip().to_ipv4_mapped().is_some() => {
            Ok(SocketAddr::new(v6.ip().to_canonical(), v6.port()))
        }
        Some(address) => Ok(address),
        None => Err(io::Error::from(io::ErrorKind::Unsupported)),
    };
    Ok((canonical(socket.local_addr()?)?, canonical(socket.peer_addr()?)?))
}

fn leg(interface: u32, leg: &eligible::Leg) -> Leg {
    let words = |at: SocketAddr| Address::from(at.ip()).words;
    Leg {
        interface,
        family: if leg.ours.is_ipv4() { 4 } else { 6 },
        ours: words(leg.ours),
        theirs: words(leg.theirs),
        ports: u32::from(leg.ours.port().to_be()) | u32::from(leg.theirs.port().to_be()) << 16,
        ..Leg::default()
    }
}

/// Lets a socket have all packets again.
fn release(socket: BorrowedFd<'_>) {
    // Fails where there is no filter.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}

/// Whether a sequence number comes after another.
const fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn mapped_addresses_are_those_on_the_wire() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let to = SocketAddr::new([127, 0, 0, 1].into(), listener.local_addr().expect("bound").port());
        let client = TcpStream::connect(to).expect("connected");
        let (accepted, _) = listener.accept().expect("accepted");
        let (ours, theirs) = addresses(accepted.as_fd()).expect("connected");
        assert_eq!((ours, theirs), (to, client.local_addr().expect("bound")));
    }

    #[test]
    fn sequence_numbers_are_compared_across_the_wrap() {
        assert!(is_after(5, u32::MAX - 5) && !is_after(u32::MAX - 5, 5));
        assert!(!is_after(7, 7));
    }
}
