//! Formats docs/ECOSYSTEM.md.

use std::fmt::Write;

use super::catalogue::OMITTED;
use super::program::{Place, Program};
use super::results::Results;

/// The text before the table.
const INTRODUCTION: &str = "\
# Programs that run over urxe

`cargo xtask ecosystem` writes this page. It installs each program, runs it unmodified with its default
settings, on one host and on two, and judges it by its exit status and by its output. Hosts are
namespaces that a bridge connects; each has a network, processes and shared memory of its own. Each
process that uses verbs runs under `urxe run`. A run passes only if urxe writes nothing to standard
error. Times and rates in a result are those of one run on a machine that did other work too;
[PERFORMANCE.md](PERFORMANCE.md) has measurements.

`cargo xtask ecosystem NAME` runs one program, and `--again` those that failed. The commands are in
`xtask/src/ecosystem`, and their output is in `target/ecosystem`. [CLUSTERS.md](CLUSTERS.md) shows
how to start programs on more hosts.
";

pub(super) fn text(tested: &[(&Program, Results)]) -> String {
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(
        page,
        "\n| program | version | passes | fails |\n|---|---|---:|---:|"
    );
    for (program, results) in tested {
        let passed = |passes: bool| {
            results
                .of(program)
                .filter(|(.., outcome)| passes == outcome.is_some_and(|it| it.failure.is_none()))
                .count()
        };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            program.title,
            results.version,
            passed(true),
            passed(false)
        );
    }
    for (program, results) in tested {
        section(&mut page, program, results);
    }
    let _ = writeln!(page, "\n## Not run\n\n| program | reason |\n|---|---|");
    for omitted in OMITTED {
        let _ = writeln!(page, "| {} | {} |", omitted.title, omitted.reason);
    }
    page
}

fn section(page: &mut String, program: &Program, results: &Results) {
    let _ = writeln!(page, "\n## {}\n", program.title);
    if !program.needs.is_empty() {
        let _ = writeln!(page, "{}\n", program.needs);
    }
    let _ = writeln!(page, "| run | where | result |\n|---|---|---|");
    for (run, place, outcome) in results.of(program) {
        let result = match outcome.map(|outcome| (&outcome.failure, &outcome.line)) {
            None => "**not run**".to_owned(),
            // The other lines have times of a machine that was busy or not.
            Some((None, line)) if place == Place::Cluster => format!("passes: `{}`", cell(line)),
            Some((None, _)) => "passes".to_owned(),
            Some((Some(failure), _)) => match run.known {
                Some(reason) => format!("fails: {reason}"),
                None => {
                    let first = failure.lines().next().unwrap_or_default();
                    format!("**fails**: {}", cell(first))
                }
            },
        };
        let _ = writeln!(page, "| {} | {} | {result} |", run.name, place.title());
    }
}

/// Returns a line of output as the content of a cell.
fn cell(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.join(" ").replace('|', "/").replace('`', "'")
}
