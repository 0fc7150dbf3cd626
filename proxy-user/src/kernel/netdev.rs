//! Whether a driver runs XDP by itself, asked of the kernel (generic netlink family `netdev`, Linux 6.3) without
//! attaching anything: on real cards an attachment restarts the queues.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// A conversation with the kernel.
#[derive(Debug)]
pub(super) struct Netdev {
    socket: OwnedFd,
    family: u16,
}

const HEADER: usize = 20; // nlmsghdr and genlmsghdr

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;

impl Netdev {
    /// Finds the family.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: takes no pointer; the descriptor is owned from here on.
        let socket = unsafe {
            match libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_GENERIC) {
                fd @ 0.. => OwnedFd::from_raw_fd(fd),
                _ => return Err(io::Error::last_os_error()),
            }
        };
        let mut netdev = Self { socket, family: GENL_ID_CTRL };
        let answer = netdev.ask(&request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0"))?;
        let id = attribute(&answer, CTRL_ATTR_FAMILY_ID).and_then(|value| value.first_chunk().copied());
        netdev.family = u16::from_ne_bytes(id.ok_or_else(odd)?);
        Ok(netdev)
    }

    /// Whether the interface's driver runs XDP programs.
    pub(super) fn runs_xdp(&self, index: u32) -> io::Result<bool> {
        let answer = self.ask(&request(self.family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()))?;
        let features = attribute(&answer, NETDEV_A_DEV_XDP_FEATURES).and_then(|value| value.first_chunk().copied());
        Ok(u64::from_ne_bytes(features.ok_or_else(odd)?) & NETDEV_XDP_ACT_BASIC != 0)
    }

    fn ask(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut answer = vec![0u8; 8192];
        let fd = self.socket.as_raw_fd();
        // SAFETY: the buffer outlives the call and is as long as said.
        if unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        match unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) } {
            length @ 0.. => answer.truncate(length as usize),
            _ => return Err(io::Error::last_os_error()),
        }
        let kind = answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]])).ok_or_else(odd)?;
        if i32::from(kind) == libc::NLMSG_ERROR {
            let code = answer.get(16..).and_then(|b| b.first_chunk().copied()).map(i32::from_ne_bytes);
            return Err(io::Error::from_raw_os_error(-code.ok_or_else(odd)?));
        }
        Ok(answer)
    }
}

fn odd() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel that isn't understood")
}

/// A request with one attribute.
fn request(family: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let padded = value.len().next_multiple_of(4);
    let mut bytes = Vec::with_capacity(HEADER + 4 + padded);
    bytes.extend(((HEADER + 4 + padded) as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port: one question at a time
    bytes.extend([command, 1, 0, 0]);
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(HEADER + 4 + padded, 0);
    bytes
}

/// The value of an attribute of an answer.
fn attribute(answer: &[u8], wanted: u16) -> Option<&[u8]> {
    const KIND: u16 = 0x3fff; // without the flags for nested and byte order
    let mut rest = answer.get(HEADER..)?;
    while let [a, b, c, d, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        if u16::from_ne_bytes([c, d]) & KIND == wanted {
            return rest.get(4..length);
        }
        rest = rest.get(length.next_multiple_of(4).max(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_found_behind_others_and_an_absent_one_is_not() {
        let mut answer = vec![0; HEADER];
        answer.extend([6, 0, 1, 0, 0xaa, 0xbb, 0, 0]);
        answer.extend([8, 0, 3, 0, 1, 2, 3, 4]);
        if cfg!(target_endian = "little") {
            assert_eq!(attribute(&answer, 1), Some(&[0xaa, 0xbb][..]));
            assert_eq!(attribute(&answer, 3), Some(&[1, 2, 3, 4][..]));
        }
        assert_eq!(attribute(&answer, 7), None);
        assert_eq!(attribute(&answer[..HEADER + 3], 1), None);
        assert_eq!(attribute(&[0; HEADER + 8], 1), None, "lengths of 0 end");
    }

    #[test]
    fn the_loopback_has_no_native_xdp_where_the_kernel_tells() {
        let Ok(netdev) = Netdev::open() else { return };
        assert!(!netdev.runs_xdp(1).expect("it is asked without privilege"));
        assert!(netdev.runs_xdp(u32::MAX >> 1).is_err());
    }
}
