//! Tells the service manager how the daemon is: sd_notify(3), the protocol alone.
//!
//! With `Type=notify-reload` in the unit, systemd sends SIGHUP on `systemctl reload` and waits for
//! [`State::Reloading`] and then [`State::Ready`].

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// Serving; after a reload: serving again.
    Ready,
    /// A reload began.
    Reloading,
    /// A drain began.
    Stopping,
    /// Another process is the service from now on: it has taken over.
    MainPid(u32),
    /// One line for `systemctl status`.
    Status(&'a str),
}

impl State<'_> {
    fn message(self) -> String {
        match self {
            Self::Ready => "READY=1".to_owned(),
            // `notify-reload` compares the clock to its own signal's.
            Self::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec()),
            Self::Stopping => "STOPPING=1".to_owned(),
            Self::MainPid(pid) => format!("MAINPID={pid}"),
            Self::Status(text) => format!("STATUS={}", text.replace('\n', " ")),
        }
    }
}

/// Sends a state to the service manager that started this process; without one (`NOTIFY_SOCKET` unset) does nothing.
///
/// # Errors
/// The service manager's socket can't be reached. The daemon works without, so a caller logs this and goes on.
pub fn notify(state: State<'_>) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(socket) if !socket.is_empty() => notify_at(socket.as_encoded_bytes(), state),
        _ => Ok(()),
    }
}

/// Sends a state to a named socket: a path, or `@name` in the abstract namespace.
fn notify_at(socket: &[u8], state: State<'_>) -> io::Result<()> {
    use std::ffi::OsStr;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    let address = match socket.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        Some((b'/', _)) => SocketAddr::from_pathname(OsStr::from_bytes(socket))?,
        _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "NOTIFY_SOCKET is neither a path nor @name")),
    };
    UnixDatagram::unbound()?.send_to_addr(state.message().as_bytes(), &address).map(drop)
}

fn monotonic_usec() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for one `timespec`, which the call fills; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let mut buffer = [0; 512];
        let n = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8(buffer[..n].to_vec()).expect("text")
    }

    #[test]
    fn each_state_arrives_as_one_datagram() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let socket = path.as_os_str().as_encoded_bytes();

        notify_at(socket, State::Ready).expect("sent");
        assert_eq!(received(&manager), "READY=1");

        notify_at(socket, State::Reloading).expect("sent");
        let reloading = received(&manager);
        let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("both fields");
        assert!(usec.parse::<u64>().expect("a number") > 0);

        notify_at(socket, State::Stopping).expect("sent");
        assert_eq!(received(&manager), "STOPPING=1");

        notify_at(socket, State::MainPid(4242)).expect("sent");
        assert_eq!(received(&manager), "MAINPID=4242");

        notify_at(socket, State::Status("two\nlines")).expect("sent");
        assert_eq!(received(&manager), "STATUS=two lines");
    }

    #[test]
    fn an_abstract_socket_works_as_a_path_does() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("turnout-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("a socket");
        notify_at(format!("@{name}").as_bytes(), State::Ready).expect("sent");
        assert_eq!(received(&manager), "READY=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error_and_a_strange_address_too() {
        assert!(notify_at(b"/nonexistent/notify", State::Ready).is_err());
        let strange = notify_at(b"vsock:2:1234", State::Ready).expect_err("unsupported");
        assert_eq!(strange.kind(), io::ErrorKind::Unsupported);
    }
}
