//! Giving a batch another producer without a pass over its records.
//!
//! A stamp changes the 14 bytes of producer id, epoch and first sequence, and the transactional bit. The CRC is mended
//! by the difference (`crc`), not computed anew: a batch that was corrupt stays corrupt, and is refused by the branch's
//! broker as it was by the mainline's.

use super::batch::{
    ATTRIBUTES, BASE_SEQUENCE, Batch, CRC, PRODUCER_EPOCH, PRODUCER_ID, RECORDS_COUNT, Stamp, TRANSACTIONAL,
};
use super::crc;

impl Batch {
    /// The same records by another producer. The records are shared, not copied.
    #[must_use]
    pub fn stamped(&self, stamp: Stamp) -> Self {
        let mut header = self.header;
        let attributes = match stamp.transactional {
            true => self.attributes() | TRANSACTIONAL,
            false => self.attributes() & !TRANSACTIONAL,
        };
        header[ATTRIBUTES..ATTRIBUTES + 2].copy_from_slice(&attributes.to_be_bytes());
        header[PRODUCER_ID..PRODUCER_EPOCH].copy_from_slice(&stamp.producer.0.to_be_bytes());
        header[PRODUCER_EPOCH..BASE_SEQUENCE].copy_from_slice(&stamp.epoch.0.to_be_bytes());
        header[BASE_SEQUENCE..RECORDS_COUNT].copy_from_slice(&stamp.sequence.0.to_be_bytes());

        let mut change = [0; RECORDS_COUNT - ATTRIBUTES];
        let range = ATTRIBUTES..RECORDS_COUNT;
        for ((change, old), new) in change.iter_mut().zip(&self.header[range.clone()]).zip(&header[range]) {
            *change = old ^ new;
        }
        let crc = self.crc() ^ crc::followed_by_zeros(crc::remainder(&change), self.size() - RECORDS_COUNT);
        header[CRC..ATTRIBUTES].copy_from_slice(&crc.to_be_bytes());
        Self { header, records: self.records.clone() }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::branch::ids::{ProducerEpoch, ProducerId, Sequence};
    use crate::branch::produce::testing::{Draft, batch, batch_bytes};

    fn stamp(producer: i64, epoch: i16, sequence: i32) -> Stamp {
        Stamp {
            producer: ProducerId(producer),
            epoch: ProducerEpoch(epoch),
            sequence: Sequence(sequence),
            transactional: false,
        }
    }

    fn wire(batch: &Batch) -> Vec<u8> {
        [&batch.header()[..], batch.records()].concat()
    }

    fn unhex(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Both were accepted by a broker of Kafka 4.3.1: PID 1000, epoch 0, sequence 0 and PID 4242, epoch 7, sequence
    /// 2 147 483 647.
    #[test]
    fn a_batch_of_a_real_producer_becomes_one_that_a_real_broker_takes() {
        let old = "00000000000000000000004700000000024e3a773e0000000000010000018bcfe568000000018bcfe5680100000000000003e80000\
                   000000000000000214000000046b300476300014000202046b3104763100";
        let new = "0000000000000000000000470000000002cea0f8bc0000000000010000018bcfe568000000018bcfe56801000000000000109200\
                   077fffffff0000000214000000046b300476300014000202046b3104763100";
        let batch = Batch::first(&Bytes::from(unhex(old))).unwrap();
        assert_eq!(wire(&batch.stamped(stamp(4242, 7, i32::MAX))), unhex(new));
        assert_eq!(wire(&batch.stamped(stamp(4242, 7, i32::MAX)).stamped(stamp(1000, 0, 0))), unhex(old));
    }

    prop_compose! {
        fn drafts()(
            producer in any::<i64>(), epoch in any::<i16>(), sequence in any::<i32>(), records in 1..i32::MAX,
            codec in 0..=4u8, transactional in any::<bool>(), payload in prop::collection::vec(any::<u8>(), 0..5000),
        ) -> Draft {
            Draft { producer, epoch, sequence, records, codec, transactional, payload, control: false }
        }
    }

    proptest! {
        #[test]
        fn a_stamped_batch_is_the_one_that_its_producer_would_have_made(
            draft in drafts(), producer in any::<i64>(), epoch in any::<i16>(), sequence in any::<i32>(),
            transactional in any::<bool>(),
        ) {
            let stamp = Stamp { transactional, ..stamp(producer, epoch, sequence) };
            let stamped = batch(&draft).stamped(stamp);
            let made = Draft { producer, epoch, sequence, transactional, ..draft };
            prop_assert_eq!(wire(&stamped), batch_bytes(&made));
            prop_assert_eq!(stamped.stamp(), stamp);
        }

        #[test]
        fn a_corrupt_batch_stays_corrupt_by_the_same_bits(
            draft in drafts(), at in any::<prop::sample::Index>(), bit in 0..8, new in any::<(i64, i16, i32)>(),
        ) {
            let mut bytes = batch_bytes(&draft).to_vec();
            let covered = bytes.len() - CRC;
            bytes[CRC + at.index(covered)] ^= 1u8 << bit;
            let corrupt = Batch::first(&Bytes::from(bytes)).unwrap();
            let wrong = |batch: &Batch| batch.crc() ^ crc32c::crc32c(&wire(batch)[ATTRIBUTES..]);
            prop_assert_ne!(wrong(&corrupt), 0);
            // The transactional bit may be the one that was flipped: keep it.
            let stamp = Stamp { transactional: corrupt.stamp().transactional, ..stamp(new.0, new.1, new.2) };
            prop_assert_eq!(wrong(&corrupt.stamped(stamp)), wrong(&corrupt));
        }
    }

    #[test]
    fn an_anonymous_batch_has_no_producer_epoch_or_sequence() {
        let stamped =
            batch(&Draft { producer: 5, epoch: 1, sequence: 9, ..Draft::default() }).stamped(Stamp::ANONYMOUS);
        assert_eq!(wire(&stamped), batch_bytes(&Draft::default()));
    }
}
