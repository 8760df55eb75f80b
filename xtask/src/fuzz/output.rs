//! Parses libFuzzer's output and prints results.

use std::fmt;
use std::time::Duration;

/// The number of lines to keep of a failure.
const COMPLAINT: usize = 60;

/// The progress of a target.
#[derive(Default)]
pub(super) struct Progress {
    /// The number of executed inputs.
    pub(super) executions: u64,
    /// The number of covered edges.
    pub(super) coverage: u64,
    /// The number of inputs in the corpus.
    pub(super) corpus: u64,
    /// The output of a failure.
    pub(super) complaint: Vec<String>,
    /// The file with the failing input.
    pub(super) artifact: Option<String>,
}

impl Progress {
    /// Parses one line.
    pub(super) fn read_line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix('#') {
            let mut words = rest.split_whitespace();
            let executions = words.next().and_then(|word| word.parse().ok());
            self.executions = executions.unwrap_or(self.executions);
            while let Some(word) = words.next() {
                let value = |word: Option<&str>| word?.split('/').next()?.parse().ok();
                match word {
                    "cov:" => self.coverage = value(words.next()).unwrap_or(self.coverage),
                    "corp:" => self.corpus = value(words.next()).unwrap_or(self.corpus),
                    _ => {}
                }
            }
            return;
        }
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = count.trim().parse().unwrap_or(self.executions);
        }
        if let Some((_, file)) = line.split_once("Test unit written to ") {
            self.artifact = Some(file.trim().to_owned());
        }
        let begins = line.contains("panicked at") || line.contains("ERROR:");
        if (begins || !self.complaint.is_empty()) && self.complaint.len() < COMPLAINT {
            self.complaint.push(line.to_owned());
        }
    }
}

/// The result of a target.
pub(super) struct Finding {
    pub(super) target: String,
    pub(super) took: Duration,
    pub(super) progress: Progress,
    /// The failure and the file with its input, if any.
    pub(super) problem: Option<String>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress {
            executions,
            coverage,
            corpus,
            ..
        } = self;
        write!(
            f,
            "{executions} executions, {coverage} edges, {corpus} inputs kept"
        )
    }
}

/// Prints the table of results.
pub(super) fn print_table(findings: &[Finding]) {
    println!();
    println!(
        "{:<12} {:>8} {:>12} {:>10} {:>7} {:>7}  result",
        "target", "seconds", "executions", "exec/s", "edges", "inputs"
    );
    for Finding {
        target,
        took,
        progress,
        problem,
    } in findings
    {
        let seconds = took.as_secs_f64();
        println!(
            "{target:<12} {seconds:>8.0} {:>12} {:>10.0} {:>7} {:>7}  {}",
            progress.executions,
            progress.executions as f64 / seconds.max(1.0),
            progress.coverage,
            progress.corpus,
            problem.as_deref().unwrap_or("ok"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_failure_are_parsed() {
        let mut progress = Progress::default();
        for line in [
            "INFO: Seed: 1",
            "#61180\tNEW    cov: 2787 ft: 5713 corp: 492/18Kb lim: 74 exec/s: 4706 rss: 414Mb L: 70/70",
            "thread '<unnamed>' (1) panicked at fuzz/src/host.rs:148:9:",
            "why",
            "artifact_prefix='x/'; Test unit written to x/crash-1",
            "stat::number_of_executed_units: 61200",
        ] {
            progress.read_line(line);
        }
        assert_eq!(
            (progress.executions, progress.coverage, progress.corpus),
            (61200, 2787, 492)
        );
        assert_eq!(progress.complaint[1], "why");
        assert_eq!(progress.artifact.as_deref(), Some("x/crash-1"));
    }
}
