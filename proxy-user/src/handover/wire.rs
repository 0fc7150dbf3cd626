//! The socket between a process and its successor: one message with descriptors, then lines of text back.
//!
//! ```text
//!  length (u32, big endian) · JSON · n descriptors, CHUNK at a time, each chunk with one byte
//!  ◄── "ready\n"   or   "failed: why\n"
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Descriptors of one message; the kernel's bound is 253 (`SCM_MAX_FD`).
const CHUNK: usize = 128;

/// Descriptors of a hand-over: every port of the machine in both families.
const MAX_DESCRIPTORS: usize = 131_072;

/// Bytes of the JSON.
const MAX_TEXT: usize = 16 * 1024 * 1024;

/// Room for the control message of a chunk, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; Control::SIZE]);

impl Control {
    /// `CMSG_SPACE` of a chunk: a header of 16 bytes and the descriptors, rounded up to 8.
    const SIZE: usize = 16 + (CHUNK * size_of::<RawFd>()).next_multiple_of(8);

    const fn new() -> Self {
        Self([MaybeUninit::zeroed(); Self::SIZE])
    }
}

/// Sends a value and descriptors.
///
/// # Errors
/// The other end is gone, or does not read within the socket's timeout.
pub(super) fn send(socket: &UnixStream, value: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    if text.len() > MAX_TEXT || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too much to hand over"));
    }
    let mut stream = socket;
    stream.write_all(&(text.len() as u32).to_be_bytes())?;
    stream.write_all(&text)?;
    for chunk in descriptors.chunks(CHUNK) {
        send_chunk(socket, chunk)?;
    }
    Ok(())
}

/// Receives a value, and as many descriptors as `count` finds in it.
///
/// # Errors
/// What came is not such a message, or nothing came within the socket's timeout.
pub(super) fn receive<T: DeserializeOwned>(
    socket: &UnixStream,
    count: impl FnOnce(&T) -> usize,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut stream = socket;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_TEXT {
        return Err(malformed("its text is too long"));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    let value: T = serde_json::from_slice(&text)?;
    let count = count(&value);
    if count > MAX_DESCRIPTORS {
        return Err(malformed("it has too many descriptors"));
    }
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        let wanted = (count - descriptors.len()).min(CHUNK);
        let chunk = receive_chunk(socket)?;
        if chunk.len() != wanted {
            return Err(malformed("descriptors are missing (is the open-file limit reached?)"));
        }
        descriptors.extend(chunk);
    }
    Ok((value, descriptors))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the hand-over is malformed: {what}"))
}

fn send_chunk(socket: &UnixStream, chunk: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = chunk.iter().map(AsRawFd::as_raw_fd).collect();
    let bytes = size_of_val(raw.as_slice());
    let mut control = Control::new();
    let byte = [IoSlice::new(b"d")];
    // SAFETY: an all-zero `msghdr` is valid; its fields are set to buffers that outlive the call, the control buffer is
    // aligned and large enough for one header and the chunk (CHUNK bounds it), and so CMSG_FIRSTHDR is not null.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = byte.as_ptr().cast_mut().cast();
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(bytes as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
        std::ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), bytes);
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    match sent {
        1 => Ok(()),
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => send_chunk(socket, chunk),
            error => Err(error),
        },
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn receive_chunk(socket: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut control = Control::new();
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let mut descriptors = Vec::new();
    // SAFETY: an all-zero `msghdr` is valid; its fields are set to buffers that outlive the call. The kernel fills the
    // control buffer with whole headers, which the CMSG macros walk within `msg_controllen`; each descriptor that it
    // names was made for this process by this call, so it is ours alone to own.
    let got = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = bytes.as_mut_ptr().cast();
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = Control::SIZE as _;
        let got = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let mut header = if got > 0 { libc::CMSG_FIRSTHDR(&raw const message) } else { std::ptr::null_mut() };
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for at in 0..length / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        got
    };
    match got {
        1 => Ok(descriptors),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => receive_chunk(socket),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        b.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (a, b)
    }

    #[test]
    fn a_value_and_its_descriptors_arrive_in_order_however_many() {
        for count in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let (a, b) = pair();
            let files: Vec<_> = (0..count)
                .map(|n| {
                    let mut file = tempfile::tempfile().unwrap();
                    write!(file, "{n}").unwrap();
                    file
                })
                .collect();
            let sending = std::thread::spawn(move || {
                let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                send(&a, &descriptors.len(), &descriptors).unwrap();
            });
            let (told, descriptors) = receive(&b, |count: &usize| *count).unwrap();
            sending.join().unwrap();
            assert_eq!((told, descriptors.len()), (count, count));
            for (n, descriptor) in descriptors.into_iter().enumerate() {
                use std::os::unix::fs::FileExt;
                let mut text = [0; 8];
                let length = File::from(descriptor).read_at(&mut text, 0).unwrap();
                assert_eq!(text[..length], *n.to_string().as_bytes());
            }
        }
    }

    #[test]
    fn what_is_no_hand_over_is_an_error() {
        for bytes in [&b""[..], b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x01x", b"\0\0\0\x01", b"\0\0\0\x011x"] {
            let (mut a, b) = pair();
            a.write_all(bytes).unwrap();
            drop(a);
            assert!(receive(&b, |count: &usize| *count).is_err(), "{bytes:?}");
        }
    }
}
