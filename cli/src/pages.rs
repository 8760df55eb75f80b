//! `urxe completions` and `urxe manual`: shell completions and manual pages, generated from the
//! definition of the command's arguments.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::Shell;

/// Print the completions for a shell: source <(urxe completions bash)
#[derive(clap::Args)]
pub struct CompletionArguments {
    /// Shell that completes command lines
    shell: Shell,
}

/// Write the manual pages to a directory, which is created
#[derive(clap::Args)]
pub struct ManualArguments {
    /// Directory for the pages
    directory: PathBuf,
}

/// Prints completions for one shell.
pub fn completions(arguments: &CompletionArguments, mut command: clap::Command) -> ExitCode {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    // A failed write means that the reader closed the pipe, which is no error.
    let _ = io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Writes a page for the command and for each of its visible subcommands.
pub fn manual(arguments: &ManualArguments, command: clap::Command) -> ExitCode {
    let directory = &arguments.directory;
    let command = command.disable_help_subcommand(true);
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "urxe manual: cannot write to {}: {error}",
                directory.display()
            );
            ExitCode::FAILURE
        }
    }
}
