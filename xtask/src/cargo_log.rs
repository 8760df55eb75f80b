//! Reads along in what cargo says while it runs tests: which test binary failed or died, and what
//! that one printed last. (A binary that is killed prints no result: see `test_log` for those that
//! do.)

use std::collections::VecDeque;
use std::mem;

/// How cargo says that a test binary begins.
const BEGINS: [&str; 2] = ["     Running ", "   Doc-tests "];

/// How it says that one did not succeed.
const FAILED: &str = "error: test failed";

/// Lines that are kept of one binary: the last ones.
const KEPT: usize = 40;

/// What cargo and the test binaries wrote to standard error.
#[derive(Default)]
pub(crate) struct CargoLog {
    /// The last lines since a binary began, with the line that says so.
    binary: VecDeque<String>,
    complaints: Vec<String>,
}

impl CargoLog {
    /// Takes one line.
    pub(crate) fn read_line(&mut self, line: &str) {
        if BEGINS.iter().any(|begins| line.starts_with(begins)) {
            self.binary_ended();
        }
        self.binary.push_back(line.trim_end().to_owned());
        if self.binary.len() > KEPT {
            self.binary.pop_front();
        }
    }

    /// What was said of and by the binaries that failed.
    pub(crate) fn complaints(mut self) -> Vec<String> {
        self.binary_ended();
        self.complaints
    }

    fn binary_ended(&mut self) {
        let lines = mem::take(&mut self.binary);
        if lines.iter().any(|line| line.starts_with(FAILED)) {
            let said = lines.into_iter().filter(|line| !line.is_empty());
            self.complaints.extend(said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CargoLog;

    #[test]
    fn only_what_concerns_a_binary_that_failed_is_kept() {
        let mut log = CargoLog::default();
        for line in [
            "   Compiling urxe v0.1.0\n",
            "     Running tests/a.rs (a)\n",
            "a warning\n",
            "     Running tests/b.rs (b)\n",
            "free(): invalid pointer\n",
            "error: test failed, to rerun pass `--test b`\n",
            "\n",
            "Caused by:\n",
            "  process didn't exit successfully: `b` (signal: 6, SIGABRT: process abort signal)\n",
            "   Doc-tests urxe\n",
        ] {
            log.read_line(line);
        }
        let kept = log.complaints();
        assert_eq!(kept.len(), 5, "{kept:?}");
        assert_eq!(kept[1], "free(): invalid pointer");
        assert!(kept[4].contains("SIGABRT"));
    }
}
