// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The start of a request behind its fixed part: client id, and whether a Produce gets an answer.
//!
//! The bytes given are those behind the size field, from the frame's first one on, and may end anywhere. Source: the
//! request headers v1 and v2 and ProduceRequest of the protocol's schemas.

use crate::frame::REQUEST_FIXED_LEN;
use crate::produce::FIRST_FLEXIBLE;

/// More than any legal start of a request needs: client id and transactional id have at most 32767 bytes each.
/// A caller never has to keep more than this to get an answer other than [`Partial::NeedMore`].
pub const MAX_PREFIX: usize = 128 * 1024;

/// What can be said of bytes that may be cut anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial<T> {
    /// Read.
    Done(T),
    /// More bytes are needed; never said of [`MAX_PREFIX`] bytes or more.
    NeedMore,
    /// No further bytes can help; why.
    Malformed(&'static str),
}

impl<T> Partial<T> {
    /// The same with the value changed.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Partial<U> {
        match self {
            Self::Done(value) => Partial::Done(f(value)),
            Self::NeedMore => Partial::NeedMore,
            Self::Malformed(why) => Partial::Malformed(why),
        }
    }
}

/// How reading stopped short.
enum Stop {
    NeedMore,
    Malformed(&'static str),
}

/// A cursor that tells "cut here" from "wrong".
struct Prefix<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Prefix<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Stop> {
        let taken = self.bytes.get(self.at..self.at + n);
        match taken {
            Some(taken) => {
                self.at += n;
                Ok(taken)
            }
            None if self.at + n > MAX_PREFIX => Err(Stop::Malformed("request header longer than 128 KiB")),
            None => Err(Stop::NeedMore),
        }
    }

    fn i16(&mut self) -> Result<i16, Stop> {
        self.take(2).map(|b| i16::from_be_bytes([b[0], b[1]]))
    }

    fn uvarint(&mut self) -> Result<u32, Stop> {
        let mut value = 0u32;
        for shift in (0..=28).step_by(7) {
            let byte = self.take(1)?[0];
            if shift == 28 && byte > 0x0f {
                break;
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Stop::Malformed("varint longer than 32 bits"))
    }

    fn classic_string(&mut self) -> Result<Option<&'a [u8]>, Stop> {
        match self.i16()? {
            -1 => Ok(None),
            n => match usize::try_from(n) {
                Ok(n) => self.take(n).map(Some),
                Err(_) => Err(Stop::Malformed("negative string length")),
            },
        }
    }

    fn skip_compact_string(&mut self) -> Result<(), Stop> {
        match self.uvarint()? {
            0 => Ok(()),
            n if n > i16::MAX as u32 + 1 => Err(Stop::Malformed("string longer than 32767 bytes")),
            n => self.take(n as usize - 1).map(|_| ()),
        }
    }

    fn skip_tags(&mut self) -> Result<(), Stop> {
        for _ in 0..self.uvarint()? {
            self.uvarint()?;
            let length = self.uvarint()? as usize;
            self.take(length)?;
        }
        Ok(())
    }
}

fn partial<T>(read: Result<T, Stop>) -> Partial<T> {
    match read {
        Ok(value) => Partial::Done(value),
        Err(Stop::NeedMore) => Partial::NeedMore,
        Err(Stop::Malformed(why)) => Partial::Malformed(why),
    }
}

/// The client id, which every request header since v1 carries in the classic form. Only for display: of an id that
/// isn't UTF-8 (brokers take it) the part that is.
pub fn client_id(bytes: &[u8]) -> Partial<Option<&str>> {
    let mut prefix = Prefix { bytes, at: REQUEST_FIXED_LEN };
    partial(prefix.classic_string()).map(|id| id.map(utf8_prefix))
}

fn utf8_prefix(bytes: &[u8]) -> &str {
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
    }
}

/// First Produce with a transactional id (KIP-98).
const FIRST_TRANSACTIONAL: i16 = 3;

/// `acks` of a Produce request: 0 means that no answer will come, ever. Skips the client id, the header's tagged
/// fields (v9 on) and the transactional id (v3 on), each of which may be null.
pub fn produce_acks(version: i16, bytes: &[u8]) -> Partial<i16> {
    partial(read_acks(version, bytes))
}

fn read_acks(version: i16, bytes: &[u8]) -> Result<i16, Stop> {
    let mut prefix = Prefix { bytes, at: REQUEST_FIXED_LEN };
    prefix.classic_string()?;
    if version >= FIRST_FLEXIBLE {
        prefix.skip_tags()?;
        prefix.skip_compact_string()?;
    } else if version >= FIRST_TRANSACTIONAL {
        prefix.classic_string()?;
    }
    prefix.i16()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: [u8; 8] = [0, 0, 0, 9, 0, 0, 0, 1];

    #[test]
    fn null_and_empty_ids_are_skipped_alike() {
        for (client, transactional) in [(0xff, 0), (0, 1)] {
            let mut body = [0; 15];
            body[..8].copy_from_slice(&FIXED);
            body[8..10].copy_from_slice(&[client, client]);
            body[11] = transactional;
            body[13] = 1;
            assert_eq!(produce_acks(9, &body), Partial::Done(1));
            assert_eq!(produce_acks(9, &body[..13]), Partial::NeedMore);
        }
    }

    #[test]
    fn a_length_that_no_peer_sends_is_malformed_at_once() {
        let mut body = [0xff; 16];
        body[..8].copy_from_slice(&FIXED);
        body[8..10].copy_from_slice(&[0xff, 0xfe]);
        assert!(matches!(client_id(&body), Partial::Malformed(_)));
        body[8..10].copy_from_slice(&[0xff, 0xff]);
        assert!(matches!(produce_acks(9, &body), Partial::Malformed(_)));
    }
}
