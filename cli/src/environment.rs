//! `urxe env`: the variables with which a shell's programs are built and run over urxe.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::launch::{self, LaunchError};

/// Where pkg-config looks first.
const PKG_CONFIG: &str = "PKG_CONFIG_PATH";

/// A library as pkg-config knows it.
struct Package {
    name: &'static str,
    /// Programs ask whether it is new enough: as new as rdma-core 65, whose names are all there.
    version: &'static str,
    file: &'static str,
    needs: &'static str,
}

const PACKAGES: [Package; 2] = [
    Package {
        name: "libibverbs",
        version: "1.18.65.0",
        file: "libibverbs.so.1",
        needs: "",
    },
    Package {
        name: "librdmacm",
        version: "1.5.65.0",
        file: "librdmacm.so.1",
        needs: "libibverbs",
    },
];

/// Why the variables cannot be told.
#[derive(Debug, thiserror::Error)]
enum EnvironmentError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("the headers are not in any of these directories: {0}; get urxe's `include` directory")]
    NoHeaders(String),
    #[error("{path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Prints them, for `eval "$(urxe env)"`.
pub fn environment() -> ExitCode {
    match variables() {
        Ok(lines) => {
            // A reader that closed the pipe has seen what it wanted.
            let _ = io::stdout().write_all(&lines);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("urxe env: {error}");
            ExitCode::FAILURE
        }
    }
}

fn variables() -> Result<Vec<u8>, EnvironmentError> {
    let path = launch::search_path()?;
    let directory = env::split_paths(&path).next().unwrap_or_default();
    let packages = directory.join("pkgconfig");
    write_packages(&packages, &directory, &headers()?).map_err(|source| {
        let path = packages.clone();
        EnvironmentError::Write { path, source }
    })?;
    let mut package_path = packages.into_os_string();
    if let Some(rest) = env::var_os(PKG_CONFIG).filter(|rest| !rest.is_empty()) {
        package_path.push(":");
        package_path.push(rest);
    }
    Ok([
        export(launch::SEARCH_PATH, &path),
        export(PKG_CONFIG, &package_path),
    ]
    .concat())
}

/// A line for the shell, whatever the value holds.
fn export(name: &str, value: &OsString) -> Vec<u8> {
    let mut line = format!("export {name}='").into_bytes();
    for byte in value.as_bytes() {
        match byte {
            b'\'' => line.extend(b"'\\''"),
            byte => line.push(*byte),
        }
    }
    line.extend(b"'\n");
    line
}

/// The directory with the headers: installed with this command, or in the source that it was built from.
fn headers() -> Result<PathBuf, EnvironmentError> {
    let executable = env::current_exe().unwrap_or_default();
    let prefix = executable.parent().and_then(Path::parent);
    let installed = prefix.map(|prefix| prefix.join("include/urxe"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let candidates: Vec<PathBuf> = installed.into_iter().chain([source]).collect();
    let found = candidates
        .iter()
        .find(|directory| directory.join("infiniband/verbs.h").is_file());
    found.cloned().ok_or_else(|| {
        let names = candidates.iter().map(|path| path.display().to_string());
        EnvironmentError::NoHeaders(names.collect::<Vec<_>>().join(", "))
    })
}

/// Writes the files that pkg-config reads.
fn write_packages(packages: &Path, libraries: &Path, headers: &Path) -> io::Result<()> {
    fs::create_dir_all(packages)?;
    for Package {
        name,
        version,
        file,
        needs,
    } in PACKAGES
    {
        // The full name of the file is what the program will ask for, here and with rdma-core.
        let text = format!(
            "Name: {name}\n\
             Description: RDMA verbs in user space, by urxe\n\
             Version: {version}\n\
             Requires: {needs}\n\
             Libs: -L{} -l:{file}\n\
             Cflags: -I{}\n",
            quoted(libraries),
            quoted(headers)
        );
        // Renamed when complete: another may be reading it.
        let draft = packages.join(format!(".{name}.{}", std::process::id()));
        fs::write(&draft, text)?;
        fs::rename(&draft, packages.join(format!("{name}.pc")))?;
    }
    Ok(())
}

/// A path as a word of a shell's line, which is how pkg-config reads it.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    path.chars()
        .flat_map(|c| match c {
            ' ' | '"' | '\'' | '\\' | '#' => vec!['\\', c],
            '$' => vec!['$', '$'],
            c => vec![c],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_gets_the_value_as_it_is() {
        let line = export("X", &OsString::from("a b'c$d"));
        assert_eq!(line, b"export X='a b'\\''c$d'\n");
    }

    #[test]
    fn pkg_config_gets_the_path_as_it_is() {
        assert_eq!(quoted(Path::new("/a b/$c")), "/a\\ b/$$c");
    }
}
