//! The kernel's tables, typed: replaced by difference, so that what stays is never missing, and read back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;

use aya::Pod;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, SockMap};
use proxy_common::admission::Prefix;
use proxy_common::tables::{
    Address, Count, Counters, HOST_ADDRESSES, PORTS, PREFIXES, Plain, PortEntry, PortKey, REFUSED, Reason,
    RefusedEntry, RefusedKey, SETTINGS_KEY, SLOTS, SOCKETS_PER_FAMILY, Settings, SocketCount, family_index,
    first_socket,
};

use super::{EdgeError, sys};
use crate::gateway::edge::{AdmissionRules, EdgeCounters, PortTable, RefusedSource, Slot};

/// Names of the tables in the object.
#[cfg(test)]
pub(super) const NAMES: [&str; 12] = [
    "PORTS",
    "HOST",
    "DENY_V4",
    "DENY_V6",
    "ALLOW_V4",
    "ALLOW_V6",
    "SETTINGS",
    "BUCKETS",
    "COUNTERS",
    "REFUSED",
    "SOCKETS",
    "SOCKET_COUNTS",
];

/// A layout of `proxy-common`, for aya.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(super) struct Raw<T>(pub(super) T);

// SAFETY: `Plain` promises a layout without padding in which every bit pattern is a value.
unsafe impl<T: Plain> Pod for Raw<T> {}

pub(super) type Hash<K, V> = HashMap<MapData, Raw<K>, Raw<V>>;
type Trie<const WORDS: usize> = LpmTrie<MapData, [u32; WORDS], u32>;

/// A list of prefixes, one trie for each family.
struct Prefixes {
    v4: Trie<1>,
    v6: Trie<4>,
}

/// All tables of one set of maps.
pub(super) struct Tables {
    ports: Hash<PortKey, PortEntry>,
    host: Hash<Address, u32>,
    deny: Prefixes,
    allow: Prefixes,
    settings: HashMap<MapData, u32, Raw<Settings>>,
    counters: PerCpuArray<MapData, Raw<Counters>>,
    refused: Hash<RefusedKey, RefusedEntry>,
    sockets: SockMap<MapData>,
    socket_counts: Array<MapData, Raw<SocketCount>>,
}

pub(super) fn failed(table: &'static str, room: u32) -> impl Fn(MapError) -> EdgeError {
    move |source| EdgeError::Table { table, room, source }
}

impl Tables {
    /// From maps by name.
    pub(super) fn new(mut take: impl FnMut(&'static str) -> Result<Map, EdgeError>) -> Result<Self, EdgeError> {
        macro_rules! table {
            ($name:literal) => {
                take($name)?.try_into().map_err(failed($name, 0))?
            };
        }
        Ok(Self {
            ports: table!("PORTS"),
            host: table!("HOST"),
            deny: Prefixes { v4: table!("DENY_V4"), v6: table!("DENY_V6") },
            allow: Prefixes { v4: table!("ALLOW_V4"), v6: table!("ALLOW_V6") },
            settings: table!("SETTINGS"),
            counters: table!("COUNTERS"),
            refused: table!("REFUSED"),
            sockets: table!("SOCKETS"),
            socket_counts: table!("SOCKET_COUNTS"),
        })
    }

    /// From the pins in a folder.
    pub(super) fn pinned(folder: &Path) -> Result<Self, EdgeError> {
        Self::new(|name| MapData::from_pin(folder.join(name)).and_then(Map::from_map_data).map_err(failed(name, 0)))
    }

    /// Replaces the ports.
    pub(super) fn set_ports(&mut self, wanted: &PortTable) -> Result<(), EdgeError> {
        enough("PORTS", PORTS, wanted.len(), "give the virtual clusters shorter ranges or fewer listen addresses")?;
        let wanted = wanted.iter().map(|(at, port)| {
            let key = PortKey { address: at.ip().into(), port: at.port().into() };
            (key, PortEntry { slot: port.slot.0, open: port.open.into() })
        });
        replace(&mut self.ports, wanted.collect()).map_err(failed("PORTS", PORTS))
    }

    /// Replaces the host's own addresses.
    pub(super) fn set_host(&mut self, wanted: &BTreeSet<IpAddr>) -> Result<(), EdgeError> {
        enough("HOST", HOST_ADDRESSES, wanted.len(), "listen on named addresses instead of all")?;
        let wanted = wanted.iter().map(|&address| (address.into(), 1));
        replace(&mut self.host, wanted.collect()).map_err(failed("HOST", HOST_ADDRESSES))
    }

    /// Replaces who may connect. An allow list comes into force after it is filled and goes out of force before it is
    /// emptied, so no allowed source is refused on the way.
    pub(super) fn set_admission(&mut self, rules: &AdmissionRules) -> Result<(), EdgeError> {
        let AdmissionRules { deny, allow, new_connections: _ } = rules;
        for (name, list) in [("admission.deny", deny), ("admission.allow", allow)] {
            enough(name, PREFIXES, list.len(), "join neighbouring prefixes")?;
        }
        self.deny.replace(deny).map_err(failed("DENY", PREFIXES))?;
        if !allow.is_empty() {
            self.allow.replace(allow).map_err(failed("ALLOW", PREFIXES))?;
        }
        self.settings.insert(SETTINGS_KEY, Raw(rules.settings()), 0).map_err(failed("SETTINGS", 1))?;
        if allow.is_empty() {
            self.allow.replace(allow).map_err(failed("ALLOW", PREFIXES))?;
        }
        Ok(())
    }

    /// Replaces the sockets, one by one in their places. More of them are there before they are counted, and fewer are
    /// counted before they are gone.
    pub(super) fn set_sockets(&mut self, sockets: &[BorrowedFd<'_>]) -> Result<(), EdgeError> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for socket in sockets {
            let domain = sys::socket_domain(*socket)
                .map_err(|source| EdgeError::System { what: "asking a socket for its family", source })?;
            match domain {
                libc::AF_INET => v4.push(*socket),
                libc::AF_INET6 => v6.push(*socket),
                other => return Err(EdgeError::Socket(other)),
            }
        }
        for (is_v4, sockets) in [(true, v4), (false, v6)] {
            enough("SOCKETS", SOCKETS_PER_FAMILY, sockets.len(), "run fewer worker threads")?;
            let first = first_socket(is_v4);
            let count = sockets.len() as u32;
            let table = failed("SOCKETS", SOCKETS_PER_FAMILY);
            for (index, socket) in (first..).zip(&sockets) {
                self.sockets.set(index, &socket.as_raw_fd(), 0).map_err(&table)?;
            }
            self.socket_counts
                .set(family_index(is_v4), Raw(SocketCount { sockets: count }), 0)
                .map_err(failed("SOCKET_COUNTS", 2))?;
            for index in first + count..first + SOCKETS_PER_FAMILY {
                match self.sockets.clear_index(&index) {
                    Err(e) if !is_absent(&e) => return Err(table(e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What was counted, for slots with a count that isn't 0.
    pub(super) fn counters(&self) -> BTreeMap<Slot, EdgeCounters> {
        let total = |slot: u32| {
            let mut counts = [0u64; 8];
            for Raw(cpu) in self.counters.get(&slot, 0).ok()?.iter() {
                counts.iter_mut().zip(cpu.counts).for_each(|(sum, n)| *sum += n);
            }
            counts.iter().any(|&n| n > 0).then_some(counts)
        };
        (0..SLOTS).filter_map(|slot| Some((Slot(slot as u16), named(&total(slot)?)))).collect()
    }

    /// Who was refused lately, the most first.
    pub(super) fn refused(&self, limit: usize) -> Vec<RefusedSource> {
        let now = sys::monotonic_ns();
        // While packets change the map, its walk may begin again: it is bounded, and a source counts once.
        let walk = self.refused.keys().take(2 * REFUSED as usize).map_while(Result::ok);
        let keys: BTreeSet<Raw<RefusedKey>> = walk.collect();
        let mut all: Vec<RefusedSource> = keys
            .into_iter()
            .filter_map(|key| {
                let Raw(RefusedEntry { packets, last_ns }) = self.refused.get(&key, 0).ok()?;
                let Raw(RefusedKey { address, slot, reason }) = key;
                Some(RefusedSource {
                    address: address.to_ip(),
                    slot: Slot(slot),
                    reason: Reason::from_value(reason)?.into(),
                    packets,
                    last_ms_ago: now.saturating_sub(last_ns) / 1_000_000,
                })
            })
            .collect();
        all.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.address.cmp(&b.address)));
        all.truncate(limit);
        all
    }
}

fn named(counts: &[u64; 8]) -> EdgeCounters {
    let of = |what: Count| counts[what.index()];
    EdgeCounters {
        admitted: of(Count::Admitted),
        steered: of(Count::Steered),
        refused: Reason::ALL
            .into_iter()
            .map(|reason| (reason.into(), of(Count::Refused(reason))))
            .filter(|&(_, n)| n > 0)
            .collect(),
    }
}

pub(super) fn enough(table: &'static str, room: u32, wanted: usize, remedy: &'static str) -> Result<(), EdgeError> {
    if wanted > room as usize { Err(EdgeError::NoRoom { table, room, wanted, remedy }) } else { Ok(()) }
}

/// Makes the map hold exactly `wanted`: first what is new or changed, then what goes.
pub(super) fn replace<K: Plain + Ord, V: Plain + PartialEq>(
    map: &mut Hash<K, V>,
    wanted: BTreeMap<K, V>,
) -> Result<(), MapError> {
    let there: BTreeMap<Raw<K>, Raw<V>> = map.iter().collect::<Result<_, _>>()?;
    for (&key, &value) in &wanted {
        if there.get(&Raw(key)).is_none_or(|Raw(old)| *old != value) {
            map.insert(Raw(key), Raw(value), 0)?;
        }
    }
    for key in there.keys().filter(|Raw(key)| !wanted.contains_key(key)) {
        ignore_absent(map.remove(key))?;
    }
    Ok(())
}

impl Prefixes {
    fn replace(&mut self, wanted: &[Prefix]) -> Result<(), MapError> {
        let of = |v4: bool| {
            let of_family = wanted.iter().filter(move |prefix| prefix.address().is_ipv4() == v4);
            of_family.map(|p| (u32::from(p.length()), Address::from(p.address()).words))
        };
        replace_prefixes(&mut self.v4, of(true).map(|(length, words)| (length, [words[0]])).collect())?;
        replace_prefixes(&mut self.v6, of(false).collect())
    }
}

fn replace_prefixes<const N: usize>(map: &mut Trie<N>, wanted: BTreeSet<(u32, [u32; N])>) -> Result<(), MapError>
where
    [u32; N]: Pod,
{
    let keys = map.keys().map(|key| key.map(|key| (key.prefix_len(), key.data())));
    let there: BTreeSet<(u32, [u32; N])> = keys.collect::<Result<_, _>>()?;
    for &(length, words) in wanted.difference(&there) {
        map.insert(&Key::new(length, words), 1, 0)?;
    }
    for &(length, words) in there.difference(&wanted) {
        ignore_absent(map.remove(&Key::new(length, words)))?;
    }
    Ok(())
}

fn is_absent(error: &MapError) -> bool {
    let absent = |e: &std::io::Error| matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL));
    match error {
        MapError::KeyNotFound | MapError::ElementNotFound => true,
        MapError::SyscallError(e) => absent(&e.io_error),
        _ => false,
    }
}

fn ignore_absent(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(e) if is_absent(&e) => Ok(()),
        other => other,
    }
}

/// Whether the pinned maps are what the object defines, by the kernel's own account: nothing is taken on trust.
pub(super) fn matches(folder: &Path, definitions: &super::layout::Definitions) -> bool {
    definitions.iter().all(|(name, wanted)| {
        let Ok(map) = MapData::from_pin(folder.join(name)) else { return false };
        let Ok(info) = map.info() else { return false };
        let sizes = (info.key_size(), info.value_size(), info.max_entries(), info.map_flags());
        sizes == (wanted.key_size, wanted.value_size, wanted.max_entries, wanted.flags)
            && info.map_type().is_ok_and(|kind| kind as u32 == wanted.kind)
    })
}
