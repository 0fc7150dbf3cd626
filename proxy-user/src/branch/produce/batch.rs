//! A record batch of the v2 format (KIP-98): its header's fields, without looking at the records.

use bytes::Bytes;

use crate::branch::ids::{ProducerEpoch, ProducerId, Sequence};

/// Bytes of a batch's header.
pub const HEADER: usize = 61;

/// Bytes in front of what the field `batchLength` counts.
pub(super) const LENGTH_OVERHEAD: usize = 12;
pub(super) const LENGTH: usize = 8;
pub(super) const MAGIC: usize = 16;
pub(super) const CRC: usize = 17;
/// First byte that the CRC covers.
pub(super) const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const MAX_TIMESTAMP: usize = 35;
pub(super) const PRODUCER_ID: usize = 43;
pub(super) const PRODUCER_EPOCH: usize = 51;
pub(super) const BASE_SEQUENCE: usize = 53;
/// First byte behind the fields that a stamp changes.
pub(super) const RECORDS_COUNT: usize = 57;

pub(super) const TRANSACTIONAL: u16 = 1 << 4;
const CONTROL: u16 = 1 << 5;
const CODEC: u16 = 0b111;

/// The codec number of zstd.
pub(super) const ZSTD: u8 = 4;

/// Who wrote a batch, and which records of theirs it holds: what a broker deduplicates by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Producer.
    pub producer: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub sequence: Sequence,
    /// The batch is part of a transaction.
    pub transactional: bool,
}

impl Stamp {
    /// Nobody: such a batch is appended as often as it is sent.
    pub const ANONYMOUS: Self =
        Self { producer: ProducerId::NONE, epoch: ProducerEpoch::NONE, sequence: Sequence::NONE, transactional: false };
}

/// A batch: its own header, and the records as a slice of the frame in which they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub(super) header: [u8; HEADER],
    pub(super) records: Bytes,
}

impl Batch {
    /// The batch at the start of `bytes`, of the length that its header names. `None`: cut off, or not of the v2 format.
    #[must_use]
    pub fn first(bytes: &Bytes) -> Option<Self> {
        let header = *bytes.first_chunk::<HEADER>()?;
        let length = LENGTH_OVERHEAD + usize::try_from(int(&header, LENGTH)).ok()?;
        let whole = header[MAGIC] == 2 && (HEADER..=bytes.len()).contains(&length);
        whole.then(|| Self { header, records: bytes.slice(HEADER..length) })
    }

    /// Bytes on the wire.
    #[must_use]
    pub fn size(&self) -> usize {
        HEADER + self.records.len()
    }

    /// The header as it is sent.
    #[must_use]
    pub fn header(&self) -> &[u8; HEADER] {
        &self.header
    }

    /// The records, compressed or not, as they are sent behind the header.
    #[must_use]
    pub fn records(&self) -> &Bytes {
        &self.records
    }

    /// Who wrote it.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp {
            producer: ProducerId(i64::from_be_bytes(field(&self.header, PRODUCER_ID))),
            epoch: ProducerEpoch(i16::from_be_bytes(field(&self.header, PRODUCER_EPOCH))),
            sequence: Sequence(int(&self.header, BASE_SEQUENCE)),
            transactional: self.attributes() & TRANSACTIONAL != 0,
        }
    }

    pub(super) fn attributes(&self) -> u16 {
        u16::from_be_bytes(field(&self.header, ATTRIBUTES))
    }

    /// The control bit, which only brokers may set.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL != 0
    }

    /// Number of the codec.
    #[must_use]
    pub fn codec(&self) -> u8 {
        // Three bits.
        (self.attributes() & CODEC) as u8
    }

    /// CRC-32C of everything from the attributes on, as the header has it, right or wrong.
    #[must_use]
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(field(&self.header, CRC))
    }

    /// Time of the newest record, in milliseconds since 1970, as the header has it.
    #[must_use]
    pub fn max_timestamp(&self) -> i64 {
        i64::from_be_bytes(field(&self.header, MAX_TIMESTAMP))
    }

    /// Sequences and offsets that it takes up, at least 1: what a broker goes by, even where fewer records are left.
    #[must_use]
    pub fn span(&self) -> u32 {
        u32::try_from(int(&self.header, LAST_OFFSET_DELTA)).map_or(1, |last| last + 1)
    }

    /// Records in it, as the header has it.
    #[must_use]
    pub fn record_count(&self) -> u32 {
        u32::try_from(int(&self.header, RECORDS_COUNT)).unwrap_or(0)
    }

    /// Sequence of the last record.
    #[must_use]
    pub fn last_sequence(&self) -> Sequence {
        self.stamp().sequence.plus(self.span() - 1)
    }

    /// A copy that holds no more memory than its own: a slice keeps the whole frame alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { header: self.header, records: Bytes::copy_from_slice(&self.records) }
    }
}

fn field<const N: usize>(header: &[u8; HEADER], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

fn int(header: &[u8; HEADER], at: usize) -> i32 {
    i32::from_be_bytes(field(header, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::produce::testing::{Draft, batch_bytes};

    #[test]
    fn a_header_is_read_field_by_field() {
        let bytes = batch_bytes(&Draft { producer: 1 << 62, epoch: 7, sequence: 100, records: 3, ..Draft::default() });
        let batch = Batch::first(&bytes).unwrap();
        let stamp = batch.stamp();
        assert_eq!((stamp.producer.0, stamp.epoch.0, stamp.sequence.0, stamp.transactional), (1 << 62, 7, 100, false));
        assert_eq!((batch.record_count(), batch.span(), batch.last_sequence()), (3, 3, Sequence(102)));
        assert_eq!([&batch.header()[..], batch.records()].concat(), bytes);
        assert_eq!(batch.size(), bytes.len());
        assert!(!batch.is_control());
        let marked = Draft { transactional: true, control: true, codec: ZSTD, ..Draft::default() };
        let marked = Batch::first(&batch_bytes(&marked)).unwrap();
        assert!(marked.is_control() && marked.stamp().transactional);
        assert_eq!(marked.codec(), ZSTD);
    }

    #[test]
    fn a_batch_that_is_cut_off_of_another_format_or_too_short_is_none() {
        let bytes = batch_bytes(&Draft::default());
        for cut in 0..bytes.len() {
            assert_eq!(Batch::first(&bytes.slice(..cut)), None, "cut at {cut}");
        }
        let with = |at: usize, new: &[u8]| {
            let mut changed = bytes.to_vec();
            changed[at..at + new.len()].copy_from_slice(new);
            Batch::first(&Bytes::from(changed))
        };
        assert_eq!(with(MAGIC, &[1]), None);
        assert_eq!(with(LENGTH, &48i32.to_be_bytes()), None, "the length leaves no room for the header");
        assert_eq!(with(LENGTH, &(-1i32).to_be_bytes()), None);
        assert_eq!(with(LENGTH, &i32::MAX.to_be_bytes()), None);
    }

    #[test]
    fn a_batch_holds_the_frame_it_came_in_until_it_is_detached() {
        let bytes = batch_bytes(&Draft::default());
        let batch = Batch::first(&bytes).unwrap();
        assert_eq!(batch.records().as_ptr(), bytes[HEADER..].as_ptr());
        let copy = batch.detached();
        assert_eq!(copy, batch);
        assert_ne!(copy.records().as_ptr(), batch.records().as_ptr());
    }

    #[test]
    fn a_count_that_makes_no_sense_is_no_trouble() {
        let mut odd = Batch::first(&batch_bytes(&Draft { sequence: 5, ..Draft::default() })).unwrap();
        odd.header[LAST_OFFSET_DELTA..LAST_OFFSET_DELTA + 4].copy_from_slice(&(-7i32).to_be_bytes());
        odd.header[RECORDS_COUNT..RECORDS_COUNT + 4].copy_from_slice(&i32::MIN.to_be_bytes());
        assert_eq!((odd.span(), odd.record_count(), odd.last_sequence()), (1, 0, Sequence(5)));
        odd.header[LAST_OFFSET_DELTA..LAST_OFFSET_DELTA + 4].copy_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(odd.span(), 1 << 31);
    }
}
