//! The requirements of these tests: files and programs of Debian's packages.

use std::path::Path;
use std::process::Command;

use super::skip_test::skip_test;

/// Debian's headers of libibverbs.
pub const SYSTEM_HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Debian's headers of librdmacm.
pub const SYSTEM_CM_HEADER: &str = "/usr/include/rdma/rdma_cma.h";

/// Returns whether the file exists. If not, the test has been reported as skipped and must return.
#[must_use]
#[track_caller]
pub fn have_file(path: impl AsRef<Path>, package: &str) -> bool {
    let path = path.as_ref();
    let there = path.exists();
    if !there {
        skip_test(&format!(
            "needs {}: apt-get install {package}",
            path.display()
        ));
    }
    there
}

/// Returns whether the program runs. If not, the test has been reported as skipped and must return.
#[must_use]
#[track_caller]
pub fn have_program(name: &str, package: &str) -> bool {
    let runs = Command::new(name).arg("--version").output().is_ok();
    if !runs {
        skip_test(&format!(
            "needs the program {name}: apt-get install {package}"
        ));
    }
    runs
}
