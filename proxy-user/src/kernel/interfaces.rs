//! The network namespace as it is now: interfaces that can carry clients, and the host's own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// Name.
    pub(super) name: String,
    /// Number in its namespace.
    pub(super) index: u32,
    /// It is Ethernet, up, and not the loopback.
    pub(super) carries_clients: bool,
}

/// What one look at the namespace found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    /// Interfaces by index.
    pub(super) interfaces: BTreeMap<u32, Interface>,
    /// Addresses of all of them, the loopback's too.
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// Drivers of interfaces that get their packets from others, on which admission already ran. Running it again would
/// charge a source's rate twice.
const STACKED: [&str; 8] =
    ["bridge", "bonding", "team", "802.1Q VLAN Support", "macvlan", "ipvlan", "openvswitch", "vrf"];

impl Network {
    /// Looks at the calling thread's namespace.
    pub(super) fn look() -> io::Result<Self> {
        let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: `first` outlives the call, which writes only to it.
        if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut network = Self::default();
        let mut next = first;
        while !next.is_null() {
            // SAFETY: the list is valid until it is freed below.
            let entry = unsafe { &*next };
            // SAFETY: every name in it ends in NUL.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
            network.add(&name, entry.ifa_flags, entry.ifa_addr);
            next = entry.ifa_next;
        }
        // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
        unsafe { libc::freeifaddrs(first) };
        Ok(network)
    }

    fn add(&mut self, name: &str, flags: libc::c_uint, address: *const libc::sockaddr) {
        if address.is_null() {
            return;
        }
        // SAFETY: an address of the list is as long as its family says, and aligned for it.
        match i32::from(unsafe { (*address).sa_family }) {
            libc::AF_PACKET => {
                // SAFETY: as above.
                let link = unsafe { &*address.cast::<libc::sockaddr_ll>() };
                let wanted = libc::IFF_UP as libc::c_uint;
                let carries_clients = link.sll_hatype == libc::ARPHRD_ETHER
                    && flags & (wanted | libc::IFF_LOOPBACK as libc::c_uint) == wanted;
                let index = link.sll_ifindex as u32;
                self.interfaces.insert(index, Interface { name: name.to_owned(), index, carries_clients });
            }
            libc::AF_INET => {
                // SAFETY: as above.
                let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
                self.addresses.insert(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into());
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
                self.addresses.insert(Ipv6Addr::from(v6.sin6_addr.s6_addr).into());
            }
            _ => {}
        }
    }

    /// The interfaces that admission should run on. `None`: those that carry clients and aren't stacked on others.
    pub(super) fn wanted(&self, named: Option<&[String]>) -> BTreeMap<u32, String> {
        let stacked = |name: &str| driver(name).is_some_and(|d| STACKED.contains(&d.as_str()));
        let chosen = self.interfaces.values().filter(|interface| match named {
            Some(names) => names.contains(&interface.name),
            None => interface.carries_clients && !stacked(&interface.name),
        });
        chosen.map(|interface| (interface.index, interface.name.clone())).collect()
    }
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    _rest: [u8; 16],
}

/// Asks the driver of an interface (SIOCETHTOOL).
pub(super) fn ethtool<T>(name: &str, ask: &mut T) -> io::Result<()> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut request = Request { name: [0; libc::IFNAMSIZ], data: (&raw mut *ask).cast(), _rest: [0; 16] };
    if name.len() >= request.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: takes no pointer; the descriptor is owned from here on.
    let socket = unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            fd @ 0.. => OwnedFd::from_raw_fd(fd),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the request and what it points to outlive the call; the callers give the structure of their command.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Name of the interface's driver.
pub(super) fn driver(name: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 0x3;
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        _rest: [u8; 160],
    }
    // The kernel's structure has 196 bytes.
    const _: () = assert!(size_of::<DriverInfo>() == 196);
    // SAFETY: a structure of integers, for which zeros are values.
    let mut info: DriverInfo = unsafe { zeroed() };
    info.command = ETHTOOL_GDRVINFO;
    ethtool(name, &mut info).ok()?;
    let driver = CStr::from_bytes_until_nul(&info.driver).ok()?;
    Some(driver.to_string_lossy().into_owned())
}

/// Whether large receive offload is on: the card joins packets before XDP can see them, and most drivers refuse XDP
/// beside it.
pub(super) fn has_lro(name: &str) -> bool {
    const ETHTOOL_GFLAGS: u32 = 0x25;
    const LRO: u32 = 1 << 15;
    let mut value = [ETHTOOL_GFLAGS, 0];
    ethtool(name, &mut value).is_ok() && value[1] & LRO != 0
}

/// Name of an interface of the calling thread's namespace.
pub(super) fn name_of(index: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer is as long as the call needs and outlives it.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    Some(CStr::from_bytes_until_nul(&name).ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(interfaces: &[(u32, &str, bool)]) -> Network {
        let interface = |&(index, name, carries_clients): &(u32, &str, bool)| {
            (index, Interface { name: name.to_owned(), index, carries_clients })
        };
        Network { interfaces: interfaces.iter().map(interface).collect(), ..Network::default() }
    }

    #[test]
    fn the_loopback_is_seen_with_its_address_and_carries_no_clients() {
        let here = Network::look().unwrap();
        let lo = here.interfaces.values().find(|i| i.name == "lo").expect("every namespace has one");
        assert!(!lo.carries_clients);
        assert_eq!(name_of(lo.index).as_deref(), Some("lo"));
        assert_eq!(name_of(u32::MAX), None);
    }

    #[test]
    fn without_names_those_that_carry_clients_are_wanted_and_with_names_those_that_are_there() {
        let network = network(&[(1, "nolo", false), (2, "noeth0", true), (3, "noeth1", true)]);
        assert_eq!(network.wanted(None).into_values().collect::<Vec<_>>(), ["noeth0", "noeth1"]);
        let named = ["nolo".to_owned(), "noeth1".to_owned(), "gone".to_owned()];
        assert_eq!(network.wanted(Some(&named)).into_values().collect::<Vec<_>>(), ["nolo", "noeth1"]);
    }
}
