//! What the standard test runner prints, read line by line.

use std::collections::BTreeSet;

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
    /// Tests marked `#[ignore]`, with the reason if there is one.
    pub(crate) ignored: Vec<(String, String)>,
    /// Binaries that began and did not close yet.
    pub(crate) open: usize,
}

impl Tally {
    /// Takes a line.
    pub(crate) fn line(&mut self, line: &str) {
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
    fn a_binary_that_crashed_is_noticed() {
        assert!(tally("running 2 tests\ntest a ... ok\n").broke_off());
    }

    #[test]
    fn a_test_of_documentation_has_a_name_with_spaces() {
        let tally = tally("running 1 test\ntest src/lib.rs - kafka (line 3) ... ok\n");
        assert!(tally.passed_names.contains("src/lib.rs - kafka (line 3)"));
    }
}
