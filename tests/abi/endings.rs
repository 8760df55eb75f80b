//! Threads that wait at what other threads destroy, in a C program; once more under valgrind, which sees
//! each look at memory that was freed.

use std::process::Command;

use super::c_program::CProgram;
use super::library;
use super::require::have_program;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("endings");

/// What valgrind says by its status.
const WRONG_ACCESS: &str = "99";

#[test]
fn who_asks_for_events_of_what_is_gone_is_told_so() {
    PROGRAM.passes("readers");
}

#[test]
fn who_sleeps_at_what_is_destroyed_sleeps_on() {
    PROGRAM.passes("sleepers");
}

#[test]
fn identifiers_and_events_outlive_their_channel() {
    PROGRAM.passes("channel_first");
}

#[test]
fn nobody_looks_at_memory_that_was_freed() {
    if !have_program("valgrind", "valgrind") {
        return;
    }
    let Some([program, _]) = PROGRAM.compiled() else {
        return;
    };
    for case in ["sleepers", "channel_first"] {
        let output = Command::new("valgrind")
            .args(["-q", &format!("--error-exitcode={WRONG_ACCESS}")])
            .arg(&program)
            .arg(case)
            .env("LD_LIBRARY_PATH", library::under_both_names())
            .env("URXE_LOG", "off")
            .output()
            .expect("valgrind runs");
        assert!(
            output.status.success(),
            "{case}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
