//! What the demo's clients report, whichever they are.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// What to send.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Where a client without a gateway starts from.
    pub(crate) direct: String,
    /// Where clients of the gateway start from.
    pub(crate) gateway: String,
    /// Records go here, and those that measure latency to `<topic>-latency`.
    pub(crate) topic: &'static str,
    /// Of the topic.
    pub(crate) partitions: i32,
    /// How long.
    pub(crate) seconds: u32,
    /// Records a second.
    pub(crate) rate: u32,
    /// Bytes of each record.
    pub(crate) size: usize,
}

/// Percentiles of the time from sending a record to its acknowledgement, in microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Latency {
    /// 50th.
    #[serde(rename = "p50_us")]
    pub(crate) p50: u64,
    /// 99th.
    #[serde(rename = "p99_us")]
    pub(crate) p99: u64,
}

/// Counted since the start; latencies since the last report, in the final one of the whole run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct Report {
    /// Seconds of traffic so far.
    pub(crate) seconds: u32,
    /// Records acknowledged.
    pub(crate) sent: u64,
    /// Different records read.
    pub(crate) read: u64,
    /// Bytes of the records read.
    pub(crate) bytes: u64,
    /// What went wrong.
    pub(crate) errors: u64,
    /// The last of them, in words.
    pub(crate) last_error: Option<String>,
    /// Latency without the gateway.
    pub(crate) direct: Latency,
    /// Latency through it.
    pub(crate) gateway: Latency,
    /// At the end.
    pub(crate) outcome: Option<Outcome>,
}

/// What the check found.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct Outcome {
    /// Records written and not read.
    pub(crate) missing: i64,
    /// Records read again.
    pub(crate) duplicates: u64,
    /// Records that came before one with a lower number of the same partition.
    pub(crate) out_of_order: u64,
    /// `host:port` of the brokers that the client was told.
    pub(crate) addresses: Vec<String>,
}

impl Report {
    /// Fails in one sentence unless every record arrived once and in order, and only `ours` addresses were told.
    pub(crate) fn check(&self, ours: impl Fn(&str) -> bool) -> Result<()> {
        let outcome = self.outcome.as_ref().context("the client ended without an outcome")?;
        let Outcome { missing, duplicates, out_of_order, addresses } = outcome;
        if self.errors > 0 {
            bail!("{} errors, the last: {}", self.errors, self.last_error.as_deref().unwrap_or("not told"));
        }
        ensure!(self.sent > 0, "no record was sent");
        ensure!(*missing == 0, "{missing} of {} records did not arrive", self.sent);
        ensure!(*duplicates == 0, "{duplicates} records arrived more than once or late");
        ensure!(*out_of_order == 0, "{out_of_order} records arrived out of order");
        ensure!(self.read == self.sent, "{} records were acknowledged, {} arrived", self.sent, self.read);
        ensure!(!addresses.is_empty(), "the client was told no broker");
        if let Some(stranger) = addresses.iter().find(|address| !ours(address)) {
            bail!("the client was told {stranger}, which is not the gateway");
        }
        Ok(())
    }
}

/// Passes each report on until the one with the outcome, which is returned.
///
/// # Errors
/// The client ends before, or is silent for `patience`.
pub(crate) fn follow(
    reports: &Receiver<Result<Report>>,
    patience: Duration,
    mut show: impl FnMut(&Report),
) -> Result<Report> {
    loop {
        let report = reports.recv_timeout(patience).context("the client was silent or ended too early")??;
        if report.outcome.is_some() {
            return Ok(report);
        }
        show(&report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        let outcome = Outcome { addresses: vec!["gw:1".into()], ..Outcome::default() };
        Report { sent: 9, read: 9, outcome: Some(outcome), ..Report::default() }
    }

    fn failure(change: impl FnOnce(&mut Report, &mut Outcome)) -> String {
        let mut report = good();
        let mut outcome = report.outcome.take().unwrap();
        change(&mut report, &mut outcome);
        report.outcome = Some(outcome);
        report.check(|address| address.starts_with("gw")).unwrap_err().to_string()
    }

    #[test]
    fn each_defect_has_its_sentence() {
        good().check(|address| address.starts_with("gw")).unwrap();
        assert_eq!(failure(|_, outcome| outcome.missing = 2), "2 of 9 records did not arrive");
        assert!(failure(|_, outcome| outcome.duplicates = 1).contains("more than once"));
        assert!(failure(|_, outcome| outcome.out_of_order = 1).contains("out of order"));
        assert!(failure(|report, _| report.errors = 1).contains("1 errors"));
        assert!(failure(|report, _| report.sent = 0).contains("no record was sent"));
        assert!(failure(|_, outcome| outcome.addresses.push("b:2".into())).contains("b:2"));
        assert!(failure(|_, outcome| outcome.addresses.clear()).contains("no broker"));
    }

    #[test]
    fn a_report_is_read_as_the_java_client_writes_it() {
        let line = r#"{"sent":5,"read":4,"bytes":4000,"errors":0,"seconds":1,"direct":{"p50_us":900,"p99_us":2000},"gateway":{"p50_us":1000,"p99_us":2500}}"#;
        let report: Report = serde_json::from_str(line).unwrap();
        assert_eq!((report.sent, report.gateway.p99, report.outcome), (5, 2500, None));
    }
}
