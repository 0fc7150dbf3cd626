//! Packets that get lost: a program of six instructions on an interface of a host.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;
/// Ahead of all others.
const BPF_F_BEFORE: u32 = 1 << 3;

/// A loss that lasts as long as this lives.
#[derive(Debug)]
pub(super) struct Loss(#[expect(dead_code, reason = "closed when dropped")] OwnedFd);

impl Loss {
    /// Loses so many in a million of the packets that come in by an interface of the calling thread's namespace. (A
    /// sender would hear of what is dropped on the way out, and send it again at once.)
    pub(super) fn on(interface: u32, per_million: u32) -> io::Result<Self> {
        let program = load(per_million)?;
        attach(&program, interface).map(Self)
    }
}

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> u64 {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    u64::from_le_bytes([code, registers, o0, o1, i0, i1, i2, i3])
}

fn load(per_million: u32) -> io::Result<OwnedFd> {
    let threshold = u64::from(per_million) * u64::from(u32::MAX) / 1_000_000;
    let code = [
        // w0 = bpf_get_prandom_u32()
        instruction(0x85, 0, 0, 7),
        // if w0 < threshold goto +2
        instruction(0xa6, 0, 2, threshold as i32),
        // TCX_NEXT
        instruction(0xb7, 0, 0, -1),
        instruction(0x95, 0, 0, 0),
        // TCX_DROP
        instruction(0xb7, 0, 0, 2),
        instruction(0x95, 0, 0, 0),
    ];
    // Program type, instruction count, instructions, license, log (3 words), kernel version, flags, name (4 words),
    // interface, attach type.
    let mut attributes = [0u32; 18];
    attributes[0] = BPF_PROG_TYPE_SCHED_CLS;
    attributes[1] = code.len() as u32;
    put(&mut attributes, 2, code.as_ptr() as u64);
    put(&mut attributes, 4, c"GPL".as_ptr() as u64);
    attributes[17] = BPF_TCX_INGRESS;
    bpf(BPF_PROG_LOAD, &mut attributes)
}

fn attach(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    let mut attributes = [0u32; 16];
    attributes[..4].copy_from_slice(&[program.as_raw_fd() as u32, interface, BPF_TCX_INGRESS, BPF_F_BEFORE]);
    bpf(BPF_LINK_CREATE, &mut attributes)
}

fn put(attributes: &mut [u32], at: usize, pointer: u64) {
    (attributes[at], attributes[at + 1]) = (pointer as u32, (pointer >> 32) as u32);
}

fn bpf(command: libc::c_long, attributes: &mut [u32]) -> io::Result<OwnedFd> {
    let size = size_of_val(attributes);
    // SAFETY: the attributes, and what they point to, outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave this descriptor to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
