// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! The first bytes of a Kafka frame: the size field and the fixed part of a request or response header.
//!
//! Source: the Kafka protocol guide; request headers v1 and v2 share their first eight bytes (api key, api version,
//! correlation id), response headers v0 and v1 their first four.

/// Bytes of the size field in front of every frame.
pub const SIZE_LEN: usize = 4;

/// Bytes of the part of a request header that every header version has (after the size field).
pub const REQUEST_FIXED_LEN: usize = 8;

/// Bytes of the part of a response header that every header version has (after the size field).
pub const RESPONSE_FIXED_LEN: usize = 4;

/// The fixed part of a request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPrefix {
    /// The API, e.g. 0 for Produce. Vendor keys are 10000 and above.
    pub api_key: i16,
    /// Version of the request's schema.
    pub api_version: i16,
    /// Chosen by the client, any int32, repeats included; echoed in the answer.
    pub correlation_id: i32,
}

/// Reads the size field: the number of bytes that follow it. `None` while fewer than four bytes are there.
#[must_use]
pub fn read_size(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk::<SIZE_LEN>().map(|b| i32::from_be_bytes(*b))
}

/// Reads the fixed part of a request header from the bytes behind the size field.
#[must_use]
pub fn read_request_prefix(bytes: &[u8]) -> Option<RequestPrefix> {
    let b = bytes.first_chunk::<REQUEST_FIXED_LEN>()?;
    Some(RequestPrefix {
        api_key: i16::from_be_bytes([b[0], b[1]]),
        api_version: i16::from_be_bytes([b[2], b[3]]),
        correlation_id: i32::from_be_bytes([b[4], b[5], b[6], b[7]]),
    })
}

/// Reads the correlation id of a response from the bytes behind the size field.
#[must_use]
pub fn read_response_correlation_id(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk::<RESPONSE_FIXED_LEN>().map(|b| i32::from_be_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_read_from_exactly_eight_bytes() {
        let bytes = [0, 3, 0, 12, 0x7f, 0xff, 0xff, 0xff];
        assert_eq!(
            read_request_prefix(&bytes),
            Some(RequestPrefix { api_key: 3, api_version: 12, correlation_id: i32::MAX })
        );
        assert_eq!(read_request_prefix(&bytes[..7]), None);
    }

    #[test]
    fn a_size_may_be_negative_and_is_the_callers_to_refuse() {
        assert_eq!(read_size(&[0xff, 0xff, 0xff, 0xff, 0]), Some(-1));
        assert_eq!(read_size(&[0, 0, 1]), None);
    }
}
