//! Produce requests of the branch, v3 to v12: the last version that names topics.
//!
//! A request is a list of pieces, so that records go from the client's frame to the branch's socket without a copy.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::{BufMut, Bytes};

use crate::branch::ids::PartitionId;
use crate::branch::produce::batch::Batch;
use crate::kafka::ids::{ApiKey, ApiVersion, CorrelationId};
use crate::kafka::wire::{put_count, put_string, put_uvarint};

/// Versions that are written here.
pub(super) const VERSIONS: RangeInclusive<i16> = 3..=12;

/// First version with compact forms and tagged fields.
const FIRST_FLEXIBLE: ApiVersion = ApiVersion(9);

/// All replicas in sync: what the branch acknowledges is to stay.
const ACKS_ALL: i16 = -1;

/// How long the broker may wait for its replicas, in milliseconds.
pub(super) const REPLICATION_MS: i32 = 30_000;

/// What one partition gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Topic on the branch.
    pub(super) topic: Arc<str>,
    /// Partition on the branch.
    pub(super) partition: PartitionId,
    /// The batch, stamped.
    pub(super) batch: Batch,
}

/// Which request it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope<'a> {
    /// One of [`VERSIONS`].
    pub(super) version: ApiVersion,
    /// Its number on this connection.
    pub(super) id: CorrelationId,
    /// Who sends it, for quotas and logs.
    pub(super) client_id: &'a str,
}

/// The frame, size included; parts of one topic lie together. `None`: above 2 GiB.
pub(super) fn request(envelope: Envelope<'_>, parts: &[Part]) -> Option<Vec<Bytes>> {
    let flexible = envelope.version >= FIRST_FLEXIBLE;
    let mut pieces = Pieces::default();
    let out = &mut pieces.open;
    out.put_i16(ApiKey::PRODUCE.0);
    out.put_i16(envelope.version.0);
    out.put_i32(envelope.id.0);
    put_string(out, false, envelope.client_id);
    if flexible {
        // No tagged fields in the header, no transactional id.
        out.extend_from_slice(&[0, 0]);
    } else {
        out.put_i16(-1);
    }
    out.put_i16(ACKS_ALL);
    out.put_i32(REPLICATION_MS);
    let topics: Vec<&[Part]> = parts.chunk_by(|a, b| a.topic == b.topic).collect();
    put_count(out, flexible, u32::try_from(topics.len()).ok()?);
    for partitions in topics {
        let out = &mut pieces.open;
        put_string(out, flexible, &partitions[0].topic);
        put_count(out, flexible, u32::try_from(partitions.len()).ok()?);
        for Part { partition, batch, .. } in partitions {
            let out = &mut pieces.open;
            out.put_i32(partition.0);
            let size = i32::try_from(batch.size()).ok()?;
            if flexible {
                // Below 2^31.
                put_uvarint(out, size as u32 + 1);
            } else {
                out.put_i32(size);
            }
            out.extend_from_slice(batch.header());
            pieces.append(batch.records());
            pieces.tags(flexible);
        }
        pieces.tags(flexible);
    }
    pieces.tags(flexible);
    pieces.framed()
}

/// Pieces of a frame; small ones are put together.
#[derive(Default)]
struct Pieces {
    closed: Vec<Bytes>,
    open: Vec<u8>,
}

impl Pieces {
    fn append(&mut self, bytes: &Bytes) {
        self.closed.push(std::mem::take(&mut self.open).into());
        self.closed.push(bytes.clone());
    }

    fn tags(&mut self, flexible: bool) {
        if flexible {
            self.open.push(0);
        }
    }

    fn framed(mut self) -> Option<Vec<Bytes>> {
        self.closed.push(self.open.into());
        let size: usize = self.closed.iter().map(Bytes::len).sum();
        let size = i32::try_from(size).ok()?;
        self.closed.insert(0, Bytes::copy_from_slice(&size.to_be_bytes()));
        Some(self.closed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::branch::produce::records::Records;
    use crate::branch::produce::request::{Acks, ProduceRequest, TopicRef};
    use crate::branch::produce::testing::{batch, by};

    fn part(topic: &str, partition: i32, sequence: i32) -> Part {
        Part { topic: topic.into(), partition: PartitionId(partition), batch: batch(&by(7, 0, sequence, 2)) }
    }

    proptest! {
        /// The reader of requests is tested against kafka-protocol.
        #[test]
        fn a_request_reads_back_as_what_was_put_in(
            version in VERSIONS, id in any::<i32>(), counts in prop::collection::vec(1..4i32, 0..4),
        ) {
            let names = ["orders", "payments", "clicks", "x"];
            let parts: Vec<_> = counts.iter().zip(names)
                .flat_map(|(count, name)| (0..*count).map(move |n| part(name, n, n * 2))).collect();
            let envelope = Envelope { version: ApiVersion(version), id: CorrelationId(id), client_id: "turnout-b" };
            let frame = request(envelope, &parts).unwrap().concat();
            prop_assert_eq!(&frame[..4], &(frame.len() as i32 - 4).to_be_bytes());
            let body = Bytes::copy_from_slice(&frame[4..]);
            prop_assert_eq!(&body[4..8], &id.to_be_bytes());
            let read = ProduceRequest::read(ApiVersion(version), &body).unwrap();
            prop_assert_eq!((read.transactional_id, read.acks), (None, Acks::All));
            let seen: Vec<_> = read.entries.iter().map(|e| (e.topic, e.partition, e.records.clone())).collect();
            let expected: Vec<_> = parts.iter()
                .map(|p| (TopicRef::Name(&p.topic), p.partition, Records::Batch(p.batch.clone()))).collect();
            prop_assert_eq!(seen, expected);
        }
    }

    #[test]
    fn records_are_not_copied() {
        let parts = [part("orders", 0, 0)];
        let envelope = Envelope { version: ApiVersion(9), id: CorrelationId(0), client_id: "c" };
        let pieces = request(envelope, &parts).unwrap();
        assert!(pieces.iter().any(|piece| piece.as_ptr() == parts[0].batch.records().as_ptr()));
    }
}
