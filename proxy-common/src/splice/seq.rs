// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! Sequence numbers of the four spaces of a direction, one type for each, so that mixing them does not compile.
//!
//! Comparisons are modulo 2³² (RFC 9293, section 3.4) and hold for numbers less than 2³¹ apart; `age` sees to that.

macro_rules! space {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Behind `other` in the stream.
            #[must_use]
            #[inline(always)]
            pub const fn after(self, other: Self) -> bool {
                self.0.wrapping_sub(other.0) as i32 > 0
            }

            /// Ahead of `other` in the stream.
            #[must_use]
            #[inline(always)]
            pub const fn before(self, other: Self) -> bool {
                (self.0.wrapping_sub(other.0) as i32) < 0
            }

            /// `count` bytes further on.
            #[must_use]
            #[inline(always)]
            pub const fn plus(self, count: u32) -> Self {
                Self(self.0.wrapping_add(count))
            }

            /// `count` bytes back.
            #[must_use]
            #[inline(always)]
            pub const fn minus(self, count: u32) -> Self {
                Self(self.0.wrapping_sub(count))
            }

            /// Bytes from `earlier` to here.
            #[must_use]
            #[inline(always)]
            pub const fn since(self, earlier: Self) -> u32 {
                self.0.wrapping_sub(earlier.0)
            }

            /// Bytes from `other` to here, negative where this is the earlier one.
            #[must_use]
            #[inline(always)]
            pub const fn ahead_of(self, other: Self) -> i32 {
                self.0.wrapping_sub(other.0) as i32
            }

            /// The one further on.
            #[must_use]
            #[inline(always)]
            pub const fn latest(self, other: Self) -> Self {
                if other.after(self) { other } else { self }
            }

            /// The one further back.
            #[must_use]
            #[inline(always)]
            pub const fn earliest(self, other: Self) -> Self {
                if other.before(self) { other } else { self }
            }
        }
    };
}

space! {
    /// W: what X puts on the wire, and what is acknowledged to X.
    InWire
}
space! {
    /// L: what the local socket x believes it receives, and acknowledges.
    InLocal
}
space! {
    /// S: what the local socket y believes it sends, and is acknowledged.
    OutLocal
}
space! {
    /// V: what arrives at Y on the wire, and what Y acknowledges.
    OutWire
}

/// Bytes that a window field stands for.
#[must_use]
#[inline(always)]
pub const fn window_bytes(field: u32, scale: u32) -> u32 {
    (field & 0xffff) << (scale & MAX_SCALE_MASK)
}

/// The window field for so many bytes, rounded down.
#[must_use]
#[inline(always)]
pub const fn window_field(bytes: u32, scale: u32) -> u32 {
    let field = bytes >> (scale & MAX_SCALE_MASK);
    if field > 0xffff { 0xffff } else { field }
}

/// The largest window of a scale, in bytes. It bounds how far behind a genuine segment can be. Held to 2²⁸, so that
/// what is still taken for genuine lies within the reach of comparisons whatever `age` has moved.
#[must_use]
#[inline(always)]
pub const fn largest_window(scale: u32) -> u32 {
    let bytes = window_bytes(0xffff, scale);
    if bytes > 1 << 28 { 1 << 28 } else { bytes }
}

/// Scales go up to 14 (RFC 7323); four bits hold them, and keep every shift defined.
const MAX_SCALE_MASK: u32 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let (low, high) = (InWire(u32::MAX - 5), InWire(10));
        assert!(high.after(low) && low.before(high));
        assert_eq!(high.since(low), 16);
        assert_eq!(low.ahead_of(high), -16);
        assert_eq!(low.latest(high), high);
        assert_eq!(low.earliest(high), low);
        assert_eq!(low.plus(16), high);
        assert_eq!(high.minus(16), low);
        assert!(!low.after(low) && !low.before(low));
    }

    #[test]
    fn a_window_is_rounded_down_and_capped_at_the_field() {
        assert_eq!(window_field(1023, 8), 3);
        assert_eq!(window_bytes(3, 8), 768);
        assert_eq!(window_field(u32::MAX, 2), 0xffff);
        assert_eq!(largest_window(0), 65_535);
        assert_eq!(largest_window(14), 1 << 28);
    }
}
