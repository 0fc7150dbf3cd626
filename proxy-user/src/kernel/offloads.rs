//! What an interface does to packets before the programs see them, as far as it prevents the splice.
//!
//! Packets that were joined must come apart again as they were. With LRO nobody knows how they were. A list of packets
//! (`rx-gro-list`) carries a header for each, of which the programs change the first. An IPv6 packet above 64 KiB (BIG TCP)
//! gets an extension header of the kernel's own, which a spliced connection's packets do not have.

use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::{fmt, io, iter};

use super::interfaces::{ethtool, has_lro};

/// Largest packet that IPv6 has a length for, its own header included: `GRO_LEGACY_MAX_SIZE`.
const LARGEST: u32 = 65_536;

/// Why connections can't be spliced by an interface, and the command that helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// A sentence without its end.
    pub(super) why: String,
    /// A command.
    pub(super) remedy: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`", self.why, self.remedy)
    }
}

/// What of an interface's offloads prevents the splice.
pub(super) fn obstacle(name: &str, index: u32) -> Option<Obstacle> {
    if has_lro(name) {
        let why = "large receive offload is on".to_owned();
        return Some(Obstacle { why, remedy: format!("ethtool -K {name} lro off") });
    }
    if has_packet_lists(name) {
        let why = "packets are joined to lists".to_owned();
        return Some(Obstacle { why, remedy: format!("ethtool -K {name} rx-gro-list off") });
    }
    let joined = largest_joined(index).unwrap_or(0);
    (joined > LARGEST).then(|| Obstacle {
        why: format!("IPv6 packets are joined up to {joined} bytes (BIG TCP)"),
        remedy: format!("ip link set dev {name} gro_max_size {LARGEST}"),
    })
}

/// Whether `rx-gro-list` is on. A driver that can't be asked has no such feature on.
fn has_packet_lists(name: &str) -> bool {
    static PLACE: OnceLock<Option<usize>> = OnceLock::new();
    // The kernel's numbers of features are those of this boot, for every driver.
    let Some(place) = *PLACE.get_or_init(|| feature(name, "rx-gro-list")) else { return false };
    is_on(name, place)
}

/// Features that there is room for; Linux 6.18 has fewer than 70.
const FEATURES: usize = 128;
/// Bytes of a name.
const NAME: usize = 32;
/// The set of strings that the features' names are (`ETH_SS_FEATURES`).
const NAMES_OF_FEATURES: u32 = 4;

/// Number of a feature.
fn feature(interface: &str, wanted: &str) -> Option<usize> {
    const ETHTOOL_GSSET_INFO: u32 = 0x37;
    const ETHTOOL_GSTRINGS: u32 = 0x1b;
    #[repr(C)]
    struct Count {
        command: u32,
        _reserved: u32,
        sets: u64,
        count: u32,
        _rest: u32,
    }
    #[repr(C)]
    struct Names {
        command: u32,
        set: u32,
        count: u32,
        names: [[u8; NAME]; FEATURES],
    }
    let mut count =
        Count { command: ETHTOOL_GSSET_INFO, _reserved: 0, sets: 1 << NAMES_OF_FEATURES, count: 0, _rest: 0 };
    ethtool(interface, &mut count).ok()?;
    // The kernel writes as many names as it has, whatever is asked for.
    if count.sets == 0 || count.count as usize > FEATURES {
        return None;
    }
    let mut names = Box::new(Names {
        command: ETHTOOL_GSTRINGS,
        set: NAMES_OF_FEATURES,
        count: count.count,
        names: [[0; NAME]; FEATURES],
    });
    ethtool(interface, &mut *names).ok()?;
    let known = names.names.iter().take(names.count as usize);
    let mut known = known.map(|name| name.split(|b| *b == 0).next().unwrap_or_default());
    known.position(|name| name == wanted.as_bytes())
}

/// Whether a feature is active.
fn is_on(interface: &str, feature: usize) -> bool {
    const ETHTOOL_GFEATURES: u32 = 0x3a;
    const BLOCKS: usize = FEATURES / 32;
    /// 32 features.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Block {
        _available: u32,
        _requested: u32,
        active: u32,
        _never_changed: u32,
    }
    #[repr(C)]
    struct Features {
        command: u32,
        size: u32,
        blocks: [Block; BLOCKS],
    }
    let mut features = Features { command: ETHTOOL_GFEATURES, size: BLOCKS as u32, blocks: [Block::default(); BLOCKS] };
    ethtool(interface, &mut features).is_ok()
        && features.blocks.get(feature / 32).is_some_and(|block| block.active >> (feature % 32) & 1 == 1)
}

const LINK_HEADER: usize = size_of::<libc::nlmsghdr>() + 16; // and ifinfomsg
const IFLA_GRO_MAX_SIZE: u16 = 58;

/// Bytes up to which arriving IPv6 packets are joined; 0: the kernel does not say (before 5.19).
fn largest_joined(index: u32) -> io::Result<u32> {
    // SAFETY: takes no pointer; the descriptor is owned from here on.
    let socket = unsafe {
        match libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) {
            fd @ 0.. => OwnedFd::from_raw_fd(fd),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    let request = link_request(index);
    let mut answer = vec![0u8; 32 << 10];
    // SAFETY: the buffers outlive the calls and are as long as said.
    let length = unsafe {
        if libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0)
    };
    answer.truncate(usize::try_from(length).map_err(|_| io::Error::last_os_error())?);
    Ok(gro_max_size(&answer))
}

/// RTM_GETLINK for one interface.
fn link_request(index: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LINK_HEADER);
    bytes.extend((LINK_HEADER as u32).to_ne_bytes());
    bytes.extend(libc::RTM_GETLINK.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port: one question
    bytes.extend([0; 4]); // family, type
    bytes.extend(index.to_ne_bytes());
    bytes.extend([0; 8]); // flags, change
    bytes
}

/// IFLA_GRO_MAX_SIZE of an RTM_NEWLINK; 0 where there is none. Takes any bytes.
fn gro_max_size(answer: &[u8]) -> u32 {
    let kind = answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    if kind != Some(libc::RTM_NEWLINK) {
        return 0;
    }
    let mut rest = answer.get(LINK_HEADER..).unwrap_or_default();
    let attributes = iter::from_fn(|| {
        let [a, b, c, d, ..] = *rest else { return None };
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]), value))
    });
    let size = attributes.into_iter().find(|(kind, _)| *kind == IFLA_GRO_MAX_SIZE);
    size.and_then(|(_, value)| value.first_chunk().copied()).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_joins_nothing_that_stands_in_the_way() {
        assert_eq!(largest_joined(1).expect("asked without privilege") & !LARGEST, 0, "the default, or an old kernel");
        assert_eq!(obstacle("lo", 1), None);
        assert_eq!(largest_joined(u32::MAX >> 1).ok(), Some(0), "no such interface");
    }

    #[test]
    fn a_feature_has_the_number_that_its_name_has() {
        // Every interface can say so, whatever its driver; it is on for the loopback since Linux 2.6.
        let place = feature("lo", "rx-checksum").or_else(|| feature("lo", "tx-scatter-gather")).expect("a feature");
        let scatter = feature("lo", "tx-scatter-gather").expect("a feature");
        assert!(place < FEATURES && is_on("lo", scatter));
        assert_eq!(feature("lo", "no-such-feature"), None);
        assert!(!is_on("lo", FEATURES), "beyond all");
        assert_eq!(feature("no-such-interface", "rx-gro-list"), None);
    }

    #[test]
    fn the_size_is_found_behind_other_attributes_and_any_bytes_are_read() {
        let mut answer = vec![0; LINK_HEADER];
        answer[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        let put = |answer: &mut Vec<u8>, kind: u16, value: &[u8]| {
            answer.extend((4 + value.len() as u16).to_ne_bytes());
            answer.extend(kind.to_ne_bytes());
            answer.extend(value);
            answer.resize(answer.len().next_multiple_of(4), 0);
        };
        put(&mut answer, 3, b"eth0\0");
        assert_eq!(gro_max_size(&answer), 0);
        put(&mut answer, IFLA_GRO_MAX_SIZE, &185_000u32.to_ne_bytes());
        assert_eq!(gro_max_size(&answer), 185_000);
        for length in 0..answer.len() {
            assert_eq!(gro_max_size(&answer[..length]), 0, "cut at {length}");
        }
        answer[4] ^= 1;
        assert_eq!(gro_max_size(&answer), 0, "another message");
    }
}
