// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Who may open a connection: the arithmetic that the kernel programs and the daemon share.

use core::net::{IpAddr, Ipv6Addr};

/// An address prefix, as in `192.0.2.0/24`. Bits behind the length are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// `None` where the length is above the family's (32 or 128). Bits behind it are cleared.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let width = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        (length <= width).then(|| Self { address: masked(address, length), length })
    }

    /// The first address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Leading bits that count.
    #[must_use]
    pub const fn length(&self) -> u8 {
        self.length
    }

    /// Whether the address lies in the prefix. An IPv4 address lies in IPv4 prefixes only.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.length) == self.address
    }
}

/// The address with all bits behind `length` cleared; a length above the family's clears none.
#[must_use]
pub fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

/// A token bucket in the form of a generic cell rate algorithm (ITU-T I.371): the state of a source is one time, so it
/// fits a map value that is read and written whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Rate {
    /// Nanoseconds that one connection costs: 10⁹ / rate.
    pub interval_ns: u64,
    /// Nanoseconds that a source may run ahead: (burst − 1) × interval.
    pub tolerance_ns: u64,
}

impl Rate {
    /// `per_second` and `burst` are at least 1; smaller values count as 1.
    #[must_use]
    pub const fn new(per_second: u32, burst: u32) -> Self {
        let per_second = if per_second == 0 { 1 } else { per_second };
        let interval_ns = 1_000_000_000 / per_second as u64;
        Self { interval_ns, tolerance_ns: interval_ns * burst.saturating_sub(1) as u64 }
    }

    /// The source's new state if it may connect at `now_ns`, `None` if it must not. A source that was never seen, or
    /// was forgotten, has state 0.
    ///
    /// A state further ahead than this rate can bring about is one of an older, slower rate. It counts as never seen,
    /// or a change of the rate would lock the source out for as long as the old one had it wait.
    #[must_use]
    #[inline(always)]
    pub const fn admit(&self, state_ns: u64, now_ns: u64) -> Option<u64> {
        let ahead = state_ns.saturating_sub(now_ns);
        let ahead = if ahead > self.tolerance_ns.saturating_add(self.interval_ns) { 0 } else { ahead };
        if ahead > self.tolerance_ns {
            None
        } else {
            Some(now_ns.saturating_add(ahead).saturating_add(self.interval_ns))
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prefix_contains_its_own_family_only() {
        let all4 = Prefix::new("0.0.0.0".parse().unwrap(), 0).unwrap();
        assert!(all4.contains("203.0.113.9".parse().unwrap()));
        assert!(!all4.contains("2001:db8::1".parse().unwrap()));
        let net = Prefix::new("192.0.2.77".parse().unwrap(), 24).unwrap();
        assert_eq!(net.address(), "192.0.2.0".parse::<IpAddr>().unwrap());
        assert!(net.contains("192.0.2.255".parse().unwrap()) && !net.contains("192.0.3.0".parse().unwrap()));
        assert_eq!(Prefix::new("192.0.2.0".parse().unwrap(), 33), None);
        assert_eq!(Prefix::new("::".parse().unwrap(), 129), None);
    }

    #[test]
    fn a_burst_passes_at_once_and_then_one_per_interval() {
        let rate = Rate::new(100, 3);
        let mut state = 0;
        let mut admit = |now| match rate.admit(state, now) {
            Some(new) => {
                state = new;
                true
            }
            None => false,
        };
        let start = 5_000_000_000;
        assert!(admit(start) && admit(start) && admit(start));
        assert!(!admit(start), "the burst is used up");
        assert!(!admit(start + 9_999_999));
        assert!(admit(start + 10_000_000));
        assert!(!admit(start + 10_000_000));
    }

    #[test]
    fn a_state_of_a_slower_rate_does_not_lock_its_source_out_of_a_faster_one() {
        let now = 1 << 40;
        let slow = Rate::new(1, 1_000);
        let mut state = 0;
        while let Some(new) = slow.admit(state, now) {
            state = new;
        }
        assert!(state > now + 900_000_000_000, "a quarter of an hour ahead");
        assert!(Rate::new(100, 10).admit(state, now).is_some());
        assert!(slow.admit(state, now).is_none(), "by its own rate it stays refused");
    }

    proptest! {
        /// Over any stretch, no more pass than the burst and what the stretch earns.
        #[test]
        fn no_more_pass_than_burst_and_rate(
            per_second in 1u32..100_000, burst in 1u32..1_000, gaps in proptest::collection::vec(0u64..50_000_000, 1..200)
        ) {
            let rate = Rate::new(per_second, burst);
            let (mut now, mut state, mut passed) = (1u64 << 40, 0, 0u64);
            let start = now;
            for gap in gaps {
                now += gap;
                if let Some(new) = rate.admit(state, now) {
                    state = new;
                    passed += 1;
                }
            }
            prop_assert!(passed <= u64::from(burst) + (now - start) / rate.interval_ns);
        }

        /// Whoever keeps to the rate is never refused.
        #[test]
        fn who_keeps_to_the_rate_is_never_refused(per_second in 1u32..100_000, burst in 1u32..100, count in 1usize..300) {
            let rate = Rate::new(per_second, burst);
            let (mut now, mut state) = (1u64 << 40, 0);
            for _ in 0..count {
                let admitted = rate.admit(state, now);
                prop_assert!(admitted.is_some());
                state = admitted.unwrap();
                now += rate.interval_ns;
            }
        }
    }
}
