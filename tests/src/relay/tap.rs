//! A TAP device: a network interface of a namespace whose frames this process reads and writes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::netns::Netns;

/// The device exists as long as this does.
#[derive(Debug)]
pub(super) struct Tap {
    file: File,
}

impl Tap {
    /// Creates the device `name` in `netns`, down.
    pub(super) fn create(netns: &Netns, name: &str) -> Result<Self> {
        ensure!(name.len() < libc::IFNAMSIZ, "the interface name {name} is too long");
        let file = netns.run(|| open(name))?.with_context(|| format!("creating the TAP device {name}"))?;
        Ok(Self { file })
    }

    /// Waits until a frame can be read, for at most `patience`.
    pub(super) fn wait_readable(&self, patience: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time =
            libc::timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: i64::from(patience.subsec_nanos()) };
        // SAFETY: one pollfd and one timespec that outlive the call; no signal mask.
        unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) > 0 }
    }

    /// Reads one frame; `None` when there is none now.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        (&self.file).read(buffer).ok().filter(|len| *len > 0)
    }

    /// Writes one frame; false when the kernel does not take it, e.g. while the device is down.
    pub(super) fn write(&self, frame: &[u8]) -> bool {
        (&self.file).write(frame).is_ok()
    }
}

fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes the ifreq, which outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
