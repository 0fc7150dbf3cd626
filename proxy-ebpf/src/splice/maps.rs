// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Maps, by the names the daemon knows them by. Layouts and sizes are those of `proxy_common::flows`.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, RingBuf};
use proxy_common::flows::{
    Counts, Dialing, FLOWS as FLOW_COUNT, FlowEntry, FlowKey, LISTENERS as LISTENER_COUNT, POLICIES as POLICY_COUNT,
    SESSIONS as SESSION_COUNT, Slot,
};
use proxy_common::headers::Headers;
use proxy_common::quote::Quote;
use proxy_common::splice::arm::Armed;
use proxy_common::splice::mirror::{Before, Copies, Copying};
use proxy_common::splice::policy::Policy;
use proxy_common::splice::segment::{Arriving, Leaving};
use proxy_common::splice::verdict::{Departure, Verdict};
use proxy_common::splice::walk::Walk;
use proxy_common::tables::PortKey;

/// Which packets are a session's.
#[map(name = "FLOWS")]
pub static FLOWS: HashMap<FlowKey, FlowEntry> = HashMap::with_max_entries(FLOW_COUNT, BPF_F_NO_PREALLOC);

/// The sessions. The daemon maps them into its memory, which the kernel allows only without a spin lock in them.
#[map(name = "SESSIONS")]
pub static SESSIONS: Array<Slot> = Array::with_max_entries(SESSION_COUNT, BPF_F_MMAPABLE);

/// Their locks, by the same index; the daemon never touches them.
#[map(name = "LOCKS")]
pub static LOCKS: Array<u64> = Array::with_max_entries(SESSION_COUNT, 0);

/// What the kernel may forward, by virtual cluster.
#[map(name = "POLICIES")]
pub static POLICIES: Array<Policy> = Array::with_max_entries(POLICY_COUNT, 0);

/// Listening ports whose connections are to be spliceable.
#[map(name = "LISTENERS")]
pub static LISTENERS: HashMap<PortKey, u32> = HashMap::with_max_entries(LISTENER_COUNT, BPF_F_NO_PREALLOC);

/// The one [`Dialing`].
#[map(name = "DIALING")]
pub static DIALING: Array<Dialing> = Array::with_max_entries(1, 0);

/// What was counted.
#[map(name = "COUNTERS")]
pub static COUNTERS: PerCpuArray<Counts> = PerCpuArray::with_max_entries(1, 0);

/// Copies of frames, for the daemon. Who loads it gives it its size; as it stands here it has room for nothing.
#[map(name = "MIRROR")]
pub static MIRROR: RingBuf = RingBuf::with_byte_size(4096, 0);

/// What was copied.
#[map(name = "COPIES")]
pub static COPIES: PerCpuArray<Copies> = PerCpuArray::with_max_entries(1, 0);

/// Bytes of a piece of payload that is summed.
pub const PIECE: usize = 512;

/// What does not fit a program's stack of 512 bytes.
#[repr(C)]
pub struct Scratch {
    /// Payload that is summed.
    pub piece: [u64; PIECE / 8],
    /// The packet's headers as they are now.
    pub headers: Headers,
    /// What a router quotes.
    pub quote: Quote,
    /// The word with flags and window as it came.
    pub came: u32,
    /// SACK blocks as they came.
    pub blocks: [u32; 8],
    /// Addresses of the Ethernet header that leads back.
    pub link: [u32; 3],
    /// The arriving packet.
    pub arriving: Arriving,
    /// The leaving packet.
    pub leaving: Leaving,
    /// What the daemon's leave for its direction says.
    pub armed: Option<Armed>,
    /// Through the frames of an arriving packet.
    pub walk: Walk,
    /// Of an arriving packet.
    pub verdict: Verdict,
    /// Of a leaving packet.
    pub departure: Departure,
    /// An arriving packet's direction, before the machine had it.
    pub before: Before,
    /// What of an arriving packet is mirrored.
    pub copying: Copying,
}

/// For arriving packets, and for leaving ones: a copy that is sent while an arriving packet is worked on runs the other
/// program on the same CPU.
#[map(name = "SCRATCH")]
pub static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(2, 0);

/// Index in [`SCRATCH`].
pub const ARRIVING: u32 = 0;
/// Index in [`SCRATCH`].
pub const LEAVING: u32 = 1;
