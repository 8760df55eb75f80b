//! Evaluates the results of a run: verdicts, the table, and the section of the compatibility page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Result};
use super::known::Known;
use super::plan::{Expectation, Group, REFERENCE};

/// rxe's counters that must not move on a clean link: each counts packets that rxe found invalid or
/// gave up on. Retry counters are excluded, because they move whenever the guest is slow.
const FAULT_COUNTERS: &[&str] = &["retry_exceeded_err", "retry_rnr_exceeded_err"];

/// Counters that move when a packet is missing, each with the counter of packets that the guest's
/// own kernel dropped from full queues on that path: urxe's requests, rxe's requests, and all
/// packets that rxe could not send.
const GAP_COUNTERS: &[(&str, &str)] = &[
    ("out_of_seq_request", "kernel_queue_drops"),
    ("rcvd_seq_err", "urxe_socket_drops"),
    ("send_err", "kernel_queue_drops"),
];

/// Words of rxe's messages and of severe errors in the kernel's log.
const LOG_WORDS: &[&str] = &["rxe", "infiniband", "BUG", "WARNING", "Call Trace", "Oops"];

/// The message of rxe 6.12 for each completion with an error, which the cells check themselves.
const LOGGED_COMPLETION: &str = "non-flush error status";

/// The verdict on a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The result is right.
    Green,
    /// The result is wrong for a documented reason outside urxe.
    Known,
    /// The result is wrong.
    Red,
}

/// A cell with its verdict.
pub(crate) struct Assessment {
    pub(crate) group: &'static str,
    pub(crate) cell: String,
    pub(crate) verdict: Verdict,
    /// The observed difference, unless the verdict is green.
    pub(crate) detail: String,
    /// The reason of a known difference.
    pub(crate) reason: Option<String>,
}

/// The verdicts of a run.
pub(crate) struct Report {
    pub(crate) assessments: Vec<Assessment>,
    groups: Vec<(&'static str, &'static str)>,
}

/// A result line: verdict and detail.
struct CellResult {
    ok: bool,
    detail: String,
}

impl Report {
    /// Evaluates the directory `results` according to the plan.
    pub(crate) fn read(
        results: &Path,
        groups: &[Group],
        kernel: &str,
        known: &Known,
    ) -> Result<Self> {
        let reference = read_results(&results.join(REFERENCE))?;
        let mut assessments = Vec::new();
        for group in groups {
            let results_of_group = read_results(&results.join(group.name))?;
            for cell in &group.cells {
                let problem = problem_of(
                    group.expectation,
                    results_of_group.get(&cell.name),
                    reference.get(&cell.name),
                );
                assessments.push((group.name, cell.name.clone(), problem));
            }
            let problem = match group.expectation {
                Expectation::Strict => {
                    moved_counters(&results.join(format!("{}.counters", group.name)))
                }
                _ => None,
            };
            assessments.push((group.name, "counters".into(), problem));
            let log = results.join(format!("{}.dmesg", group.name));
            assessments.push((group.name, "kernel-log".into(), logged(&log)));
        }
        let assessments = assessments
            .into_iter()
            .map(|(group, cell, problem)| {
                let (verdict, reason) = match &problem {
                    None => (Verdict::Green, None),
                    Some(detail) => match known.reason(kernel, group, &cell, detail) {
                        Some(reason) => (Verdict::Known, Some(reason.to_owned())),
                        None => (Verdict::Red, None),
                    },
                };
                Assessment {
                    group,
                    cell,
                    verdict,
                    detail: problem.unwrap_or_default(),
                    reason,
                }
            })
            .collect();
        let groups = groups
            .iter()
            .map(|group| (group.name, group.about))
            .collect();
        Ok(Self {
            assessments,
            groups,
        })
    }

    /// Returns whether no cell is red.
    pub(crate) fn succeeded(&self) -> bool {
        self.count(None, Verdict::Red) == 0
    }

    /// Returns the number of cells with this verdict.
    pub(crate) fn total(&self, verdict: Verdict) -> usize {
        self.count(None, verdict)
    }

    fn count(&self, group: Option<&str>, verdict: Verdict) -> usize {
        self.assessments
            .iter()
            .filter(|cell| group.is_none_or(|name| name == cell.group))
            .filter(|cell| cell.verdict == verdict)
            .count()
    }

    /// Prints red and known cells, and the table.
    pub(crate) fn print(&self) {
        for (verdict, word) in [(Verdict::Known, "known"), (Verdict::Red, "RED")] {
            for cell in self
                .assessments
                .iter()
                .filter(|cell| cell.verdict == verdict)
            {
                println!("{word:<6} {}/{}: {}", cell.group, cell.cell, cell.detail);
            }
        }
        println!();
        println!("{:<14} {:>6} {:>6} {:>6}", "group", "green", "known", "red");
        for (name, about) in &self.groups {
            let count = |verdict| self.count(Some(name), verdict);
            println!(
                "{name:<14} {:>6} {:>6} {:>6}  {about}",
                count(Verdict::Green),
                count(Verdict::Known),
                count(Verdict::Red)
            );
        }
        println!(
            "{} green, {} known, {} red",
            self.count(None, Verdict::Green),
            self.count(None, Verdict::Known),
            self.count(None, Verdict::Red)
        );
    }

    /// Returns the section of the compatibility page.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        page.push_str("| group | what | green | known | red |\n|---|---|---:|---:|---:|\n");
        for (name, about) in &self.groups {
            let count = |verdict| self.count(Some(name), verdict);
            let _ = writeln!(
                page,
                "| {name} | {about} | {} | {} | {} |",
                count(Verdict::Green),
                count(Verdict::Known),
                count(Verdict::Red)
            );
        }
        let mut reasons: BTreeMap<&str, Vec<&Assessment>> = BTreeMap::new();
        for cell in &self.assessments {
            if let Some(reason) = &cell.reason {
                reasons.entry(reason).or_default().push(cell);
            }
        }
        if !reasons.is_empty() {
            page.push_str("\nKnown differences, and whose they are:\n\n");
        }
        for (reason, cells) in reasons {
            let _ = writeln!(page, "- {reason} ({} cells)", cells.len());
            for cell in cells.iter().take(4) {
                let _ = writeln!(page, "  - `{}/{}`: {}", cell.group, cell.cell, cell.detail);
            }
            if cells.len() > 4 {
                let _ = writeln!(page, "  - and {} more", cells.len() - 4);
            }
        }
        if !self.succeeded() {
            page.push_str("\nRed:\n\n");
        }
        for cell in self
            .assessments
            .iter()
            .filter(|cell| cell.verdict == Verdict::Red)
        {
            let _ = writeln!(page, "- `{}/{}`: {}", cell.group, cell.cell, cell.detail);
        }
        page
    }
}

fn read_results(file: &Path) -> Result<BTreeMap<String, CellResult>> {
    if !file.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read(file).at(file)?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let (name, verdict) = (fields.next()?, fields.next()?);
            let detail = fields.nth(1).unwrap_or_default().trim().to_owned();
            let ok = verdict == "ok";
            Some((name.to_owned(), CellResult { ok, detail }))
        })
        .collect())
}

/// Returns the problem of a cell, if any.
fn problem_of(
    expectation: Expectation,
    result: Option<&CellResult>,
    reference: Option<&CellResult>,
) -> Option<String> {
    let Some(result) = result else {
        return Some("did not run".into());
    };
    if !result.ok {
        return Some(result.detail.clone());
    }
    if expectation != Expectation::Reference {
        return None;
    }
    let Some(reference) = reference else {
        return Some("the reference did not run".into());
    };
    if !reference.ok {
        return Some(format!("the reference failed: {}", reference.detail));
    }
    let (here, there) = (
        without_events(&result.detail),
        without_events(&reference.detail),
    );
    (here != there).then(|| format!("here {here}; rxe to rxe {there}"))
}

/// Removes asynchronous events from an outcome: rxe does not report those that the specification
/// requires (11.6.3.2), and urxe does.
fn without_events(outcome: &str) -> String {
    let sides = outcome.split("; ").map(|side| {
        let mut kept = Vec::new();
        let mut words = side.split_whitespace();
        while let Some(word) = words.next() {
            if word == "event" {
                // Skips the event's number.
                words.next();
            } else {
                kept.push(word);
            }
        }
        kept.join(" ")
    });
    sides.collect::<Vec<_>>().join("; ")
}

/// Returns the counters that moved but must not.
fn moved_counters(file: &Path) -> Option<String> {
    let Ok(text) = fs::read_to_string(file) else {
        return Some("no counters were read".into());
    };
    suspicious(&text)
}

fn suspicious(counters: &str) -> Option<String> {
    let moved = |name: &str| {
        counters
            .lines()
            .any(|line| line.split_whitespace().next() == Some(name))
    };
    let faults = FAULT_COUNTERS.iter().filter(|name| moved(name)).copied();
    // A packet that a kernel queue dropped explains a gap on either path.
    let lost = |queue: &str| moved(queue) || moved("kernel_queue_drops");
    let gaps = GAP_COUNTERS
        .iter()
        .filter(|(name, queue)| moved(name) && !lost(queue))
        .map(|(name, _)| *name);
    let suspects: Vec<&str> = faults.chain(gaps).collect();
    (!suspects.is_empty())
        .then(|| format!("{}: {}", suspects.join(", "), counters.replace('\n', " ")))
}

fn logged(file: &Path) -> Option<String> {
    let text = fs::read(file).ok();
    let Some(text) = text else {
        return Some("no log was read".into());
    };
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| LOG_WORDS.iter().any(|word| line.contains(word)))
        .filter(|line| !line.contains(LOGGED_COMPLETION))
        .take(3)
        .collect();
    (!lines.is_empty()).then(|| lines.join(" / "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(ok: bool, detail: &str) -> CellResult {
        CellResult {
            ok,
            detail: detail.into(),
        }
    }

    #[test]
    fn events_are_ignored_in_comparisons() {
        let here = result(
            true,
            "requester: 0 10 5 state 6; responder: state 6 event 3 untouched",
        );
        let same = result(
            true,
            "requester: 0 10 5 state 6; responder: state 6 untouched",
        );
        let other = result(
            true,
            "requester: 0 9 5 state 6; responder: state 6 untouched",
        );
        assert_eq!(
            problem_of(Expectation::Reference, Some(&here), Some(&same)),
            None
        );
        assert!(problem_of(Expectation::Reference, Some(&here), Some(&other)).is_some());
    }

    #[test]
    fn packets_dropped_by_the_kernel_excuse_a_gap() {
        assert!(suspicious("out_of_seq_request 2\n").is_some());
        assert!(suspicious("out_of_seq_request 2\nkernel_queue_drops 1\n").is_none());
        assert!(suspicious("out_of_seq_request 2\nurxe_socket_drops 1\n").is_some());
        assert!(suspicious("rcvd_seq_err 2\nurxe_socket_drops 1\n").is_none());
        assert!(suspicious("send_err 1\nurxe_socket_drops 1\n").is_some());
        assert!(suspicious("retry_exceeded_err 1\nkernel_queue_drops 1\n").is_some());
        assert!(suspicious("rcvd_pkts 1\nduplicate_request 1\n").is_none());
    }

    #[test]
    fn cell_that_did_not_run_is_not_green() {
        assert!(problem_of(Expectation::Strict, None, None).is_some());
        assert!(problem_of(Expectation::Strict, Some(&result(false, "")), None).is_some());
        assert!(problem_of(Expectation::Reference, Some(&result(true, "x")), None).is_some());
        assert!(problem_of(Expectation::Strict, Some(&result(true, "")), None).is_none());
    }
}
