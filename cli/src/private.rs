//! Directories that only this user can write to, for code that programs load.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The mode of directories that only the owner may access.
const PRIVATE: u32 = 0o700;
/// The mode bits that let other users write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Names to try in the directory for temporary files, where other users may own the first ones.
const ATTEMPTS: u32 = 16;

/// Returns the directories to try for files of one login session, the preferred one first.
pub fn bases() -> impl Iterator<Item = PathBuf> {
    let runtime = absolute("XDG_RUNTIME_DIR").map(|path| path.join("urxe"));
    runtime
        .into_iter()
        .chain(temporary())
        .filter(|path| !is_split(path.as_os_str()))
}

/// Returns the directories to try for files that outlive a login session, the preferred one first.
/// Missing parents of the first one are created.
pub fn caches() -> impl Iterator<Item = PathBuf> {
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let cache = absolute("XDG_CACHE_HOME").or_else(home);
    if let Some(cache) = &cache {
        // Without it, the directory itself cannot be created either, which is then reported.
        let _ = DirBuilder::new()
            .mode(PRIVATE)
            .recursive(true)
            .create(cache);
    }
    cache
        .map(|path| path.join("urxe"))
        .into_iter()
        .chain(temporary())
        .filter(|path| !is_split(path.as_os_str()))
}

fn absolute(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}

/// Returns names in the directory for temporary files. Another user may own a name there, on
/// purpose or because user namespaces reuse user IDs.
fn temporary() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let temporary = env::temp_dir();
    (0..ATTEMPTS).map(move |attempt| match attempt {
        0 => temporary.join(format!("urxe-{user}")),
        _ => temporary.join(format!("urxe-{user}.{attempt}")),
    })
}

/// Returns whether the dynamic linker would split the path or substitute a part of it.
fn is_split(path: &OsStr) -> bool {
    path.as_bytes().iter().any(|byte| b":;$".contains(byte))
}

/// Creates a private directory, or checks that an existing one belongs to this user and that no
/// other user can write to it. A writer would control which code programs load.
///
/// # Errors
/// Fails if the directory cannot be created or is not private.
pub fn directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Does not follow a symbolic link, whose target another user may control.
    let metadata = fs::symlink_metadata(path)?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !own || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the directory belongs to another user or is writable by others",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn directory_that_others_can_write_to_is_refused() {
        let path = env::temp_dir().join(format!("urxe-private-{}", std::process::id()));
        fs::create_dir(&path).expect("own directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("own directory");
        assert!(directory(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(PRIVATE)).expect("own directory");
        assert!(directory(&path).is_ok());
        let through_link = path.join("link");
        symlink(&path, &through_link).expect("own directory");
        assert!(directory(&through_link).is_err());
        fs::remove_dir_all(path).expect("own directory");
    }

    #[test]
    fn path_that_the_dynamic_linker_would_split_is_not_used() {
        assert!(is_split(OsStr::new("/a:b")));
        assert!(is_split(OsStr::new("/$LIB")));
        assert!(!is_split(OsStr::new("/run/user/1000")));
    }
}
