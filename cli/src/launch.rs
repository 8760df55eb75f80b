//! Library directories for programs that run over urxe.
//!
//! A per-user directory contains `libibverbs.so.1` and `librdmacm.so.1` as links to `liburxe.so`,
//! and comes first in `LD_LIBRARY_PATH`. For each missing library of a provider, a further
//! directory contains a link of that name, and one contains programs and comes first in `PATH`.
//!
//! The directories are never removed: a program may load the library late or execute another
//! program, and `urxe run` no longer exists by then. There is one directory for each `liburxe.so`.
//! Links are replaced atomically, so processes may start concurrently.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::library::{self, LibraryError};
use crate::{installed, private, rdma};

/// The sonames of the libraries that urxe replaces.
pub const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The sonames of provider libraries that many programs link, for devices that urxe does not have.
/// Where they are not installed, urxe provides them and reports that no device is theirs.
pub const STAND_INS: [&str; 2] = ["libmlx5.so.1", "libefa.so.1"];

/// The programs that urxe replaces, links to this command.
pub const PROGRAMS: [&str; 1] = [rdma::NAME];

/// The search path of programs.
pub const PROGRAM_PATH: &str = "PATH";

/// The dynamic linker's search path.
pub const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// The dynamic linker's list of preloaded objects.
pub const PRELOAD: &str = "LD_PRELOAD";

/// An error that prevents providing the libraries.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The library was not found.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The path of this command is unknown.
    #[error("cannot determine the path of this command: {0}")]
    NoExecutable(#[source] io::Error),
    /// No directory could be created.
    #[error(
        "cannot create a private directory for the libraries: {path}: {source}; set TMPDIR to a \
         writable directory",
        path = .path.display()
    )]
    NoDirectory {
        /// The last directory that was tried.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns the value of [`SEARCH_PATH`] for a program that uses urxe.
///
/// # Errors
/// Fails if the library is missing or no directory can be created.
pub fn search_path() -> Result<OsString, LaunchError> {
    let library = library::find(library::LIBRARY)?;
    let rest = env::var_os(SEARCH_PATH).filter(|rest| !rest.is_empty());
    let missing = STAND_INS
        .into_iter()
        .filter(|name| !installed::has(name, rest.as_deref()));
    let missing: Vec<&str> = missing.collect();
    let mut path = OsString::new();
    for directory in directories_for(&library, &missing)? {
        if !path.is_empty() {
            path.push(":");
        }
        path.push(directory);
    }
    if let Some(rest) = rest {
        path.push(":");
        path.push(rest);
    }
    Ok(path)
}

/// Returns the path of the library for [`PRELOAD`], from a value of [`search_path`].
///
/// The dynamic linker looks symbols up in preloaded objects first, by their version and not by the
/// name of the file that the program was linked with. So they also replace a copy of libibverbs
/// with another name, which is found by the program's own `RPATH` before [`SEARCH_PATH`] is
/// considered.
pub fn first_library(search_path: &OsStr) -> PathBuf {
    let directory = env::split_paths(search_path).next().unwrap_or_default();
    directory.join(NAMES[0])
}

/// Returns the value of [`PROGRAM_PATH`] for a program that uses urxe; `None` if the variable is
/// not set.
///
/// # Errors
/// As for [`search_path`].
pub fn program_path() -> Result<Option<OsString>, LaunchError> {
    let Some(rest) = env::var_os(PROGRAM_PATH) else {
        return Ok(None);
    };
    let library = library::find(library::LIBRARY)?;
    let executable = env::current_exe().map_err(LaunchError::NoExecutable)?;
    let mut path =
        first_usable(&library, |directory| make_programs(directory, &executable))?.into_os_string();
    if !rest.is_empty() {
        path.push(":");
        path.push(rest);
    }
    Ok(Some(path))
}

/// Returns the directories that link to `library`: one with [`NAMES`], and one for each stand-in.
fn directories_for(library: &Path, stand_ins: &[&str]) -> Result<Vec<PathBuf>, LaunchError> {
    first_usable(library, |directory| make_all(directory, library, stand_ins))
}

/// Calls `make` with the possible directories for `library`, until it succeeds.
fn first_usable<T>(
    library: &Path,
    make: impl Fn(PathBuf) -> io::Result<T>,
) -> Result<T, LaunchError> {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let name = format!("{:016x}", hasher.finish());
    let mut last = None;
    for base in private::bases() {
        match private::directory(&base).and_then(|()| make(base.join(&name))) {
            Ok(made) => return Ok(made),
            Err(source) => last = Some((base, source)),
        }
    }
    let (path, source) = last.expect("there is at least the directory for temporary files");
    Err(LaunchError::NoDirectory { path, source })
}

fn make_programs(directory: PathBuf, executable: &Path) -> io::Result<PathBuf> {
    private::directory(&directory)?;
    let programs = directory.join("programs");
    private::directory(&programs)?;
    link(&programs, &PROGRAMS, executable)?;
    Ok(programs)
}

fn make_all(directory: PathBuf, library: &Path, stand_ins: &[&str]) -> io::Result<Vec<PathBuf>> {
    private::directory(&directory)?;
    link(&directory, &NAMES, library)?;
    let mut directories = vec![directory];
    for name in stand_ins {
        let own = directories[0].join(format!("instead-of-{name}"));
        private::directory(&own)?;
        link(&own, &[name], library)?;
        directories.push(own);
    }
    Ok(directories)
}

/// Creates the links to `file` that are missing or wrong.
fn link(directory: &Path, names: &[&str], file: &Path) -> io::Result<()> {
    for name in names {
        let path = directory.join(name);
        if fs::read_link(&path).is_ok_and(|target| target == file) {
            continue;
        }
        // Renamed when complete, so that other processes always find the link. An existing draft is
        // left over from a process that died.
        let draft = directory.join(format!(".{name}.{}", std::process::id()));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(file, &draft)?;
        fs::rename(&draft, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("urxe-launch-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("own directory");
        path
    }

    #[test]
    fn existing_wrong_link_is_replaced() {
        let path = scratch("links");
        symlink("/old", path.join(NAMES[0])).expect("own directory");
        let library = Path::new("/new/liburxe.so");
        link(&path, &NAMES, library).expect("links");
        link(&path, &NAMES, library).expect("nothing to do");
        for name in NAMES {
            assert_eq!(fs::read_link(path.join(name)).expect("a link"), library);
        }
        assert_eq!(
            fs::read_dir(&path).expect("own directory").count(),
            NAMES.len()
        );
        fs::remove_dir_all(path).expect("own directory");
    }
}
