//! Parses the output of `cargo test`: totals, skipped tests and failures, for the final summary.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

/// The marker in the output of a skipped test, or of a test that skipped a part.
const LEFT_OUT: &str = "LEFT OUT: ";

/// The number of failure lines to repeat in the summary.
const COMPLAINTS: usize = 300;

/// The number of last lines to repeat of a test binary that died.
const LAST_LINES: usize = 8;

/// The sums over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestLog {
    /// The number of passed tests, without skipped ones.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// The skipped tests, each with the reason.
    pub(crate) left_out: Vec<String>,
    /// The reports of failed tests, and the last output of binaries that died.
    pub(crate) complaints: Vec<String>,
    binary: Binary,
}

/// The state of the current test binary.
#[derive(Debug, Default, PartialEq, Eq)]
enum Binary {
    /// No binary runs.
    #[default]
    Ended,
    /// The tests run; with the last lines of output.
    Tests(VecDeque<String>),
    /// The failures are being reported.
    Failures,
}

impl TestLog {
    /// Parses one line of standard output.
    pub(crate) fn read_line(&mut self, line: &str) {
        self.follow(line.trim_end());
        if let Some((_, what)) = line.split_once(LEFT_OUT) {
            // The test harness counts this test as passed.
            self.left_out.push(what.trim().to_owned());
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, " passed");
            self.failed += count(counts, " failed");
        }
    }

    /// Handles the end of the output.
    pub(crate) fn end(&mut self) {
        if let Binary::Tests(last) = mem::take(&mut self.binary) {
            self.complain("a test binary ended without a result; its last lines:");
            last.iter().for_each(|line| self.complain(line));
        }
    }

    fn follow(&mut self, line: &str) {
        if line.starts_with("running ") && (line.ends_with(" test") || line.ends_with(" tests")) {
            self.end();
            self.binary = Binary::Tests(VecDeque::new());
        } else if line.starts_with("test result: ") {
            self.binary = Binary::Ended;
        } else if let Binary::Tests(last) = &mut self.binary {
            if line == "failures:" {
                self.binary = Binary::Failures;
            } else {
                last.push_back(line.to_owned());
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
            }
        } else if self.binary == Binary::Failures {
            self.complain(line);
        }
    }

    fn complain(&mut self, line: &str) {
        if self.complaints.len() < COMPLAINTS && !line.is_empty() {
            self.complaints.push(line.to_owned());
        }
    }

    /// Returns the number of passed tests, without those that skipped a part.
    pub(crate) fn passed(&self) -> usize {
        let names = self.left_out.iter().map(|line| line.split(": ").next());
        self.passed
            .saturating_sub(names.collect::<BTreeSet<_>>().len())
    }
}

/// Returns the number before `what`, as in `ok. 3 passed; 1 failed; ...`.
fn count(counts: &str, what: &str) -> usize {
    counts
        .split_once(what)
        .and_then(|(before, _)| before.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::TestLog;

    #[test]
    fn counts_of_all_binaries_are_added() {
        let mut log = TestLog::default();
        log.read_line("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s\n");
        log.read_line("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.02s\n");
        assert_eq!((log.passed(), log.failed), (15, 2));
    }

    #[test]
    fn skipped_test_is_listed_and_not_counted_as_passed() {
        let mut log = TestLog::default();
        log.read_line("test pingpong::plain ... LEFT OUT: pingpong::plain: needs tshark\n");
        log.read_line("test result: ok. 2 passed; 0 failed; 0 ignored\n");
        assert_eq!(log.passed(), 1);
        assert_eq!(log.left_out, ["pingpong::plain: needs tshark"]);
    }

    #[test]
    fn test_that_skips_two_parts_counts_once() {
        let mut log = TestLog::default();
        log.read_line("LEFT OUT: abi::users: needs ucx\n");
        log.read_line("LEFT OUT: abi::users: needs libfabric\n");
        log.read_line("test result: ok. 2 passed; 0 failed; 0 ignored\n");
        assert_eq!(log.passed(), 1);
    }

    #[test]
    fn reports_of_failures_are_kept() {
        let mut log = TestLog::default();
        for line in [
            "running 2 tests",
            "test psn::wraps ... FAILED",
            "",
            "failures:",
            "",
            "---- psn::wraps stdout ----",
            "it does not wrap",
            "",
            "failures:",
            "    psn::wraps",
            "",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "running 1 test",
            "test psn::order ... ok",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
        ] {
            log.read_line(line);
        }
        log.end();
        let kept = [
            "---- psn::wraps stdout ----",
            "it does not wrap",
            "failures:",
            "    psn::wraps",
        ];
        assert_eq!(log.complaints, kept);
    }

    #[test]
    fn dead_binary_is_reported() {
        let mut log = TestLog::default();
        log.read_line("running 2 tests\n");
        log.read_line("test psn::order ... ok\n");
        log.read_line("running 1 test\n");
        log.read_line("test result: ok. 1 passed; 0 failed; 0 ignored\n");
        log.end();
        let kept = [
            "a test binary ended without a result; its last lines:",
            "test psn::order ... ok",
        ];
        assert_eq!(log.complaints, kept);
    }

    #[test]
    fn other_lines_change_nothing() {
        let mut log = TestLog::default();
        log.read_line("test psn::wraps ... ok\n");
        log.read_line("note: test result: unclear\n");
        assert_eq!(log, TestLog::default());
    }
}
