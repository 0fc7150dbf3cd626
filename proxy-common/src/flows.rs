// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The splice's tables: which packets belong to a session, where its state lies, and what is counted.
//!
//! Everything is `repr(C)` without padding, in words that both sides read and write as they are.

use crate::splice::mirror::{Copies, Head, Tally};
use crate::splice::state::{Leg, Session, Side};
use crate::splice::verdict::Reason;
use crate::tables::{Address, Plain};

/// Sessions that the tables have room for.
pub const SESSIONS: u32 = 16_384;
/// Flows: each session has one for each [`Role`].
pub const FLOWS: u32 = 4 * SESSIONS;
/// Virtual clusters whose frames have a policy.
pub const POLICIES: u32 = 256;
/// Listening ports that clients of spliceable clusters dial.
pub const LISTENERS: u32 = 131_072;

/// `tc_index` of a packet that the program has given to a local socket: translated, or of a connection that is opened.
/// A spliced socket's filter takes no other. The value only has to be one that nobody else uses; sets of programs in one
/// chain are loaded with different ones.
pub const STAMP: u16 = 0x7455;
/// `tc_index` of a copy on its way out that must lose its payload: the one above [`STAMP`].
pub const CUT: u16 = 0x7456;

/// What a packet of a session is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Arriving from a host.
    From(Side),
    /// Leaving for a host.
    To(Side),
}

impl Role {
    /// Every role, in the order of its number.
    pub const ALL: [Self; 4] =
        [Self::From(Side::Client), Self::From(Side::Broker), Self::To(Side::Client), Self::To(Side::Broker)];

    /// Its number in a [`FlowEntry`], and its bit in [`Slot::seen`].
    #[must_use]
    #[inline(always)]
    pub const fn number(self) -> u32 {
        match self {
            Self::From(side) => side as u32,
            Self::To(side) => 2 + side as u32,
        }
    }

    /// The host's side.
    #[must_use]
    #[inline(always)]
    pub const fn side(self) -> Side {
        match self {
            Self::From(side) | Self::To(side) => side,
        }
    }
}

/// A packet as the tables know it: addresses, ports and the interface that it comes in by or leaves by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct FlowKey {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port in the low half, destination port in the high half, each as on the wire.
    pub ports: u32,
    /// Interface.
    pub interface: u32,
}

/// Whose packet it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowEntry {
    /// Index of the session's slot.
    pub session: u32,
    /// The slot's generation that it was made for.
    pub generation: u32,
    /// [`Role::number`].
    pub role: u32,
    /// Index of the virtual cluster's policy.
    pub policy: u32,
}

/// What passed in the kernel, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Traffic {
    /// Packets with payload that went on to the other host.
    pub packets: u64,
    /// Their payload's bytes; retransmissions count again.
    pub bytes: u64,
}

/// A session and what belongs to it. Written under the session's lock, but for what the daemon writes while no flow
/// leads here.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Slot {
    /// Changes when the slot gets another session. 0: it never had one.
    pub generation: u32,
    /// Bits of the roles that were seen since the flows were entered.
    pub seen: u32,
    /// Packets dropped for their form.
    pub malformed: u32,
    /// 0.
    pub reserved: u32,
    /// By direction.
    pub traffic: [Traffic; 2],
    /// What was marked for the mirror, by direction.
    pub tallies: [Tally; 2],
    /// The machine's.
    pub session: Session,
}

/// What holds for connections that are being opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dialing {
    /// `SO_MARK` of the daemon's sockets to brokers, 0 for none.
    pub mark: u32,
    /// 0.
    pub reserved: u32,
}

/// What was counted on one CPU, by [`Count`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Counts {
    /// By [`Count::index`].
    pub counts: [u64; COUNTS],
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// What the machine said of a packet.
    Judged(Reason),
    /// Dropped: the lock was not to be had.
    Busy,
    /// Dropped: the kernel refused to change it.
    Unchanged,
    /// A copy that the other host did not get: its link-layer address is not known yet, or the device refused it.
    Unsent,
    /// A packet of a local socket in a form that is not understood, dropped.
    Unreadable,
    /// A SYN that was changed on its way, so that the connection can be spliced.
    Opening,
    /// A session whose flows were removed, because its addresses begin another connection.
    Forgotten,
    /// A router's message about a session's packet, which who sent the packet was told.
    PathTold,
    /// A router's message about a packet that the session did not send, or long ago; dropped.
    PathUnknown,
}

/// How many counts there are.
pub const COUNTS: usize = 32;
const REASONS: usize = Reason::Unannounced as usize + 1;

impl Count {
    /// Where it is counted.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        match self {
            Self::Judged(reason) => reason as usize,
            Self::Busy => REASONS,
            Self::Unchanged => REASONS + 1,
            Self::Unsent => REASONS + 2,
            Self::Unreadable => REASONS + 3,
            Self::Opening => REASONS + 4,
            Self::Forgotten => REASONS + 5,
            Self::PathTold => REASONS + 6,
            Self::PathUnknown => REASONS + 7,
        }
    }
}

/// What `turnout_recall` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Recalled {
    /// The direction was LOCAL.
    WasLocal = 0,
    /// The direction was PEER and is LOCAL now.
    WasPeer = 1,
    /// There is no such session.
    Unknown = 2,
    /// The lock was not to be had: ask again.
    Busy = 3,
}

impl FlowKey {
    /// The key of a session's packets in a role; `leg` is that of the role's side.
    #[must_use]
    #[inline(always)]
    pub const fn of(role: Role, leg: &Leg) -> Self {
        let ours = Address { words: leg.ours, family: leg.family };
        let theirs = Address { words: leg.theirs, family: leg.family };
        match role {
            Role::From(_) => {
                Self { source: theirs, destination: ours, ports: leg.ports.rotate_right(16), interface: leg.interface }
            }
            Role::To(_) => Self { source: ours, destination: theirs, ports: leg.ports, interface: leg.interface },
        }
    }
}

const _: () = {
    assert!(size_of::<FlowKey>() == 48);
    assert!(size_of::<FlowEntry>() == 16);
    assert!(size_of::<Traffic>() == 16);
    assert!(size_of::<Slot>() == 16 + 2 * 16 + 2 * 8 + size_of::<Session>());
    assert!(core::mem::offset_of!(Slot, session) == 64);
    assert!(size_of::<Dialing>() == 8);
    assert!(size_of::<Counts>() == 8 * COUNTS);
    assert!(Count::PathUnknown.index() < COUNTS, "every count has a place");
};

// SAFETY: repr(C), made of integers and such, without padding by the checks above.
unsafe impl Plain for FlowKey {}
// SAFETY: as above.
unsafe impl Plain for FlowEntry {}
// SAFETY: as above.
unsafe impl Plain for Dialing {}
// SAFETY: as above.
unsafe impl Plain for Counts {}
// SAFETY: as above, by the checks beside its definition.
unsafe impl Plain for Copies {}
// SAFETY: as above.
unsafe impl Plain for Head {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_its_own_place_in_the_list() {
        for (number, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role.number() as usize, number);
        }
    }

    #[test]
    fn the_two_roles_of_a_side_are_each_others_way_back() {
        let leg = Leg {
            interface: 7,
            family: 4,
            ours: [1, 0, 0, 0],
            theirs: [2, 0, 0, 0],
            ports: 0x1111 | 0x2222 << 16,
            ..Leg::default()
        };
        let (from, to) = (FlowKey::of(Role::From(Side::Client), &leg), FlowKey::of(Role::To(Side::Client), &leg));
        assert_eq!((from.source, from.destination), (to.destination, to.source));
        assert_eq!((from.ports, to.ports), (0x2222 | 0x1111 << 16, 0x1111 | 0x2222 << 16));
        assert_eq!((from.interface, to.interface), (7, 7));
    }

    #[test]
    fn reasons_and_other_counts_do_not_share_a_place() {
        assert_eq!(Count::Judged(Reason::Unannounced).index() + 1, Count::Busy.index());
    }
}
