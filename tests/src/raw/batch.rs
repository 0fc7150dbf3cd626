//! Record batches with any producer id, epoch, sequence and codec, true or false.
//!
//! Layout: the v2 record batch of the Kafka protocol guide (KIP-98).

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

/// Offsets of header fields within the batch.
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;

const TRANSACTIONAL: u16 = 1 << 4;
const CONTROL: u16 = 1 << 5;

/// Describes a batch; [`Self::encode`] makes its bytes.
#[derive(Clone, Debug)]
pub struct Batch {
    records: Vec<(Option<Bytes>, Option<Bytes>)>,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    compression: Compression,
    transactional: bool,
    control: bool,
    corrupt: bool,
}

impl Batch {
    /// A batch of these records (key, value), without a producer id.
    #[must_use]
    pub fn new(records: Vec<(Option<Bytes>, Option<Bytes>)>) -> Self {
        Self {
            records,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            compression: Compression::None,
            transactional: false,
            control: false,
            corrupt: false,
        }
    }

    /// `count` records with the keys `k<n>` and the values `v<n>` from `first` on.
    #[must_use]
    pub fn numbered(first: u64, count: u64) -> Self {
        let text = |letter: char, n: u64| Some(Bytes::from(format!("{letter}{n}")));
        Self::new((first..first + count).map(|n| (text('k', n), text('v', n))).collect())
    }

    /// One record of `size` bytes that do not compress well.
    #[must_use]
    pub fn of_size(size: usize) -> Self {
        let mut value = vec![0; size];
        rand::fill(&mut value[..]);
        Self::new(vec![(None, Some(value.into()))])
    }

    /// Producer id, epoch and first sequence, as they shall stand in the header.
    #[must_use]
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        (self.producer_id, self.producer_epoch, self.base_sequence) = (id, epoch, base_sequence);
        self
    }

    /// Codec.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// The transactional bit.
    #[must_use]
    pub fn transactional(mut self, on: bool) -> Self {
        self.transactional = on;
        self
    }

    /// The control bit, which no client may set.
    #[must_use]
    pub fn control(mut self, on: bool) -> Self {
        self.control = on;
        self
    }

    /// A checksum that does not fit.
    #[must_use]
    pub fn corrupt(mut self) -> Self {
        self.corrupt = true;
        self
    }

    /// The bytes.
    ///
    /// # Errors
    /// A record can't be encoded, e.g. above 2 GiB.
    pub fn encode(&self) -> Result<Bytes> {
        let records: Vec<_> = self.records.iter().enumerate().map(|(n, (key, value))| plain(n, key, value)).collect();
        let mut bytes = BytesMut::new();
        RecordBatchEncoder::encode(
            &mut bytes,
            &records,
            &RecordEncodeOptions { version: 2, compression: self.compression },
        )?;
        bytes[PRODUCER_ID..PRODUCER_ID + 8].copy_from_slice(&self.producer_id.to_be_bytes());
        bytes[PRODUCER_EPOCH..PRODUCER_EPOCH + 2].copy_from_slice(&self.producer_epoch.to_be_bytes());
        bytes[BASE_SEQUENCE..BASE_SEQUENCE + 4].copy_from_slice(&self.base_sequence.to_be_bytes());
        let bits = if self.transactional { TRANSACTIONAL } else { 0 } | if self.control { CONTROL } else { 0 };
        let attributes = u16::from_be_bytes([bytes[ATTRIBUTES], bytes[ATTRIBUTES + 1]]) | bits;
        bytes[ATTRIBUTES..ATTRIBUTES + 2].copy_from_slice(&attributes.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[ATTRIBUTES..]) ^ u32::from(self.corrupt);
        bytes[CRC..CRC + 4].copy_from_slice(&crc.to_be_bytes());
        Ok(bytes.freeze())
    }
}

fn plain(position: usize, key: &Option<Bytes>, value: &Option<Bytes>) -> Record {
    Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset: position as i64,
        // The encoder starts a new batch where offset and sequence don't advance together.
        sequence: position as i32,
        timestamp: 1_700_000_000_000 + position as i64,
        key: key.clone(),
        value: value.clone(),
        headers: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::records::RecordBatchDecoder;

    use super::*;

    #[test]
    fn a_batch_reads_back_with_its_producer_in_every_codec() {
        use Compression::{Gzip, Lz4, None, Snappy, Zstd};
        for codec in [None, Gzip, Snappy, Lz4, Zstd] {
            let batch = Batch::numbered(5, 3).producer(1 << 62, 7, 100).compression(codec);
            let set = RecordBatchDecoder::decode(&mut batch.encode().unwrap()).unwrap();
            assert_eq!(set.compression, codec);
            let read: Vec<_> = set.records.iter().map(|r| (r.producer_id, r.producer_epoch, r.sequence)).collect();
            assert_eq!(read, [(1 << 62, 7, 100), (1 << 62, 7, 101), (1 << 62, 7, 102)]);
            assert_eq!(set.records[2].value.as_deref(), Some(&b"v7"[..]));
        }
    }

    #[test]
    fn a_corrupt_batch_is_refused_by_a_reader() {
        assert!(RecordBatchDecoder::decode(&mut Batch::numbered(0, 1).corrupt().encode().unwrap()).is_err());
    }
}
