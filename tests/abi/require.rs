//! What these tests need from the machine: files and programs of Debian's packages.

use std::path::Path;
use std::process::Command;

use super::left_out::left_out;

/// Debian's headers of libibverbs.
pub const SYSTEM_HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Debian's headers of librdmacm.
pub const SYSTEM_CM_HEADER: &str = "/usr/include/rdma/rdma_cma.h";

/// Whether the file is there. If not, the test has been reported as left out and must return.
#[must_use]
#[track_caller]
pub fn have_file(path: impl AsRef<Path>, package: &str) -> bool {
    let path = path.as_ref();
    let there = path.exists();
    if !there {
        left_out(&format!(
            "needs {}: apt-get install {package}",
            path.display()
        ));
    }
    there
}

/// Whether the program runs. If not, the test has been reported as left out and must return.
#[must_use]
#[track_caller]
pub fn have_program(name: &str, package: &str) -> bool {
    let runs = Command::new(name).arg("--version").output().is_ok();
    if !runs {
        left_out(&format!(
            "needs the program {name}: apt-get install {package}"
        ));
    }
    runs
}
