//! By which interface packets of a connection leave, asked of the kernel (rtnetlink).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use super::sys::Netlink;

// include/uapi/linux/rtnetlink.h
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_MARK: u16 = 16;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
/// `nlmsghdr` and `rtmsg`.
const HEADER: usize = 28;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;

/// A connection whose route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// This host's address.
    pub(super) ours: SocketAddr,
    /// The peer's, of the same family.
    pub(super) theirs: SocketAddr,
    /// `SO_MARK` of the socket, by which routes may be chosen.
    pub(super) mark: u32,
}

/// A conversation with the kernel, about the network namespace it was begun in.
#[derive(Debug)]
pub(super) struct Routes(Mutex<Conversation>);

#[derive(Debug)]
struct Conversation {
    socket: Netlink,
    sequence: u32,
}

impl Routes {
    /// Begins one.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(Mutex::new(Conversation { socket: Netlink::route()?, sequence: 0 })))
    }

    /// Index of the interface.
    pub(super) fn interface(&self, question: &Question) -> io::Result<u32> {
        let mut conversation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        conversation.sequence = conversation.sequence.wrapping_add(1);
        let sequence = conversation.sequence;
        conversation.socket.send(&request(question, sequence))?;
        loop {
            if let Some(interface) = interface_in(&conversation.socket.receive()?, sequence)? {
                return Ok(interface);
            }
        }
    }
}

fn request(question: &Question, sequence: u32) -> Vec<u8> {
    let Question { ours, theirs, mark } = question;
    let (family, bits) = if theirs.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
    let mut bytes = vec![0u8; 4];
    bytes.extend(RTM_GETROUTE.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]); // the kernel's port
    bytes.extend([family as u8, bits, bits, 0, 0, 0, 0, 0]);
    bytes.extend([0; 4]);
    let address = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    put(&mut bytes, RTA_DST, &address(theirs.ip()));
    put(&mut bytes, RTA_SRC, &address(ours.ip()));
    put(&mut bytes, RTA_IP_PROTO, &[libc::IPPROTO_TCP as u8]);
    put(&mut bytes, RTA_SPORT, &ours.port().to_be_bytes());
    put(&mut bytes, RTA_DPORT, &theirs.port().to_be_bytes());
    if *mark != 0 {
        put(&mut bytes, RTA_MARK, &mark.to_ne_bytes());
    }
    if let SocketAddr::V6(v6) = theirs
        && v6.scope_id() != 0
    {
        put(&mut bytes, RTA_OIF, &v6.scope_id().to_ne_bytes());
    }
    let length = (bytes.len() as u32).to_ne_bytes();
    bytes[..4].copy_from_slice(&length);
    bytes
}

/// One attribute.
fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn odd() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel that isn't understood")
}

/// What an answer says; `None`: it is that to another question.
fn interface_in(answer: &[u8], sequence: u32) -> io::Result<Option<u32>> {
    let short = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    if word(8).ok_or_else(odd)? != sequence {
        return Ok(None);
    }
    let kind = short(4).ok_or_else(odd)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        let code = word(16).ok_or_else(odd)? as i32;
        return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
    }
    if kind != RTM_NEWROUTE {
        return Err(odd());
    }
    let mut at = HEADER;
    while let (Some(length), Some(kind)) = (short(at), short(at + 2)) {
        if kind == RTA_OIF {
            return word(at + 4).map(Some).ok_or_else(odd);
        }
        at += usize::from(length).next_multiple_of(4).max(4);
    }
    Err(odd())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(ours: &str, theirs: &str) -> Question {
        let at = |text: &str| text.parse().expect("an address");
        Question { ours: at(ours), theirs: at(theirs), mark: 0 }
    }

    fn answer(kind: u16, sequence: u32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = ((16 + rest.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn this_host_is_reached_by_its_loopback() {
        let routes = Routes::open().expect("a socket");
        let has_v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
        let v6 = has_v6.then_some(("[::1]:40000", "[::1]:9092"));
        for (ours, theirs) in [("127.0.0.1:40000", "127.0.0.1:9092")].into_iter().chain(v6) {
            let found = routes.interface(&question(ours, theirs)).expect("a route");
            assert_eq!(crate::kernel::interfaces::name_of(found).as_deref(), Some("lo"));
        }
        let marked = Question { mark: 7, ..question("127.0.0.1:1", "127.0.0.1:2") };
        assert!(routes.interface(&marked).is_ok());
        let nowhere = question("192.0.2.1:1", "127.0.0.1:2");
        assert!(routes.interface(&nowhere).is_err(), "an address that isn't this host's");
        assert!(routes.interface(&marked).is_ok(), "a refusal is no end");
    }

    #[test]
    fn the_interface_is_found_behind_other_attributes() {
        let mut rest = vec![0; 12];
        put(&mut rest, RTA_DST, &[10, 0, 0, 1]);
        put(&mut rest, 99, &[1]);
        put(&mut rest, RTA_OIF, &7u32.to_ne_bytes());
        assert_eq!(interface_in(&answer(RTM_NEWROUTE, 3, &rest), 3).expect("a route"), Some(7));
        assert_eq!(interface_in(&answer(RTM_NEWROUTE, 2, &rest), 3).expect("another's"), None);
    }

    #[test]
    fn an_error_and_an_odd_answer_are_errors() {
        let refused = answer(libc::NLMSG_ERROR as u16, 3, &(-libc::ENETUNREACH).to_ne_bytes());
        assert_eq!(interface_in(&refused, 3).expect_err("refused").raw_os_error(), Some(libc::ENETUNREACH));
        for odd in [answer(RTM_NEWROUTE, 3, &[0; 12]), answer(77, 3, &[0; 40]), vec![0; 5]] {
            assert!(interface_in(&odd, 3).is_err(), "{odd:?}");
        }
        // Lengths of 0 end.
        let mut rest = vec![0; 12];
        rest.extend([0; 8]);
        assert!(interface_in(&answer(RTM_NEWROUTE, 3, &rest), 3).is_err());
    }
}
