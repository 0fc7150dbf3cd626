//! What the standard test runner prints, read line by line.

use std::collections::{BTreeMap, BTreeSet};

/// Lines kept of what one failed test printed: its last ones, where the error stands.
const LINES: usize = 80;

/// What a stream of output said so far; several binaries may follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: usize,
    /// Tests that failed, as the closing lines count them.
    pub(crate) failed: usize,
    /// Names of tests that passed: one that skipped itself is among them.
    pub(crate) passed_names: BTreeSet<String>,
    /// Names of tests that failed.
    pub(crate) failed_names: BTreeSet<String>,
    /// The last lines that each failed test printed.
    pub(crate) printed: BTreeMap<String, Vec<String>>,
    /// Whose output is being read.
    pub(crate) printing: Option<String>,
    /// Tests marked `#[ignore]`, with the reason if there is one.
    pub(crate) ignored: Vec<(String, String)>,
    /// Binaries that began and did not close yet.
    pub(crate) open: usize,
}

impl Tally {
    /// Takes a line.
    pub(crate) fn line(&mut self, line: &str) {
        if self.is_printed(line) {
            return;
        }
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("running ") {
            if rest.ends_with(" tests") || rest.ends_with(" test") {
                self.open += 1;
            }
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.open = self.open.saturating_sub(1);
            self.passed += count(rest, "passed");
            self.failed += count(rest, "failed");
        } else if let Some((name, outcome)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
            self.outcome(name, outcome);
        }
    }

    /// Takes a line of the part that repeats what failed tests printed; `false`: it is none.
    fn is_printed(&mut self, line: &str) -> bool {
        let header = line.trim().strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"));
        if let Some(name) = header {
            self.printing = Some(name.to_owned());
            return true;
        }
        // The list of names that follows the last of them ends it.
        if line.trim() == "failures:" || line.starts_with("test result: ") {
            self.printing = None;
            return false;
        }
        let Some(name) = &self.printing else { return false };
        let lines = self.printed.entry(name.clone()).or_default();
        if lines.len() == LINES {
            lines.remove(0);
        }
        lines.push(line.trim_end().to_owned());
        true
    }

    fn outcome(&mut self, name: &str, outcome: &str) {
        // Output that a test wrote past the capture may stand between the name and the outcome, at the line's start.
        if outcome.ends_with("ok") {
            self.passed_names.insert(name.to_owned());
        } else if outcome.ends_with("FAILED") {
            self.failed_names.insert(name.to_owned());
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            self.ignored.push((name.to_owned(), reason.trim_start_matches(", ").to_owned()));
        }
    }

    /// A binary began and didn't come to its end.
    pub(crate) fn broke_off(&self) -> bool {
        self.open > 0
    }
}

/// The number in front of a word: `ok. 3 passed; 0 failed; …`.
fn count(line: &str, word: &str) -> usize {
    line.split(['.', ';'])
        .find_map(|part| part.trim().strip_suffix(word))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn several_binaries_add_up() {
        let tally = tally(
            "running 2 tests\ntest a::b ... ok\ntest c ... FAILED\n\nfailures:\n    c\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             running 1 test\ntest d ... ignored, takes an hour\n\
             test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failed_names, BTreeSet::from(["c".to_owned()]));
        assert_eq!(tally.ignored, [("d".to_owned(), "takes an hour".to_owned())]);
        assert!(!tally.broke_off());
    }

    #[test]
    fn what_a_failed_test_printed_is_kept_and_not_read_as_outcomes() {
        let tally = tally(
            "running 2 tests\ntest a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n---- a stdout ----\nError: no\n\
             test x ... ok\n\n---- b stdout ----\nfirst\n\nfailures:\n    a\n    b\n\n\
             test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        assert_eq!(tally.printed["a"], ["Error: no", "test x ... ok", ""]);
        assert_eq!(tally.printed["b"], ["first", ""]);
        assert_eq!((tally.passed_names.len(), tally.failed), (0, 2));
    }

    #[test]
    fn a_binary_that_crashed_is_noticed() {
        assert!(tally("running 2 tests\ntest a ... ok\n").broke_off());
    }

    #[test]
    fn a_test_of_documentation_has_a_name_with_spaces() {
        let tally = tally("running 1 test\ntest src/lib.rs - kafka (line 3) ... ok\n");
        assert!(tally.passed_names.contains("src/lib.rs - kafka (line 3)"));
    }
}
