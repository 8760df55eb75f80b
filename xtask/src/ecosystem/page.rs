//! Formats docs/ECOSYSTEM.md.

use std::fmt::Write;

use super::catalogue::OMITTED;
use super::program::{Place, Program};
use super::runner::Outcome;

/// The text before the table.
const INTRODUCTION: &str = "\
# Programs that run over urxe

`cargo xtask ecosystem` writes this page. It installs each program, runs it unmodified with its default
settings, on one host and on two, and judges it by its exit status and by its output. Hosts are
namespaces that a bridge connects; each has a network, processes and shared memory of its own. Each
process that uses verbs runs under `urxe run`. A run passes only if urxe writes nothing to standard
error.

`cargo xtask ecosystem NAME` runs one program. The commands are in `xtask/src/ecosystem`, and their
output is in `target/ecosystem`. [CLUSTERS.md](CLUSTERS.md) shows how to start programs on more hosts.
";

/// A program with its results.
pub(super) struct Tested {
    pub(super) program: &'static Program,
    pub(super) version: String,
    pub(super) outcomes: Vec<Outcome>,
}

pub(super) fn text(tested: &[Tested]) -> String {
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(
        page,
        "\n| program | version | passes | fails |\n|---|---|---:|---:|"
    );
    for Tested {
        program,
        version,
        outcomes,
    } in tested
    {
        let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some());
        let failed = failed.count();
        let _ = writeln!(
            page,
            "| {} | {version} | {} | {failed} |",
            program.title,
            outcomes.len() - failed
        );
    }
    for tested in tested {
        section(&mut page, tested);
    }
    let _ = writeln!(page, "\n## Not run\n\n| program | reason |\n|---|---|");
    for omitted in OMITTED {
        let _ = writeln!(page, "| {} | {} |", omitted.title, omitted.reason);
    }
    page
}

fn section(page: &mut String, tested: &Tested) {
    let program = tested.program;
    let _ = writeln!(page, "\n## {}\n", program.title);
    if !program.needs.is_empty() {
        let _ = writeln!(page, "{}\n", program.needs);
    }
    let _ = writeln!(page, "| run | where | result |\n|---|---|---|");
    for outcome in &tested.outcomes {
        let result = match (&outcome.failure, outcome.run.known) {
            // The other lines have times of a machine that was busy or not.
            (None, _) if outcome.place == Place::Cluster => {
                format!("passes: `{}`", cell(&outcome.line))
            }
            (None, _) => "passes".to_owned(),
            (Some(_), Some(reason)) => format!("fails: {reason}"),
            (Some(failure), None) => {
                let first = failure.lines().next().unwrap_or_default();
                format!("**fails**: {}", cell(first))
            }
        };
        let (name, place) = (outcome.run.name, outcome.place.title());
        let _ = writeln!(page, "| {name} | {place} | {result} |");
    }
}

/// Returns a line of output as the content of a cell.
fn cell(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.join(" ").replace('|', "/").replace('`', "'")
}
