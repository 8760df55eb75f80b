//! Finds the shared objects of urxe: in the build tree, where they are installed, or within this
//! command.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::embedded;

pub use crate::embedded::{LIBRARY, PRELOAD, RSPRELOAD};

/// An error that prevents using a shared object.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The path of this command is unknown.
    #[error("cannot determine the path of this command: {0}")]
    NoExecutable(#[source] io::Error),
    /// No directory has the object.
    #[error(
        "{name} is not beside this command, nor in any of these directories: {}; build it with \
         `cargo build --release`, or install it beside this command",
        list(.directories)
    )]
    NotFound {
        /// The name of the object.
        name: &'static str,
        /// The directories that were searched.
        directories: Vec<PathBuf>,
    },
    /// The object that this command contains cannot be written to a file.
    #[error(
        "cannot write {name} to {path}: {source}; set XDG_CACHE_HOME or TMPDIR to a writable \
         directory where programs may be executed",
        path = .path.display()
    )]
    NotUnpacked {
        /// The name of the object.
        name: &'static str,
        /// The last directory that was tried.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn list(directories: &[PathBuf]) -> String {
    let names = directories.iter().map(|path| path.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the absolute path of the shared object that belongs to this command.
///
/// An object that the command contains precedes those in system directories, which may belong to
/// another version.
///
/// # Errors
/// Fails if there is none.
pub fn find(name: &'static str) -> Result<PathBuf, LibraryError> {
    let executable = env::current_exe().map_err(LibraryError::NoExecutable)?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    if let Some(path) = newest_built(beside, name) {
        return Ok(path);
    }
    let prefix = beside.parent().unwrap_or(Path::new("/"));
    let own = library_directories(prefix);
    if let Some(path) = first_with(&own, name) {
        return Ok(path);
    }
    if let Some(object) = embedded::object(name) {
        return embedded::unpack(object).map_err(|(path, source)| LibraryError::NotUnpacked {
            name,
            path,
            source,
        });
    }
    let mut directories = own;
    for prefix in ["/usr/local", "/usr"].map(Path::new) {
        if !directories.starts_with(&library_directories(prefix)) {
            directories.extend(library_directories(prefix));
        }
    }
    first_with(&directories, name).ok_or(LibraryError::NotFound { name, directories })
}

/// Returns the object in the command's own directory. `cargo run` and `cargo test` write it to
/// `deps` only, `cargo build` also beside the command. The newest file was built together with this
/// command.
fn newest_built(beside: &Path, name: &str) -> Option<PathBuf> {
    [beside.join(name), beside.join("deps").join(name)]
        .into_iter()
        .filter_map(|path| Some((modified(&path)?, path)))
        .max_by_key(|(modified, _)| *modified)
        .map(|(_, path)| path)
}

fn first_with(directories: &[PathBuf], name: &str) -> Option<PathBuf> {
    directories
        .iter()
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

fn modified(path: &Path) -> Option<SystemTime> {
    let metadata = path.metadata().ok()?;
    metadata.is_file().then(|| metadata.modified().ok())?
}

/// Returns the usual library directories of an installation.
fn library_directories(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let of_architecture = lib.join(format!("{}-linux-gnu", env::consts::ARCH));
    vec![
        lib.join("urxe"),
        of_architecture.join("urxe"),
        lib,
        prefix.join("lib64"),
        of_architecture,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn tree(name: &str) -> PathBuf {
        let root = env::temp_dir().join(format!("urxe-library-{}-{name}", std::process::id()));
        fs::create_dir_all(root.join("bin/deps")).expect("own directory");
        fs::create_dir_all(root.join("lib")).expect("own directory");
        root
    }

    #[test]
    fn newest_library_of_a_build_tree_is_used() {
        let root = tree("newest");
        let beside = root.join("bin").join(LIBRARY);
        let deps = root.join("bin/deps").join(LIBRARY);
        for (older, newer) in [(&beside, &deps), (&deps, &beside)] {
            let file = fs::File::create(older).expect("own file");
            file.set_modified(SystemTime::now() - Duration::from_secs(60))
                .expect("own file");
            fs::File::create(newer)
                .and_then(|file| file.set_modified(SystemTime::now()))
                .expect("own file");
            let found = newest_built(&root.join("bin"), LIBRARY).expect("one is there");
            assert_eq!(&found, newer);
        }
        fs::remove_dir_all(root).expect("own directory");
    }

    #[test]
    fn installation_is_found_beside_its_command() {
        let root = tree("installed");
        fs::File::create(root.join("lib").join(LIBRARY)).expect("own file");
        let found = first_with(&library_directories(&root), LIBRARY).expect("one is there");
        assert_eq!(found, root.join("lib").join(LIBRARY));
        fs::remove_dir_all(root).expect("own directory");
    }
}
