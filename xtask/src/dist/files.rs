//! Writes, lists and removes files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Writes a file and its parent directories.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, content))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes a directory if it exists.
pub(super) fn remove(directory: &Path) -> Result<(), String> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Makes an empty directory.
pub(super) fn recreate(directory: &Path) -> Result<(), String> {
    remove(directory)?;
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// Returns the paths of all files, links and directories below a directory. A directory precedes
/// its content.
pub(super) fn below(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", directory.display());
    let mut entries = fs::read_dir(directory)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.path()))
                .collect::<Result<Vec<_>, _>>()
        })
        .map_err(failed)?;
    entries.sort();
    let mut paths = Vec::new();
    for entry in entries {
        let is_directory = entry.is_dir() && !entry.is_symlink();
        paths.push(entry.clone());
        if is_directory {
            paths.extend(below(&entry)?);
        }
    }
    Ok(paths)
}

/// Sets the modes of a directory and of all below it to those that packages have, whatever the
/// umask was: 755 for directories and executable files, 644 for other files.
pub(super) fn set_modes(directory: &Path) -> Result<(), String> {
    let mut paths = below(directory)?;
    paths.push(directory.to_owned());
    for path in paths {
        let failed = |error| format!("{}: {error}", path.display());
        let metadata = path.symlink_metadata().map_err(failed)?;
        if metadata.is_symlink() {
            continue;
        }
        let is_executable = metadata.permissions().mode() & 0o100 != 0;
        let mode = if metadata.is_dir() || is_executable {
            0o755
        } else {
            0o644
        };
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(())
}
