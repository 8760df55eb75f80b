//! `--again`: runs the red cells of the last complete run again. The new results replace the old
//! ones, and the page of results lists the cells that were repeated.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Error, Result};
use super::plan::Group;
use super::report::{Report, Verdict};

/// The file name of the list of repeated cells, in the results of a complete run.
const LIST: &str = "again";

/// Checks that a complete run has left results.
pub(crate) fn require_complete_run(results: &Path) -> Result<()> {
    match results.is_dir() {
        true => Ok(()),
        false => Err(Error::NoCompleteRun {
            results: results.to_owned(),
        }),
    }
}

/// Removes the cells that are not red, except from a group whose counters or log are red.
pub(crate) fn keep_red(groups: &mut [Group], report: &Report) {
    let is_red = |group: &str, cell: &str| {
        report
            .assessments
            .iter()
            .any(|a| a.verdict == Verdict::Red && a.group == group && a.cell == cell)
    };
    for group in groups {
        let name = group.name;
        if !is_red(name, "counters") && !is_red(name, "kernel-log") {
            group.cells.retain(|cell| is_red(name, &cell.name));
        }
    }
}

/// Replaces results in `into` by those of `groups` in `from`. `whole` contains all groups with all
/// their cells. The results of a group are sorted by cell. If a file of `from` is missing, the
/// groups before it have been replaced.
pub(crate) fn merge(from: &Path, into: &Path, groups: &[Group], whole: &[Group]) -> Result<()> {
    let mut list = names(into);
    for group in groups {
        let is_whole = whole
            .iter()
            .any(|other| other.name == group.name && other.cells.len() == group.cells.len());
        let mut lines = lines_by_cell(&into.join(group.name))?;
        lines.extend(lines_by_cell(&from.join(group.name))?);
        let text: String = lines.values().map(|line| format!("{line}\n")).collect();
        let file = into.join(group.name);
        fs::write(&file, text).at(&file)?;
        for kind in ["counters", "dmesg"] {
            let name = format!("{}.{kind}", group.name);
            let (old, new) = (into.join(&name), from.join(&name));
            // Counters and logs of a part of the group are appended to those of the other cells.
            let mut text = if is_whole {
                Vec::new()
            } else {
                fs::read(&old).at(&old)?
            };
            text.extend(fs::read(&new).at(&new)?);
            fs::write(&old, text).at(&old)?;
        }
        if is_whole {
            list.push(format!("{}/*", group.name));
        } else {
            let cells = group.cells.iter();
            list.extend(cells.map(|cell| format!("{}/{}", group.name, cell.name)));
        }
    }
    list.sort();
    list.dedup();
    let file = into.join(LIST);
    fs::write(&file, list.join("\n")).at(&file)
}

/// Returns the repeated cells of a complete run.
pub(crate) fn names(results: &Path) -> Vec<String> {
    let text = fs::read_to_string(results.join(LIST)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn lines_by_cell(file: &Path) -> Result<BTreeMap<String, String>> {
    if !file.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read(file).at(file)?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| Some((line.split('\t').next()?.to_owned(), line.to_owned())))
        .collect())
}
