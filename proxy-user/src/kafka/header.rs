//! The start of a request: who sends it, and whether a Produce gets an answer.
//!
//! The bytes given are those behind the size field, from the frame's first one on, and may end anywhere.

use super::api;
use super::ids::{ApiKey, ApiVersion};

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
    let mut prefix = Prefix { bytes, at: proxy_common::frame::REQUEST_FIXED_LEN };
    partial(prefix.classic_string()).map(|id| id.map(utf8_prefix))
}

fn utf8_prefix(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
    }
}

/// `acks` of a Produce request: 0 means that no answer will come, ever. Skips the client id, the header's tagged
/// fields (v9 on) and the transactional id (v3 on), each of which may be null.
pub fn produce_acks(version: ApiVersion, bytes: &[u8]) -> Partial<i16> {
    partial(read_acks(version, bytes))
}

fn read_acks(version: ApiVersion, bytes: &[u8]) -> Result<i16, Stop> {
    let flexible = api::spec(ApiKey::PRODUCE).is_some_and(|spec| spec.is_flexible(version));
    let mut prefix = Prefix { bytes, at: proxy_common::frame::REQUEST_FIXED_LEN };
    prefix.classic_string()?;
    if flexible {
        prefix.skip_tags()?;
        prefix.skip_compact_string()?;
    } else if version >= ApiVersion(3) {
        prefix.classic_string()?;
    }
    prefix.i16()
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::{ProduceRequest, RequestHeader, TransactionalId};
    use kafka_protocol::protocol::{Encodable, StrBytes};
    use proptest::prelude::*;

    use super::*;

    /// A whole Produce request, and where its acks end.
    fn produce(version: i16, client: Option<&str>, transactional: Option<&str>, acks: i16) -> (Vec<u8>, usize) {
        let flexible = version >= 9;
        let mut body = BytesMut::new();
        let mut header = RequestHeader::default()
            .with_request_api_version(version)
            .with_client_id(client.map(|c| StrBytes::from_string(c.to_owned())));
        if flexible {
            header = header.with_unknown_tagged_field(70, bytes::Bytes::from_static(b"tagged"));
        }
        header.encode(&mut body, if flexible { 2 } else { 1 }).unwrap();
        let before = body.len();
        let transactional_len = transactional.map_or(0, str::len) + if flexible { 1 } else { 2 };
        ProduceRequest::default()
            .with_transactional_id(transactional.map(|t| TransactionalId(StrBytes::from_string(t.to_owned()))))
            .with_acks(acks)
            .encode(&mut body, version)
            .unwrap();
        (body.to_vec(), before + transactional_len + 2)
    }

    proptest! {
        #[test]
        fn acks_and_client_id_are_read_from_any_prefix_that_holds_them(
            version in 3..=13i16,
            client in prop::option::of("[a-zé]{0,9}"),
            transactional in prop::option::of("[a-z]{0,9}"),
            acks in prop_oneof![Just(0i16), Just(1), Just(-1)],
        ) {
            let (body, acks_end) = produce(version, client.as_deref(), transactional.as_deref(), acks);
            let client_end = 10 + client.as_deref().map_or(0, str::len);
            for cut in 0..=body.len() {
                let wanted = if cut >= acks_end { Partial::Done(acks) } else { Partial::NeedMore };
                prop_assert_eq!(produce_acks(ApiVersion(version), &body[..cut]), wanted);
                let wanted = if cut >= client_end { Partial::Done(client.as_deref()) } else { Partial::NeedMore };
                prop_assert_eq!(client_id(&body[..cut]), wanted);
            }
        }

        #[test]
        fn more_bytes_never_change_an_answer(
            version in 0..=13i16, bytes in prop::collection::vec(any::<u8>(), 0..64), cut in any::<prop::sample::Index>(),
        ) {
            let some = &bytes[..cut.index(bytes.len() + 1)];
            match produce_acks(ApiVersion(version), some) {
                Partial::NeedMore => {}
                settled => prop_assert_eq!(produce_acks(ApiVersion(version), &bytes), settled),
            }
        }
    }

    #[test]
    fn old_produce_requests_have_no_transactional_id() {
        let body = [0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff, 0, 1, 9, 9];
        assert_eq!(produce_acks(ApiVersion(2), &body), Partial::Done(1));
    }

    #[test]
    fn negative_lengths_are_malformed() {
        assert!(matches!(client_id(&[0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xfe]), Partial::Malformed(_)));
        let transactional = [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0xff, 0xfe];
        assert!(matches!(produce_acks(ApiVersion(3), &transactional), Partial::Malformed(_)));
    }

    #[test]
    fn a_header_that_never_ends_is_malformed_within_the_bound() {
        // Tagged fields of 64 KiB each, without end.
        let mut body = vec![0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x03];
        while body.len() < MAX_PREFIX {
            body.extend_from_slice(&[1, 0xff, 0xff, 0x03]);
            body.resize(body.len() + 0xffff, 0);
        }
        assert!(matches!(produce_acks(ApiVersion(9), &body[..MAX_PREFIX]), Partial::Malformed(_)));
        // A tagged field of 4 GiB says so at once.
        let huge = [&body[..10], &[1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
        assert!(matches!(produce_acks(ApiVersion(9), &huge), Partial::Malformed(_)));
    }

    #[test]
    fn of_a_client_id_that_is_not_utf8_the_readable_part_is_shown() {
        assert_eq!(client_id(&[0, 0, 0, 9, 0, 0, 0, 1, 0, 3, b'o', b'k', 0xff]), Partial::Done(Some("ok")));
    }
}
