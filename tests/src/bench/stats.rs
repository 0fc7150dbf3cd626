//! Medians and percentiles.

/// What several rounds of the same measurement gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Middle value; of an even count the mean of the two in the middle.
    pub(crate) median: f64,
    /// Lowest.
    pub(crate) min: f64,
    /// Highest.
    pub(crate) max: f64,
    /// How many.
    pub(crate) count: usize,
}

impl Summary {
    /// Of some values; `None` when there are none.
    #[must_use]
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max, count: sorted.len() })
    }
}

/// The value that `share` (0 to 1) of the ascending `sorted` values do not exceed (nearest rank); 0 when there are none.
#[must_use]
pub(crate) fn percentile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let summary = Summary::of(&[9.0, 1.0, 2.0]).unwrap();
        assert_eq!((summary.median, summary.min, summary.max), (2.0, 1.0, 9.0));
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0, 10.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u32> = (1..=100).collect();
        assert_eq!([0.5, 0.99, 0.999, 1.0].map(|share| percentile(&values, share)), [50, 99, 100, 100]);
        assert_eq!(percentile::<u32>(&[], 0.5), 0);
    }
}
