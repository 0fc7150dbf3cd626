// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Steering: which socket takes a connection that was made to an address and port of this host.
//!
//! ```text
//! port of ours?  no  → pass: the host's other services are none of our business
//!                yes → has a broker?  no  → refuse: the kernel answers RST, and nobody else's socket gets it
//!                                     yes → socket there?  no → refuse (the daemon is gone)
//!                                                          yes → that socket
//! ```
//! Only TCP. The exact address is looked up before the unspecified one of its family, as `bind` has it.

use crate::tables::{Address, PortEntry, PortKey, Reason, SOCKETS_PER_FAMILY};

/// What steering needs to know. In the kernel these are map lookups, in tests they are what the test says.
pub trait Tables {
    /// The entry of exactly this address and port.
    fn port(&self, key: &PortKey) -> Option<PortEntry>;
    /// How many sockets the family has.
    fn sockets(&self, v4: bool) -> u32;
}

/// A connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Who.
    pub source: Address,
    /// From which port, in any byte order as long as it is always the same.
    pub source_port: u32,
    /// To where.
    pub destination: PortKey,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not ours.
    Pass,
    /// Refuse it.
    Refuse {
        /// Whose port it is.
        slot: u16,
        /// Why.
        reason: Reason,
    },
    /// Give it to the family's socket of that number.
    Assign {
        /// Whose port it is.
        slot: u16,
        /// Below the number of sockets of the family.
        socket: u32,
    },
}

/// Judges an attempt.
#[inline(always)]
pub fn steer<T: Tables + ?Sized>(attempt: &Attempt, tables: &T) -> Verdict {
    let found = match tables.port(&attempt.destination) {
        Some(entry) => Some(entry),
        None => tables.port(&attempt.destination.on_unspecified()),
    };
    let Some(PortEntry { slot, open }) = found else { return Verdict::Pass };
    if open == 0 {
        return Verdict::Refuse { slot, reason: Reason::NoBroker };
    }
    let sockets = tables.sockets(attempt.destination.address.is_v4());
    if sockets == 0 || sockets > SOCKETS_PER_FAMILY {
        return Verdict::Refuse { slot, reason: Reason::NoSocket };
    }
    Verdict::Assign { slot, socket: spread(attempt) % sockets }
}

/// A hash of the connection, the same for each of its packets: the last one of a handshake with SYN cookies must reach
/// the socket that the first one reached.
#[inline(always)]
fn spread(attempt: &Attempt) -> u32 {
    let w = &attempt.source.words;
    let mut hash = w[0] ^ w[1].rotate_left(8) ^ w[2].rotate_left(16) ^ w[3].rotate_left(24);
    hash = mix(hash ^ attempt.source_port.wrapping_mul(0x9e37_79b1));
    mix(hash ^ attempt.destination.port.wrapping_mul(0x85eb_ca6b))
}

/// A bijection of 32 bits in which each bit of the input changes about half of those of the output (the finalizer of
/// MurmurHash3).
#[inline(always)]
const fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::net::{IpAddr, SocketAddr};
    use std::collections::BTreeMap;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    struct World {
        ports: BTreeMap<PortKey, PortEntry>,
        sockets: [u32; 2],
    }

    impl Tables for World {
        fn port(&self, key: &PortKey) -> Option<PortEntry> {
            self.ports.get(key).copied()
        }

        fn sockets(&self, v4: bool) -> u32 {
            self.sockets[usize::from(!v4)]
        }
    }

    fn key(at: &str) -> PortKey {
        let at: SocketAddr = at.parse().unwrap();
        PortKey { address: at.ip().into(), port: at.port().into() }
    }

    fn world(ports: &[(&str, u16, u16)], sockets: [u32; 2]) -> World {
        World { ports: ports.iter().map(|&(at, slot, open)| (key(at), PortEntry { slot, open })).collect(), sockets }
    }

    fn attempt(from: &str, to: &str) -> Attempt {
        let from: SocketAddr = from.parse().unwrap();
        Attempt { source: from.ip().into(), source_port: from.port().into(), destination: key(to) }
    }

    #[test]
    fn an_exact_address_comes_before_the_unspecified_one_of_its_family() {
        let world = world(&[("0.0.0.0:9092", 1, 1), ("10.0.0.1:9092", 2, 1), ("[::]:9092", 3, 1)], [1, 1]);
        for (to, slot) in [("10.0.0.1:9092", 2), ("10.0.0.2:9092", 1), ("[2001:db8::1]:9092", 3)] {
            assert_eq!(steer(&attempt("192.0.2.1:5", to), &world), Verdict::Assign { slot, socket: 0 }, "{to}");
        }
    }

    #[test]
    fn a_port_without_a_broker_is_refused_and_a_strangers_port_passes() {
        let world = world(&[("0.0.0.0:9200", 1, 0), ("10.0.0.1:9201", 1, 1)], [1, 0]);
        let judge = |to| steer(&attempt("192.0.2.1:5", to), &world);
        assert_eq!(judge("10.0.0.1:9200"), Verdict::Refuse { slot: 1, reason: Reason::NoBroker });
        assert_eq!(judge("10.0.0.1:22"), Verdict::Pass);
        assert_eq!(judge("10.0.0.2:9201"), Verdict::Pass, "ours on another address only");
        assert_eq!(judge("[2001:db8::1]:9200"), Verdict::Pass, "ours in the other family only");
    }

    #[test]
    fn a_family_without_a_socket_is_refused_and_never_falls_through() {
        let world = world(&[("0.0.0.0:9092", 7, 1), ("[::]:9092", 7, 1)], [0, 2]);
        let refused = Verdict::Refuse { slot: 7, reason: Reason::NoSocket };
        assert_eq!(steer(&attempt("192.0.2.1:5", "10.0.0.1:9092"), &world), refused);
        let taken = steer(&attempt("[2001:db8::2]:5", "[2001:db8::1]:9092"), &world);
        assert!(matches!(taken, Verdict::Assign { slot: 7, .. }));
    }

    #[test]
    fn sockets_get_an_even_share_of_the_ports_of_one_client_and_of_many_clients() {
        let world = world(&[("0.0.0.0:9092", 1, 1)], [4, 0]);
        let count = |sources: &mut dyn Iterator<Item = SocketAddr>| {
            let mut shares = vec![0u32; 4];
            for from in sources {
                match steer(&attempt(&std::format!("{from}"), "10.0.0.1:9092"), &world) {
                    Verdict::Assign { socket, .. } => shares[socket as usize] += 1,
                    other => panic!("{other:?}"),
                }
            }
            shares
        };
        let one = count(&mut (32_768..36_768).map(|port| SocketAddr::from(([192, 0, 2, 1], port))));
        let many = count(&mut (0..4_000u32).map(|n| SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 40_000))));
        for shares in [one, many] {
            assert!(shares.iter().all(|&n| (850..1_150).contains(&n)), "{shares:?}");
        }
    }

    proptest! {
        /// Whatever the tables say, a socket that is named is there, and only ports of ours are touched.
        #[test]
        fn a_named_socket_exists(from: IpAddr, source_port: u16, sockets in 0u32..100, open in 0u16..2, ours: bool) {
            let destination = PortKey { address: Address::from(from).unspecified(), port: 9092 };
            let mut world = World { ports: BTreeMap::new(), sockets: [sockets, sockets] };
            if ours {
                world.ports.insert(destination, PortEntry { slot: 3, open });
            }
            let attempt = Attempt { source: from.into(), source_port: source_port.into(), destination };
            match steer(&attempt, &world) {
                Verdict::Pass => prop_assert!(!ours),
                Verdict::Refuse { slot, reason: Reason::NoBroker } => prop_assert!(ours && open == 0 && slot == 3),
                Verdict::Refuse { reason, .. } => {
                    prop_assert_eq!(reason, Reason::NoSocket);
                    prop_assert!(sockets == 0 || sockets > SOCKETS_PER_FAMILY);
                }
                Verdict::Assign { slot, socket } => prop_assert!(ours && open == 1 && slot == 3 && socket < sockets),
            }
            prop_assert_eq!(steer(&attempt, &world), steer(&attempt, &world));
        }
    }
}
