//! Parses cargo's messages during tests: which test binary failed, and its last output. A killed
//! binary prints no test result; `test_log` handles those that do.

use std::collections::VecDeque;
use std::mem;

/// The beginnings of cargo's line for a test binary.
const BEGINS: [&str; 2] = ["     Running ", "   Doc-tests "];

/// The beginning of cargo's line for a failed test binary.
const FAILED: &str = "error: test failed";

/// The number of last lines to keep for each binary.
const KEPT: usize = 40;

/// The standard error of cargo and the test binaries.
#[derive(Default)]
pub(crate) struct CargoLog {
    /// The last lines of the current binary, and cargo's line for it.
    binary: VecDeque<String>,
    complaints: Vec<String>,
}

impl CargoLog {
    /// Parses one line.
    pub(crate) fn read_line(&mut self, line: &str) {
        if BEGINS.iter().any(|begins| line.starts_with(begins)) {
            self.binary_ended();
        }
        self.binary.push_back(line.trim_end().to_owned());
        if self.binary.len() > KEPT {
            self.binary.pop_front();
        }
    }

    /// Returns the output of the failed binaries.
    pub(crate) fn complaints(mut self) -> Vec<String> {
        self.binary_ended();
        self.complaints
    }

    fn binary_ended(&mut self) {
        let lines = mem::take(&mut self.binary);
        if lines.iter().any(|line| line.starts_with(FAILED)) {
            let kept = lines.into_iter().filter(|line| !line.is_empty());
            self.complaints.extend(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CargoLog;

    #[test]
    fn only_output_of_failed_binaries_is_kept() {
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
