//! Checks whether the dynamic linker would find a library, without loading it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The cache that `ldconfig` writes. It contains the names and paths as C strings.
const CACHE: &str = "/etc/ld.so.cache";

/// The dynamic linker's default directories.
const STANDARD: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Returns whether a library of this name is installed or in a directory of `search_path`.
pub fn has(name: &str, search_path: Option<&OsStr>) -> bool {
    let given = search_path.into_iter().flat_map(env::split_paths);
    let mut directories = given.chain(STANDARD.map(PathBuf::from));
    directories.any(|directory| is_library(directory.join(name)))
        || fs::read(CACHE).is_ok_and(|cache| cached(&cache, name).any(is_library))
}

/// Returns the cached paths of libraries with this name.
fn cached<'a>(cache: &'a [u8], name: &str) -> impl Iterator<Item = &'a Path> {
    let name = name.to_owned();
    cache
        .split(|byte| *byte == 0)
        .map(|text| Path::new(OsStr::from_bytes(text)))
        .filter(move |path| path.is_absolute() && path.file_name() == Some(OsStr::new(&name)))
}

/// Returns whether the file exists. Its architecture is not checked.
fn is_library(path: impl AsRef<Path>) -> bool {
    path.as_ref().is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_paths_are_found_by_library_name() {
        let cache = b"glibc-ld.so.cache1.1\0\x01\0liba.so.1\0/opt/x/liba.so.1\0/opt/x/liba.so.10\0";
        let found: Vec<_> = cached(cache, "liba.so.1").collect();
        assert_eq!(found, [Path::new("/opt/x/liba.so.1")]);
    }

    #[test]
    fn system_library_is_found() {
        assert!(has("libc.so.6", None));
        assert!(!has("libno-such-thing.so.1", None));
    }

    #[test]
    fn library_in_the_search_path_is_found() {
        let directory = env::temp_dir().join(format!("urxe-installed-{}", std::process::id()));
        fs::create_dir(&directory).expect("own directory");
        fs::write(directory.join("libmine.so.1"), "").expect("own directory");
        assert!(has("libmine.so.1", Some(directory.as_os_str())));
        fs::remove_dir_all(directory).expect("own directory");
    }
}
