//! Unpacks rdma-core's tests. The package ships them as documentation, with large files compressed.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use super::error::Error;

/// The directories of the suite in distributions.
const HOMES: [&str; 3] = [
    "/usr/share/doc/rdma-core/tests",
    "/usr/share/doc/python3-pyverbs/tests",
    "/usr/share/doc/packages/rdma-core/tests",
];

/// Tests that need the NICs of particular vendors.
const OF_VENDORS: [&str; 2] = ["test_mlx5", "test_efa"];

/// The names of Python. The system's own has the package's modules.
const PYTHONS: [&str; 2] = ["/usr/bin/python3", "python3"];

/// Returns the Python that has pyverbs, if any.
pub(super) fn python() -> Option<&'static str> {
    PYTHONS.into_iter().find(|python| {
        Command::new(python)
            .args([
                "-c",
                "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyverbs') is None)",
            ])
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

/// Copies the generic tests to `to/tests`.
pub(super) fn unpack(to: &Path) -> Result<(), Error> {
    let home = HOMES
        .into_iter()
        .map(Path::new)
        .find(|home| home.is_dir())
        .ok_or_else(|| Error::NoSuite(HOMES.join(", ")))?;
    let tests = to.join("tests");
    if tests.exists() {
        fs::remove_dir_all(&tests).map_err(Error::at(&tests))?;
    }
    fs::create_dir_all(&tests).map_err(Error::at(&tests))?;
    for entry in fs::read_dir(home).map_err(Error::at(home))? {
        let from = entry.map_err(Error::at(home))?.path();
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        if OF_VENDORS.iter().any(|start| name.starts_with(start)) || from.is_dir() {
            continue;
        }
        match name.strip_suffix(".gz") {
            Some(plain) => decompress(&from, &tests.join(plain))?,
            None => fs::copy(&from, tests.join(&*name))
                .map(drop)
                .map_err(Error::at(&from))?,
        }
    }
    Ok(())
}

fn decompress(from: &Path, to: &Path) -> Result<(), Error> {
    let output = File::create(to).map_err(Error::at(to))?;
    let status = Command::new("gzip")
        .args(["--decompress", "--stdout"])
        .arg(from)
        .stdout(output)
        .status()
        .map_err(Error::at(Path::new("gzip")))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::NotUnpacked(from.to_owned()))
    }
}
