//! Runs the steps of a workflow of GitHub Actions on this machine, with the action of this
//! repository and a tarball of this build.
//!
//! A workflow must have one job. Its steps may be scripts, this repository's action, and
//! `actions/checkout`, which copies a directory. The environment of the steps has a new home
//! directory, PATH, and the directories of Cargo and rustup. An expression is the name of an input
//! or output. Other steps and expressions are errors.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use yaml_rust2::{Yaml, YamlLoader};

use super::files::{recreate, remove};
use super::products::VERSION;
use super::tree;
use crate::release::succeed;

/// The workflow of the check.
const CHECKED: &str = "tests/workflows/programs.yml";

/// The files that a step may append to.
const STEP_FILES: [&str; 3] = ["GITHUB_PATH", "GITHUB_ENV", "GITHUB_OUTPUT"];

/// Variables of this machine's toolchain.
const TOOLCHAIN: [(&str, &str); 2] = [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")];

/// A machine that runs one job.
struct Runner<'a> {
    /// The root of this repository, with the action.
    repository: &'a Path,
    /// The directory of packages, and the checksum of the tarball in it.
    packages: &'a Path,
    checksum: String,
    /// What `actions/checkout` copies.
    checkout: Option<&'a Path>,
    /// The runner's own directory.
    directory: PathBuf,
    /// Directories that precede those of PATH, the first one first.
    path: Vec<String>,
    variables: BTreeMap<String, String>,
}

/// The values that expressions name.
type Values = BTreeMap<String, String>;

/// Runs the workflow of the check, after a run with a wrong checksum, which must fail.
pub(super) fn check(packages: &Path, repository: &Path, target: &str) -> Result<(), String> {
    let file = repository.join(CHECKED);
    let mut runner = Runner::new(packages, repository, target, None)?;
    let right = std::mem::replace(&mut runner.checksum, "0".repeat(64));
    if runner.run(&file).is_ok() {
        return Err("the action accepts a tarball with another checksum".to_owned());
    }
    runner.checksum = right;
    runner.run(&file)?;
    remove(&runner.directory)
}

/// Runs a workflow with the packages; `checkout` is the source tree that it checks out.
pub(super) fn run(
    file: &Path,
    checkout: Option<&Path>,
    packages: &Path,
    repository: &Path,
    target: &str,
) -> Result<(), String> {
    Runner::new(packages, repository, target, checkout)?.run(file)
}

impl<'a> Runner<'a> {
    fn new(
        packages: &'a Path,
        repository: &'a Path,
        target: &str,
        checkout: Option<&'a Path>,
    ) -> Result<Self, String> {
        let sums = read(&packages.join("SHA256SUMS"))?;
        let tarball = format!("urxe-{VERSION}-{target}.tgz");
        let mut lines = sums.lines();
        let checksum = lines
            .find_map(|line| line.strip_suffix(&tarball))
            .ok_or_else(|| format!("SHA256SUMS lacks {tarball}"))?;
        Ok(Runner {
            repository,
            packages,
            checksum: checksum.trim().to_owned(),
            checkout,
            directory: packages.join("runner"),
            path: Vec::new(),
            variables: BTreeMap::new(),
        })
    }

    fn run(&mut self, file: &Path) -> Result<(), String> {
        recreate(&self.directory)?;
        for name in ["home", "temp", "work"] {
            recreate(&self.directory.join(name))?;
        }
        self.path.clear();
        self.variables.clear();
        let workflow = load(file)?;
        let jobs = workflow["jobs"].as_hash().ok_or("no jobs")?;
        let [(_, job)] = jobs.iter().collect::<Vec<_>>()[..] else {
            return Err(format!("{}: expected one job", file.display()));
        };
        self.steps(&job["steps"], &mut Values::new())
    }

    /// Runs steps in their order. `values` has the values of the names in expressions.
    fn steps(&mut self, steps: &Yaml, values: &mut Values) -> Result<(), String> {
        for step in steps.as_vec().ok_or("no steps")? {
            let text = |key: &str| step[key].as_str();
            let name = text("name").or(text("uses")).or(text("run"));
            let name = name.and_then(|name| name.lines().next()).unwrap_or("step");
            println!("\nstep: {name}");
            let began = Instant::now();
            let result = match (text("uses"), text("run")) {
                (Some(action), None) if action.starts_with("actions/checkout@") => self.check_out(),
                (Some(action), None) if action.starts_with("urxe/urxe@") => self.action(step),
                (None, Some(script)) => self.script(step, script, values),
                _ => Err("a step of another kind".to_owned()),
            };
            result.map_err(|error| format!("step «{name}»: {error}"))?;
            println!("step: {name}: {:.1} s", began.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn check_out(&self) -> Result<(), String> {
        let from = self
            .checkout
            .ok_or("give the source tree with --checkout")?;
        let to = self.directory.join("work");
        succeed(Command::new("cp").arg("-a").arg(from.join(".")).arg(to))
    }

    /// Runs the action of this repository, with the tarball of this build instead of the one that
    /// the workflow names.
    fn action(&mut self, step: &Yaml) -> Result<(), String> {
        let action = load(&self.repository.join("action.yml"))?;
        let mut values = Values::new();
        for (name, input) in action["inputs"].as_hash().ok_or("no inputs")? {
            let name = name.as_str().ok_or("an input without a name")?;
            let own = match name {
                "version" => Some(VERSION.to_owned()),
                "sha256" => Some(self.checksum.clone()),
                "url" => Some(format!("file://{}", self.packages.display())),
                _ => scalar(&step["with"][name]),
            };
            let value = own.or_else(|| scalar(&input["default"]));
            let value = value.ok_or_else(|| format!("the input {name} is required"))?;
            values.insert(format!("inputs.{name}"), value);
        }
        self.steps(&action["runs"]["steps"], &mut values)?;
        for (name, output) in action["outputs"].as_hash().into_iter().flatten() {
            let value = scalar(&output["value"]).unwrap_or_default();
            let value = expand(&value, &values)?;
            println!("output: {}: {value}", name.as_str().unwrap_or_default());
        }
        Ok(())
    }

    fn script(&mut self, step: &Yaml, script: &str, values: &mut Values) -> Result<(), String> {
        let script = expand(script, values)?;
        // The options that GitHub's runner gives to bash.
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &script])
            .current_dir(self.directory.join("work"))
            .env_clear();
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        for (name, usual) in TOOLCHAIN {
            bash.env(name, env::var_os(name).unwrap_or(home.join(usual).into()));
        }
        let path = env::var("PATH").unwrap_or_default();
        let path = self.path.iter().cloned().chain([path]);
        bash.env("PATH", path.collect::<Vec<_>>().join(":"))
            .env("HOME", self.directory.join("home"))
            .env("RUNNER_TEMP", self.directory.join("temp"))
            .env("GITHUB_WORKSPACE", self.directory.join("work"))
            .env("GITHUB_ACTION_PATH", self.repository)
            .envs(&self.variables);
        for (name, value) in step["env"].as_hash().into_iter().flatten() {
            let name = name.as_str().ok_or("a variable without a name")?;
            let value = scalar(value).unwrap_or_default();
            bash.env(name, expand(&value, values)?);
        }
        for name in STEP_FILES {
            let file = self.directory.join(name);
            tree::write_file(&file, b"", 0o644)?;
            bash.env(name, file);
        }
        succeed(&mut bash)?;
        self.take_files(step["id"].as_str(), values)
    }

    /// Applies the paths, variables and outputs that a step has written to the steps that follow.
    fn take_files(&mut self, id: Option<&str>, values: &mut Values) -> Result<(), String> {
        let [path, variables, outputs] = STEP_FILES.map(|name| read(&self.directory.join(name)));
        for directory in path?.lines() {
            self.path.insert(0, directory.to_owned());
        }
        self.variables.extend(assignments(&variables?)?);
        let id = id.unwrap_or_default();
        let outputs = assignments(&outputs?)?.into_iter();
        values.extend(outputs.map(|(name, value)| (format!("steps.{id}.outputs.{name}"), value)));
        Ok(())
    }
}

/// Returns the names and values of lines `NAME=VALUE`.
fn assignments(text: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines()
        .map(|line| pair(line).ok_or_else(|| format!("not of the form NAME=VALUE: {line}")))
        .collect()
}

/// Replaces the expressions in a text.
fn expand(text: &str, values: &Values) -> Result<String, String> {
    let mut parts = text.split("${{");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (expression, rest) = part
            .split_once("}}")
            .ok_or("an expression without an end")?;
        let name = expression.trim();
        let value = values.get(name);
        whole += value.ok_or_else(|| format!("unknown expression {name}"))?;
        whole += rest;
    }
    Ok(whole)
}

/// Returns a string, number or boolean as text.
fn scalar(value: &Yaml) -> Option<String> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(boolean) => Some(boolean.to_string()),
        _ => None,
    }
}

fn load(file: &Path) -> Result<Yaml, String> {
    let documents = YamlLoader::load_from_str(&read(file)?);
    let documents = documents.map_err(|error| format!("{}: {error}", file.display()))?;
    let first = documents.into_iter().next();
    first.ok_or_else(|| format!("{}: no document", file.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_is_replaced_by_the_value_of_its_name() {
        let values = [("inputs.url", ""), ("inputs.version", "1.2")];
        let values: Values = values
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let text = "a ${{ inputs.version }}${{ inputs.url }} b";
        assert_eq!(expand(text, &values), Ok("a 1.2 b".to_owned()));
        assert_eq!(
            expand("no expression", &values).as_deref(),
            Ok("no expression")
        );
        assert!(expand("${{ inputs.other }}", &values).is_err());
        assert!(expand("${{ inputs.url", &values).is_err());
    }

    #[test]
    fn workflows_of_the_repository_have_known_steps() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in ["programs.yml", "rust-ibverbs.yml"] {
            let workflow = load(&repository.join("tests/workflows").join(name)).expect(name);
            let jobs = workflow["jobs"].as_hash().expect(name);
            assert_eq!(jobs.len(), 1, "{name}");
        }
    }
}
