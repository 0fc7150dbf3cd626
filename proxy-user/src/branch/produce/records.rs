//! The records of one partition in a Produce request, judged as a broker judges them before it appends anything.
//!
//! Source: `ProduceRequest.validateRecords`, `ByteBufferLogInputStream.nextBatch` and `LogValidator` of Kafka 4;
//! null records, empty ones, old formats, control bits and second batches were tried on 4.3.1.

use bytes::Bytes;

use super::batch::{Batch, LENGTH, LENGTH_OVERHEAD, MAGIC, ZSTD};
use crate::kafka::ids::ApiVersion;

/// The shortest batch of the oldest format, behind its length field.
const SHORTEST: i32 = 14;

/// First version of Produce that may carry zstd (KIP-110).
const FIRST_ZSTD: ApiVersion = ApiVersion(7);

/// What a partition's records are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Records {
    /// Null: the broker's handler throws, and nothing of the whole request is written or ever answered.
    Null,
    /// The broker refuses this partition and may write the others.
    Refused(Refusal),
    /// One batch, which the broker will try to append.
    Batch(Batch),
}

/// Why a broker refuses a partition's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No whole batch.
    Empty,
    /// A length that no batch can have.
    Corrupt,
    /// A format before v2.
    OldFormat,
    /// More than one batch.
    SecondBatch,
    /// zstd in a version that doesn't have it.
    Codec,
    /// The control bit, which only brokers set.
    Control,
}

impl Records {
    /// Judges the records of a Produce request of `version`. What lies behind the first batch and is shorter than it
    /// says passes: the broker cuts it off.
    #[must_use]
    pub fn judge(version: ApiVersion, records: Option<&Bytes>) -> Self {
        let Some(records) = records else { return Self::Null };
        match judge_bytes(version, records) {
            Ok(batch) => Self::Batch(batch),
            Err(refusal) => Self::Refused(refusal),
        }
    }
}

fn judge_bytes(version: ApiVersion, records: &Bytes) -> Result<Batch, Refusal> {
    let length = next_batch(records)?.ok_or(Refusal::Empty)?;
    // At least 26 bytes, so the magic is there.
    if records[MAGIC] < 2 {
        return Err(Refusal::OldFormat);
    }
    let batch = Batch::first(records).ok_or(Refusal::Corrupt)?;
    if version < FIRST_ZSTD && batch.codec() == ZSTD {
        return Err(Refusal::Codec);
    }
    if next_batch(&records[length..])?.is_some() {
        return Err(Refusal::SecondBatch);
    }
    if batch.is_control() {
        return Err(Refusal::Control);
    }
    Ok(batch)
}

/// Bytes of the batch at the start, none if no whole one is there.
fn next_batch(bytes: &[u8]) -> Result<Option<usize>, Refusal> {
    let Some(length) = bytes.get(LENGTH..LENGTH_OVERHEAD) else { return Ok(None) };
    let length = length.iter().fold(0i32, |value, byte| value << 8 | i32::from(*byte));
    if length < SHORTEST {
        return Err(Refusal::Corrupt);
    }
    // At least 14.
    let total = LENGTH_OVERHEAD + length as usize;
    Ok((total <= bytes.len()).then_some(total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::branch::produce::testing::{Draft, batch, batch_bytes};

    const V9: ApiVersion = ApiVersion(9);

    fn judge(bytes: impl Into<Bytes>) -> Records {
        Records::judge(V9, Some(&bytes.into()))
    }

    #[test]
    fn one_whole_batch_is_taken() {
        assert_eq!(judge(batch_bytes(&Draft::default())), Records::Batch(batch(&Draft::default())));
    }

    #[test]
    fn what_a_broker_refuses_is_refused() {
        let good = batch_bytes(&Draft::default());
        assert_eq!(Records::judge(V9, None), Records::Null);
        assert_eq!(judge(Bytes::new()), Records::Refused(Refusal::Empty));
        assert_eq!(judge(good.slice(..good.len() - 1)), Records::Refused(Refusal::Empty));
        assert_eq!(judge([&good[..], &good].concat()), Records::Refused(Refusal::SecondBatch));
        assert_eq!(judge([&good[..], &[0; 12]].concat()), Records::Refused(Refusal::Corrupt));
        let control = Draft { control: true, ..Draft::default() };
        assert_eq!(judge(batch_bytes(&control)), Records::Refused(Refusal::Control));
        for magic in [0, 1] {
            let mut old = good.to_vec();
            old[MAGIC] = magic;
            assert_eq!(judge(old), Records::Refused(Refusal::OldFormat));
        }
        let mut unheard_of = good.to_vec();
        unheard_of[MAGIC] = 3;
        assert_eq!(judge(unheard_of), Records::Refused(Refusal::Corrupt));
    }

    #[test]
    fn zstd_needs_a_version_that_has_it() {
        let zstd = batch_bytes(&Draft { codec: ZSTD, ..Draft::default() });
        assert_eq!(Records::judge(ApiVersion(6), Some(&zstd)), Records::Refused(Refusal::Codec));
        assert!(matches!(Records::judge(ApiVersion(7), Some(&zstd)), Records::Batch(_)));
    }

    #[test]
    fn a_beginning_of_another_batch_is_cut_off() {
        let good = batch_bytes(&Draft::default());
        for tail in [5, 11, good.len() - 1] {
            let with_tail = [&good[..], &good[..tail]].concat();
            assert_eq!(judge(with_tail), Records::Batch(batch(&Draft::default())), "{tail} bytes more");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_and_a_batch_is_never_longer_than_they_are(
            version in 3..=13i16, mut bytes in prop::collection::vec(any::<u8>(), 0..200), length in -5..200i32,
        ) {
            if let Some(field) = bytes.get_mut(LENGTH..LENGTH_OVERHEAD) {
                field.copy_from_slice(&length.to_be_bytes());
            }
            let total = bytes.len();
            if let Records::Batch(batch) = Records::judge(ApiVersion(version), Some(&bytes.into())) {
                prop_assert!(batch.size() <= total);
            }
        }
    }
}
