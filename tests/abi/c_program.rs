//! The C programs of this folder, which test the C ABI: compiled with urxe's headers and with
//! rdma-core's, run with urxe's library.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::library;
use super::require::{SYSTEM_CM_HEADER, SYSTEM_HEADER, have_file, have_program};
use super::skip_test::skip_test;

/// The exit status of a case with unmet needs, which prints the reason.
const LEFT_OUT: i32 = 77;

/// The exit status of valgrind after an invalid access.
const WRONG_ACCESS: &str = "99";

/// Returns the command prefix that runs a program in a new network namespace, apart from the
/// packets of other programs; empty if namespaces are not available.
fn alone() -> &'static [&'static str] {
    static WORDS: OnceLock<&[&str]> = OnceLock::new();
    const AS_ROOT: [&str; 6] = ["unshare", "-n", "sh", "-c", LOOPBACK_UP, "alone"];
    const AS_A_USER: [&str; 6] = ["unshare", "-rn", "sh", "-c", LOOPBACK_UP, "alone"];
    const LOOPBACK_UP: &str = "ip link set lo up && exec \"$@\"";
    WORDS.get_or_init(|| {
        let works = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            let tried = command.args(&words[1..]).arg("true").output();
            tried.is_ok_and(|output| output.status.success())
        };
        let ways: [&[&str]; 2] = [&AS_ROOT, &AS_A_USER];
        ways.into_iter().find(|way| works(way)).unwrap_or_default()
    })
}

/// A program, by the name of its source without the extension. Its argument is the name of a case.
#[derive(Clone, Copy)]
pub struct CProgram(pub &'static str);

impl CProgram {
    /// Returns the binaries with urxe's headers and with the system's, or `None` if they cannot be
    /// built.
    pub fn compiled(self) -> Option<[PathBuf; 2]> {
        static COMPILED: Mutex<Option<HashMap<&'static str, [PathBuf; 2]>>> = Mutex::new(None);
        let complete = have_program("cc", "gcc")
            && have_file(SYSTEM_HEADER, "libibverbs-dev")
            && have_file(SYSTEM_CM_HEADER, "librdmacm-dev");
        if !complete {
            return None;
        }
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = compiled.get_or_insert_default();
        let include = urxe_tests::workspace().join("include");
        let binaries = compiled.entry(self.0).or_insert_with(|| {
            [
                self.compile("urxe", Some(&include)),
                self.compile("rdma_core", None),
            ]
        });
        Some(binaries.clone())
    }

    fn compile(self, headers: &str, include: Option<&Path>) -> PathBuf {
        let name = format!("{}_{headers}", self.0);
        let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1"]);
        compiler.args(["-Wall", "-Wextra", "-Werror", "-pthread"]);
        if let Some(include) = include {
            compiler.arg("-I").arg(include);
        }
        let compiled = compiler
            .arg(urxe_tests::workspace().join(format!("tests/abi/{}.c", self.0)))
            .arg("-o")
            .arg(&binary)
            .arg("-L")
            .arg(library::under_both_names())
            .args(["-l:librdmacm.so.1", "-l:libibverbs.so.1"])
            .output()
            .expect("cc runs");
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{name}: {said}");
        binary
    }

    /// Runs a case of both binaries.
    ///
    /// # Panics
    /// If one fails.
    #[track_caller]
    pub fn passes(self, case: &str) {
        for program in self.compiled().iter().flatten() {
            // Errors are deliberate, so messages are off. The timeout is for calls that block
            // without limit.
            let mut command = Command::new("timeout");
            let output = command
                .arg("60")
                .args(alone())
                .arg(program)
                .arg(case)
                .env("LD_LIBRARY_PATH", library::under_both_names())
                // Cases that add interfaces still use the loopback device.
                .env("URXE_DEVICES", "*")
                .env("URXE_LOG", "off")
                .output()
                .expect("the program runs");
            if output.status.code() == Some(LEFT_OUT) {
                skip_test(String::from_utf8_lossy(&output.stdout).trim());
                return;
            }
            assert!(
                output.status.success(),
                "{}, {case}: {}\n{}{}",
                program.display(),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    /// Runs cases under valgrind, which detects accesses to freed, unallocated and uninitialized
    /// memory.
    ///
    /// # Panics
    /// If it detects one, or a case fails.
    #[track_caller]
    pub fn is_clean_under_valgrind(self, cases: &[&str]) {
        if !have_program("valgrind", "valgrind") {
            return;
        }
        let Some([program, _]) = self.compiled() else {
            return;
        };
        for case in cases {
            let output = Command::new("timeout")
                .arg("300")
                .args(alone())
                .args([
                    "valgrind",
                    "-q",
                    &format!("--error-exitcode={WRONG_ACCESS}"),
                ])
                .arg(&program)
                .arg(case)
                .env("LD_LIBRARY_PATH", library::under_both_names())
                // Cases that add interfaces still use the loopback device.
                .env("URXE_DEVICES", "*")
                .env("URXE_LOG", "off")
                .output()
                .expect("valgrind runs");
            if output.status.code() == Some(LEFT_OUT) {
                skip_test(String::from_utf8_lossy(&output.stdout).trim());
                continue;
            }
            assert!(
                output.status.success(),
                "{case}: {}\n{}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
