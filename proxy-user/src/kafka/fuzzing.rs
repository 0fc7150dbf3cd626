//! Entry points for fuzz targets: bytes in, no panic and no allocation beyond a small multiple of the input.

use super::api;
use super::fetch::answer::{Advance, Decide, Partition};
use super::fetch::{self, AnswerPatcher, FetchRequest, Word};
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

/// Decides by the index of a partition.
struct ByIndex {
    sent: usize,
}

impl Decide for ByIndex {
    fn ends_session(&mut self, _: i16) -> bool {
        false
    }

    fn turn_over(&mut self, partition: &Partition<'_>) -> Option<NodeId> {
        let to = (partition.index % 2 == 0).then_some(NodeId(3));
        self.sent += usize::from(to.is_some() && partition.is_free);
        to
    }
}

/// A Fetch request, and an answer to one. The first byte chooses version and bound, the second how the answer is cut.
///
/// # Panics
/// When an answer that was patched has another size than it says, or could be patched again.
pub fn fetch(bytes: &[u8]) {
    let [which, cut, body @ ..] = bytes else { return };
    let version = ApiVersion(11 + i16::from(which % 5));
    if let Ok(request) = FetchRequest::read(version, body) {
        let stamped = request.with_rack("rack");
        assert_eq!(FetchRequest::read(version, &stamped).map(|read| read.rack.to_owned()).as_deref(), Ok("rack"));
        let word = |_: fetch::Topic<'_>, index: i32| if index > 0 { Word::ReadFrom(NodeId(1)) } else { Word::NotHere };
        let _ = fetch::made_answer(version, super::ids::CorrelationId(0), &request, word);
    }
    let collects = which & 0x80 != 0;
    let Some((patched, _)) = patch(version, body, collects, usize::from(*which), usize::from(*cut) + 1) else { return };
    if collects {
        let Some((size, rest)) = patched.split_first_chunk() else { return };
        assert_eq!(u32::from_be_bytes(*size) as usize, rest.len(), "the size is right");
        let (_, sent) =
            patch(version, rest, false, 0, rest.len().max(1)).expect("an answer of ours follows the schema");
        assert_eq!(sent, 0, "what was turned over is not turned over again");
    } else {
        assert_eq!(patched.len(), body.len());
    }
}

/// What an answer becomes, and how many partitions were turned over; `None`: it is refused. Where it does not collect, the
/// size field is not in it, and only what keeps its length changes.
fn patch(version: ApiVersion, body: &[u8], collects: bool, bound: usize, piece: usize) -> Option<(Vec<u8>, usize)> {
    let mut patcher = AnswerPatcher::new(version, body.len() as u64, collects, bound);
    let mut decide = ByIndex { sent: 0 };
    let (mut out, mut buffer, mut pieces) = (Vec::new(), Vec::new(), body.chunks(piece));
    loop {
        match patcher.advance(&mut buffer, &mut decide).ok()? {
            Advance::Forward(n) => out.extend(buffer.drain(..n)),
            Advance::Skip(n) => drop(buffer.drain(..n)),
            Advance::Emit(bytes) => out.extend_from_slice(&bytes),
            Advance::NeedMore => buffer.extend_from_slice(pieces.next()?),
            Advance::Done => return Some((out, decide.sent)),
        }
    }
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
