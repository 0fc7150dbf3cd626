//! A frame's prefix: what is read depends on exactly the bytes that the protocol gives it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_common::frame::{
    REQUEST_FIXED_LEN, RESPONSE_FIXED_LEN, SIZE_LEN, read_request_prefix, read_response_correlation_id, read_size,
};

fuzz_target!(|bytes: &[u8]| {
    assert_eq!(read_size(bytes).is_some(), bytes.len() >= SIZE_LEN);
    assert_eq!(read_response_correlation_id(bytes).is_some(), bytes.len() >= RESPONSE_FIXED_LEN);
    match read_request_prefix(bytes) {
        Some(prefix) => {
            let mut again = [0u8; REQUEST_FIXED_LEN];
            again[..2].copy_from_slice(&prefix.api_key.to_be_bytes());
            again[2..4].copy_from_slice(&prefix.api_version.to_be_bytes());
            again[4..].copy_from_slice(&prefix.correlation_id.to_be_bytes());
            assert_eq!(again, bytes[..REQUEST_FIXED_LEN]);
        }
        None => assert!(bytes.len() < REQUEST_FIXED_LEN),
    }
});
