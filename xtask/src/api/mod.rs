//! A step of the check: the public API of the crate `urxe` is the recorded one, and each item of it
//! has an example.
//!
//! The items are those of rustdoc's JSON, which a stable compiler writes if it accepts unstable
//! options. Their text comes from the source, so that the record does not depend on the compiler;
//! `cargo public-api` needs the compilers of one version of that format, which changes with most
//! releases.
//!
//! The record has a line for each item and each implementation of a trait. A line that is removed
//! or changed breaks programs; one that is added does not, with the usual exceptions.

mod items;
mod signature;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;

use self::items::{Api, Item};
use crate::outcome::Outcome;
use crate::test_log::TestLog;
use crate::toolchain;

/// The step of `cargo xtask test`.
pub(crate) const NAME: &str = "api";

/// The recorded API.
const RECORD: &str = "tests/rust_api/public-api.txt";

/// Items without an example, with the reason. An unused entry is an error.
const NO_EXAMPLE: &[(&str, &str)] = &[];

/// Types whose methods a macro defines, with the macro. They are covered by the type's example.
const BY_MACRO: &[(&str, &str)] = &[("urxe::RemoteAccess", "bitflags")];

/// Options of `cargo xtask api`.
#[derive(Args)]
pub(crate) struct ApiOptions {
    /// Write the record instead of comparing with it
    #[arg(long)]
    write: bool,
}

/// Compares the API with its record, or writes the record.
pub(crate) fn run(options: &ApiOptions, workspace: &Path, target: &Path) -> bool {
    match check(workspace, target, options.write) {
        Ok(()) => true,
        Err(problem) => {
            eprintln!("xtask: {NAME}: {problem}");
            false
        }
    }
}

/// Checks the API as a step.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: {NAME}: the public API of urxe, and its examples");
    let started = Instant::now();
    Outcome {
        step: NAME,
        problem: check(workspace, target, false).err(),
        took: started.elapsed(),
        log: TestLog::default(),
    }
}

fn check(workspace: &Path, target: &Path, write: bool) -> Result<(), String> {
    let json = document(workspace, target)?;
    let in_file =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&json).map_err(|error| in_file(&json, &error))?;
    let documented = serde_json::from_str(&text).map_err(|error| in_file(&json, &error))?;
    let api = Api::read(&documented, workspace)?;

    let lacking = without_example(&api.items);
    for item in &lacking {
        println!("{item} has no example");
    }
    let record = workspace.join(RECORD);
    if write {
        fs::write(&record, api.text()).map_err(|error| in_file(&record, &error))?;
    }
    let recorded = fs::read_to_string(&record).map_err(|error| in_file(&record, &error))?;
    let changes = changes(&recorded, &api.text());
    for change in &changes {
        println!("{change}");
    }
    println!("{} items, {} lines", api.items.len(), api.lines.len());
    match (lacking.len(), changes.len()) {
        (0, 0) => Ok(()),
        (0, count) => Err(format!(
            "{count} lines differ from {RECORD}; `cargo xtask api --write` records them"
        )),
        (count, _) => Err(format!("{count} public items have no example")),
    }
}

/// Writes rustdoc's JSON of the crate, and returns its path.
fn document(workspace: &Path, target: &Path) -> Result<PathBuf, String> {
    let (name, value) = toolchain::UNSTABLE;
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace)
        .env(name, value)
        .args(["rustdoc", "--quiet", "--locked", "--package", "urxe"])
        .args(["--lib", "--all-features", "--target-dir"])
        .arg(target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    match status.success() {
        true => Ok(target.join("doc/urxe.json")),
        false => Err(format!("cargo rustdoc: {status}")),
    }
}

/// Returns the items that need an example and have none, and the unused exceptions.
///
/// A method, or a constant of a type, may also be named by an example of its type or of another
/// method of that type. An item of another crate has to be named by any example.
fn without_example(items: &[Item]) -> Vec<String> {
    let is_excepted = |item: &Item| {
        let by_macro = |(of, _): &(&str, &str)| item.owner.as_deref() == Some(of);
        NO_EXAMPLE.iter().any(|(path, _)| item.path == *path) || BY_MACRO.iter().any(by_macro)
    };
    let is_shown = |item: &Item| {
        !item.examples.is_empty()
            || items
                .iter()
                .filter(|other| item.is_foreign || item.is_on_page_of(other))
                .flat_map(|other| &other.examples)
                .any(|example| signature::names(example, item.name()))
    };
    let lacks = |item: &&Item| !is_excepted(item) && !is_shown(item);
    let mut lacking: Vec<String> = items
        .iter()
        .filter(lacks)
        .map(|item| item.path.clone())
        .collect();
    let exists = |path: &str| items.iter().any(|item| item.path == path);
    let exceptions = NO_EXAMPLE.iter().chain(BY_MACRO);
    let unused = exceptions.filter(|(path, _)| !exists(path));
    lacking.extend(unused.map(|(path, _)| format!("{path} (an exception that does not exist)")));
    lacking
}

/// Returns the lines to remove from the record and those to add to it.
fn changes(recorded: &str, now: &str) -> Vec<String> {
    let only_in = |text: &str, other: &str, mark: &str| -> Vec<String> {
        let is_new = |line: &&str| !other.lines().any(|known| known == *line);
        text.lines()
            .filter(is_new)
            .map(|line| format!("{mark} {line}"))
            .collect()
    };
    let mut changes = only_in(recorded, now, "-");
    changes.extend(only_in(now, recorded, "+"));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: &str, owner: Option<&str>, examples: &[&str]) -> Item {
        Item {
            path: path.into(),
            owner: owner.map(Into::into),
            is_foreign: false,
            examples: examples.iter().map(|&example| example.into()).collect(),
        }
    }

    /// The items that lack an example, without the exceptions, which these items do not have.
    fn lacking(items: &[Item]) -> Vec<String> {
        let mut lacking = without_example(items);
        lacking.retain(|line| !line.contains("exception"));
        lacking
    }

    #[test]
    fn an_item_needs_an_example_that_is_its_own_or_its_types() {
        let items = [
            item("urxe::Type", None, &["Type::new().used()"]),
            item("urxe::Type::used", Some("urxe::Type"), &[]),
            item("urxe::Type::unused", Some("urxe::Type"), &[]),
            item("urxe::Other", None, &[]),
            item("urxe::Other::used", Some("urxe::Other"), &[]),
        ];
        let expected = ["urxe::Type::unused", "urxe::Other", "urxe::Other::used"];
        assert_eq!(lacking(&items), expected);
    }

    #[test]
    fn an_item_of_another_crate_is_named_by_any_example() {
        let foreign = |path: &str| Item {
            is_foreign: true,
            ..item(path, None, &[])
        };
        let items = [
            item("urxe::Type", None, &["Type::new(Gid::default())"]),
            foreign("urxe::Gid"),
            foreign("urxe::Psn"),
        ];
        assert_eq!(lacking(&items), ["urxe::Psn"]);
    }

    #[test]
    fn removed_and_added_lines_are_reported() {
        let changes = changes("a\nb\n", "b\nc\n");
        assert_eq!(changes, ["- a", "+ c"]);
    }
}
