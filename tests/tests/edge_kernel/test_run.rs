//! bpf(2) as the tests need it: running a pinned program on given input (BPF_PROG_TEST_RUN, which aya lacks for these
//! kinds), and asking whether an object lives.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

use crate::support::Kind;

const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;

/// XDP's verdicts.
pub(crate) const XDP_DROP: u32 = 1;
/// XDP's verdicts.
pub(crate) const XDP_PASS: u32 = 2;
/// sk_lookup's verdicts.
pub(crate) const SK_DROP: u32 = 0;
/// sk_lookup's verdicts.
pub(crate) const SK_PASS: u32 = 1;

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: the attributes and the buffers they point to outlive the call.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size) } {
        result @ 0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a pinned object.
pub(crate) fn object_at(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut attributes = [path.as_ptr() as u64, 0, 0, 0];
    let fd = bpf(BPF_OBJ_GET, &mut attributes)?;
    // SAFETY: the kernel gave this descriptor to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the kernel has an object of that id.
pub(crate) fn exists(kind: Kind, id: u32) -> bool {
    let command = match kind {
        Kind::Program => BPF_PROG_GET_FD_BY_ID,
        Kind::Map => BPF_MAP_GET_FD_BY_ID,
        Kind::Link => BPF_LINK_GET_FD_BY_ID,
    };
    match bpf(command, &mut [id, 0, 0, 0]) {
        Ok(fd) => {
            // SAFETY: the kernel gave this descriptor to nobody else.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            true
        }
        Err(_) => false,
    }
}

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

/// Runs an XDP program on a frame: its verdict, and the frame as it comes out.
pub(crate) fn run_xdp(program: &OwnedFd, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut run = TestRun {
        program: program.as_raw_fd() as u32,
        data_in: frame.as_ptr() as u64,
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr() as u64,
        data_size_out: out.len() as u32,
        repeat: 1,
        ..TestRun::default()
    };
    bpf(BPF_PROG_TEST_RUN, &mut run)?;
    out.truncate(run.data_size_out as usize);
    Ok((run.verdict, out))
}

/// `struct bpf_sk_lookup` of include/uapi/linux/bpf.h.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lookup {
    /// Out: cookie of the socket that was chosen, 0 for none.
    pub(crate) cookie: u64,
    /// AF_INET or AF_INET6.
    pub(crate) family: u32,
    /// IPPROTO_TCP or IPPROTO_UDP.
    pub(crate) protocol: u32,
    /// As on the wire.
    pub(crate) remote_ip4: [u8; 4],
    /// As on the wire.
    pub(crate) remote_ip6: [u8; 16],
    /// As on the wire.
    pub(crate) remote_port: [u8; 2],
    pub(crate) _zero: u16,
    /// As on the wire.
    pub(crate) local_ip4: [u8; 4],
    /// As on the wire.
    pub(crate) local_ip6: [u8; 16],
    /// In the host's order.
    pub(crate) local_port: u32,
    /// Interface, 0 for none.
    pub(crate) ingress_ifindex: u32,
    pub(crate) _tail: u32,
}

const _: () = assert!(size_of::<Lookup>() == 72);

/// Runs an sk_lookup program: its verdict, and the cookie of the socket it chose.
pub(crate) fn run_lookup(program: &OwnedFd, lookup: &Lookup) -> io::Result<(u32, u64)> {
    let mut out = Lookup::default();
    let mut run = TestRun {
        program: program.as_raw_fd() as u32,
        context_in: std::ptr::from_ref(lookup) as u64,
        context_size_in: size_of::<Lookup>() as u32,
        context_out: std::ptr::from_mut(&mut out) as u64,
        context_size_out: size_of::<Lookup>() as u32,
        repeat: 1,
        ..TestRun::default()
    };
    bpf(BPF_PROG_TEST_RUN, &mut run)?;
    Ok((run.verdict, out.cookie))
}

/// The kernel's name for a socket.
pub(crate) fn cookie(socket: &impl std::os::fd::AsRawFd) -> u64 {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both pointers are to variables of the length given, which outlive the call.
    let result = unsafe {
        let value = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, value, &raw mut length)
    };
    assert_eq!(result, 0, "SO_COOKIE: {}", io::Error::last_os_error());
    cookie
}

/// Pins an object at another path.
pub(crate) fn pin_at(object: &OwnedFd, path: &std::ffi::CStr) -> io::Result<()> {
    const BPF_OBJ_PIN: libc::c_long = 6;
    let mut attributes = [path.as_ptr() as u64, object.as_raw_fd() as u64, 0, 0];
    bpf(BPF_OBJ_PIN, &mut attributes).map(drop)
}
