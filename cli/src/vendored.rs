//! Programs that load a copy of libibverbs or librdmacm of their own, which the dynamic linker's
//! search path does not replace.
//!
//! auditwheel gives the libraries of a Python package names with a hash, such as
//! `libibverbs-1de1263b.so`, in a directory `PACKAGE.libs`. Other programs find a copy by their
//! `DT_RPATH`, which precedes the search path. Both are replaced by preloading
//! ([`crate::launch::first_library`]). The library is not preloaded for all programs, because some
//! refuse to start then: those with AddressSanitizer, for one.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};

use crate::launch::{NAMES, SEARCH_PATH};
use crate::{elf, which};

/// The longest chain of scripts whose interpreter is a script; the kernel's limit is similar.
const MAX_SCRIPTS: usize = 4;

/// The longest first line of a script that the kernel reads.
const SCRIPT_LINE: usize = 256;

/// Returns whether a command runs a program with such a copy: its own, or one that a launcher such
/// as `strace` or `mpirun` starts, whose name is an argument. `search_path` is that of the program.
pub fn is_used_by_command(program: &Path, arguments: &[OsString], search_path: &OsStr) -> bool {
    let launched = arguments.iter().filter_map(|word| {
        let found = which::find_program(word)?;
        let is_program = found.is_file() && access(&found, Access::EXEC_OK).is_ok();
        is_program.then_some(found)
    });
    iter::once(program.to_owned())
        .chain(launched)
        .any(|program| is_used_by(&program, search_path))
}

/// Returns whether a program, or the packages of its Python, have such a copy.
fn is_used_by(program: &Path, search_path: &OsStr) -> bool {
    let chain = interpreters(program.to_owned());
    let links = (chain.last()).is_some_and(|program| links_copy(program, search_path));
    let python = chain.iter().find(|program| is_python(program));
    links || python.is_some_and(|python| packages_have_copy(python))
}

/// Returns a program and, if it is a script, its interpreter, which may be a script too.
fn interpreters(program: PathBuf) -> Vec<PathBuf> {
    let mut chain = vec![program];
    while chain.len() <= MAX_SCRIPTS
        && let Some(interpreter) = chain.last().and_then(|program| interpreter(program))
    {
        chain.push(interpreter);
    }
    chain
}

/// Returns the interpreter of a script.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let start = elf::start_of(script, SCRIPT_LINE)?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let program = PathBuf::from(words.next()?);
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program);
    }
    let name = words.find(|word| {
        let bytes = word.as_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    });
    which::find_program(name?)
}

/// Returns whether the dynamic linker loads a copy for this program.
fn links_copy(program: &Path, search_path: &OsStr) -> bool {
    // Other dynamic linkers than glibc's may execute the program instead of listing its libraries.
    let Some(linker) = elf::interpreter(program).filter(|path| has_prefix(path, "ld-linux")) else {
        return false;
    };
    let listed = Command::new(linker)
        .arg("--list")
        .arg(program)
        .env(SEARCH_PATH, search_path)
        .stdin(Stdio::null())
        .output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let ours: Vec<PathBuf> = env::split_paths(search_path).collect();
    let listed = String::from_utf8_lossy(&listed);
    listed.lines().any(|line| is_copy_in_list(line, &ours))
}

/// Returns whether a line of the dynamic linker's list, `NAME => PATH (ADDRESS)`, is a copy. `ours`
/// are the directories with urxe's libraries.
fn is_copy_in_list(line: &str, ours: &[PathBuf]) -> bool {
    let Some((name, path)) = line.trim().split_once(" => ") else {
        return false;
    };
    let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
    let is_elsewhere = || {
        let directory = Path::new(path).parent();
        path.starts_with('/') && !ours.iter().any(|own| directory == Some(own))
    };
    is_hashed(name) || (NAMES.contains(&name) && is_elsewhere())
}

/// Returns whether this is the name of a library to which auditwheel has added a hash.
fn is_hashed(name: &str) -> bool {
    ["libibverbs-", "librdmacm-"].iter().any(|start| {
        let rest = name.strip_prefix(start);
        let hash = rest.and_then(|rest| rest.split_once(".so")).map(|it| it.0);
        hash.is_some_and(|hash| !hash.is_empty() && hash.bytes().all(|b| b.is_ascii_hexdigit()))
    })
}

fn has_prefix(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
    name.starts_with(prefix.as_bytes())
}

/// Returns whether a program is a Python by its name, which a version may follow. It is executed,
/// so a script whose name merely begins so is none.
fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().as_bytes();
    let is_version = |rest: &[u8]| {
        rest.iter()
            .all(|b| b.is_ascii_digit() || b".td".contains(b))
    };
    [&b"python"[..], b"pypy"]
        .into_iter()
        .any(|start| name.strip_prefix(start).is_some_and(is_version))
}

/// Returns whether a package that this Python can import has a copy.
fn packages_have_copy(python: &Path) -> bool {
    let mut all = import_path(python)
        .into_iter()
        .flat_map(|root| entries(&root));
    all.any(|entry| {
        let libraries = match entry.extension() == Some(OsStr::new("libs")) {
            true => entry,
            // The directory of older versions of auditwheel.
            false => entry.join(".libs"),
        };
        let mut files = entries(&libraries);
        files.any(|file| {
            let name = file.file_name().unwrap_or_default();
            is_hashed(&name.to_string_lossy())
        })
    })
}

/// Returns the directories of which this Python imports modules. It knows them best: virtual
/// environments, `PYTHONPATH` and the files of `site` determine them.
fn import_path(python: &Path) -> Vec<PathBuf> {
    let shown = Command::new(python)
        .args(["-c", "import sys; sys.stdout.write('\\0'.join(sys.path))"])
        .stdin(Stdio::null())
        .output();
    let shown = shown.map(|output| output.stdout).unwrap_or_default();
    let paths = shown.split(|byte| *byte == 0);
    let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    paths.filter(|path| path.is_absolute()).collect()
}

/// Returns the paths in a directory; none if it cannot be read.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).ok().into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_with_a_hash_are_copies() {
        for name in [
            "libibverbs-1de1263b.so",
            "libibverbs-1de1263b.so.1.14.39.0",
            "librdmacm-0f.so.1",
        ] {
            assert!(is_hashed(name), "{name}");
        }
        for name in [
            "libibverbs.so.1",
            "libibverbs-.so",
            "libibverbs-dev.so",
            "libibverbs-1de1263b.a",
            "xlibibverbs-1d.so",
        ] {
            assert!(!is_hashed(name), "{name}");
        }
    }

    #[test]
    fn copy_is_found_in_the_list_of_libraries() {
        let ours = [PathBuf::from("/own")];
        for (line, expected) in [
            ("\tlibibverbs.so.1 => /own/libibverbs.so.1 (0x1)", false),
            ("\tlibibverbs.so.1 => /opt/lib/libibverbs.so.1 (0x1)", true),
            ("\tlibrdmacm.so.1 => not found", false),
            ("\tlibc.so.6 => /lib/libc.so.6 (0x1)", false),
            ("\tlibibverbs-1de1263b.so => not found", true),
            ("\tlinux-vdso.so.1 (0x1)", false),
        ] {
            assert_eq!(is_copy_in_list(line, &ours), expected, "{line}");
        }
    }

    /// Makes an executable file.
    fn script(path: &Path, text: &str) {
        fs::write(path, text).expect("own directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("own file");
    }

    #[test]
    fn packages_that_python_can_import_are_searched() {
        let root = env::temp_dir().join(format!("urxe-vendored-{}", std::process::id()));
        let packages = root.join("packages");
        fs::create_dir_all(packages.join("nixl.libs")).expect("own directory");
        fs::create_dir_all(packages.join("old/.libs")).expect("own directory");
        // As the command of pyenv, it is a script itself.
        let python = root.join("python3");
        let text = format!("#!/bin/sh\nprintf '\\0/nowhere\\0{}'\n", packages.display());
        script(&python, &text);
        let tool = root.join("tool");
        script(&tool, &format!("#!{}\n", python.display()));
        let shell = root.join("shell");
        script(&shell, "#!/bin/sh\n");
        for copy in [
            None,
            Some("nixl.libs/libibverbs-1de1263b.so"),
            Some("old/.libs/librdmacm-12.so.1"),
        ] {
            let copy = copy.map(|name| packages.join(name));
            if let Some(copy) = &copy {
                fs::write(copy, "").expect("own directory");
            }
            for program in [&python, &tool] {
                let is_used = is_used_by(program, OsStr::new(""));
                assert_eq!(is_used, copy.is_some(), "{copy:?}");
            }
            assert!(!is_used_by(&shell, OsStr::new("")));
            // By a launcher, whose other arguments are options and files.
            let words = ["-f", "-o", "out", &python.to_string_lossy(), "program.py"];
            let is_used = is_used_by_command(&shell, &words.map(OsString::from), OsStr::new(""));
            assert_eq!(is_used, copy.is_some(), "{copy:?}");
            if let Some(copy) = copy {
                fs::remove_file(copy).expect("own file");
            }
        }
        fs::remove_dir_all(&root).expect("own directory");
    }

    #[test]
    fn interpreter_is_in_the_first_line() {
        let root = env::temp_dir().join(format!("urxe-scripts-{}", std::process::id()));
        fs::create_dir(&root).expect("own directory");
        let path = root.join("script");
        let sh = which::find_program(OsStr::new("sh"));
        for (line, expected) in [
            ("#! /bin/sh -e\n", Some(PathBuf::from("/bin/sh"))),
            ("#!/usr/bin/env -S A=1 sh -e\n", sh),
            ("#!\n", None),
            ("echo\n", None),
        ] {
            script(&path, line);
            assert_eq!(interpreter(&path), expected, "{line}");
        }
        // A script that is its own interpreter.
        script(&path, &format!("#!{}\n", path.display()));
        assert_eq!(interpreters(path).len(), MAX_SCRIPTS + 1);
        fs::remove_dir_all(&root).expect("own directory");
    }

    #[test]
    fn only_a_version_may_follow_the_name_of_a_python() {
        for name in ["python", "python3", "python3.11", "python3.13t", "pypy3"] {
            assert!(is_python(Path::new(&format!("/usr/bin/{name}"))), "{name}");
        }
        for name in ["python-cleanup.sh", "python_bench.py", "mypython", "bash"] {
            assert!(!is_python(Path::new(name)), "{name}");
        }
    }
}
