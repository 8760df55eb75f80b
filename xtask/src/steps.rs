//! The steps of `cargo xtask test` in their order: quick checks first.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::ValueEnum;

use crate::api;
use crate::bench::instructions;
use crate::dependencies;
use crate::dist;
use crate::documents;
use crate::ecosystem;
use crate::features;
use crate::fuzz;
use crate::layers;
use crate::logged;
use crate::outcome::Outcome;
use crate::publish;
use crate::pyverbs;
use crate::rxe;
use crate::sanitize;
use crate::test_log::TestLog;

/// One step of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// `cargo fmt --check`.
    Format,
    /// Clippy with warnings as errors.
    Clippy,
    /// The crate `urxe` with none of its features and with each alone; see `features`.
    Features,
    /// rustdoc with warnings as errors.
    Doc,
    /// The public API of the crate `urxe`, compared with its record, and its examples; see `api`.
    Api,
    /// Licences, sources and versions of dependencies; see `dependencies`.
    Dependencies,
    /// Links, paths and symbols in the documents; see `documents`.
    Documents,
    /// The direction of imports within packages; see `layers`.
    Layers,
    /// Each package as it would be published; see `publish`.
    Package,
    /// `cargo build --release`, which builds the command and the libraries.
    Build,
    /// Unit, integration and documentation tests, in the release profile because of the data
    /// volume.
    Test,
    /// Instructions of a round trip and an empty poll, compared with docs/PERFORMANCE.md; see
    /// `bench::instructions`.
    Instructions,
    /// Packages, installed in a fresh root; see `dist`.
    Dist,
    /// The tests of the driver and of `urxe-net` with AddressSanitizer; see `sanitize`.
    Sanitize,
    /// Each fuzz target for a few seconds; see `fuzz`.
    Fuzz,
    /// rdma-core's test suite; see `pyverbs`.
    Pyverbs,
    /// Programs of others on emulated hosts; see `ecosystem`.
    Ecosystem,
    /// A part of the matrix of urxe and the kernel's rxe that takes a few minutes; see `rxe`.
    Rxe,
}

impl Step {
    /// All steps in their order. The build precedes the tests, which reuse it.
    pub(crate) const ALL: [Self; 18] = [
        Self::Format,
        Self::Clippy,
        Self::Features,
        Self::Doc,
        Self::Api,
        Self::Dependencies,
        Self::Documents,
        Self::Layers,
        Self::Package,
        Self::Build,
        Self::Test,
        Self::Instructions,
        Self::Dist,
        Self::Sanitize,
        Self::Fuzz,
        Self::Pyverbs,
        Self::Ecosystem,
        Self::Rxe,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Clippy => "clippy",
            Self::Features => features::NAME,
            Self::Doc => "doc",
            Self::Api => api::NAME,
            Self::Dependencies => dependencies::NAME,
            Self::Documents => documents::NAME,
            Self::Layers => layers::NAME,
            Self::Package => publish::NAME,
            Self::Build => "build",
            Self::Test => "test",
            Self::Instructions => instructions::NAME,
            Self::Dist => dist::NAME,
            Self::Sanitize => sanitize::NAME,
            Self::Fuzz => fuzz::NAME,
            Self::Pyverbs => "pyverbs",
            Self::Ecosystem => ecosystem::NAME,
            Self::Rxe => "rxe",
        }
    }

    /// Returns the arguments for cargo; none for steps that do not run cargo.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Format => &["fmt", "--all", "--check"],
            Self::Clippy => &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ],
            Self::Doc => &["doc", "--workspace", "--no-deps", "--locked"],
            Self::Build => &["build", "--release", "--locked"],
            Self::Test => &[
                "test",
                "--workspace",
                "--release",
                "--locked",
                "--no-fail-fast",
            ],
            Self::Features
            | Self::Api
            | Self::Dependencies
            | Self::Documents
            | Self::Layers
            | Self::Package
            | Self::Instructions
            | Self::Dist
            | Self::Sanitize
            | Self::Fuzz
            | Self::Pyverbs
            | Self::Ecosystem
            | Self::Rxe => &[],
        }
    }

    /// Runs the step in `workspace` and passes its output on. `filter` and `harness` apply to the
    /// tests only; for rxe, `filter` is a pattern of cells.
    pub(crate) fn run(
        self,
        workspace: &Path,
        target: &Path,
        filter: Option<&str>,
        harness: &[String],
    ) -> Outcome {
        if self == Self::Features {
            return features::step(workspace);
        }
        if self == Self::Api {
            return api::step(workspace, target);
        }
        if self == Self::Dependencies {
            return dependencies::step(workspace);
        }
        if self == Self::Documents {
            return documents::step(workspace);
        }
        if self == Self::Layers {
            return layers::step(workspace);
        }
        if self == Self::Package {
            return publish::step(workspace, target);
        }
        if self == Self::Instructions {
            return instructions::step();
        }
        if self == Self::Dist {
            return dist::step(workspace, target);
        }
        if self == Self::Sanitize {
            return sanitize::step(workspace, target);
        }
        if self == Self::Fuzz {
            return fuzz::step(workspace, target);
        }
        if self == Self::Pyverbs {
            return pyverbs::step(workspace, target);
        }
        if self == Self::Ecosystem {
            return ecosystem::step();
        }
        if self == Self::Rxe {
            return rxe::step(filter, workspace, target);
        }
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(workspace).args(self.arguments());
        if self == Self::Doc {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        if self == Self::Test {
            command.args(filter).arg("--").args(harness);
        }

        println!(
            "\nxtask: {}: cargo {}",
            self.name(),
            self.arguments().join(" ")
        );
        let started = Instant::now();
        let mut log = TestLog::default();
        let result = if self == Self::Test {
            logged::run(&mut command, &mut log)
        } else {
            command.status()
        };
        let problem = match result {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(format!("cannot start cargo: {error}")),
        };
        Outcome {
            step: self.name(),
            problem,
            took: started.elapsed(),
            log,
        }
    }
}
