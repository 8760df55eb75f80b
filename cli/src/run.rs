//! `urxe run` and `urxe shell`: execute a program with libibverbs and librdmacm resolved to urxe.
//!
//! The command replaces itself with the program, so signals and the exit status are the program's.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use rustix::fs::Access;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use urxe_driver::device::{self, Selection};
use urxe_net::{FaultParseError, FaultSpec};

use crate::library::{self, RSPRELOAD};
use crate::which::find_program;
use crate::{elf, environment, launch, sysfs, vendored};

/// The environment variable with the log filter, in `tracing_subscriber::EnvFilter` syntax.
pub const LOG: &str = "URXE_LOG";

/// The exit status of `env` and shells for a program that does not exist.
const NOT_FOUND: u8 = 127;
/// The exit status of `env` and shells for a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// The exit status of `env` for its own failures.
pub const OWN_FAILURE: u8 = 125;

/// Whether to preload the library.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Preload {
    /// Where the program, or a package of its Python, has a copy of libibverbs
    Auto,
    /// For all programs
    Yes,
    /// For none
    No,
}

/// What a program gets that runs over urxe.
#[derive(clap::Args)]
pub struct Options {
    /// Whether to show the devices in /sys/class/infiniband. Without root privileges the view needs
    /// a user namespace, in which set-user-ID programs do not work, or else a preloaded object
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = sysfs::View::Auto)]
    sysfs: sysfs::View,
    /// Interfaces that have devices, in this order, such as `eth0,ib*` or `^lo`: `*` stands for any
    /// characters, and `^` excludes. `eth0=mlx5_0@100G` gives a device a name and a speed. Sets
    /// URXE_DEVICES
    #[arg(long, value_name = "LIST")]
    devices: Option<Selection>,
    /// Whether to preload the library, for programs with their own copy of libibverbs under another
    /// name, such as Python packages with `libibverbs-1de1263b.so`. Without a value: yes
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = Preload::Auto,
        default_missing_value = "yes"
    )]
    preload: Preload,
    /// Use RDMA for the program's IPv4 and IPv6 sockets, by preloading librspreload.so. Programs
    /// and sockets can be selected in /etc/rdma/rsocket/preload_config
    #[arg(long)]
    rsockets: bool,
    /// Capture all packets in this file, for Wireshark; `%p` stands for the process ID. Sets
    /// URXE_PCAP
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(parse_pcap))]
    pcap: Option<OsString>,
    /// Inject faults, such as `drop=1%,delay=2ms,seed=7`; also dup, reorder, corrupt, rate,
    /// queue and dir. Sets URXE_FAULTS
    #[arg(long, value_name = "LIST", value_parser = parse_faults)]
    faults: Option<String>,
    /// Messages on standard error: error, warn, info, debug, trace or off. Sets URXE_LOG
    #[arg(long, value_name = "FILTER", value_parser = parse_log)]
    log: Option<String>,
}

/// Run a program over urxe, in place of libibverbs.so.1 and librdmacm.so.1
#[derive(clap::Args)]
#[command(
    override_usage = "urxe run [OPTIONS] [--] PROGRAM [ARGUMENTS]...",
    after_help = "Exit status: that of PROGRAM; 127 if it is not found, 126 if it cannot be \
                  executed, 125 if urxe itself fails or an option is wrong."
)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Program to run and its arguments; put `--` before a name that begins with a dash
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Start a shell whose programs run over urxe, and that compiles programs for it
#[derive(clap::Args)]
#[command(after_help = "The shell is that of the variable SHELL, or else /bin/sh.")]
pub struct ShellArguments {
    #[command(flatten)]
    options: Options,
}

fn parse_faults(text: &str) -> Result<String, FaultParseError> {
    text.parse::<FaultSpec>().map(|_| text.to_owned())
}

/// Checks that a file can be created there. Its name may depend on the process, that of its
/// directory too; the library reports what fails then.
fn parse_pcap(text: OsString) -> Result<OsString, String> {
    let path = Path::new(&text);
    let name = path.display();
    if text.is_empty() {
        return Err("the name is empty: give a file, such as out.pcapng".to_owned());
    }
    if path.is_dir() {
        return Err(format!(
            "{name} is a directory: give a file in it, such as {}",
            path.join("out.pcapng").display()
        ));
    }
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(text),
    };
    let shown = directory.display();
    if directory.as_os_str().as_bytes().contains(&b'%') {
        return Ok(text);
    }
    if !directory.is_dir() {
        return Err(format!(
            "there is no directory {shown}: create it, or give a file in another"
        ));
    }
    match rustix::fs::access(directory, Access::WRITE_OK) {
        Err(error) if !path.exists() => Err(format!(
            "cannot create a file in {shown}: {error}; give one in another directory"
        )),
        _ => Ok(text),
    }
}

fn parse_log(text: &str) -> Result<String, String> {
    const EXAMPLES: &str = "use a level, such as debug, or urxe_driver=trace for one part";
    // EnvFilter takes a word that is no level for the name of a crate, all of whose messages it
    // shows.
    let unknown = text.split(',').map(str::trim).find(|word| {
        let is_name = word
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == ':');
        is_name && !word.starts_with("urxe") && word.parse::<LevelFilter>().is_err()
    });
    if let Some(word) = unknown {
        return Err(format!("`{word}` is no level: {EXAMPLES}"));
    }
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; {EXAMPLES}")),
    }
}

/// Executes the program. Returns only on failure.
pub fn run(arguments: Arguments) -> ExitCode {
    execute(
        "urxe run",
        arguments.options,
        &arguments.program,
        Vec::new(),
    )
}

/// Executes a shell. Returns only on failure.
pub fn shell(arguments: ShellArguments) -> ExitCode {
    let variables = match environment::variables() {
        Ok(variables) => variables,
        Err(error) => {
            eprintln!("urxe shell: {error}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let shell = shell.unwrap_or_else(|| "/bin/sh".into());
    if find_program(&shell).is_none() {
        eprintln!(
            "urxe shell: {}: no such file; set SHELL to an installed shell, such as /bin/sh",
            shell.display()
        );
        return ExitCode::from(NOT_FOUND);
    }
    execute("urxe shell", arguments.options, &[shell], variables)
}

impl Options {
    /// Returns the variables of the program, and shows it the devices.
    fn into_variables(
        self,
        program: Option<&Path>,
        arguments: &[OsString],
        search_path: &OsStr,
    ) -> Result<Vec<sysfs::Variable>, String> {
        if let Some(selection) = &self.devices {
            device::select(selection.clone());
        }
        let mut variables = sysfs::show(self.sysfs)?;
        // The object that is added last comes first: rsockets interposes functions of the C
        // library.
        let preloads = match self.preload {
            Preload::Auto => {
                program.is_some_and(|it| vendored::is_used_by_command(it, arguments, search_path))
            }
            Preload::Yes => true,
            Preload::No => false,
        };
        if preloads {
            preload(&mut variables, launch::first_library(search_path))?;
        }
        if self.rsockets {
            let object = library::find(RSPRELOAD).map_err(|error| error.to_string())?;
            preload(&mut variables, object)?;
        }
        let devices = self.devices.map(|selection| selection.to_string());
        let chosen = [
            (device::VARIABLE, devices.map(OsString::from)),
            ("URXE_PCAP", self.pcap),
            ("URXE_FAULTS", self.faults.map(OsString::from)),
            (LOG, self.log.map(OsString::from)),
        ];
        let chosen = chosen.into_iter();
        variables.extend(chosen.filter_map(|(name, value)| Some((name, value?))));
        Ok(variables)
    }
}

/// Executes a program with `more` variables, in the name of a subcommand. Returns only on failure.
fn execute(
    own_name: &str,
    options: Options,
    words: &[OsString],
    more: Vec<sysfs::Variable>,
) -> ExitCode {
    let Some((program, rest)) = words.split_first() else {
        eprintln!("{own_name}: no program given");
        return ExitCode::from(OWN_FAILURE);
    };
    let paths =
        launch::search_path().and_then(|libraries| Ok((libraries, launch::program_path()?)));
    let (search_path, program_path) = match paths {
        Ok(paths) => paths,
        Err(error) => {
            eprintln!("{own_name}: {error}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    let found = find_program(program);
    if let Some(why) = found.as_deref().and_then(ignores_search_path) {
        eprintln!(
            "{own_name}: warning: {} {why} and will not use urxe",
            program.display()
        );
    }
    let variables = match options.into_variables(found.as_deref(), rest, &search_path) {
        Ok(variables) => variables,
        Err(error) => {
            eprintln!("{own_name}: {error}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    let mut command = Command::new(program);
    command.args(rest).envs(more);
    command.env(launch::SEARCH_PATH, search_path);
    command.envs(variables);
    command.envs(program_path.map(|path| (launch::PROGRAM_PATH, path)));
    let error = command.exec();

    let is_path = program.as_bytes().contains(&b'/');
    let program = program.display();
    if error.kind() != io::ErrorKind::NotFound {
        let remedy = found.as_deref().map_or("", permission_remedy);
        eprintln!("{own_name}: {program}: {error}{remedy}");
        return ExitCode::from(NOT_EXECUTABLE);
    }
    match found {
        // The file exists, so the error is about its interpreter.
        Some(path) => {
            eprintln!(
                "{own_name}: {program}: the interpreter of {} does not exist; install the one \
                 that the first line of a script, or `readelf --program-headers`, names",
                path.display()
            );
            ExitCode::from(NOT_EXECUTABLE)
        }
        None => {
            // As in a shell, only a name without a slash is searched for.
            match is_path {
                true => eprintln!("{own_name}: {program}: no such file; correct the path"),
                false => eprintln!(
                    "{own_name}: {program}: not found in PATH; install it, or give its path"
                ),
            }
            ExitCode::from(NOT_FOUND)
        }
    }
}

/// Returns the remedy for an existing file that cannot be executed, after a separator; empty if the
/// file's type and mode are not the reason.
fn permission_remedy(path: &Path) -> &'static str {
    const EXECUTABLE: u32 = 0o111;
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => "; it is a directory: give the path of a program",
        Ok(metadata) if metadata.mode() & EXECUTABLE == 0 => {
            "; make it executable with `chmod +x`, or pass it to its interpreter: `urxe run -- sh FILE`"
        }
        _ => "",
    }
}

/// Puts an object first in `LD_PRELOAD`.
fn preload(variables: &mut Vec<sysfs::Variable>, path: PathBuf) -> Result<(), String> {
    let mut preload = path.into_os_string();
    // The dynamic linker splits the list at these bytes.
    if preload
        .as_bytes()
        .iter()
        .any(|byte| b" :;$\t\n".contains(byte))
    {
        return Err(format!(
            "{}: this path cannot be preloaded; install urxe in a path without spaces, colons, \
             semicolons and dollar signs",
            preload.display()
        ));
    }
    let known = variables
        .iter()
        .position(|(name, _)| *name == launch::PRELOAD)
        .map(|at| variables.remove(at).1);
    let others = known.or_else(|| env::var_os(launch::PRELOAD));
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    variables.push((launch::PRELOAD, preload));
    Ok(())
}

/// Returns the reason why the dynamic linker does not load urxe for this program, if any.
fn ignores_search_path(program: &Path) -> Option<&'static str> {
    let metadata = program.metadata().ok()?;
    if changes_identity(metadata.mode(), metadata.uid(), metadata.gid()) {
        return Some("is set-user-ID or set-group-ID");
    }
    if elf::is_32_bit(program) {
        return Some("is a 32-bit program");
    }
    elf::is_static(program).then_some("is statically linked")
}

/// Returns whether executing a file with this mode and owner changes the user or group. The
/// dynamic linker then ignores the search path.
fn changes_identity(mode: u32, owner: u32, group: u32) -> bool {
    const SET_USER_ID: u32 = 0o4000;
    const SET_GROUP_ID: u32 = 0o2000;
    let user_changes = owner != rustix::process::geteuid().as_raw();
    let group_changes = group != rustix::process::getegid().as_raw();
    (mode & SET_USER_ID != 0 && user_changes) || (mode & SET_GROUP_ID != 0 && group_changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_dynamic() {
        let own = env::current_exe().expect("running");
        assert_eq!(ignores_search_path(&own), None);
    }
}
