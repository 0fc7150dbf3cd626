//! How sockets are opened so that their connections can be spliced.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::session::Opening;

impl Opening {
    /// Of a socket that is going to dial a broker.
    ///
    /// # Errors
    /// This process may not (CAP_NET_ADMIN).
    pub fn prepare(&self, dialling: BorrowedFd<'_>) -> io::Result<()> {
        set(dialling, libc::SO_MARK, self.mark)?;
        set(dialling, libc::SO_RCVBUFFORCE, self.receive_buffer)
    }

    /// Of a listening socket: what it accepts has its buffers.
    ///
    /// # Errors
    /// This process may not (CAP_NET_ADMIN).
    pub fn prepare_listener(&self, listening: BorrowedFd<'_>) -> io::Result<()> {
        set(listening, libc::SO_RCVBUFFORCE, self.receive_buffer)
    }
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: u32) -> io::Result<()> {
    let size = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the pointer is to an integer of the size given, which outlives the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), size) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
