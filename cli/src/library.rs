//! Finds the shared objects of urxe: in the build tree, or where they are installed.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The replacement for libibverbs and librdmacm.
pub const LIBRARY: &str = "liburxe.so";
/// The object that redirects sysfs paths, where mounts are not possible.
pub use urxe_sysfs::PRELOAD;
/// The object that redirects socket calls to rsockets.
pub const RSPRELOAD: &str = "librspreload.so";

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
}

fn list(directories: &[PathBuf]) -> String {
    let names = directories.iter().map(|path| path.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the absolute path of the shared object that belongs to this command.
///
/// # Errors
/// Fails if there is none.
pub fn find(name: &'static str) -> Result<PathBuf, LibraryError> {
    let executable = env::current_exe().map_err(LibraryError::NoExecutable)?;
    find_for(&executable, name)
}

fn find_for(executable: &Path, name: &'static str) -> Result<PathBuf, LibraryError> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    // `cargo run` and `cargo test` write the library to deps/ only, `cargo build` also beside the
    // command. The newest file was built together with this command.
    let built = [beside.join(name), beside.join("deps").join(name)];
    let newest = built
        .into_iter()
        .filter_map(|path| Some((modified(&path)?, path)))
        .max_by_key(|(modified, _)| *modified);
    if let Some((_, path)) = newest {
        return Ok(path);
    }
    let directories = installed(beside);
    let found = directories
        .iter()
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    found.ok_or(LibraryError::NotFound { name, directories })
}

fn modified(path: &Path) -> Option<SystemTime> {
    let metadata = path.metadata().ok()?;
    metadata.is_file().then(|| metadata.modified().ok())?
}

/// Returns the usual library directories, that of this command's own prefix first.
fn installed(beside: &Path) -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", env::consts::ARCH);
    let prefix = beside.parent().unwrap_or(Path::new("/"));
    let mut directories = Vec::new();
    for prefix in [prefix, Path::new("/usr/local"), Path::new("/usr")] {
        for name in ["lib/urxe", "lib", "lib64"] {
            directories.push(prefix.join(name));
        }
        directories.push(prefix.join("lib").join(&triplet));
        directories.push(prefix.join("lib").join(&triplet).join("urxe"));
    }
    let mut seen = Vec::new();
    directories.retain(|directory| {
        let new = !seen.contains(directory);
        seen.push(directory.clone());
        new
    });
    directories
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
            let found = find_for(&root.join("bin/urxe"), LIBRARY).expect("one is there");
            assert_eq!(&found, newer);
        }
        fs::remove_dir_all(root).expect("own directory");
    }

    #[test]
    fn installation_is_found_beside_its_command() {
        let root = tree("installed");
        fs::File::create(root.join("lib").join(LIBRARY)).expect("own file");
        let found = find_for(&root.join("bin/urxe"), LIBRARY).expect("one is there");
        assert_eq!(found, root.join("lib").join(LIBRARY));
        fs::remove_dir_all(root).expect("own directory");
    }
}
