//! Developer commands of urxe, run as `cargo xtask COMMAND`.
//!
//! `cargo xtask test` is the complete check, which CI runs as well. The other commands run parts of
//! it for longer or with options: rdma-core's test suite, fuzzing, simulations, interoperability
//! with the kernel's rxe, benchmarks, a soak test and packages.

mod api;
mod bench;
mod cargo_log;
mod debian_root;
mod dependencies;
mod dist;
mod documents;
mod ecosystem;
mod features;
mod fuzz;
mod layers;
mod logged;
mod metadata;
mod namespace;
mod outcome;
mod packages;
mod publish;
mod pyverbs;
mod release;
mod rxe;
mod sanitize;
mod soak;
mod steps;
mod test_log;
mod toolchain;

use std::env;
use std::path::PathBuf;
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};

use crate::outcome::Report;
use crate::steps::Step;

/// Developer commands of urxe
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all checks: format, lints, documentation, release build, unit and integration tests, and
    /// a part of the matrix against the kernel's rxe
    ///
    /// First installs the Debian packages that the integration tests need, as root or with
    /// passwordless sudo. Tests with unmet needs are skipped and listed at the end; with CI=true in
    /// the environment they fail.
    Test(TestOptions),
    /// Run the libFuzzer targets in `fuzz/`
    Fuzz(fuzz::FuzzOptions),
    /// Run seeded simulations of the protocol over faulty networks, in virtual time
    Sim(SimOptions),
    /// Run rdma-core's test suite, from the package python3-pyverbs, over urxe
    Pyverbs(pyverbs::PyverbsOptions),
    /// Run urxe against the Linux kernel's rxe in a QEMU guest, without root or KVM
    Rxe(rxe::RxeOptions),
    /// Compare the performance of urxe, UDP, TCP and UCX over TCP in a network namespace
    Bench(bench::BenchOptions),
    /// Run programs that connect, transfer and crash for a long time over a faulty network
    Soak(soak::SoakOptions),
    /// Install and run programs of others over urxe, on emulated hosts, and write docs/ECOSYSTEM.md
    Ecosystem(ecosystem::EcosystemOptions),
    /// Compare the public API of the crate `urxe` with its record, and check that it has examples
    Api(api::ApiOptions),
    /// Count the files and imports of each package, and those in import cycles
    Layers(layers::LayersOptions),
    /// Make packages for users: tarballs, Debian and RPM packages, checksums and lists of components
    Dist(dist::DistOptions),
}

#[derive(clap::Args)]
struct TestOptions {
    /// Run only these steps, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,

    /// Do not install packages
    #[arg(long)]
    no_install: bool,

    /// Run only tests whose name contains this; with `--only rxe`, only matching cells
    filter: Option<String>,

    /// Arguments for the test binaries, such as `--test-threads=1`
    #[arg(last = true)]
    harness: Vec<String>,
}

/// The simulator parses its own options.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct SimOptions {
    /// Options of the simulator; see `cargo xtask sim -- --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

fn main() -> ExitCode {
    let succeeded = match Cli::parse().command {
        Command::Test(options) => {
            let report = test(&options);
            report.print();
            report.succeeded()
        }
        Command::Sim(SimOptions { options }) => simulate(&options),
        Command::Pyverbs(options) => {
            pyverbs::run(&options, &workspace_directory(), &target_directory())
        }
        Command::Fuzz(options) => fuzz::run(&options, &workspace_directory(), &target_directory()),
        Command::Rxe(options) => rxe::run(&options, &workspace_directory(), &target_directory()),
        Command::Bench(options) => {
            bench::run(&options, &workspace_directory(), &target_directory())
        }
        Command::Api(options) => api::run(&options, &workspace_directory(), &target_directory()),
        Command::Layers(options) => layers::run(&options, &workspace_directory()),
        Command::Dist(options) => dist::run(&options, &workspace_directory(), &target_directory()),
        Command::Ecosystem(options) => {
            ecosystem::run(&options, &workspace_directory(), &target_directory())
        }
        Command::Soak(options) => soak::run(&options, &workspace_directory(), &target_directory()),
    };
    if succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Builds the simulator in the release profile and runs it.
fn simulate(options: &[String]) -> bool {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = process::Command::new(cargo)
        .current_dir(workspace_directory())
        .args([
            "run",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            "urxe-sim",
            "--",
        ])
        .args(options)
        .status();
    status.is_ok_and(|status| status.success())
}

fn test(options: &TestOptions) -> Report {
    let chosen = |step: Step| match options.only.is_empty() {
        // The filter selects cargo tests by name; these steps have none.
        true => {
            !matches!(
                step,
                Step::Dist
                    | Step::Sanitize
                    | Step::Fuzz
                    | Step::Pyverbs
                    | Step::Ecosystem
                    | Step::Rxe
            ) || options.filter.is_none()
        }
        false => options.only.contains(&step),
    };
    let mut report = Report::default();

    let has_needs = [Step::Test, Step::Dist, Step::Fuzz, Step::Pyverbs]
        .into_iter()
        .any(chosen);
    if has_needs && !options.no_install {
        packages::provide(&target_directory());
    }
    for step in Step::ALL.into_iter().filter(|step| chosen(*step)) {
        let filter = options.filter.as_deref();
        let (workspace, target) = (workspace_directory(), target_directory());
        report.add(step.run(&workspace, &target, filter, &options.harness));
    }
    report
}

/// Returns the checkout that this xtask was built from.
fn workspace_directory() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.parent().map_or(package.clone(), PathBuf::from)
}

/// Returns Cargo's target directory: this executable is `<target>/<profile>/xtask`.
///
/// The tests find it in the same way, so that both agree on `CARGO_TARGET_DIR`.
fn target_directory() -> PathBuf {
    let from_executable = env::current_exe()
        .ok()
        .and_then(|executable| executable.ancestors().nth(2).map(PathBuf::from));
    from_executable.unwrap_or_else(|| workspace_directory().join("target"))
}
