//! The table at the end: what passed, failed, was skipped and why.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::libtest::Tally;

/// A suite's row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) suite: String,
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
    /// What went wrong besides failed tests: it didn't compile, it crashed, it hung.
    pub(crate) trouble: Option<String>,
    /// It is a suite of the `tests` crate: CI wants at least something of it to run.
    pub(crate) must_run: bool,
    /// Tests that skipped themselves, and parts left out, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

impl Row {
    /// A job that passed or failed as one.
    pub(crate) fn of_result(suite: &str, took: Duration, result: Result<()>) -> Self {
        let passed = usize::from(result.is_ok());
        let trouble = result.err().map(|e| format!("{e:#}"));
        Self { suite: suite.into(), took, trouble, tally: Tally { passed, ..Tally::default() }, ..Self::default() }
    }

    /// A suite that can't run here.
    pub(crate) fn skipped(suite: &str, why: &str) -> Self {
        Self { suite: suite.into(), skipped: vec![("all of it".into(), why.into())], ..Self::default() }
    }

    fn passed(&self) -> usize {
        // A test that skipped itself is one that passed to the test runner.
        let skipped = self.skipped.iter().filter(|(name, _)| self.tally.passed_names.contains(name)).count();
        self.tally.passed.saturating_sub(skipped)
    }

    /// A suite that broke off is a failure, whether or not a test of it is known to have failed.
    fn failed(&self) -> usize {
        match self.trouble {
            Some(_) => self.tally.failed.max(1),
            None => self.tally.failed,
        }
    }

    fn skips(&self) -> impl Iterator<Item = &(String, String)> {
        self.tally.ignored.iter().chain(&self.skipped)
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// Begins the reason of a test that only `--full` runs; skipping it elsewhere is as it should be.
const FULL_TIER_ONLY: &str = "full tier only";

impl Report {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Takes the register of skipped tests: `suite::test<TAB>reason`, one a line, where suite is the name of the test
    /// binary.
    pub(crate) fn note_skips(&mut self, register: &str) {
        for line in register.lines() {
            let Some((name, reason)) = line.split_once('\t') else { continue };
            let (suite, test) = name.split_once("::").unwrap_or(("", name));
            let entry = (test.to_owned(), reason.to_owned());
            // Suites of other crates run under one heading: there the test's name decides.
            let by_suite = self.rows.iter().position(|r| r.suite == suite);
            let row = by_suite.or_else(|| self.rows.iter().position(|r| r.tally.passed_names.contains(test)));
            match row.map(|i| &mut self.rows[i]) {
                Some(row) if row.skipped.contains(&entry) => {}
                Some(row) => row.skipped.push(entry),
                None => self.rows.push(Row { suite: suite.to_owned(), skipped: vec![entry], ..Row::default() }),
            }
        }
    }

    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().map(Row::failed).sum()
    }

    /// Suites that had to run and of which every test was skipped for another reason than its tier.
    pub(crate) fn unproven(&self) -> Vec<&str> {
        self.rows
            .iter()
            .filter(|row| row.must_run && row.passed() + row.failed() == 0)
            .filter(|row| row.skips().any(|(_, reason)| !reason.starts_with(FULL_TIER_ONLY)))
            .map(|row| row.suite.as_str())
            .collect()
    }

    /// `N passed, N failed, N skipped`; `more` failures are added that no row has.
    pub(crate) fn closing_line(&self, more: usize) -> String {
        let passed: usize = self.rows.iter().map(Row::passed).sum();
        let skipped: usize = self.rows.iter().map(|row| row.skips().count()).sum();
        format!("{passed} passed, {} failed, {skipped} skipped", self.failed() + more)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.suite.len()).max().unwrap_or(0).max(5);
        writeln!(f, "\n{:<width$}  {:>6}  {:>6}  {:>7}  {:>7}", "suite", "passed", "failed", "skipped", "time")?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<width$}  {:>6}  {:>6}  {:>7}  {:>7}",
                row.suite,
                row.passed(),
                row.failed(),
                row.skips().count(),
                minutes(row.took)
            )?;
        }
        section(f, "Failed:", self.rows.iter().flat_map(failures))?;
        section(
            f,
            "Skipped:",
            self.rows.iter().flat_map(|row| {
                row.skips().map(|(test, why)| {
                    let why = if why.is_empty() { "ignored" } else { why };
                    format!("{}::{test}: {why}", row.suite)
                })
            }),
        )
    }
}

fn failures(row: &Row) -> impl Iterator<Item = String> {
    let tests = row.tally.failed_names.iter().map(|test| {
        let printed = row.tally.printed.get(test).into_iter().flatten();
        let printed: String = printed.filter(|line| !line.is_empty()).map(|line| format!("\n      {line}")).collect();
        format!("{}::{test}{printed}", row.suite)
    });
    tests.chain(row.trouble.iter().map(|why| format!("{}: {why}", row.suite)))
}

fn section(f: &mut fmt::Formatter<'_>, title: &str, lines: impl Iterator<Item = String>) -> fmt::Result {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        writeln!(f, "\n{title}")?;
    }
    lines.try_for_each(|line| writeln!(f, "  {line}"))
}

/// `4.2 s` or `3m07s`.
pub(crate) fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{:.1} s", time.as_secs_f64()) } else { format!("{}m{:02}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &str, output: &str, must_run: bool) -> Row {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.line(line));
        Row { suite: suite.into(), tally, must_run, ..Row::default() }
    }

    fn report() -> Report {
        let mut report = Report::default();
        report.add(row(
            "clients",
            "running 2 tests\ntest a ... ok\ntest b ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored",
            true,
        ));
        report
    }

    #[test]
    fn a_test_that_skipped_itself_is_skipped_and_not_passed() {
        let mut report = report();
        report.note_skips("clients::b\tneeds root\nclients::b\tneeds root\n");
        assert_eq!(report.closing_line(0), "1 passed, 0 failed, 1 skipped");
        assert!(report.to_string().contains("clients::b: needs root"));
        assert_eq!(report.unproven(), [""; 0]);
    }

    #[test]
    fn what_is_left_out_of_a_test_that_ran_is_listed_and_the_test_counts() {
        let mut report = report();
        report.note_skips("clients::sarama\tno Go\n");
        assert_eq!(report.closing_line(0), "2 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_suite_of_which_nothing_ran_proves_nothing_unless_it_belongs_to_the_full_tier() {
        let mut skipped = report();
        skipped.note_skips("clients::a\tno Java\nclients::b\tno Java\n");
        assert_eq!(skipped.unproven(), ["clients"]);
        let mut later = report();
        later.note_skips("clients::a\tfull tier only (TURNOUT_TIER=full)\nclients::b\tfull tier only\n");
        assert_eq!(later.unproven(), [""; 0]);
    }

    #[test]
    fn trouble_is_a_failure() {
        let mut report = report();
        report.add(Row::of_result("fuzz header", Duration::ZERO, Err(anyhow::anyhow!("it panicked"))));
        assert_eq!(report.closing_line(0), "2 passed, 1 failed, 0 skipped");
        assert!(report.to_string().contains("fuzz header: it panicked"));
    }
}
