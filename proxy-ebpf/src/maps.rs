// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Maps, by the names the daemon knows them by. Layouts and sizes are those of `proxy_common::tables`.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, SockMap};
use proxy_common::tables::{
    Address, BUCKETS, Counters, HOST_ADDRESSES, PORTS, PREFIXES, PortEntry, PortKey, REFUSED, RefusedEntry, RefusedKey,
    SLOTS, SOCKETS_PER_FAMILY, Settings, SocketCount,
};

// Tables that the daemon fills hold what they hold (no preallocation); a changed entry is replaced as a whole, and a
// program that has found the old one may read it to its end. Those that packets fill are allocated beforehand.

/// Ports of ours.
#[map(name = "PORTS")]
pub static PORT_TABLE: HashMap<PortKey, PortEntry> = HashMap::with_max_entries(PORTS, BPF_F_NO_PREALLOC);

/// Addresses of this host.
#[map(name = "HOST")]
pub static HOST: HashMap<Address, u32> = HashMap::with_max_entries(HOST_ADDRESSES, BPF_F_NO_PREALLOC);

/// Denied IPv4 prefixes.
#[map(name = "DENY_V4")]
pub static DENY_V4: LpmTrie<[u32; 1], u32> = LpmTrie::with_max_entries(PREFIXES, BPF_F_NO_PREALLOC);

/// Denied IPv6 prefixes.
#[map(name = "DENY_V6")]
pub static DENY_V6: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(PREFIXES, BPF_F_NO_PREALLOC);

/// Allowed IPv4 prefixes.
#[map(name = "ALLOW_V4")]
pub static ALLOW_V4: LpmTrie<[u32; 1], u32> = LpmTrie::with_max_entries(PREFIXES, BPF_F_NO_PREALLOC);

/// Allowed IPv6 prefixes.
#[map(name = "ALLOW_V6")]
pub static ALLOW_V6: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(PREFIXES, BPF_F_NO_PREALLOC);

/// The one [`Settings`]. A hash and not an array: its value is replaced in one step.
#[map(name = "SETTINGS")]
pub static SETTINGS: HashMap<u32, Settings> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// State of each source's rate.
#[map(name = "BUCKETS")]
pub static BUCKET_TABLE: LruHashMap<Address, u64> = LruHashMap::with_max_entries(BUCKETS, 0);

/// What was counted, by slot.
#[map(name = "COUNTERS")]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(SLOTS, 0);

/// Who was refused lately.
#[map(name = "REFUSED")]
pub static REFUSED_TABLE: LruHashMap<RefusedKey, RefusedEntry> = LruHashMap::with_max_entries(REFUSED, 0);

/// Listening sockets: those of IPv4, then those of IPv6. One that is closed leaves it by itself.
#[map(name = "SOCKETS")]
pub static SOCKETS: SockMap = SockMap::with_max_entries(2 * SOCKETS_PER_FAMILY, 0);

/// How many of them there are, by family.
#[map(name = "SOCKET_COUNTS")]
pub static SOCKET_COUNTS: Array<SocketCount> = Array::with_max_entries(2, 0);
