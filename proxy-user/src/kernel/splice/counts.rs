//! Names of what the splice counts.

use std::collections::BTreeMap;

use proxy_common::flows::{COUNTS, Count};
use proxy_common::splice::mirror::Copies;
use proxy_common::splice::verdict::Reason;

/// Every count.
const ALL: [Count; 28] = [
    Count::Judged(Reason::Plain),
    Count::Judged(Reason::Opened),
    Count::Judged(Reason::Frame),
    Count::Judged(Reason::Hole),
    Count::Judged(Reason::Fin),
    Count::Judged(Reason::Reset),
    Count::Judged(Reason::Urgent),
    Count::Judged(Reason::TooLarge),
    Count::Judged(Reason::Raced),
    Count::Judged(Reason::Again),
    Count::Judged(Reason::Straddling),
    Count::Judged(Reason::Probe),
    Count::Judged(Reason::BadForm),
    Count::Judged(Reason::BadChecksum),
    Count::Judged(Reason::BadSequence),
    Count::Judged(Reason::BadAck),
    Count::Judged(Reason::BadReset),
    Count::Judged(Reason::BadFlags),
    Count::Judged(Reason::Withheld),
    Count::Judged(Reason::Unannounced),
    Count::Busy,
    Count::Unchanged,
    Count::Unsent,
    Count::Unreadable,
    Count::Opening,
    Count::Forgotten,
    Count::PathTold,
    Count::PathUnknown,
];

/// A bounded label for metrics.
const fn name(count: Count) -> &'static str {
    match count {
        Count::Judged(reason) => match reason {
            Reason::Plain => "plain",
            Reason::Opened => "opened",
            Reason::Frame => "frame",
            Reason::Hole => "hole",
            Reason::Fin => "fin",
            Reason::Reset => "reset",
            Reason::Urgent => "urgent",
            Reason::TooLarge => "too_large",
            Reason::Raced => "raced",
            Reason::Again => "again",
            Reason::Straddling => "straddling",
            Reason::Probe => "probe",
            Reason::BadForm => "bad_form",
            Reason::BadChecksum => "bad_checksum",
            Reason::BadSequence => "bad_sequence",
            Reason::BadAck => "bad_ack",
            Reason::BadReset => "bad_reset",
            Reason::BadFlags => "bad_flags",
            Reason::Withheld => "withheld",
            Reason::Unannounced => "unannounced",
        },
        Count::Busy => "busy",
        Count::Unchanged => "unchanged",
        Count::Unsent => "unsent",
        Count::Unreadable => "unreadable",
        Count::Opening => "opening",
        Count::Forgotten => "forgotten",
        Count::PathTold => "path_told",
        Count::PathUnknown => "path_unknown",
    }
}

/// The counts by name.
pub(super) fn named(counts: &[u64; COUNTS]) -> BTreeMap<&'static str, u64> {
    ALL.into_iter().map(|count| (name(count), counts[count.index()])).collect()
}

/// What was copied, and what had no room.
pub(super) const fn of_copies(copies: &Copies) -> [(&'static str, u64); 4] {
    let Copies { pieces, bytes, lost, lost_bytes } = *copies;
    [
        ("mirror_pieces", pieces),
        ("mirror_bytes", bytes),
        ("mirror_lost_packets", lost),
        ("mirror_lost_bytes", lost_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_listed_once_and_has_a_name_of_its_own() {
        let places: Vec<usize> = ALL.into_iter().map(Count::index).collect();
        assert_eq!(places, (0..=Count::PathUnknown.index()).collect::<Vec<_>>());
        let mut counts = [0; COUNTS];
        (0..).zip(&mut counts).for_each(|(n, count)| *count = n);
        let named = named(&counts);
        assert_eq!(named.len(), ALL.len());
        assert_eq!((named["plain"], named["busy"], named["forgotten"]), (0, 20, 25));
    }
}
