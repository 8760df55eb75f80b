//! `--again`: the red cells of the last whole run, run once more. What they show then counts, and the
//! page says which they were.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Result};
use super::plan::Group;
use super::report::{Report, Verdict};

/// In the results of a whole run, the list of cells that were run again.
const LIST: &str = "again";

/// Keeps the cells that are red; those of a whole group, where it is its counters or its log that are.
pub(crate) fn keep_red(groups: &mut [Group], report: &Report) {
    let is_red = |group: &str, cell: &str| {
        report.judged.iter().any(|judged| {
            judged.verdict == Verdict::Red && judged.group == group && judged.cell == cell
        })
    };
    for group in groups {
        let name = group.name;
        if !is_red(name, "counters") && !is_red(name, "kernel-log") {
            group.cells.retain(|cell| is_red(name, &cell.name));
        }
    }
}

/// Puts the results of `groups` in the directory `from` in the place of those in `into`.
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
            // What a part of the group shows comes on top of what the rest of it showed.
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

/// The cells of a whole run's results that were run again.
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
