//! Writes and removes files.

use std::fs;
use std::path::Path;

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
