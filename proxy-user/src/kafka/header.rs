//! The start of a request: who sends it, and whether a Produce gets an answer.
//!
//! The reading itself is `proxy_common::request`, which the kernel path uses too. The bytes given are those behind the
//! size field, from the frame's first one on, and may end anywhere.

pub use proxy_common::request::{MAX_PREFIX, Partial, client_id};

use super::ids::ApiVersion;

/// `acks` of a Produce request: 0 means that no answer will come, ever.
pub fn produce_acks(version: ApiVersion, bytes: &[u8]) -> Partial<i16> {
    proxy_common::request::produce_acks(version.0, bytes)
}

/// What a peer speaks that doesn't speak Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// A TLS ClientHello (`16 03`).
    TlsHello,
    /// A TLS alert (`15 03`), which reads as a frame of 352 MB.
    TlsAlert,
    /// An HTTP request, answer or HTTP/2 preface.
    Http,
    /// An SSH banner.
    Ssh,
    /// A PROXY protocol header, of either version.
    Proxy,
}

/// Tells a peer that doesn't speak Kafka by the first four bytes it sent, where a frame's size would be.
#[must_use]
pub fn foreign(first: [u8; 4]) -> Option<Foreign> {
    match &first {
        [0x16, 0x03, ..] => Some(Foreign::TlsHello),
        [0x15, 0x03, ..] => Some(Foreign::TlsAlert),
        b"GET " | b"POST" | b"PUT " | b"HEAD" | b"OPTI" | b"DELE" | b"PATC" | b"CONN" | b"HTTP" | b"PRI " => {
            Some(Foreign::Http)
        }
        b"SSH-" => Some(Foreign::Ssh),
        b"PROX" | [0x0d, 0x0a, 0x0d, 0x0a] => Some(Foreign::Proxy),
        _ => None,
    }
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
    fn what_is_not_kafka_is_named_and_no_legal_size_is_taken_for_it() {
        assert_eq!(foreign([0x16, 3, 1, 2]), Some(Foreign::TlsHello));
        assert_eq!(foreign([0x15, 3, 3, 0]), Some(Foreign::TlsAlert));
        assert_eq!(foreign(*b"GET "), Some(Foreign::Http));
        assert_eq!(foreign(*b"HTTP"), Some(Foreign::Http));
        assert_eq!(foreign(*b"SSH-"), Some(Foreign::Ssh));
        assert_eq!(foreign(*b"PROX"), Some(Foreign::Proxy));
        for size in [-1, 0, 8, 524_288, 100 << 20] {
            assert_eq!(foreign(i32::to_be_bytes(size)), None);
        }
    }

    #[test]
    fn of_a_client_id_that_is_not_utf8_the_readable_part_is_shown() {
        assert_eq!(client_id(&[0, 0, 0, 9, 0, 0, 0, 1, 0, 3, b'o', b'k', 0xff]), Partial::Done(Some("ok")));
    }
}
