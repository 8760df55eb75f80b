//! What was found, in words.

use std::collections::BTreeMap;
use std::fmt;

use super::verdict::{Asked, Rule};

/// An answer that the specification does not ask for.
pub struct Departure {
    pub seed: u64,
    pub case: u64,
    pub asked: String,
    pub answered: String,
}

/// What was tried, and what came of it.
#[derive(Default)]
pub struct Report {
    pub cases: u64,
    pub connections: u64,
    pub packets: u64,
    /// By the first rule that is concerned: how often it was tried, and departed from.
    rules: BTreeMap<Rule, (u64, u64)>,
    /// By rule, what was asked and what was answered: how often, and where it happened first.
    departures: BTreeMap<(Rule, String, String), (u64, Vec<String>)>,
}

/// Cases that are named for each departure.
const NAMED: usize = 3;

impl Report {
    /// Counts an answer.
    pub fn count(&mut self, asked: &Asked, right: bool, departure: impl FnOnce() -> Departure) {
        let rule = asked.rules.first().copied().unwrap_or(Rule::InOrder);
        let (tried, departed) = self.rules.entry(rule).or_default();
        *tried += 1;
        if right {
            return;
        }
        *departed += 1;
        let Departure {
            seed,
            case,
            asked,
            answered,
        } = departure();
        let (times, cases) = self.departures.entry((rule, asked, answered)).or_default();
        *times += 1;
        if cases.len() < NAMED {
            cases.push(format!("{seed}:{case}"));
        }
    }

    /// How many answers were not as asked.
    pub fn departed(&self) -> u64 {
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
        writeln!(f, "{:>8} {:>8}  rule", "tried", "departed")?;
        for (rule, (tried, departed)) in &self.rules {
            writeln!(f, "{tried:>8} {departed:>8}  {}", rule.text())?;
        }
        for ((rule, asked, answered), (times, cases)) in &self.departures {
            writeln!(f, "\n{}", rule.text())?;
            writeln!(
                f,
                "    asked {asked}; answered {answered}, {times} times: --replay {}",
                cases.join(", ")
            )?;
        }
        Ok(())
    }
}
