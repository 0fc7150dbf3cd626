//! Entry points for fuzz targets: bytes in, no panic and no allocation beyond a small multiple of the input.

use super::api;
use super::header;
use super::hints::HintScrubber;
use super::ids::{ApiVersion, NodeId};
use super::rewrite::{self, Addresses};
use super::{sasl, versions};
use crate::config::Versions;

struct Everyone;

impl Addresses for Everyone {
    fn broker(&self, node: NodeId) -> Option<(&str, u16)> {
        (node.0 % 3 != 0).then_some(("gateway.test", 9200))
    }

    fn cluster_id(&self) -> Option<&str> {
        Some("virtual")
    }

    fn real_cluster_id(&self) -> Option<&str> {
        Some("real")
    }
}

/// Every function that reads the start of a client's frame.
pub fn header(bytes: &[u8]) {
    let _ = header::client_id(bytes);
    let _ = sasl::handshake(bytes);
    if let Some(prefix) = proxy_common::frame::read_request_prefix(bytes) {
        let _ = header::produce_acks(ApiVersion(prefix.api_version), bytes);
        let _ = versions::client_software(ApiVersion(prefix.api_version), bytes);
        let _ = crate::route::plan(
            prefix,
            || header::produce_acks(ApiVersion(prefix.api_version), bytes),
            Versions::Auto,
            true,
        );
    }
    let mut tracker = sasl::SaslTracker::new();
    let _ = tracker.client_frame(bytes.len() as i32, bytes);
}

/// Every rewriting. The first byte chooses the API, the second its version, the rest is the body.
pub fn rewrite(bytes: &[u8]) {
    let [which, version, body @ ..] = bytes else { return };
    let spec = &api::all()[usize::from(*which) % api::all().len()];
    let version = ApiVersion(i16::from(*version) % (spec.versions.max.0 + 1));
    let _ = rewrite::rewrite_answer(spec.key, version, body, &Everyone);
    let _ = rewrite::rewrite_request(spec.key, version, body, &Everyone);
    let _ = rewrite::is_clean_produce_answer(version, body);
    let _ = versions::parse_api_versions(version, body);
    let _ = versions::rewrite_api_versions(version, body, None, Versions::Conservative);
    let mut scrubbed = body.to_vec();
    let _ = HintScrubber::new(version).push(&mut scrubbed);
    let _ = HintScrubber::share_fetch(version).push(&mut scrubbed);
}
