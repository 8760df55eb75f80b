//! The report of the responses that violate the specification.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::verdict::{Allowed, Rule};

/// A response that the specification does not allow.
pub struct Violation {
    pub seed: u64,
    pub case: u64,
    pub expected: String,
    pub got: String,
}

/// The counts of tested rules and of violations.
#[derive(Default)]
pub struct Report {
    pub cases: u64,
    pub connections: u64,
    pub packets: u64,
    /// By rule: the number of tests, and of violations.
    rules: BTreeMap<Rule, (u64, u64)>,
    /// By rule, expectation and response: the number of occurrences, and the first test cases.
    violations: BTreeMap<(Rule, String, String), (u64, Vec<String>)>,
}

/// The number of test cases listed for each violation.
const MAX_LISTED_CASES: usize = 3;

impl Report {
    /// Counts a response.
    pub fn count(
        &mut self,
        allowed: &Allowed,
        conforms: bool,
        violation: impl FnOnce() -> Violation,
    ) {
        let rule = allowed.rules.first().copied().unwrap_or(Rule::InOrder);
        let (tested, violated) = self.rules.entry(rule).or_default();
        *tested += 1;
        if conforms {
            return;
        }
        *violated += 1;
        let Violation {
            seed,
            case,
            expected,
            got,
        } = violation();
        let (times, cases) = self.violations.entry((rule, expected, got)).or_default();
        *times += 1;
        if cases.len() < MAX_LISTED_CASES {
            cases.push(format!("{seed}:{case}"));
        }
    }

    /// Returns the number of violations.
    pub fn violations(&self) -> u64 {
        self.rules.values().map(|(_, violated)| violated).sum()
    }

    /// Returns the report of a run with this seed.
    pub fn json(&self, seed: u64) -> Value {
        let rules = self.rules.iter().map(|(rule, (tests, violated))| {
            json!({"rule": rule.text(), "tests": tests, "violated": violated})
        });
        let violations = self.violations.iter();
        let violations = violations.map(|((rule, expected, got), (times, cases))| {
            json!({
                "rule": rule.text(),
                "expected": expected,
                "got": got,
                "times": times,
                "cases": cases,
            })
        });
        json!({
            "seed": seed,
            "packets": self.packets,
            "cases": self.cases,
            "connections": self.connections,
            "rules": rules.collect::<Vec<_>>(),
            "violations": violations.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            cases,
            connections,
            packets,
            ..
        } = self;
        writeln!(
            f,
            "{packets} packets in {cases} cases, over {connections} connections"
        )?;
        writeln!(f, "{:>8} {:>8}  rule", "tests", "violated")?;
        for (rule, (tested, violated)) in &self.rules {
            writeln!(f, "{tested:>8} {violated:>8}  {}", rule.text())?;
        }
        for ((rule, expected, got), (times, cases)) in &self.violations {
            writeln!(f, "\n{}", rule.text())?;
            writeln!(
                f,
                "    expected {expected}; got {got}, {times} times: --replay {}",
                cases.join(", ")
            )?;
        }
        Ok(())
    }
}
