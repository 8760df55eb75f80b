//! The list of components: the crates in the command and the shared objects, as SPDX.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::files;
use super::products::{Products, VERSION};
use crate::release::succeed;

/// The tool that lists components, from crates.io.
const TOOL: (&str, &str) = ("cargo-sbom", "0.10.0");

/// Writes the list for a build. Returns its name in `out`.
pub(super) fn list(
    products: &Products,
    epoch: &str,
    workspace: &Path,
    target: &Path,
    out: &Path,
) -> Result<PathBuf, String> {
    let (tool, version) = TOOL;
    let tools = target.join("tools");
    let program = tools.join("bin").join(tool);
    if !program.is_file() {
        println!("dist: installing {tool} {version} in {}", tools.display());
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        succeed(
            Command::new(cargo)
                .args(["install", "--quiet", "--locked", "--version", version])
                .args([tool, "--root"])
                .arg(&tools),
        )?;
    }
    let listed = output(
        Command::new(&program)
            .current_dir(workspace)
            .args(["sbom", "--cargo-package", "urxe-cli"])
            .args(["--output-format", "spdx_json_2_3"]),
    )?;
    let mut document: Value =
        serde_json::from_str(&listed).map_err(|error| format!("{tool}: {error}"))?;
    let linked = linked(&products.target, workspace)?;
    let time = output(
        Command::new("date")
            .args(["--utc", &format!("--date=@{epoch}")])
            .arg("+%FT%TZ"),
    )?;
    let name = format!("urxe-{VERSION}-{}", products.target);
    finish(&mut document, &name, time.trim(), &linked);
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    let file = PathBuf::from(format!("{name}.spdx.json"));
    files::write(&out.join(&file), text.as_bytes())?;
    Ok(file)
}

/// A package by its name and version.
type Crate = (String, String);

/// Returns the crates that are linked into the command for a target, with those of the shared
/// objects in it.
fn linked(target: &str, workspace: &Path) -> Result<BTreeSet<Crate>, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = output(
        Command::new(cargo)
            .current_dir(workspace)
            .args(["tree", "--locked", "--package", "urxe-cli"])
            .args(["--target", target, "--edges", "normal,no-proc-macro"])
            .args(["--prefix", "none", "--format", "{p}"]),
    )?;
    // Lines `NAME vVERSION (SOURCE)`, with `(*)` after a repeated crate.
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some((name.to_owned(), version.to_owned()))
    };
    Ok(tree.lines().filter_map(parse).collect())
}

/// Removes crates that are not linked, and replaces what changes with each call of the tool.
fn finish(document: &mut Value, name: &str, time: &str, linked: &BTreeSet<Crate>) {
    document["name"] = name.into();
    document["documentNamespace"] = format!("https://github.com/urxe/urxe/spdx/{name}").into();
    document["creationInfo"]["created"] = time.into();

    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let mut removed = BTreeSet::new();
    for package in array(document, "packages") {
        let id = (text(package, "name"), text(package, "versionInfo"));
        if !linked.contains(&id) {
            removed.insert(text(package, "SPDXID"));
        }
    }
    array(document, "packages").retain(|package| !removed.contains(&text(package, "SPDXID")));
    array(document, "relationships").retain(|relationship| {
        ["spdxElementId", "relatedSpdxElement"]
            .iter()
            .all(|end| !removed.contains(&text(relationship, end)))
    });
    // The tool takes them from hash tables.
    for list in ["packages", "relationships", "files"] {
        array(document, list).sort_by_key(Value::to_string);
    }
}

fn array<'a>(document: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
    let value = &mut document[key];
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().expect("an array")
}

/// Runs a program that must succeed, and returns its output.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn list_has_what_is_linked_in_an_order_of_its_own() {
        let package = |name: &str| json!({"SPDXID": name, "name": name, "versionInfo": "1.0.0"});
        let relationship =
            |from: &str, to: &str| json!({"spdxElementId": from, "relatedSpdxElement": to});
        let document = |packages: [&str; 3], uuid: &str| {
            json!({
                "documentNamespace": uuid,
                "creationInfo": {"created": uuid},
                "packages": packages.map(package),
                "relationships": [relationship("a", "windows"), relationship("a", "b")],
            })
        };
        let linked = ["a", "b"].map(|name| (name.to_owned(), "1.0.0".to_owned()));
        let linked = BTreeSet::from(linked);
        let mut first = document(["a", "windows", "b"], "one");
        let mut second = document(["b", "a", "windows"], "two");
        for document in [&mut first, &mut second] {
            finish(document, "urxe", "2026-01-01T00:00:00Z", &linked);
        }
        assert_eq!(first, second);
        assert_eq!(first["packages"], json!([package("a"), package("b")]));
        assert_eq!(first["relationships"], json!([relationship("a", "b")]));
    }
}
