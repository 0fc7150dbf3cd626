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

/// Lets the receive buffer of a socket grow again as the kernel sees fit: its connection is not spliced, and a far host
/// needs more than what is right for one that is.
///
/// # Errors
/// The kernel does not know of it (Linux 5.14).
pub fn let_grow(socket: BorrowedFd<'_>) -> io::Result<()> {
    // include/uapi/asm-generic/socket.h; the bits of locks that stay.
    const SO_BUF_LOCK: libc::c_int = 72;
    set(socket, SO_BUF_LOCK, 0)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: u32) -> io::Result<()> {
    let size = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the pointer is to an integer of the size given, which outlives the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), size) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use socket2::SockRef;

    use super::*;

    /// Bytes of the receive buffer after a megabyte came in, in pieces that are read at once.
    fn after_traffic(prepare: impl Fn(BorrowedFd<'_>)) -> usize {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut far, _) = listener.accept().expect("a client");
        SockRef::from(&far).set_recv_buffer_size(16 << 10).expect("a buffer");
        prepare(far.as_fd());
        let sender = std::thread::spawn(move || (0..1024).try_for_each(|_| near.write_all(&[7; 64 << 10])));
        let mut buffer = vec![0; 1 << 20];
        while far.read(&mut buffer).expect("readable") > 0 {}
        sender.join().expect("no panic").expect("written");
        SockRef::from(&far).recv_buffer_size().expect("a size")
    }

    #[test]
    fn a_buffer_that_was_set_stays_until_it_is_let_grow() {
        assert_eq!(after_traffic(|_| ()), 32 << 10, "the kernel doubles what is set");
        assert!(after_traffic(|socket| let_grow(socket).expect("Linux 5.14")) > 32 << 10);
    }
}
