//! `urxe env`: prints variables for building and running programs over urxe.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::headers;
use crate::launch::{self, LaunchError};

/// The environment variable with pkg-config's first search directories.
const PKG_CONFIG: &str = "PKG_CONFIG_PATH";

/// A library for which a pkg-config file is written.
struct Package {
    name: &'static str,
    /// The version that programs compare with: that of rdma-core 65, whose API urxe covers.
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

/// An error that prevents printing the variables.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The libraries cannot be provided.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A value cannot be written in the format.
    #[error(
        "the value of {name} has a line break or is not UTF-8, which this format does not \
         permit: {value}; change HOME, TMPDIR or {name}",
        value = .value.display()
    )]
    Unusual {
        /// The name of the variable.
        name: String,
        /// Its value.
        value: OsString,
    },
    /// A file cannot be written.
    #[error("cannot write to {path}: {source}", path = .path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Print variables for building and running programs over urxe: eval "$(urxe env)"
#[derive(clap::Args)]
#[command(
    after_help = "The view of the devices in /sys/class/infiniband belongs to one program and its \
                  children; `urxe run` and `urxe shell` provide it."
)]
pub struct Arguments {
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
}

/// A form of variables.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Lines for a POSIX shell
    Shell,
    /// Lines to append to the file $GITHUB_ENV
    Github,
    /// A JSON object
    Json,
}

/// Prints the variables.
pub fn environment(arguments: &Arguments) -> ExitCode {
    match variables().and_then(|variables| text(&variables, arguments.format)) {
        Ok(lines) => {
            // A failed write means that the reader closed the pipe, which is no error.
            let _ = io::stdout().write_all(&lines);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("urxe env: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the variables, and writes the files to which they refer.
///
/// # Errors
/// Fails if the library is missing or a file cannot be written.
pub fn variables() -> Result<Vec<(&'static str, OsString)>, EnvironmentError> {
    let path = launch::search_path()?;
    let directory = env::split_paths(&path).next().unwrap_or_default();
    let packages = directory.join("pkgconfig");
    let written =
        headers(&directory).and_then(|headers| write_packages(&packages, &directory, &headers));
    written.map_err(|source| {
        let path = directory.clone();
        EnvironmentError::Write { path, source }
    })?;
    let mut package_path = packages.into_os_string();
    if let Some(rest) = env::var_os(PKG_CONFIG).filter(|rest| !rest.is_empty()) {
        package_path.push(":");
        package_path.push(rest);
    }
    Ok(vec![
        (launch::SEARCH_PATH, path),
        (PKG_CONFIG, package_path),
    ])
}

fn text(variables: &[(&str, OsString)], format: Format) -> Result<Vec<u8>, EnvironmentError> {
    if format == Format::Shell {
        return Ok(variables
            .iter()
            .flat_map(|(name, value)| export(name, value))
            .collect());
    }
    let mut object = serde_json::Map::new();
    let mut lines = String::new();
    for &(name, ref value) in variables {
        let unusual = || EnvironmentError::Unusual {
            name: name.to_owned(),
            value: value.clone(),
        };
        let value = value.to_str().ok_or_else(unusual)?;
        if format == Format::Github && value.contains(['\n', '\r']) {
            return Err(unusual());
        }
        lines += &format!("{name}={value}\n");
        object.insert(name.to_owned(), value.into());
    }
    match format {
        Format::Json => Ok(format!("{}\n", serde_json::Value::Object(object)).into_bytes()),
        Format::Github | Format::Shell => Ok(lines.into_bytes()),
    }
}

/// Returns an `export` line with the value in single quotes.
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

/// Returns the directory with the installed headers, or else writes those that the command contains
/// to a directory in `directory`.
fn headers(directory: &Path) -> io::Result<PathBuf> {
    let executable = env::current_exe().unwrap_or_default();
    let prefix = executable.parent().and_then(Path::parent);
    let installed = prefix.map(|prefix| prefix.join("include/urxe"));
    if let Some(installed) = installed.filter(|path| path.join("infiniband/verbs.h").is_file()) {
        return Ok(installed);
    }
    let contained = directory.join("include");
    headers::write(&contained)?;
    Ok(contained)
}

/// Writes the pkg-config files.
fn write_packages(packages: &Path, libraries: &Path, headers: &Path) -> io::Result<()> {
    fs::create_dir_all(packages)?;
    for Package {
        name,
        version,
        file,
        needs,
    } in PACKAGES
    {
        // `-l:FILE` records the library's soname, so the program also runs with rdma-core.
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
        // Renamed when complete, because another process may be reading the file.
        let draft = packages.join(format!(".{name}.{}", std::process::id()));
        fs::write(&draft, text)?;
        fs::rename(&draft, packages.join(format!("{name}.pc")))?;
    }
    Ok(())
}

/// Quotes a path as pkg-config expects: as a word of a shell command.
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
    fn export_line_quotes_the_value() {
        let line = export("X", &OsString::from("a b'c$d"));
        assert_eq!(line, b"export X='a b'\\''c$d'\n");
    }

    #[test]
    fn formats_have_the_same_variables() {
        let variables = [("A", OsString::from("/x")), ("B", OsString::from("y\"z"))];
        let text =
            |format| String::from_utf8(text(&variables, format).expect("text")).expect("text");
        assert_eq!(text(Format::Github), "A=/x\nB=y\"z\n");
        assert_eq!(text(Format::Json), "{\"A\":\"/x\",\"B\":\"y\\\"z\"}\n");
    }

    #[test]
    fn line_break_would_set_another_variable() {
        let variables = [("A", OsString::from("x\nLD_PRELOAD=/y"))];
        assert!(text(&variables, Format::Github).is_err());
        assert!(text(&variables, Format::Json).is_ok());
    }

    #[test]
    fn pkg_config_path_is_quoted() {
        assert_eq!(quoted(Path::new("/a b/$c")), "/a\\ b/$$c");
    }
}
