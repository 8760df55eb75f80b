//! Reads along in the output of `cargo test`: the totals of each test binary, what was left out,
//! and what failed, which would otherwise have scrolled away when the last step ends.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

/// How a test says that it, or a part of it, was left out.
const LEFT_OUT: &str = "LEFT OUT: ";

/// Lines of complaints that the summary repeats at most; the rest is further up in the output.
const COMPLAINTS: usize = 300;

/// Of a test binary that died, the last lines of its output that are repeated.
const LAST_LINES: usize = 8;

/// What the test binaries reported, added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestLog {
    /// Tests that passed, those left out not counted.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// The tests left out, each with the reason.
    pub(crate) left_out: Vec<String>,
    /// What test binaries said of their failures, and the end of the output of those that died.
    pub(crate) complaints: Vec<String>,
    binary: Binary,
}

/// How far the test binary that runs has come.
#[derive(Debug, Default, PartialEq, Eq)]
enum Binary {
    /// None runs.
    #[default]
    Ended,
    /// Runs its tests; the last lines that it printed.
    Tests(VecDeque<String>),
    /// Tells of its failures.
    Failures,
}

impl TestLog {
    /// Takes one line of standard output.
    pub(crate) fn read_line(&mut self, line: &str) {
        self.follow(line.trim_end());
        if let Some((_, what)) = line.split_once(LEFT_OUT) {
            // The harness, which knows nothing of leaving out, will count this test as passed.
            self.left_out.push(what.trim().to_owned());
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, " passed");
            self.failed += count(counts, " failed");
        }
    }

    /// The output has ended.
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

    /// Tests that really ran and passed. One that left out a part does not count.
    pub(crate) fn passed(&self) -> usize {
        let names = self.left_out.iter().map(|line| line.split(": ").next());
        self.passed
            .saturating_sub(names.collect::<BTreeSet<_>>().len())
    }
}

/// The number that stands before `what`, as in `ok. 3 passed; 1 failed; ...`.
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
    fn a_test_left_out_is_named_and_not_counted_as_passed() {
        let mut log = TestLog::default();
        log.read_line("test pingpong::plain ... LEFT OUT: pingpong::plain: needs tshark\n");
        log.read_line("test result: ok. 2 passed; 0 failed; 0 ignored\n");
        assert_eq!(log.passed(), 1);
        assert_eq!(log.left_out, ["pingpong::plain: needs tshark"]);
    }

    #[test]
    fn two_parts_left_out_of_one_test_count_once() {
        let mut log = TestLog::default();
        log.read_line("LEFT OUT: abi::users: needs ucx\n");
        log.read_line("LEFT OUT: abi::users: needs libfabric\n");
        log.read_line("test result: ok. 2 passed; 0 failed; 0 ignored\n");
        assert_eq!(log.passed(), 1);
    }

    #[test]
    fn what_a_binary_says_of_its_failures_is_kept() {
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
    fn a_binary_that_dies_is_complained_of() {
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
