//! Samples to a table with medians, spread and ratios.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use super::stats::Summary;
use super::subject::{BARE, BASE, DIRECT, EDGE, FAST, HAPROXY, ROUTED, TURNOUT, USERSPACE};

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
    /// CPU microseconds of the whole system per request.
    RequestCpu,
    /// Share of the bytes that passed in the kernel, in per cent.
    KernelShare,
    /// TCP segments that clients and brokers sent again.
    Retransmitted,
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
            Self::RequestCpu => "system CPU µs/request",
            Self::KernelShare => "% of bytes in the kernel",
            Self::Retransmitted => "segments sent again",
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
            Self::Requests
            | Self::Connections
            | Self::PacketCpu
            | Self::Retransmitted
            | Self::P50
            | Self::P99
            | Self::P999 => 0,
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

/// A bound of a ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
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
        let bounds = [at_most.map(Bound::AtMost), at_least.map(Bound::AtLeast)];
        for bound in bounds.into_iter().flatten() {
            self.bars.extend(self.bar(workload, metric, [TURNOUT, HAPROXY], bound));
        }
    }

    /// Compares the fast path with another subject in one figure of one workload. Unless nearly all bytes passed in the
    /// kernel in every round, it wasn't the fast path that was measured, and the demand is missed whatever the figure.
    pub(crate) fn judge_fast(&mut self, workload: &str, metric: Metric, to: &str, bound: Bound) {
        let Some(mut bar) = self.bar(workload, metric, [FAST, to], bound) else { return };
        let share = Summary::of(&self.values(workload, Metric::KernelShare, FAST)).map_or(0.0, |share| share.min);
        if share < SPLICED {
            bar.met = false;
            bar.demand.push_str(&format!(" (not shown: only {share:.0} % of the bytes passed in the kernel)"));
        }
        self.bars.push(bar);
    }

    /// The median ratio of two subjects against a bound; `None` where it was not measured.
    fn bar(&self, workload: &str, metric: Metric, [of, to]: [&str; 2], bound: Bound) -> Option<Bar> {
        let measured = self.ratio(workload, metric, of, to)?.median;
        let (bound, met, words) = match bound {
            Bound::AtMost(bound) => (bound, measured <= bound, "at most"),
            Bound::AtLeast(bound) => (bound, measured >= bound, "at least"),
        };
        let demand = format!("{workload}: {} {words} {bound:.2} of {to}'s", metric.unit());
        Some(Bar { demand, measured, bound, met })
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
        let (fast, others): (Vec<_>, Vec<_>) = self.rows().into_iter().partition(|(w, _)| w.starts_with(FAST_PATH));
        for rows in [others, fast] {
            if !rows.is_empty() {
                text.push_str(&self.table(&rows));
            }
        }
        text.push_str(COUNTERS);
        text
    }

    /// One table of these rows, with the columns that they have values in.
    fn table(&self, rows: &[(&str, Metric)]) -> String {
        let mut subjects = self.subjects();
        subjects.retain(|name| rows.iter().any(|(w, metric)| !self.values(w, *metric, name).is_empty()));
        let mut pairs = pairs(&subjects);
        // Not every subject runs every workload.
        pairs.retain(|(of, to)| rows.iter().any(|(w, metric)| self.ratio(w, *metric, of, to).is_some()));
        let mut text = String::from("\n| workload | figure |");
        for subject in &subjects {
            let _ = write!(text, " {subject} |");
        }
        for (of, to) in &pairs {
            let _ = write!(text, " {of} / {to} |");
        }
        let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(subjects.len() + pairs.len()));
        for &(workload, metric) in rows {
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

    /// direct, turnout, then those of the fast path, haproxy among them, then the others.
    fn subjects(&self) -> Vec<String> {
        let found: BTreeSet<&str> = self.samples.iter().map(|sample| sample.subject.as_str()).collect();
        let fixed = [DIRECT, TURNOUT, ROUTED, FAST, USERSPACE, HAPROXY, BARE];
        let others = found.iter().copied().filter(|name| !fixed.contains(name));
        fixed.into_iter().filter(|name| found.contains(name)).chain(others).map(str::to_owned).collect()
    }
}

/// Each proxy against direct, each but haproxy against haproxy, and the edge against the same without it. In the fast
/// path's table each proxy against routed, and the fast path against the others.
fn pairs(subjects: &[String]) -> Vec<(&str, &str)> {
    if subjects.iter().any(|name| name == ROUTED) {
        return vec![
            (FAST, ROUTED),
            (USERSPACE, ROUTED),
            (HAPROXY, ROUTED),
            (FAST, USERSPACE),
            (FAST, HAPROXY),
            (FAST, BARE),
            (ROUTED, BARE),
        ];
    }
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

/// What workloads of the fast path's stage are called at first.
pub(crate) const FAST_PATH: &str = "fast path: ";

/// Share of the bytes, in per cent, that the kernel must have passed on in what is called the fast path.
const SPLICED: f64 = 90.0;

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
- system CPU µs/request: the same as system CPU over the number of requests answered.
- % of bytes in the kernel: the daemon's counters of bytes that the kernel passed on, over those of all bytes.
- segments sent again: `RetransSegs` of `/proc/net/snmp` of the client's and the brokers' hosts, during the run.
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
    fn the_fast_path_is_judged_only_where_the_kernel_passed_the_bytes() {
        let judged = |shares: [f64; 2]| {
            let mut report = Report::default();
            let workload = format!("{FAST_PATH}x");
            for share in shares {
                report.add(&workload, Metric::RequestCpu, ROUTED, 10.0);
                report.add(&workload, Metric::RequestCpu, FAST, 11.0);
                report.add(&workload, Metric::KernelShare, FAST, share);
            }
            report.judge_fast(&workload, Metric::RequestCpu, ROUTED, Bound::AtMost(1.15));
            report.judge_fast(&workload, Metric::RequestCpu, ROUTED, Bound::AtMost(1.05));
            report
        };
        let met = |report: &Report| report.bars.iter().map(|bar| bar.met).collect::<Vec<_>>();
        assert_eq!(met(&judged([99.0, 90.0])), [true, false]);
        let report = judged([99.0, 12.0]);
        assert_eq!(met(&report), [false, false]);
        assert!(report.markdown().contains("only 12 % of the bytes passed in the kernel"));
    }

    #[test]
    fn the_fast_path_has_a_table_of_its_own() {
        let mut report = report();
        for (subject, value) in [(BARE, 8.0), (HAPROXY, 30.0), (ROUTED, 10.0), (USERSPACE, 25.0), (FAST, 11.0)] {
            report.add("fast path: x", Metric::RequestCpu, subject, value);
        }
        let text = report.markdown();
        let columns = "| workload | figure | routed | fast path | userspace | haproxy | bare | fast path / routed | \
                       userspace / routed | haproxy / routed | fast path / userspace | fast path / haproxy | \
                       fast path / bare | routed / bare |";
        assert!(text.contains(columns), "{text}");
        assert!(text.contains("| workload | figure | direct | turnout | haproxy | turnout / haproxy |"), "{text}");
    }

    #[test]
    fn the_slowest_median_counts() {
        assert_eq!(report().slowest("produce", Metric::Throughput), Some(145.0));
    }
}
