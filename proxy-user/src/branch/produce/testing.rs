//! Batches for tests.

use bytes::Bytes;

use super::batch::{Batch, HEADER};

/// The fields of a batch that tests choose.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) producer: i64,
    pub(crate) epoch: i16,
    pub(crate) sequence: i32,
    pub(crate) records: i32,
    pub(crate) codec: u8,
    pub(crate) transactional: bool,
    pub(crate) control: bool,
    /// What stands for the records: nothing here looks at them.
    pub(crate) payload: Vec<u8>,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            producer: -1,
            epoch: -1,
            sequence: -1,
            records: 1,
            codec: 0,
            transactional: false,
            control: false,
            payload: b"records".to_vec(),
        }
    }
}

/// A batch of an idempotent producer.
pub(crate) fn by(producer: i64, epoch: i16, sequence: i32, records: i32) -> Draft {
    Draft { producer, epoch, sequence, records, ..Draft::default() }
}

/// Its bytes, with the right CRC.
pub(crate) fn batch_bytes(draft: &Draft) -> Bytes {
    let mut bytes = Vec::with_capacity(HEADER + draft.payload.len());
    bytes.extend_from_slice(&0i64.to_be_bytes());
    bytes.extend_from_slice(&(49 + draft.payload.len() as i32).to_be_bytes());
    bytes.extend_from_slice(&(-1i32).to_be_bytes());
    bytes.push(2);
    bytes.extend_from_slice(&[0; 4]);
    let bits = u16::from(draft.codec) | u16::from(draft.transactional) << 4 | u16::from(draft.control) << 5;
    bytes.extend_from_slice(&bits.to_be_bytes());
    bytes.extend_from_slice(&(draft.records - 1).to_be_bytes());
    bytes.extend_from_slice(&1_700_000_000_000i64.to_be_bytes());
    bytes.extend_from_slice(&1_700_000_000_001i64.to_be_bytes());
    bytes.extend_from_slice(&draft.producer.to_be_bytes());
    bytes.extend_from_slice(&draft.epoch.to_be_bytes());
    bytes.extend_from_slice(&draft.sequence.to_be_bytes());
    bytes.extend_from_slice(&draft.records.to_be_bytes());
    bytes.extend_from_slice(&draft.payload);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

/// The batch itself.
pub(crate) fn batch(draft: &Draft) -> Batch {
    Batch::first(&batch_bytes(draft)).expect("a whole batch")
}
