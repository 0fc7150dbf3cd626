//! Samples to a table with medians, spread and ratios.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use super::stats::Summary;
use super::subject::{BASE, DIRECT, EDGE, HAPROXY, TURNOUT};

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Payload moved per second.
    Throughput,
    /// Requests answered per second.
    Requests,
    /// Connections opened and accepted per second.
    Connections,
    /// CPU nanoseconds of the whole system per packet.
    PacketCpu,
    /// CPU seconds of the proxy's process per GB.
    ProxyCpu,
    /// CPU seconds of the whole system per GB.
    SystemCpu,
    /// Median latency.
    P50,
    /// 99th percentile of latency.
    P99,
    /// 99.9th percentile of latency.
    P999,
    /// Resident memory of a proxy that has served nothing yet.
    RestingMemory,
    /// What an idle connection adds to it.
    ConnectionMemory,
    /// Most that was resident since its start.
    PeakMemory,
}

impl Metric {
    fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::Requests => "req/s",
            Self::Connections => "conn/s",
            Self::PacketCpu => "system CPU ns/packet",
            Self::ProxyCpu => "proxy CPU s/GB",
            Self::SystemCpu => "system CPU s/GB",
            Self::P50 => "p50 µs",
            Self::P99 => "p99 µs",
            Self::P999 => "p99.9 µs",
            Self::RestingMemory => "RSS at rest, MiB",
            Self::ConnectionMemory => "RSS per connection, KiB",
            Self::PeakMemory => "peak RSS, MiB",
        }
    }

    /// Digits behind the point.
    fn digits(self) -> usize {
        match self {
            Self::Requests | Self::Connections | Self::PacketCpu | Self::P50 | Self::P99 | Self::P999 => 0,
            Self::ProxyCpu | Self::SystemCpu => 3,
            _ => 1,
        }
    }
}

/// One figure of one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// What was run.
    pub(crate) workload: String,
    /// What the figure is.
    pub(crate) metric: Metric,
    /// Through what.
    pub(crate) subject: String,
    /// The figure, in the metric's unit.
    pub(crate) value: f64,
}

/// A demand on turnout, compared with what was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Bar {
    /// What is demanded.
    pub(crate) demand: String,
    /// The figure.
    pub(crate) measured: f64,
    /// The bound.
    pub(crate) bound: f64,
    /// Whether it holds.
    pub(crate) met: bool,
}

/// All samples of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Where, when and with what it ran.
    pub(crate) conditions: Vec<String>,
    /// Demands.
    pub(crate) bars: Vec<Bar>,
    /// Figures in the order of their measurement.
    pub(crate) samples: Vec<Sample>,
}

impl Report {
    /// Adds a figure.
    pub(crate) fn add(&mut self, workload: &str, metric: Metric, subject: &str, value: f64) {
        self.samples.push(Sample { workload: workload.into(), metric, subject: subject.into(), value });
    }

    /// The rounds of one figure.
    #[must_use]
    pub(crate) fn values(&self, workload: &str, metric: Metric, subject: &str) -> Vec<f64> {
        let is_wanted =
            |sample: &&Sample| sample.workload == workload && sample.metric == metric && sample.subject == subject;
        self.samples.iter().filter(is_wanted).map(|sample| sample.value).collect()
    }

    /// Lowest of the subjects' medians: the throughput that all of them can carry.
    #[must_use]
    pub(crate) fn slowest(&self, workload: &str, metric: Metric) -> Option<f64> {
        let medians = self
            .subjects()
            .into_iter()
            .filter_map(|subject| Summary::of(&self.values(workload, metric, &subject)).map(|summary| summary.median));
        medians.min_by(f64::total_cmp)
    }

    /// One subject's figure divided by another's of the same round, over the rounds: what the machine did to both
    /// cancels out.
    #[must_use]
    pub(crate) fn ratio(&self, workload: &str, metric: Metric, of: &str, to: &str) -> Option<Summary> {
        let (of, to) = (self.values(workload, metric, of), self.values(workload, metric, to));
        let ratios: Vec<_> = of.iter().zip(&to).filter(|(_, to)| **to != 0.0).map(|(of, to)| of / to).collect();
        Summary::of(&ratios)
    }

    /// Compares turnout with haproxy in one figure of one workload.
    pub(crate) fn judge_ratio(&mut self, workload: &str, metric: Metric, at_most: Option<f64>, at_least: Option<f64>) {
        let Some(ratio) = self.ratio(workload, metric, TURNOUT, HAPROXY) else { return };
        for (bound, met, words) in [
            (at_most, at_most.is_some_and(|bound| ratio.median <= bound), "at most"),
            (at_least, at_least.is_some_and(|bound| ratio.median >= bound), "at least"),
        ] {
            let Some(bound) = bound else { continue };
            let demand = format!("{workload}: {} {words} {bound:.2} of haproxy's", metric.unit());
            self.bars.push(Bar { demand, measured: ratio.median, bound, met });
        }
    }

    /// Compares turnout's own figure with a bound from above.
    pub(crate) fn judge_at_most(&mut self, workload: &str, metric: Metric, bound: f64) {
        let Some(summary) = Summary::of(&self.values(workload, metric, TURNOUT)) else { return };
        let demand = format!("{workload}: {} at most {bound:.0}", metric.unit());
        self.bars.push(Bar { demand, measured: summary.median, bound, met: summary.median <= bound });
    }

    /// The report as Markdown.
    #[must_use]
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("# Bench\n\n");
        for line in &self.conditions {
            let _ = writeln!(text, "- {line}");
        }
        if !self.bars.is_empty() {
            text.push_str("\n## The bar\n\n| demand | measured | |\n|---|---|---|\n");
            for Bar { demand, measured, met, .. } in &self.bars {
                let _ = writeln!(text, "| {demand} | {measured:.2} | {} |", if *met { "met" } else { "MISSED" });
            }
        }
        text.push_str("\n## Figures\n\nMedian (lowest–highest) over the rounds. A ratio is the median (lowest–highest) of the rounds' ratios.\n");
        text.push_str(&self.table());
        text.push_str(COUNTERS);
        text
    }

    fn table(&self) -> String {
        let subjects = self.subjects();
        let mut pairs = pairs(&subjects);
        // Not every subject runs every workload.
        pairs.retain(|(of, to)| self.rows().iter().any(|(w, metric)| self.ratio(w, *metric, of, to).is_some()));
        let mut text = String::from("\n| workload | figure |");
        for subject in &subjects {
            let _ = write!(text, " {subject} |");
        }
        for (of, to) in &pairs {
            let _ = write!(text, " {of} / {to} |");
        }
        let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(subjects.len() + pairs.len()));
        for (workload, metric) in self.rows() {
            let _ = write!(text, "| {workload} | {} |", metric.unit());
            for subject in &subjects {
                let summary = Summary::of(&self.values(workload, metric, subject));
                let _ = write!(text, " {} |", summary.map_or("–".into(), |summary| cell(&summary, metric.digits())));
            }
            for (of, to) in &pairs {
                let ratio = self.ratio(workload, metric, of, to);
                let _ = write!(text, " {} |", ratio.map_or("–".into(), |ratio| cell(&ratio, 2)));
            }
            text.push('\n');
        }
        text
    }

    /// Rows in the order in which their first sample came, a workload's rows together.
    fn rows(&self) -> Vec<(&str, Metric)> {
        let mut workloads: Vec<&str> = Vec::new();
        for sample in &self.samples {
            if !workloads.contains(&sample.workload.as_str()) {
                workloads.push(&sample.workload);
            }
        }
        let metrics = |workload: &str| -> BTreeSet<Metric> {
            self.samples.iter().filter(|sample| sample.workload == workload).map(|sample| sample.metric).collect()
        };
        workloads.into_iter().flat_map(|w| metrics(w).into_iter().map(move |metric| (w, metric))).collect()
    }

    /// direct, turnout, haproxy, then the others.
    fn subjects(&self) -> Vec<String> {
        let found: BTreeSet<&str> = self.samples.iter().map(|sample| sample.subject.as_str()).collect();
        let fixed = [DIRECT, TURNOUT, HAPROXY];
        let others = found.iter().copied().filter(|name| !fixed.contains(name));
        fixed.into_iter().filter(|name| found.contains(name)).chain(others).map(str::to_owned).collect()
    }
}

/// Each proxy against direct, each but haproxy against haproxy, and the edge against the same without it.
fn pairs(subjects: &[String]) -> Vec<(&str, &str)> {
    let names = || subjects.iter().map(String::as_str);
    let to_haproxy = names().filter(|name| ![DIRECT, HAPROXY].contains(name)).map(|name| (name, HAPROXY));
    let to_direct = names().filter(|name| *name != DIRECT).map(|name| (name, DIRECT));
    to_haproxy.chain(to_direct).chain([(EDGE, BASE)]).collect()
}

fn cell(summary: &Summary, digits: usize) -> String {
    let Summary { median, min, max, count } = summary;
    if *count == 1 {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
}

const COUNTERS: &str = "
## What each figure counts

- MB/s: 10^6 bytes a second. With Kafka's tools, records × record size over the tool's own time (the consumer's fetch
  time, joining the group left out); in the synthetic load, bytes of requests and answers, size fields included.
- GB: 10^9 of the same bytes, counted once, not once for each side of the proxy.
- proxy CPU: utime + stime of all threads of the process (`/proc/PID/stat`), read before and after the run.
- system CPU: user + nice + system + irq + softirq of all processors (`/proc/stat`) over the same time: clients, their
  start included, brokers, proxy and kernel.
- latency: from the moment a request was due at the fixed rate (0.6 of the slowest subject's throughput in the same
  workload) to its whole answer; a late request counts from when it was due.
- conn/s: connections opened one after the other that send nothing, until the gateway has accepted all of them;
  latency: of connect(2) alone.
- system CPU ns/packet: system CPU over the number of packets sent, from the sender's call to the receiver's drop.
- RSS: `VmRSS` of `/proc/PID/status`, program text included; peak: `VmHWM`. Per connection: `VmRSS` with 1 000
  connections that are idle after one answered request, minus that before, over 1 000.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        for (round, factor) in [1.0, 2.0, 4.0].into_iter().enumerate() {
            report.add("produce", Metric::Throughput, DIRECT, 100.0 * factor);
            report.add("produce", Metric::Throughput, HAPROXY, 80.0 * factor);
            report.add("produce", Metric::Throughput, TURNOUT, 72.0 * factor + round as f64);
        }
        report
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let ratio = report().ratio("produce", Metric::Throughput, HAPROXY, DIRECT).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.8, 0.8, 0.8));
    }

    #[test]
    fn the_table_has_a_column_for_each_subject_and_pair() {
        let text = report().markdown();
        assert!(text.contains("| workload | figure | direct | turnout | haproxy | turnout / haproxy | turnout / direct | haproxy / direct |"));
        assert!(text.contains("| produce | MB/s | 200.0 (100.0–400.0) | 145.0 (72.0–290.0) |"), "{text}");
    }

    #[test]
    fn a_bar_says_whether_it_is_met() {
        let mut report = report();
        report.judge_ratio("produce", Metric::Throughput, None, Some(0.95));
        report.judge_ratio("produce", Metric::Throughput, Some(0.95), None);
        assert_eq!(report.bars.iter().map(|bar| bar.met).collect::<Vec<_>>(), [false, true]);
        assert!(report.markdown().contains("MISSED"));
    }

    #[test]
    fn the_slowest_median_counts() {
        assert_eq!(report().slowest("produce", Metric::Throughput), Some(145.0));
    }
}
