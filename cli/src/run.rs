//! `urxe run`: becomes a program that finds urxe where it looks for libibverbs and librdmacm.
//!
//! It replaces itself, so signals and the exit status are the program's own.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::library::{self, RSPRELOAD};
use crate::{launch, sysfs};

/// The status of `env` and shells for a program that could not be found.
const NOT_FOUND: u8 = 127;
/// Their status for one that could not be started.
const NOT_EXECUTABLE: u8 = 126;
/// The status of `env` when it fails itself.
const OWN_FAILURE: u8 = 125;

/// Run a program with libibverbs.so.1 and librdmacm.so.1 resolved to urxe
#[derive(clap::Args)]
#[command(
    override_usage = "urxe run [--sysfs WHEN] [--rsockets] [--] PROGRAM [ARGUMENTS]...",
    after_help = "The exit status is the program's, or 127 when it is not found, 126 when it \
                        cannot be started, 125 when urxe itself fails."
)]
pub struct Arguments {
    /// Whether, and how, the program and what it starts see the devices in /sys/class/infiniband. Unless
    /// you are root, that takes a user namespace, in which setuid programs do not work; where
    /// that is not allowed, an object that the program preloads
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = sysfs::View::Auto)]
    sysfs: sysfs::View,
    /// Give the program, and what it starts, sockets over RDMA where it asks for sockets of IPv4 and IPv6, by
    /// preloading librspreload.so. /etc/rdma/rsocket/preload_config can say for which programs and sockets
    #[arg(long)]
    rsockets: bool,
    /// The program and its arguments, after `--` where they begin with a dash
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Becomes the program. Returns only when that fails.
pub fn run(arguments: Arguments) -> ExitCode {
    let Some((program, rest)) = arguments.program.split_first() else {
        eprintln!("urxe run: which program?");
        return ExitCode::from(OWN_FAILURE);
    };
    let search_path = match launch::search_path() {
        Ok(search_path) => search_path,
        Err(error) => {
            eprintln!("urxe run: {error}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    let found = find_program(program);
    if let Some(why) = found.as_deref().and_then(ignores_search_path) {
        eprintln!(
            "urxe run: warning: {} {why}, so it will not use urxe",
            program.display()
        );
    }
    let mut variables = match sysfs::show(arguments.sysfs) {
        Ok(variables) => variables,
        Err(error) => {
            eprintln!("urxe run: {error}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    if arguments.rsockets
        && let Err(error) = preload_rsockets(&mut variables)
    {
        eprintln!("urxe run: {error}");
        return ExitCode::from(OWN_FAILURE);
    }
    let mut command = Command::new(program);
    command.args(rest).env(launch::SEARCH_PATH, search_path);
    command.envs(variables);
    let error = command.exec();

    let program = program.display();
    if error.kind() != io::ErrorKind::NotFound {
        eprintln!("urxe run: {program}: {error}");
        return ExitCode::from(NOT_EXECUTABLE);
    }
    match found {
        // Then it is what the program needs to run that is missing.
        Some(path) => {
            eprintln!(
                "urxe run: {program}: the interpreter that {} names is not there",
                path.display()
            );
            ExitCode::from(NOT_EXECUTABLE)
        }
        None => {
            eprintln!("urxe run: {program}: no such program (looked for in PATH)");
            ExitCode::from(NOT_FOUND)
        }
    }
}

/// Has the program preload what gives it rsockets, before what else it preloads.
fn preload_rsockets(variables: &mut Vec<sysfs::Variable>) -> Result<(), String> {
    let path = library::find(RSPRELOAD).map_err(|error| error.to_string())?;
    let mut preload = path.into_os_string();
    // The dynamic linker would not take it as one path.
    if preload
        .as_bytes()
        .iter()
        .any(|byte| b" :;$\t\n".contains(byte))
    {
        return Err(format!(
            "{}: such a path cannot be preloaded from; install urxe where the path has no spaces, colons, \
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

/// The file that the system would run for this name.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// Why the dynamic linker would ignore the search path, if it would.
fn ignores_search_path(program: &Path) -> Option<&'static str> {
    let mut file = File::open(program).ok()?;
    let metadata = file.metadata().ok()?;
    if changes_identity(metadata.mode(), metadata.uid(), metadata.gid()) {
        return Some("runs as another user or group (set-user-id)");
    }
    let mut start = Vec::new();
    file.by_ref().take(ELF_START).read_to_end(&mut start).ok()?;
    is_static(&start).then_some("is linked statically")
}

/// Whether starting a file with this mode and owner changes who the process is: then the system
/// lets nobody choose its libraries.
fn changes_identity(mode: u32, owner: u32, group: u32) -> bool {
    const SET_USER_ID: u32 = 0o4000;
    const SET_GROUP_ID: u32 = 0o2000;
    let user_changes = owner != rustix::process::geteuid().as_raw();
    let group_changes = group != rustix::process::getegid().as_raw();
    (mode & SET_USER_ID != 0 && user_changes) || (mode & SET_GROUP_ID != 0 && group_changes)
}

/// How much of a file holds its ELF header and, in every usual layout, its program headers.
const ELF_START: u64 = 4096;

/// Whether these first bytes are of a 64-bit ELF program that asks for no dynamic linker. What
/// cannot be understood counts as dynamic: this is for a warning only.
fn is_static(start: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    const CLASS_64: u8 = 2;
    if !start.starts_with(b"\x7fELF") || start.get(4) != Some(&CLASS_64) {
        return false;
    }
    // Offsets in the header: e_phoff, e_phentsize, e_phnum.
    let field = |at: usize, len: usize| start.get(at..at + len);
    let (Some(offset), Some(size), Some(count)) = (field(32, 8), field(54, 2), field(56, 2)) else {
        return false;
    };
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |n: u64, byte| n << 8 | u64::from(*byte))
    };
    let types = (0..number(count)).map(|index| {
        let at = usize::try_from(number(offset).checked_add(index * number(size))?).ok()?;
        let kind = start.get(at..at.checked_add(4)?)?;
        u32::try_from(number(kind)).ok()
    });
    let types: Option<Vec<u32>> = types.collect();
    types.is_some_and(|types| !types.contains(&PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A little-endian ELF header with program headers of these types.
    fn elf(types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(types.len()).expect("few");
        for kind in types {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn program_without_an_interpreter_is_static() {
        assert!(is_static(&elf(&[1, 2])));
        assert!(!is_static(&elf(&[1, 3, 2])));
    }

    #[test]
    fn what_cannot_be_understood_is_not_called_static() {
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b""));
        let mut far = elf(&[1]);
        far[32..40].fill(0xff);
        assert!(!is_static(&far));
        assert!(!is_static(&elf(&[1, 3])[..80]));
    }

    #[test]
    fn this_program_is_dynamic() {
        let own = env::current_exe().expect("running");
        assert_eq!(ignores_search_path(&own), None);
    }
}
