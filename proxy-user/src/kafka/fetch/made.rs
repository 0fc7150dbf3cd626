//! Answers that the gateway makes by itself, in the place of a broker that can't be reached.

use bytes::Bytes;

use super::request::{FetchRequest, Item};
use super::{NO_SUCH_SESSION, Topic, WITH_TOPIC_IDS, is_flexible};
use crate::kafka::api;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId, NodeId};
use crate::kafka::versions::Offered;
use crate::kafka::wire::{Malformed, put_count, put_string};

/// NOT_LEADER_OR_FOLLOWER: the client asks for the metadata again.
const NOT_LEADER: i16 = 6;

/// What is said of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Read it from this broker.
    ReadFrom(NodeId),
    /// It isn't to be had here.
    NotHere,
}

/// An answer to a Fetch in which no partition has records: the whole frame behind the size field. One that goes on with
/// a session is told that there is none, and asks again for all that it wants.
///
/// Nobody may be told so of all partitions who reads at the leader: this answer says nothing about offsets.
///
/// # Errors
/// When the request can't be read.
pub fn made_answer(
    version: ApiVersion,
    correlation: CorrelationId,
    request: &FetchRequest<'_>,
    mut word: impl FnMut(Topic<'_>, i32) -> Word,
) -> Result<Bytes, Malformed> {
    let flexible = is_flexible(version);
    let mut out = Vec::new();
    out.extend_from_slice(&correlation.0.to_be_bytes());
    tags(&mut out, flexible);
    // Throttle time, error, session.
    out.extend_from_slice(&[0; 4]);
    let error = if request.is_incremental { NO_SUCH_SESSION } else { 0 };
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    if request.is_incremental {
        put_count(&mut out, flexible, 0);
        tags(&mut out, flexible);
        return Ok(out.into());
    }

    put_count(&mut out, flexible, request.topic_count());
    let mut open = None;
    request.each_partition(|item| match item {
        Item::Topic { topic, partitions } => {
            put_topic(&mut out, version, topic);
            put_count(&mut out, flexible, partitions);
            open = Some(partitions);
            close(&mut out, flexible, &mut open);
        }
        Item::Partition { topic, index } => {
            let (error, preferred) = match word(topic, index) {
                Word::ReadFrom(node) => (0, node.to_virtual().0),
                Word::NotHere => (NOT_LEADER, -1),
            };
            out.extend_from_slice(&index.to_be_bytes());
            out.extend_from_slice(&error.to_be_bytes());
            // High watermark, last stable offset, log start: not known.
            out.extend_from_slice(&[0xff; 24]);
            // No list of aborted transactions, and records of length 0.
            put_count(&mut out, flexible, 0);
            out.extend_from_slice(&preferred.to_be_bytes());
            put_count(&mut out, flexible, 0);
            tags(&mut out, flexible);
            open = open.map(|left: u32| left.saturating_sub(1));
            close(&mut out, flexible, &mut open);
        }
    })?;
    tags(&mut out, flexible);
    Ok(out.into())
}

/// An empty section of tagged fields.
fn tags(out: &mut Vec<u8>, flexible: bool) {
    if flexible {
        out.push(0);
    }
}

/// Behind a topic's last partition.
fn close(out: &mut Vec<u8>, flexible: bool, open: &mut Option<u32>) {
    if *open == Some(0) {
        tags(out, flexible);
        *open = None;
    }
}

fn put_topic(out: &mut Vec<u8>, version: ApiVersion, topic: Topic<'_>) {
    debug_assert_eq!(version >= WITH_TOPIC_IDS, matches!(topic, Topic::Id(_)));
    match topic {
        Topic::Name(name) => put_string(out, is_flexible(version), name),
        Topic::Id(id) => out.extend_from_slice(&id.0),
    }
}

/// An answer to ApiVersions of a version that is served: the whole frame behind the size field.
#[must_use]
pub fn api_versions_answer(version: ApiVersion, correlation: CorrelationId, offered: &Offered) -> Bytes {
    let flexible = api::spec(ApiKey::API_VERSIONS).is_some_and(|spec| spec.is_flexible(version));
    let mut out = Vec::new();
    out.extend_from_slice(&correlation.0.to_be_bytes());
    out.extend_from_slice(&0i16.to_be_bytes());
    // As many as there are API keys.
    put_count(&mut out, flexible, offered.0.len() as u32);
    for (key, range) in &offered.0 {
        for number in [key.0, range.min.0, range.max.0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        tags(&mut out, flexible);
    }
    if version >= ApiVersion(1) {
        out.extend_from_slice(&[0; 4]);
    }
    tags(&mut out, flexible);
    out.into()
}
