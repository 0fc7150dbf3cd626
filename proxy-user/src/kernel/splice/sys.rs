//! The system calls of the splice: shared memory of the sessions, a classifier run by hand, what stands on an interface,
//! and what TCP says of a socket. All unsafe code of this folder that isn't a map's layout is here.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

use proxy_common::flows::{FlowKey, Role, Slot};
use proxy_common::splice::arm::Armed;
use proxy_common::splice::state::Side;

const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_PROG_QUERY: libc::c_long = 16;

/// `enum bpf_attach_type`, include/uapi/linux/bpf.h.
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

/// Which way packets go past a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Into the host.
    In,
    /// Out of it.
    Out,
}

impl Way {
    pub(super) const BOTH: [Self; 2] = [Self::In, Self::Out];

    const fn attach_type(self) -> u32 {
        match self {
            Self::In => BPF_TCX_INGRESS,
            Self::Out => BPF_TCX_EGRESS,
        }
    }
}

/// The memory of the sessions, mapped.
#[derive(Debug)]
pub(super) struct Memory {
    start: *mut Slot,
    room: u32,
}

// SAFETY: the memory is the kernel's and stays mapped; slots are written by whoever holds their index, or through words
// for sharing.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps an array map of `room` slots.
    pub(super) fn of(map: BorrowedFd<'_>, room: u32) -> io::Result<Self> {
        let length = room as usize * size_of::<Slot>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: asks for a new mapping at any address.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), room })
    }

    /// Where a slot is. One that isn't there is the first: an index that nobody gave must not lead out of the memory.
    pub(super) fn at(&self, index: u32) -> *mut Slot {
        let index = if index < self.room { index as usize } else { 0 };
        // SAFETY: within the mapping, by the line above.
        unsafe { self.start.add(index) }
    }

    /// The slot's generation.
    pub(super) fn generation(&self, index: u32) -> u32 {
        // SAFETY: the pointer is to a mapped slot; the word is written whole.
        unsafe { (&raw const (*self.at(index)).generation).read_volatile() }
    }

    /// Whether a direction of the session ever was the kernel's.
    pub(super) fn was_forwarded(&self, index: u32) -> bool {
        // SAFETY: the pointer is to a mapped slot; the words are written whole.
        unsafe {
            let dirs = &raw const (*self.at(index)).session.dirs;
            [&raw const (*dirs)[0].epoch, &raw const (*dirs)[1].epoch]
                .into_iter()
                .any(|epoch| epoch.read_volatile() != 0)
        }
    }

    /// Keys of the session's flows.
    pub(super) fn flows(&self, index: u32) -> [FlowKey; 4] {
        // SAFETY: the pointer is to a mapped slot. Addresses and interfaces don't change while the session is there;
        // the words beside them do, and are not used.
        let legs = unsafe { (&raw const (*self.at(index)).session.legs).read_volatile() };
        Role::ALL.map(|role| FlowKey::of(role, &legs[role.side().index()]))
    }

    /// Gives leave for a direction, where no session of the gateway's is.
    pub(super) fn arm(&self, index: u32, side: Side, armed: &Armed) {
        // SAFETY: the pointer is to a mapped slot, and its index is the caller's; the words are for sharing.
        unsafe { (*self.at(index)).session.arms[side.index()].arm(armed) };
    }

    /// Puts a session into a slot that no flow leads to.
    pub(super) fn put(&self, index: u32, slot: Slot) {
        // SAFETY: the pointer is to a mapped slot, and its index was given to the caller only.
        unsafe { self.at(index).write(slot) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, of exactly this length.
        unsafe { libc::munmap(self.start.cast(), self.room as usize * size_of::<Slot>()) };
    }
}

/// `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    verdict: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _hole: u32,
}

/// `struct __sk_buff`, of which a run takes these.
#[repr(C)]
#[derive(Default)]
struct Context {
    _length_to_priority: [u32; 9],
    came_in_by: u32,
    interface: u32,
    _index: u32,
    cb: [u32; 5],
    _hash_to_data_meta: [u32; 19],
    _rest: [u32; 12],
}

const _: () = {
    assert!(std::mem::offset_of!(Context, interface) == 40);
    assert!(std::mem::offset_of!(Context, cb) == 48);
    assert!(size_of::<Context>() == 192);
};

/// Runs a classifier on no packet in particular, with these words: its verdict.
pub(super) fn run_classifier(program: BorrowedFd<'_>, words: [u32; 3]) -> io::Result<u32> {
    let context = Context { cb: [words[0], words[1], words[2], 0, 0], ..Context::default() };
    run(program, &[0u8; 64], &mut [0u8; 256], &context).map(|(verdict, _)| verdict)
}

/// Runs a classifier on a frame that leaves by an interface, or came in by one (0: it did not): its verdict, and the frame
/// as it comes out.
pub(super) fn run_on(
    program: BorrowedFd<'_>,
    frame: &[u8],
    interface: u32,
    came_in_by: u32,
) -> io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0; frame.len() + 256];
    let context = Context { interface, came_in_by, ..Context::default() };
    let (verdict, length) = run(program, frame, &mut out, &context)?;
    out.truncate(length as usize);
    Ok((verdict.cast_signed(), out))
}

/// The verdict, and the length of what comes out.
fn run(program: BorrowedFd<'_>, frame: &[u8], out: &mut [u8], context: &Context) -> io::Result<(u32, u32)> {
    let mut run = TestRun {
        program: program.as_raw_fd() as u32,
        data_in: frame.as_ptr() as u64,
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr() as u64,
        data_size_out: out.len() as u32,
        repeat: 1,
        context_in: ptr::from_ref(context) as u64,
        context_size_in: size_of::<Context>() as u32,
        ..TestRun::default()
    };
    // SAFETY: the attributes and the buffers they point to outlive the call, which writes within the sizes given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut run, size_of::<TestRun>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((run.verdict, run.data_size_out)) }
}

/// `union bpf_attr` for BPF_PROG_QUERY.
#[repr(C)]
#[derive(Default)]
struct Query {
    interface: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    _hole: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Kernel ids of the tcx programs on an interface of the calling thread's namespace, the first one first.
pub(super) fn chain(interface: u32, way: Way) -> io::Result<Vec<u32>> {
    /// As many as the kernel allows in one place.
    const ROOM: usize = 64;
    let mut ids = vec![0u32; ROOM];
    let mut query = Query {
        interface,
        attach_type: way.attach_type(),
        programs: ids.as_mut_ptr() as u64,
        count: ROOM as u32,
        ..Query::default()
    };
    // SAFETY: the attributes and the buffer they point to outlive the call, which writes within the sizes given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut query, size_of::<Query>()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(Vec::new()) } else { Err(error) };
    }
    ids.truncate(query.count as usize);
    Ok(ids)
}

/// A conversation with the kernel about the network namespace of the thread that began it.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// About routes.
    pub(super) fn route() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointer; the descriptor is owned from here on.
        match unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) } {
            // SAFETY: the kernel gave this descriptor to nobody else.
            fd @ 0.. => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        // SAFETY: the buffer outlives the call and is as long as said.
        match unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The next message; the kernel answers before a request returns.
    pub(super) fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0u8; 8192];
        // SAFETY: the buffer outlives the call and is as long as said.
        match unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT) } {
            length @ 0.. => answer.truncate(length as usize),
            _ => return Err(io::Error::last_os_error()),
        }
        Ok(answer)
    }
}

/// Waits until a descriptor can be read, or this long; a signal ends it as well.
pub(super) fn wait_readable(fd: libc::c_int, most: std::time::Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one of them, which outlives the call.
    match unsafe { libc::poll(&raw mut poll, 1, most.as_millis() as libc::c_int) } {
        0.. => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// An option of a socket that is an integer.
pub(super) fn option(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<u32> {
    let mut value = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: both pointers are to variables of the length given, which outlive the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option of a socket that is an integer.
pub(super) fn set_option(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to a variable of the length given.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes, as one of the socket requests that count them (FIONREAD, SIOCOUTQ).
pub(super) fn queued(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if result == 0 { Ok(bytes as u32) } else { Err(io::Error::last_os_error()) }
}

/// The beginning of `struct tcp_info`, as much as the kernel has.
pub(super) fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut info = vec![0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: both pointers are to variables of the length given, which outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    info.truncate(length as usize);
    Ok(info)
}
