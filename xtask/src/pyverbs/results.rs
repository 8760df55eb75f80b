//! Parses and evaluates the results of the test suite.

use std::collections::BTreeMap;

use crate::test_log::TestLog;

/// The number of tests of rdma-core 44 that must pass. Raise it as more tests pass.
pub(super) const FLOOR: usize = 140;

/// The results of the tests in the order of execution.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Results {
    passed: Vec<String>,
    /// The failed tests with their tracebacks.
    failed: Vec<(String, String)>,
    /// The skipped tests with the suite's reasons.
    skipped: Vec<(String, String)>,
}

impl Results {
    /// Parses the runner's lines, which `tests/pyverbs/run.py` describes. A test that started and
    /// did not end counts as failed.
    pub(super) fn parse(text: &str) -> Self {
        let mut results = Self::default();
        let mut running = None;
        for line in text.lines() {
            let mut fields = line.splitn(3, '\t');
            let (Some(outcome), Some(test), Some(why)) =
                (fields.next(), fields.next(), fields.next())
            else {
                // An incomplete line of a process that was killed.
                continue;
            };
            let (test, why) = (test.to_owned(), unescape(why));
            if outcome == "started" {
                results.note_unfinished(running.replace(test));
                continue;
            }
            running = None;
            match outcome {
                "passed" => results.passed.push(test),
                "skipped" => results.skipped.push((test, why)),
                _ => results.failed.push((test, why)),
            }
        }
        results.note_unfinished(running);
        results
    }

    fn note_unfinished(&mut self, test: Option<String>) {
        let why = "did not end; see the output for the cause";
        self.failed.extend(test.map(|test| (test, why.to_owned())));
    }

    fn is_empty(&self) -> bool {
        self.passed.is_empty() && self.failed.is_empty() && self.skipped.is_empty()
    }

    /// Returns the problem with the tests that ran, if any.
    pub(super) fn failures(&self) -> Option<String> {
        let failed = self.failed.len();
        (failed > 0).then(|| format!("{failed} failed"))
    }

    /// Returns the problem if fewer than `floor` tests passed, or none ran.
    pub(super) fn too_few(&self, floor: usize) -> Option<String> {
        let passed = self.passed.len();
        if self.is_empty() {
            Some("no test ran".to_owned())
        } else if passed < floor {
            Some(format!("{passed} passed, but {floor} are required"))
        } else {
            None
        }
    }

    /// Prints the failures with tracebacks, skipped tests by reason, and the totals.
    pub(super) fn print(&self) {
        for (test, traceback) in &self.failed {
            println!("\nFAILED {test}\n{}", traceback.trim_end());
        }
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (test, reason) in &self.skipped {
            reasons.entry(reason).or_default().push(test);
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, tests)| std::cmp::Reverse(tests.len()));
        if !reasons.is_empty() {
            println!("\nskipped:");
        }
        for (reason, tests) in reasons {
            println!("{:>4}  {reason}", tests.len());
            for test in tests {
                println!("        {}", test.trim_start_matches("tests."));
            }
        }
        println!(
            "\npyverbs: {} passed, {} failed, {} skipped",
            self.passed.len(),
            self.failed.len(),
            self.skipped.len()
        );
    }

    /// Returns the totals for the summary of all steps.
    pub(super) fn log(&self) -> TestLog {
        let mut log = TestLog::default();
        log.passed = self.passed.len();
        log.failed = self.failed.len();
        log
    }
}

/// Reverses `escape` of the runner.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                other => plain.extend(other),
            },
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "started\ta\t\npassed\ta\t\nstarted\tb\t\nskipped\tb\tno b\nstarted\tc\t\n\
                         failed\tc\tone\\ntwo \\\\n\n";

    #[test]
    fn test_without_an_end_has_failed() {
        for (lines, failed) in [
            ("started\ta\t\n", "a"),
            ("started\ta\t\nstarted\tb\t\npassed\tb\t\n", "a"),
            ("started\ta\t\npassed\ta\t\nstarted\tb\t\nfail", "b"),
        ] {
            let results = Results::parse(lines);
            let names: Vec<_> = results.failed.iter().map(|(test, _)| test).collect();
            assert_eq!(names, [failed], "{lines:?}");
            assert!(results.failures().is_some());
        }
    }

    #[test]
    fn results_are_kept_with_their_reasons() {
        let results = Results::parse(LINES);
        assert_eq!(results.passed, ["a"]);
        assert_eq!(results.skipped, [("b".to_owned(), "no b".to_owned())]);
        assert_eq!(
            results.failed,
            [("c".to_owned(), "one\ntwo \\n".to_owned())]
        );
        assert_eq!((results.log().passed, results.log().failed), (1, 1));
    }

    #[test]
    fn too_few_passed_tests_are_a_problem() {
        let results = Results::parse("started\ta\t\npassed\ta\t\n");
        assert_eq!((results.failures(), results.too_few(1)), (None, None));
        assert!(results.too_few(2).is_some());
        assert!(Results::parse("").too_few(0).is_some());
    }
}
