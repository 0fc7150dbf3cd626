//! System calls that the tests need and aya has no function for: a classifier run by hand, memory of a map, and what
//! TCP says of a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

const BPF_PROG_TEST_RUN: libc::c_long = 10;

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

/// `struct __sk_buff` of include/uapi/linux/bpf.h; only what a run takes or gives back has a name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Context {
    pub(crate) _length: u32,
    pub(crate) _packet_type: u32,
    pub(crate) mark: u32,
    pub(crate) _queue: u32,
    pub(crate) _protocol: [u32; 4],
    pub(crate) _priority: u32,
    /// The interface that a forwarded packet came in by.
    pub(crate) came_in_by: u32,
    /// The interface.
    pub(crate) interface: u32,
    pub(crate) _index: u32,
    pub(crate) cb: [u32; 5],
    pub(crate) _hash_to_data_meta: [u32; 19],
    pub(crate) _flow_keys: u64,
    pub(crate) _timestamp: u64,
    pub(crate) _wire_length: u32,
    pub(crate) _segments: u32,
    pub(crate) _socket: u64,
    /// Payload of each segment, 0 for a single packet.
    pub(crate) gso: u32,
    pub(crate) _tail: [u32; 3],
}

const _: () = {
    assert!(std::mem::offset_of!(Context, cb) == 48);
    assert!(std::mem::offset_of!(Context, _flow_keys) == 144);
    assert!(std::mem::offset_of!(Context, gso) == 176);
    assert!(size_of::<Context>() == 192);
};

/// Runs a classifier on a frame: its verdict, and the frame as it comes out.
pub(crate) fn run_classifier(program: BorrowedFd<'_>, frame: &[u8], context: &Context) -> io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut run = TestRun {
        program: program.as_raw_fd() as u32,
        data_in: frame.as_ptr() as u64,
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr() as u64,
        data_size_out: out.len() as u32,
        repeat: 1,
        context_in: std::ptr::from_ref(context) as u64,
        context_size_in: size_of::<Context>() as u32,
        ..TestRun::default()
    };
    // SAFETY: the attributes and the buffers they point to outlive the call, which writes within the sizes given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut run, size_of::<TestRun>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    out.truncate(run.data_size_out as usize);
    Ok((run.verdict as i32, out))
}

/// The memory of a map that allows it, mapped.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    start: *mut T,
    count: usize,
}

// SAFETY: the memory is the kernel's and stays mapped; what is done with it from several threads is up to the accessors
// of the types in it.
unsafe impl<T> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Mapping<T> {}

impl<T> Mapping<T> {
    /// Maps `count` elements.
    pub(crate) fn new(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let length = count * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: asks for a new mapping at any address.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), count })
    }

    /// Where an element is.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count, "{index} of {}", self.count);
        // SAFETY: within the mapping, by the check above.
        unsafe { self.start.add(index) }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, of exactly this length.
        unsafe { libc::munmap(self.start.cast(), self.count * size_of::<T>()) };
    }
}

/// An option of a socket that is an integer.
pub(crate) fn option(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int) -> io::Result<u32> {
    let mut value = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: both pointers are to variables of the length given, which outlive the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option of a socket that is an integer.
pub(crate) fn set_option(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to a variable of the length given.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes, as one of the socket requests that count them (FIONREAD, SIOCOUTQ).
pub(crate) fn queued(socket: &impl AsRawFd, request: libc::Ioctl) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if result == 0 { Ok(bytes as u32) } else { Err(io::Error::last_os_error()) }
}

/// The beginning of `struct tcp_info`.
pub(crate) fn tcp_info(socket: &impl AsRawFd) -> io::Result<[u8; 256]> {
    let mut info = [0u8; 256];
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
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// Sees the frames that an interface receives.
#[derive(Debug)]
pub(crate) struct Tap(OwnedFd);

impl Tap {
    /// Opens one on an interface of the calling thread's namespace.
    pub(crate) fn on(interface: u32) -> io::Result<Self> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel gave this descriptor to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zero is a value of it.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = protocol;
        at.sll_ifindex = interface as i32;
        let wait = libc::timeval { tv_sec: 0, tv_usec: 200_000 };
        // SAFETY: both pointers are to variables of the length given.
        let result = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size_of::<libc::sockaddr_ll>() as u32)
                | libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_RCVTIMEO,
                    (&raw const wait).cast(),
                    size_of::<libc::timeval>() as u32,
                )
        };
        if result == 0 { Ok(Self(socket)) } else { Err(io::Error::last_os_error()) }
    }

    /// The next TCP frame; `None` when none comes for a while.
    pub(crate) fn next(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0u8; 65_536];
        loop {
            // SAFETY: the pointer is to a buffer of the length given.
            let length = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            let frame = &frame[..usize::try_from(length).ok()?];
            let tcp = match frame {
                [_, _, _, _, _, _, _, _, _, _, _, _, 8, 0, ip @ ..] => ip.get(9) == Some(&6),
                [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, ip @ ..] => ip.get(6) == Some(&6),
                _ => false,
            };
            if tcp {
                return Some(frame.to_vec());
            }
        }
    }
}

/// Takes every offload off an interface of the calling thread's namespace: checksums are made and verified by the
/// kernel, and packets are neither merged nor cut.
pub(crate) fn without_offloads(interface: &str) -> io::Result<()> {
    // include/uapi/linux/ethtool.h: set transmit checksums, TSO, GSO and GRO.
    const COMMANDS: [u32; 4] = [0x17, 0x1f, 0x24, 0x2c];
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let any = std::net::UdpSocket::bind("0.0.0.0:0")?;
    for command in COMMANDS {
        let mut value = [command, 0u32];
        // SAFETY: all zero is a value of it.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        // SAFETY: the request and the two words it points to outlive the call.
        if unsafe { libc::ioctl(any.as_raw_fd(), SIOCETHTOOL, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
