//! CRC-32C as what it is: the remainder of a polynomial over GF(2), which makes it linear.
//!
//! For messages of equal length, `crc(a) XOR crc(b)` is the remainder of `a XOR b`, with neither the initial nor the
//! final inversion: those cancel. Zero bytes in front of a message leave that remainder as it is, and each bit behind it
//! multiplies it by x. So the CRC of a long message of which a few bytes changed follows from those bytes alone.
//!
//! Polynomials are in the reflected form of CRC-32C: the highest bit is the coefficient of x^0.

/// Castagnoli's polynomial, reflected, without its x^32.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// Bits in the number of bits of the longest message.
const POWERS: usize = usize::BITS as usize + 3;

/// `SQUARES[n]` is x to the power of 2^n.
static SQUARES: [u32; POWERS] = squares();

/// `BYTES[b]` is the remainder of the message of the one byte `b`.
static BYTES: [u32; 256] = bytes();

/// The product of two polynomials.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut coefficient = ONE;
    while coefficient != 0 {
        if a & coefficient != 0 {
            product ^= b;
        }
        b = times_x(b);
        coefficient >>= 1;
    }
    product
}

const fn times_x(a: u32) -> u32 {
    if a & 1 == 0 { a >> 1 } else { a >> 1 ^ POLYNOMIAL }
}

const fn squares() -> [u32; POWERS] {
    let mut table = [0; POWERS];
    table[0] = times_x(ONE);
    let mut n = 1;
    while n < POWERS {
        table[n] = times(table[n - 1], table[n - 1]);
        n += 1;
    }
    table
}

const fn bytes() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = times_x(value);
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// The remainder of a message without inversions.
pub(super) fn remainder(message: &[u8]) -> u32 {
    message.iter().fold(0, |crc: u32, byte| crc >> 8 ^ BYTES[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

/// The remainder of a message with so many zero bytes behind it, from the message's own: O(log n).
pub(super) fn followed_by_zeros(remainder: u32, zeros: usize) -> u32 {
    let mut shifted = remainder;
    // 2^3 bits for each byte.
    let mut power = 3;
    let mut left = zeros;
    while left != 0 {
        if left & 1 != 0 {
            shifted = times(SQUARES[power], shifted);
        }
        left >>= 1;
        power += 1;
    }
    shifted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_crc_of_a_changed_message_follows_from_the_change(
            before in prop::collection::vec(any::<u8>(), 0..40),
            change in prop::collection::vec(any::<u8>(), 0..40),
            behind in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let message = [&before[..], &vec![0; change.len()], &behind].concat();
            let changed = [&before[..], &change, &behind].concat();
            let difference = followed_by_zeros(remainder(&change), behind.len());
            prop_assert_eq!(crc32c::crc32c(&message) ^ difference, crc32c::crc32c(&changed));
        }

        #[test]
        fn zeros_add_up(remainder in any::<u32>(), a in 0..1usize << 40, b in 0..1usize << 40) {
            let one_by_one = followed_by_zeros(followed_by_zeros(remainder, a), b);
            prop_assert_eq!(one_by_one, followed_by_zeros(remainder, a + b));
        }
    }

    #[test]
    fn no_length_is_too_long() {
        assert_ne!(followed_by_zeros(ONE, usize::MAX), 0);
        assert_eq!(followed_by_zeros(0, usize::MAX), 0);
    }
}
