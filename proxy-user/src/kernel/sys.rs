//! The few system calls that aya and libc have no function for: replacing a pinned link's program, asking what a link
//! is attached to, and detaching it at once. All unsafe code of the kernel side that isn't a map's layout, the splice's or a
//! netlink socket's is here.

use std::ffi::{CString, c_long};
use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

// Commands of bpf(2), include/uapi/linux/bpf.h.
const BPF_OBJ_PIN: c_long = 6;
const BPF_OBJ_GET: c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: c_long = 15;
const BPF_LINK_UPDATE: c_long = 29;
const BPF_LINK_DETACH: c_long = 34;

/// `union bpf_attr` for the commands above: the arguments first, zeros behind them.
#[repr(C, align(8))]
struct Attributes([u32; 8]);

fn bpf(command: c_long, attributes: &mut Attributes) -> io::Result<RawFd> {
    let size = size_of::<Attributes>();
    // SAFETY: the attributes outlive the call; the pointers that some hold are to buffers that their caller keeps.
    match unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) } {
        result @ 0.. => Ok(result as RawFd),
        _ => Err(io::Error::last_os_error()),
    }
}

const fn halves(pointer: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = pointer.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Opens a pinned object.
pub(super) fn object_at(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let [low, high] = halves(path.as_ptr() as u64);
    let fd = bpf(BPF_OBJ_GET, &mut Attributes([low, high, 0, 0, 0, 0, 0, 0]))?;
    // SAFETY: the kernel gave this descriptor to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins an object at a second path.
pub(super) fn pin_at(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let [low, high] = halves(path.as_ptr() as u64);
    bpf(BPF_OBJ_PIN, &mut Attributes([low, high, object.as_raw_fd() as u32, 0, 0, 0, 0, 0])).map(drop)
}

/// Puts another program in the place of the link's, in one step: no packet finds none.
pub(super) fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let arguments = [link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0, 0, 0, 0, 0];
    bpf(BPF_LINK_UPDATE, &mut Attributes(arguments)).map(drop)
}

/// Detaches a link now. Removing its last pin does so a little later, from a work queue.
pub(super) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(BPF_LINK_DETACH, &mut Attributes([link.as_raw_fd() as u32, 0, 0, 0, 0, 0, 0, 0])).map(drop)
}

/// The beginning of `struct bpf_link_info`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct RawLinkInfo {
    kind: u32,
    id: u32,
    program_id: u32,
    _hole: u32,
    /// An XDP or tcx link's interface index, or a namespace link's inode; 0 when that is gone.
    target: u32,
    _rest: [u32; 27],
}

/// What a link is attached to: an XDP or tcx link's interface index, or a namespace link's inode. `None`: it is gone.
pub(super) fn link_target(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let target = link_info(link)?.target;
    Ok((target != 0).then_some(target))
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<RawLinkInfo> {
    let mut info = RawLinkInfo::default();
    let [low, high] = halves(&raw mut info as u64);
    let arguments = [link.as_raw_fd() as u32, size_of::<RawLinkInfo>() as u32, low, high, 0, 0, 0, 0];
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut Attributes(arguments))?;
    Ok(info)
}

/// Kernel id of a link's program.
pub(super) fn link_program(link: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(link_info(link)?.program_id)
}

/// Takes the exclusive lock of an open folder; `false`: somebody else has it. It belongs to the open description, so a
/// copy of the descriptor in another process holds it as well.
pub(super) fn lock(folder: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: takes no pointer.
    if unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        e => Err(e),
    }
}

/// Mounts a bpffs, as systemd does.
pub(super) fn mount_bpffs(at: &Path) -> io::Result<()> {
    let at = c_path(at)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: every string ends in NUL and outlives the call.
    check(unsafe { libc::mount(c"bpf".as_ptr(), at.as_ptr(), c"bpf".as_ptr(), flags, std::ptr::null()) })
}

/// Does it in the mount namespace of process 1, and under its root, where the whole host sees what is mounted.
///
/// # Errors
/// There is no way in (not root, no /proc); nothing was done then.
pub(super) fn where_init_is<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let (namespace, root) = (File::open("/proc/1/ns/mnt")?, File::open("/proc/1/root")?);
    // A thread can enter alone once its folders and root are its own; it ends with the work.
    let entered = || -> io::Result<T> {
        // SAFETY: the call takes no pointer, and concerns this thread.
        check(unsafe { libc::unshare(libc::CLONE_FS) })?;
        // SAFETY: the call takes no pointer; the descriptor is open.
        check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) })?;
        // SAFETY: the call takes no pointer; the descriptor is open.
        check(unsafe { libc::fchdir(root.as_raw_fd()) })?;
        std::os::unix::fs::chroot(".")?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let entered = std::thread::Builder::new().name("init".into()).spawn_scoped(scope, entered)?;
        entered.join().map_err(|_| io::Error::other("the thread panicked"))?
    })
}

/// Swaps two paths in one step.
pub(super) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let (a, b) = (c_path(a)?, c_path(b)?);
    // SAFETY: both strings end in NUL and outlive the call.
    check(unsafe { libc::renameat2(libc::AT_FDCWD, a.as_ptr(), libc::AT_FDCWD, b.as_ptr(), libc::RENAME_EXCHANGE) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the path is on a bpffs.
pub(super) fn is_bpffs(path: &Path) -> bool {
    /// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
    const MAGIC: u64 = 0xcafe_4a11;
    let Ok(path) = c_path(path) else { return false };
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends in NUL and `stat` outlives the call, which writes only to it.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let kind = unsafe { stat.assume_init() }.f_type;
    // The field's width and sign differ between architectures.
    u64::from(kind as u32) == MAGIC
}

/// The clock that the programs read.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call, which writes only to it, and the clock exists everywhere.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The address family of a socket.
pub(super) fn socket_domain(socket: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    let mut domain: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to variables of the length given, which outlive the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            (&raw mut domain).cast(),
            &raw mut length,
        )
    })?;
    Ok(domain)
}

/// User and group of a path on a bpffs, changed.
pub(super) fn chown(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(uid), Some(gid))
}
