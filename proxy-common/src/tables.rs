// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The kernel's tables: layouts of their keys and values, as both sides read and write them.
//!
//! Every layout is `repr(C)` without padding (checked at compile time), and described in [`LAYOUTS`]; the daemon makes
//! the fingerprint of the pinned maps from that, so a change here is noticed without anybody remembering to say so.

use core::net::IpAddr;

use crate::admission::Rate;

/// A layout that the kernel's maps hold.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and every bit pattern is a value of it.
pub unsafe trait Plain: Copy + 'static {}

// SAFETY: one integer.
unsafe impl Plain for u64 {}
// SAFETY: one integer.
unsafe impl Plain for u32 {}
// SAFETY: one integer.
unsafe impl Plain for u8 {}

/// A layout in words, for the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The type's name.
    pub name: &'static str,
    /// Bytes it takes.
    pub size: usize,
    /// Name, type and offset of each field.
    pub fields: &'static [(&'static str, &'static str, usize)],
}

macro_rules! layouts {
    ($( $(#[$meta:meta])* pub struct $name:ident { $( $(#[$field_meta:meta])* pub $field:ident : $kind:ty, )* } )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
            #[repr(C)]
            pub struct $name { $( $(#[$field_meta])* pub $field: $kind, )* }

            const _: () = assert!(size_of::<$name>() == 0 $( + size_of::<$kind>() )*, "no padding");

            // SAFETY: repr(C), no padding by the check above, and made of integers only.
            unsafe impl Plain for $name {}
        )*

        /// Every layout, in the order of their definition.
        pub const LAYOUTS: &[Layout] = &[ $( Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[ $( (stringify!($field), stringify!($kind), core::mem::offset_of!($name, $field)) ),* ],
        } ),* ];
    };
}

layouts! {
    /// An IP address of either family.
    pub struct Address {
        /// The bytes as on the wire; an IPv4 address takes the first word, the others are 0.
        pub words: [u32; 4],
        /// 4 or 6.
        pub family: u32,
    }

    /// Where a connection goes.
    pub struct PortKey {
        /// Address, or the unspecified one of the family.
        pub address: Address,
        /// Port in the host's byte order.
        pub port: u32,
    }

    /// What a port of ours is.
    pub struct PortEntry {
        /// The virtual cluster's place in the counters.
        pub slot: u16,
        /// 1: something answers there. 0: of the range, but refused.
        pub open: u16,
    }

    /// What holds for all ports. One value that is replaced as a whole, so that a program never sees half of a change.
    pub struct Settings {
        /// The rate of new connections ([`Rate::interval_ns`]).
        pub interval_ns: u64,
        /// The same ([`Rate::tolerance_ns`]).
        pub tolerance_ns: u64,
        /// Bits of an IPv4 address that make a source, as on the wire.
        pub source_mask_v4: [u32; 4],
        /// The same for IPv6.
        pub source_mask_v6: [u32; 4],
        /// 1: new connections come from the allow list only.
        pub allow_listed_only: u32,
        /// 1: the rate applies.
        pub limit_rate: u32,
    }

    /// What was counted for a virtual cluster, on one CPU.
    pub struct Counters {
        /// By [`Count`].
        pub counts: [u64; 8],
    }

    /// A source that was refused.
    pub struct RefusedKey {
        /// The source.
        pub address: Address,
        /// Whose port it wanted.
        pub slot: u16,
        /// A [`Reason`].
        pub reason: u16,
    }

    /// How often and when last.
    pub struct RefusedEntry {
        /// Packets.
        pub packets: u64,
        /// Time of the last one on the monotonic clock.
        pub last_ns: u64,
    }

    /// How many sockets there are to steer to, by family. One word for each, which is read and written whole.
    pub struct SocketCount {
        /// At most [`SOCKETS_PER_FAMILY`].
        pub sockets: u32,
    }
}

/// Virtual clusters that the tables have room for.
pub const SLOTS: u32 = 256;
/// Ports that the table has room for, those of both families and every listen address together.
pub const PORTS: u32 = 131_072;
/// Addresses of the host that the table has room for.
pub const HOST_ADDRESSES: u32 = 4_096;
/// Prefixes that each list has room for, by family.
pub const PREFIXES: u32 = 65_536;
/// Sources whose rate is remembered; beyond it the one not seen for longest is forgotten.
pub const BUCKETS: u32 = 65_536;
/// Refused sources that are remembered; beyond it the one not seen for longest is forgotten.
pub const REFUSED: u32 = 4_096;
/// Listening sockets of one family.
pub const SOCKETS_PER_FAMILY: u32 = 64;

/// Key of the one [`Settings`].
pub const SETTINGS_KEY: u32 = 0;

impl Address {
    /// From the bytes on the wire.
    #[must_use]
    #[inline(always)]
    pub const fn v4(bytes: [u8; 4]) -> Self {
        Self { words: [u32::from_ne_bytes(bytes), 0, 0, 0], family: 4 }
    }

    /// From the bytes on the wire.
    #[must_use]
    #[inline(always)]
    pub const fn v6(b: [u8; 16]) -> Self {
        Self {
            words: [
                u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
                u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
                u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
                u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
            ],
            family: 6,
        }
    }

    /// The unspecified address of the same family.
    #[must_use]
    #[inline(always)]
    pub const fn unspecified(&self) -> Self {
        Self { words: [0; 4], family: self.family }
    }

    /// The bits that both the address and the mask have.
    #[must_use]
    #[inline(always)]
    pub const fn masked(&self, mask: &[u32; 4]) -> Self {
        let w = &self.words;
        Self { words: [w[0] & mask[0], w[1] & mask[1], w[2] & mask[2], w[3] & mask[3]], family: self.family }
    }

    /// Whether it is an IPv4 address.
    #[must_use]
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.family == 4
    }

    /// The bytes of an IPv6 address, or of an IPv4 one with zeros behind it.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(self.words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// For people and the rest of the daemon.
    #[must_use]
    pub fn to_ip(&self) -> IpAddr {
        let b = self.bytes();
        if self.is_v4() { IpAddr::from([b[0], b[1], b[2], b[3]]) } else { IpAddr::from(b) }
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::v4(v4.octets()),
            IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl PortKey {
    /// The same port on the unspecified address of the family.
    #[must_use]
    #[inline(always)]
    pub const fn on_unspecified(&self) -> Self {
        Self { address: self.address.unspecified(), port: self.port }
    }
}

impl Settings {
    /// No allow list, no rate.
    #[must_use]
    pub const fn open() -> Self {
        Self {
            interval_ns: 0,
            tolerance_ns: 0,
            source_mask_v4: [u32::MAX, 0, 0, 0],
            source_mask_v6: [u32::MAX; 4],
            allow_listed_only: 0,
            limit_rate: 0,
        }
    }

    /// The same with a limit of new connections per source prefix of these lengths.
    #[must_use]
    pub fn with_rate(self, rate: Rate, bits_v4: u8, bits_v6: u8) -> Self {
        let Rate { interval_ns, tolerance_ns } = rate;
        Self {
            interval_ns,
            tolerance_ns,
            source_mask_v4: mask(bits_v4.min(32)),
            source_mask_v6: mask(bits_v6.min(128)),
            limit_rate: 1,
            ..self
        }
    }

    /// The rate of each source.
    #[must_use]
    #[inline(always)]
    pub const fn rate(&self) -> Rate {
        Rate { interval_ns: self.interval_ns, tolerance_ns: self.tolerance_ns }
    }

    /// The prefix that the address is counted under.
    #[must_use]
    #[inline(always)]
    pub const fn source(&self, address: &Address) -> Address {
        if address.is_v4() { address.masked(&self.source_mask_v4) } else { address.masked(&self.source_mask_v6) }
    }
}

/// The first `bits` bits, as they lie in [`Address::words`].
fn mask(bits: u8) -> [u32; 4] {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    Address::v6(mask.to_be_bytes()).words
}

/// Why a packet was dropped or a connection refused. The values are part of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Reason {
    /// From a denied prefix.
    Deny = 0,
    /// A new connection from outside the allow list.
    NotAllowed = 1,
    /// A new connection above its source's rate.
    Rate = 2,
    /// Headers that contradict themselves.
    Malformed = 3,
    /// A port of the range without a broker.
    NoBroker = 4,
    /// No socket to steer to.
    NoSocket = 5,
}

impl Reason {
    /// Every reason, in the order of its value.
    pub const ALL: [Self; 6] =
        [Self::Deny, Self::NotAllowed, Self::Rate, Self::Malformed, Self::NoBroker, Self::NoSocket];

    /// From its value in a table.
    #[must_use]
    pub fn from_value(value: u16) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }
}

/// What is counted, as an index of [`Counters::counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// New connections that admission let through.
    Admitted,
    /// Connections that were given a socket.
    Steered,
    /// What was dropped or refused.
    Refused(Reason),
}

impl Count {
    /// Where it is counted.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        match self {
            Self::Admitted => 0,
            Self::Steered => 1,
            Self::Refused(reason) => 2 + reason as usize,
        }
    }
}

const _: () = assert!(Count::Refused(Reason::NoSocket).index() == 7, "every count has a place in Counters");

/// Where the sockets of a family begin in the socket map.
#[must_use]
#[inline(always)]
pub const fn first_socket(v4: bool) -> u32 {
    if v4 { 0 } else { SOCKETS_PER_FAMILY }
}

/// The family's index in the table of [`SocketCount`].
#[must_use]
#[inline(always)]
pub const fn family_index(v4: bool) -> u32 {
    if v4 { 0 } else { 1 }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;
    use crate::admission::masked;

    #[test]
    fn a_reason_is_its_own_place_in_the_list() {
        for (value, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(Reason::from_value(value as u16), Some(reason));
        }
        assert_eq!(Reason::from_value(Reason::ALL.len() as u16), None);
    }

    #[test]
    fn layouts_are_described_with_every_field_behind_the_one_before() {
        for layout in LAYOUTS {
            assert_eq!(layout.fields[0].2, 0, "{}", layout.name);
            assert!(layout.fields.windows(2).all(|w| w[0].2 < w[1].2), "{layout:?}");
            assert!(layout.fields.iter().all(|f| f.2 < layout.size), "{layout:?}");
        }
        assert!(LAYOUTS.iter().any(|l| l.name == "PortKey" && l.size == 24));
    }

    proptest! {
        #[test]
        fn an_address_comes_back_as_it_went_in(address: IpAddr) {
            prop_assert_eq!(Address::from(address).to_ip(), address);
        }

        /// The words of a mask cut off exactly the bits that a prefix of that length does.
        #[test]
        fn a_source_is_the_prefix_of_its_length(address: IpAddr, bits_v4 in 1u8..=32, bits_v6 in 1u8..=128) {
            let settings = Settings::open().with_rate(Rate::new(1, 1), bits_v4, bits_v6);
            let bits = if address.is_ipv4() { bits_v4 } else { bits_v6 };
            prop_assert_eq!(settings.source(&address.into()).to_ip(), masked(address, bits));
        }
    }
}
