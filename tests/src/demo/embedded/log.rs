//! A partition's records, in memory.
//!
//! Layout of a batch: the v2 record batch of the Kafka protocol guide (KIP-98).

use bytes::{Bytes, BytesMut};

const MAGIC: usize = 16;
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const HEADER: usize = 61;

/// Why a batch is refused: error codes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// CORRUPT_MESSAGE: it is cut short, or its checksum does not fit.
    Corrupt = 2,
    /// KAFKA_STORAGE_ERROR: the memory set aside is full.
    Full = 56,
    /// INVALID_RECORD: anything but one batch of magic 2.
    Invalid = 87,
}

/// See the module. Offsets start at 0 and nothing is ever removed.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Batches with the offset of their first record in them, in order.
    batches: Vec<(i64, Bytes)>,
    end: i64,
}

impl Log {
    /// The offset that the next record gets.
    pub(super) fn end(&self) -> i64 {
        self.end
    }

    /// Appends one batch; the offset of its first record.
    pub(super) fn append(&mut self, batch: &[u8]) -> Result<i64, Refused> {
        let count = check(batch)?;
        let base = self.end;
        let mut stored = BytesMut::from(batch);
        // Outside of what the checksum covers.
        stored[..8].copy_from_slice(&base.to_be_bytes());
        self.batches.push((base, stored.freeze()));
        self.end += count;
        Ok(base)
    }

    /// Whole batches from the one that holds `offset` on, up to `max_bytes`, but at least one; empty at the end.
    pub(super) fn read(&self, offset: i64, max_bytes: usize) -> Bytes {
        let first = self.batches.partition_point(|(base, _)| *base <= offset).saturating_sub(1);
        let mut found = BytesMut::new();
        if offset >= self.end {
            return Bytes::new();
        }
        for (_, batch) in &self.batches[first..] {
            if !found.is_empty() && found.len() + batch.len() > max_bytes {
                break;
            }
            found.extend_from_slice(batch);
        }
        found.freeze()
    }
}

/// How many offsets a sound batch takes.
fn check(batch: &[u8]) -> Result<i64, Refused> {
    if batch.len() < HEADER {
        return Err(Refused::Corrupt);
    }
    let number = |at: usize| i32::from_be_bytes([batch[at], batch[at + 1], batch[at + 2], batch[at + 3]]);
    if batch[MAGIC] != 2 || usize::try_from(number(8)) != Ok(batch.len() - 12) {
        return Err(Refused::Invalid);
    }
    if number(CRC).cast_unsigned() != crc32c::crc32c(&batch[ATTRIBUTES..]) {
        return Err(Refused::Corrupt);
    }
    let last = number(LAST_OFFSET_DELTA);
    if last < 0 { Err(Refused::Invalid) } else { Ok(i64::from(last) + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Batch;

    fn batch(first: u64, count: u64) -> Bytes {
        Batch::numbered(first, count).encode().unwrap()
    }

    #[test]
    fn offsets_go_on_from_batch_to_batch() {
        let mut log = Log::default();
        assert_eq!((log.append(&batch(0, 3)), log.append(&batch(3, 2))), (Ok(0), Ok(3)));
        assert_eq!(log.end(), 5);
        let read = log.read(0, usize::MAX);
        let set = kafka_protocol::records::RecordBatchDecoder::decode_all(&mut read.clone()).unwrap();
        let offsets: Vec<_> = set.iter().flat_map(|set| &set.records).map(|record| record.offset).collect();
        assert_eq!(offsets, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_read_gives_whole_batches_and_at_least_one() {
        let mut log = Log::default();
        log.append(&batch(0, 3)).unwrap();
        log.append(&batch(3, 2)).unwrap();
        let second = log.read(3, 1);
        assert_eq!(second[..8], 3i64.to_be_bytes());
        assert_eq!(log.read(4, 1), second, "the batch that holds the offset");
        assert_eq!(log.read(2, 1)[..8], 0i64.to_be_bytes());
        assert!(log.read(5, 1000).is_empty() && Log::default().read(0, 1).is_empty());
    }

    #[test]
    fn damaged_and_foreign_bytes_are_refused() {
        let mut log = Log::default();
        assert_eq!(log.append(&Batch::numbered(0, 1).corrupt().encode().unwrap()), Err(Refused::Corrupt));
        assert_eq!(log.append(&[0; 10]), Err(Refused::Corrupt));
        assert_eq!(log.append(&[batch(0, 1), batch(1, 1)].concat()), Err(Refused::Invalid));
        assert_eq!(log.end(), 0);
    }
}
