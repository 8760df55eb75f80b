//! `cargo xtask ecosystem`: programs of others over urxe, unmodified and with default settings.
//!
//! [`catalogue`] lists the programs. [`runner`] runs each on one host and on two, which [`hosts`]
//! emulates, and judges it. [`results`] keeps what they found, and [`page`] writes
//! docs/ECOSYSTEM.md from it.

mod catalogue;
mod hosts;
mod page;
mod program;
mod results;
mod runner;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::namespace;
use crate::outcome::Outcome;
use crate::packages;
use crate::release::{self, PRODUCTS, succeed};
use crate::test_log::TestLog;
use catalogue::{PROGRAMS, QUICK};
use hosts::Hosts;
use program::Program;
use results::Results;
use runner::Runner;

/// The command and the step of `cargo xtask test`.
pub(crate) const NAME: &str = "ecosystem";
/// The number of emulated hosts.
const HOSTS: usize = 8;

/// The options of the command.
#[derive(clap::Args)]
pub(crate) struct EcosystemOptions {
    /// Run only these programs; a complete run writes docs/ECOSYSTEM.md
    programs: Vec<String>,

    /// List the programs
    #[arg(long)]
    list: bool,

    /// Run the programs of the check
    #[arg(long, conflicts_with = "programs")]
    quick: bool,

    /// Run the programs whose last results are missing or not as expected, and write
    /// docs/ECOSYSTEM.md
    #[arg(long, conflicts_with_all = ["programs", "quick"])]
    again: bool,

    /// Do not install packages or build programs
    #[arg(long)]
    no_install: bool,
}

/// Runs the command. Returns whether every result is as the catalogue says.
pub(crate) fn run(options: &EcosystemOptions, workspace: &Path, target: &Path) -> bool {
    match try_run(options, workspace, target) {
        Ok(succeeded) => succeeded,
        Err(error) => {
            eprintln!("ecosystem: {error}");
            false
        }
    }
}

fn try_run(options: &EcosystemOptions, workspace: &Path, target: &Path) -> Result<bool, String> {
    if options.list {
        for program in PROGRAMS {
            println!("{:<12} {}", program.name, program.title);
        }
        return Ok(true);
    }
    let directory = target.join("ecosystem");
    let chosen = match (options.quick, options.again) {
        (true, _) => choose(QUICK)?,
        (_, true) => PROGRAMS
            .iter()
            .filter(|program| {
                let results = Results::load(program, &directory);
                results.is_none_or(|results| results.unexpected(program) > 0)
            })
            .collect(),
        _ => choose(&options.programs)?,
    };
    if !namespace::is_inside() {
        release::build(&PRODUCTS, workspace, target)?;
        if !options.no_install {
            for program in &chosen {
                prepare(program, workspace, &directory);
            }
        }
        if !namespace::enter()? {
            return Err("network namespaces are not allowed here".to_owned());
        }
    }
    let hosts = Hosts::new(HOSTS)?;
    hosts.record(&directory)?;
    let runner = Runner {
        hosts: &hosts,
        workspace,
        products: target.join("release"),
        directory: directory.clone(),
    };
    let (mut total, mut unexpected) = (0, 0);
    for program in chosen {
        let results = Results::new(version(program, &directory), runner.run(program));
        results.store(program, &directory)?;
        total += results.of(program).count();
        unexpected += results.unexpected(program);
    }
    if options.programs.is_empty() && !options.quick {
        let load = |program: &'static Program| {
            let results = Results::load(program, &directory);
            let results = results.ok_or_else(|| format!("{} has no results", program.name))?;
            Ok((program, results))
        };
        let tested: Result<Vec<_>, String> = PROGRAMS.iter().map(load).collect();
        let path = workspace.join("docs/ECOSYSTEM.md");
        fs::write(&path, page::text(&tested?))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("ecosystem: wrote {}", path.display());
    }
    println!("ecosystem: {total} runs, {unexpected} failed");
    Ok(unexpected == 0)
}

/// Runs the programs of the check as a step of it.
pub(crate) fn step() -> Outcome {
    println!("\nxtask: {NAME}: programs of others, on emulated hosts");
    let started = Instant::now();
    let mut log = TestLog::default();
    let problem = match missing() {
        Some(reason) if env::var("CI").as_deref() != Ok("true") => {
            log.left_out.push(format!("{NAME}: {reason}"));
            None
        }
        Some(reason) => Some(reason),
        // A process of its own, since it enters namespaces.
        None => env::current_exe()
            .map_err(|error| error.to_string())
            .and_then(|this| succeed(Command::new(this).args([NAME, "--quick"])))
            .err(),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log,
    }
}

/// Returns what the check's programs need and is missing: the right to make namespaces, or a package,
/// after trying to install all.
fn missing() -> Option<String> {
    if namespace::flags().is_none() {
        return Some("needs the right to make namespaces".to_owned());
    }
    let chosen = choose(QUICK).ok()?;
    chosen
        .iter()
        .flat_map(|program| program.packages)
        .inspect(|package| packages::provide_packages(&[package]))
        .find(|package| !packages::is_installed(package))
        .map(|package| format!("needs the package {package}"))
}

fn choose<S: AsRef<str>>(names: &[S]) -> Result<Vec<&'static Program>, String> {
    if names.is_empty() {
        return Ok(PROGRAMS.iter().collect());
    }
    let find = |name: &S| {
        let name = name.as_ref();
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.ok_or_else(|| format!("no program is named {name}; see --list"))
    };
    names.iter().map(find).collect()
}

/// Installs and builds a program. If that fails, so do its runs.
fn prepare(program: &Program, workspace: &Path, directory: &Path) {
    packages::provide_packages(program.packages);
    let directory = directory.join(program.name);
    let done = fs::create_dir_all(&directory).is_ok()
        && Command::new("sh")
            .args(["-e", "-c", program.prepare])
            .env("WORKSPACE", workspace)
            .current_dir(&directory)
            .status()
            .is_ok_and(|status| status.success());
    if !done {
        println!("ecosystem: {}: preparation failed; see above", program.name);
    }
}

fn version(program: &Program, directory: &Path) -> String {
    let output = Command::new("sh")
        .args(["-c", program.version])
        .current_dir(directory.join(program.name))
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().trim().to_owned()
}
