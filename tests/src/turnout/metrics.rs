//! Prometheus' text format, read.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// One reading of `/metrics`.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Reads the text format.
    ///
    /// # Errors
    /// A line is neither a comment nor a sample.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| sample(line).with_context(|| format!("no sample: {line}")));
        Ok(Self { samples: samples.collect::<Result<_>>()? })
    }

    /// The sum of all series of `name` that carry these labels; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        // An empty sum is −0.
        self.samples.iter().filter(carries).map(|sample| sample.value).sum::<f64>() + 0.0
    }

    /// Number of series, to check their bound.
    #[must_use]
    pub fn series(&self) -> usize {
        self.samples.len()
    }

    /// Names of all metrics, without repetition.
    #[must_use]
    pub fn names(&self) -> std::collections::BTreeSet<&str> {
        self.samples.iter().map(|sample| sample.name.as_str()).collect()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (name, rest) = match line.find(['{', ' ']) {
        Some(at) if line.as_bytes()[at] == b'{' => (&line[..at], &line[at + 1..]),
        Some(at) => {
            let value = line[at + 1..].split(' ').next()?.parse().ok()?;
            return Some(Sample { name: line[..at].to_owned(), labels: BTreeMap::new(), value });
        }
        None => return None,
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = quoted(after)?;
        labels.insert(key.trim_start_matches(',').to_owned(), value);
        rest = after;
        if rest.starts_with('}') {
            break;
        }
    }
    let value = rest.strip_prefix('}')?.trim().split(' ').next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Splits `text"rest` at the closing quote, undoing escapes.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_the_labels_left_open() {
        let text = "# HELP a b\na_total{x=\"1\",y=\"p,}\\\"\"} 2\na_total{x=\"2\",y=\"q\"} 3.5\nup 1\n# EOF\n";
        let metrics = Metrics::parse(text).unwrap();
        assert_eq!(metrics.sum("a_total", &[]), 5.5);
        assert_eq!(metrics.sum("a_total", &[("y", "p,}\"")]), 2.0);
        assert_eq!(metrics.sum("up", &[]), 1.0);
        assert_eq!(metrics.series(), 3);
    }
}
