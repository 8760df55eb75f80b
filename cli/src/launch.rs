//! How programs come to load urxe: a directory of this user with the two library names, each a link
//! to `liburxe.so`, first in `LD_LIBRARY_PATH`; and more of the kind for libraries that are missing.
//!
//! The directory stays: a program that replaces itself by another, or loads the library late, must
//! still find it, and `urxe run` is replaced by the program and could not clean up. It is small, one
//! for each library, and links are replaced whole, so that many may start at once.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::installed;
use crate::library::{self, LibraryError};

/// The names by which programs ask for the libraries that urxe replaces.
pub const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Libraries that many programs are linked with, for devices that urxe does not have. Where they are
/// not installed, urxe stands in for them, and says that none of its devices is one of theirs.
pub const STAND_INS: [&str; 2] = ["libmlx5.so.1", "libefa.so.1"];

/// The dynamic linker's search path.
pub const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// What the dynamic linker loads before a program's libraries.
pub const PRELOAD: &str = "LD_PRELOAD";

/// For the owner alone.
const PRIVATE: u32 = 0o700;
/// The bits of a mode that let others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// How many names to try where another user holds the first ones.
const ATTEMPTS: u32 = 16;

/// Why the libraries cannot be put in a program's way.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// No place for the directory.
    #[error(
        "no directory of one's own for the libraries' names could be made: {path}: {source}; set \
         TMPDIR to a directory that can be written to",
        path = .path.display()
    )]
    NoDirectory {
        /// The last that was tried.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The value of [`SEARCH_PATH`] for a program that shall use urxe.
///
/// # Errors
/// When there is no library, or no place for its names.
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

/// The directories with the names of `library`: one with those that it always has, and one for each
/// library for which it stands in.
fn directories_for(library: &Path, stand_ins: &[&str]) -> Result<Vec<PathBuf>, LaunchError> {
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let name = format!("{:016x}", hasher.finish());
    let mut last = None;
    for base in bases() {
        match own_directory(&base).and_then(|()| make_all(base.join(&name), library, stand_ins)) {
            Ok(directories) => return Ok(directories),
            Err(source) => last = Some((base, source)),
        }
    }
    let (path, source) = last.expect("there is at least the directory for temporary files");
    Err(LaunchError::NoDirectory { path, source })
}

fn make_all(directory: PathBuf, library: &Path, stand_ins: &[&str]) -> io::Result<Vec<PathBuf>> {
    own_directory(&directory)?;
    link(&directory, &NAMES, library)?;
    let mut directories = vec![directory];
    for name in stand_ins {
        let own = directories[0].join(format!("instead-of-{name}"));
        own_directory(&own)?;
        link(&own, &[name], library)?;
        directories.push(own);
    }
    Ok(directories)
}

/// Where the directory may be, the best place first. In the directory for temporary files another
/// user may hold a name: as a nuisance, or because it is the same number in another user namespace.
fn bases() -> Vec<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute());
    let user = rustix::process::geteuid().as_raw();
    let temporary = env::temp_dir();
    let numbered = (0..ATTEMPTS).map(|attempt| match attempt {
        0 => temporary.join(format!("urxe-{user}")),
        _ => temporary.join(format!("urxe-{user}.{attempt}")),
    });
    runtime
        .map(|path| path.join("urxe"))
        .into_iter()
        .chain(numbered)
        // It would be two directories to the dynamic linker.
        .filter(|path| !is_split(path.as_os_str()))
        .collect()
}

/// Whether the dynamic linker would take it for several paths, or as something to substitute.
fn is_split(path: &OsStr) -> bool {
    path.as_bytes().iter().any(|byte| b":;$".contains(byte))
}

/// Makes sure of a directory that is there, is this user's, and that nobody else can write to:
/// whoever can would decide which code programs load.
fn own_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Of the entry itself: a link would be somebody else's choice.
    let metadata = fs::symlink_metadata(path)?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !own || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user, or others can write to it",
        ));
    }
    Ok(())
}

/// Makes the links that are not there or wrong.
fn link(directory: &Path, names: &[&str], library: &Path) -> io::Result<()> {
    for name in names {
        let path = directory.join(name);
        if fs::read_link(&path).is_ok_and(|target| target == library) {
            continue;
        }
        // Renamed when complete, so that others never find it missing. A draft of the same name
        // was left by a process that died.
        let draft = directory.join(format!(".{name}.{}", std::process::id()));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(library, &draft)?;
        fs::rename(&draft, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("urxe-launch-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("own directory");
        path
    }

    #[test]
    fn directory_that_others_can_write_to_is_refused() {
        let path = scratch("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("own directory");
        assert!(own_directory(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(PRIVATE)).expect("own directory");
        assert!(own_directory(&path).is_ok());
        let through_link = path.join("link");
        symlink(&path, &through_link).expect("own directory");
        assert!(own_directory(&through_link).is_err());
        fs::remove_dir_all(path).expect("own directory");
    }

    #[test]
    fn links_are_right_whoever_makes_them_at_the_same_time() {
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

    #[test]
    fn path_that_the_dynamic_linker_would_split_is_not_used() {
        assert!(is_split(OsStr::new("/a:b")));
        assert!(is_split(OsStr::new("/$LIB")));
        assert!(!is_split(OsStr::new("/run/user/1000")));
    }
}
