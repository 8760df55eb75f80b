//! What these tests need from the machine, with the rule of all integration tests here: under
//! `CI=true` a missing need is a failure, elsewhere the test says that it is left out.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::thread;

/// Debian's headers of libibverbs.
pub const SYSTEM_HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Whether the file is there. If not, the test has been reported as left out and must return.
#[must_use]
pub fn have_file(path: impl AsRef<Path>, package: &str) -> bool {
    let path = path.as_ref();
    path.exists()
        || left_out(&format!(
            "needs {}: apt-get install {package}",
            path.display()
        ))
}

/// Whether the program runs. If not, the test has been reported as left out and must return.
#[must_use]
pub fn have_program(name: &str, package: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok()
        || left_out(&format!(
            "needs the program {name}: apt-get install {package}"
        ))
}

fn left_out(why: &str) -> bool {
    assert!(env::var("CI").as_deref() != Ok("true"), "{why}");
    let test = thread::current();
    // Written directly, because libtest hides what passing tests print.
    let _ = writeln!(
        io::stdout(),
        "\nLEFT OUT: {}: {why}",
        test.name().unwrap_or("a test")
    );
    false
}
