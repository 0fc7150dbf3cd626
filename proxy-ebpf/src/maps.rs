//! Maps, by the names the daemon knows them by.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use proxy_common::packet::{Class, Counter};

/// What the probe saw, indexed by [`Class`].
#[map(name = "TURNOUT_PACKETS")]
pub static PACKETS: PerCpuArray<Counter> = PerCpuArray::with_max_entries(Class::ALL.len() as u32, 0);
