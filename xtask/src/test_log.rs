//! Reads along in the output of `cargo test`: the totals of each test binary, and what was left
//! out.

use std::collections::BTreeSet;

/// How a test says that it, or a part of it, was left out.
const LEFT_OUT: &str = "LEFT OUT: ";

/// What the test binaries reported, added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestLog {
    /// Tests that passed, those left out not counted.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// The tests left out, each with the reason.
    pub(crate) left_out: Vec<String>,
}

impl TestLog {
    /// Takes one line of output.
    pub(crate) fn read_line(&mut self, line: &str) {
        if let Some((_, what)) = line.split_once(LEFT_OUT) {
            // The harness, which knows nothing of leaving out, will count this test as passed.
            self.left_out.push(what.trim().to_owned());
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, " passed");
            self.failed += count(counts, " failed");
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
    fn other_lines_change_nothing() {
        let mut log = TestLog::default();
        log.read_line("running 7 tests\n");
        log.read_line("test psn::wraps ... ok\n");
        log.read_line("note: test result: unclear\n");
        assert_eq!(log, TestLog::default());
    }
}
