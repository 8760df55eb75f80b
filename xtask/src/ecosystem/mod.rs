//! `cargo xtask ecosystem`: programs of others over urxe, unmodified and with default settings.
//!
//! [`catalogue`] lists the programs. [`runner`] runs each on one host and on two, which [`hosts`]
//! emulates, and judges it. [`page`] writes docs/ECOSYSTEM.md after a complete run.

mod catalogue;
mod hosts;
mod page;
mod program;
mod runner;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::namespace;
use crate::packages;
use crate::release::{self, PRODUCTS};
use catalogue::PROGRAMS;
use hosts::Hosts;
use page::Tested;
use program::Program;
use runner::Runner;

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
    let chosen = choose(&options.programs)?;
    let directory = target.join("ecosystem");
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
    let tested: Vec<Tested> = chosen
        .into_iter()
        .map(|program| Tested {
            program,
            version: version(program, &directory),
            outcomes: runner.run(program),
        })
        .collect();
    if options.programs.is_empty() {
        let path = workspace.join("docs/ECOSYSTEM.md");
        let text = page::text(&tested);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("ecosystem: wrote {}", path.display());
    }
    let mut outcomes = tested.iter().flat_map(|tested| &tested.outcomes);
    Ok(outcomes.all(runner::Outcome::is_as_expected))
}

fn choose(names: &[String]) -> Result<Vec<&'static Program>, String> {
    if names.is_empty() {
        return Ok(PROGRAMS.iter().collect());
    }
    let find = |name: &String| {
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
