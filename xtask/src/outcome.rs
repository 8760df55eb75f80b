//! The summary of a run: failures, one line per step, skipped tests, and the totals.

use std::time::Duration;

use crate::test_log::TestLog;

/// The outcome of a step.
pub(crate) struct Outcome {
    pub(crate) step: &'static str,
    /// The cause of a failure, if any.
    pub(crate) problem: Option<String>,
    pub(crate) took: Duration,
    /// Empty for a step that runs no tests.
    pub(crate) log: TestLog,
}

/// The outcomes of all steps.
#[derive(Default)]
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
}

impl Report {
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.outcomes
            .iter()
            .all(|outcome| outcome.problem.is_none() && outcome.log.failed == 0)
    }

    /// Prints the summary. The last line has the totals, for scripts.
    pub(crate) fn print(&self) {
        for Outcome { step, log, .. } in &self.outcomes {
            if !log.complaints.is_empty() {
                println!("\nfailures of {step}:");
            }
            for line in &log.complaints {
                println!("  {line}");
            }
        }
        println!();
        println!("{:<12} {:<8} {:>8}", "step", "result", "seconds");
        for Outcome {
            step,
            problem,
            took,
            ..
        } in &self.outcomes
        {
            let result = if problem.is_none() { "ok" } else { "FAILED" };
            let reason = problem.as_deref().unwrap_or_default();
            println!(
                "{step:<12} {result:<8} {:>8.1}  {reason}",
                took.as_secs_f64()
            );
        }

        let logs = || self.outcomes.iter().map(|outcome| &outcome.log);
        let left_out: Vec<_> = logs().flat_map(|log| &log.left_out).collect();
        if !left_out.is_empty() {
            println!("\nskipped ({}):", left_out.len());
            for test in left_out {
                println!("  {test}");
            }
        }
        let passed: usize = logs().map(TestLog::passed).sum();
        let failed: usize = logs().map(|log| log.failed).sum();
        println!("\n{passed} passed, {failed} failed");
    }
}
