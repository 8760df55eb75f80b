//! The report of the responses that depart from the specification.

use std::collections::BTreeMap;
use std::fmt;

use super::verdict::{Allowed, Rule};

/// A response that the specification does not allow.
pub struct Departure {
    pub seed: u64,
    pub case: u64,
    pub expected: String,
    pub got: String,
}

/// The counts of tested rules and of departures.
#[derive(Default)]
pub struct Report {
    pub cases: u64,
    pub connections: u64,
    pub packets: u64,
    /// By rule: the number of tests, and of departures.
    rules: BTreeMap<Rule, (u64, u64)>,
    /// By rule, expectation and response: the number of occurrences, and the first test cases.
    departures: BTreeMap<(Rule, String, String), (u64, Vec<String>)>,
}

/// The number of test cases listed for each departure.
const MAX_LISTED_CASES: usize = 3;

impl Report {
    /// Counts a response.
    pub fn count(
        &mut self,
        allowed: &Allowed,
        conforms: bool,
        departure: impl FnOnce() -> Departure,
    ) {
        let rule = allowed.rules.first().copied().unwrap_or(Rule::InOrder);
        let (tested, departed) = self.rules.entry(rule).or_default();
        *tested += 1;
        if conforms {
            return;
        }
        *departed += 1;
        let Departure {
            seed,
            case,
            expected,
            got,
        } = departure();
        let (times, cases) = self.departures.entry((rule, expected, got)).or_default();
        *times += 1;
        if cases.len() < MAX_LISTED_CASES {
            cases.push(format!("{seed}:{case}"));
        }
    }

    /// Returns the number of departures.
    pub fn departures(&self) -> u64 {
        self.rules.values().map(|(_, departed)| departed).sum()
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
        writeln!(f, "{:>8} {:>8}  rule", "tests", "departed")?;
        for (rule, (tested, departed)) in &self.rules {
            writeln!(f, "{tested:>8} {departed:>8}  {}", rule.text())?;
        }
        for ((rule, expected, got), (times, cases)) in &self.departures {
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
