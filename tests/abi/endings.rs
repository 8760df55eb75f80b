//! Threads that wait at objects that other threads destroy, by a C program; also under valgrind,
//! which detects accesses to freed memory.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("endings");

#[test]
fn waiting_at_a_destroyed_object_fails_with_ebadf() {
    PROGRAM.passes("readers");
}

#[test]
fn a_sleeping_waiter_survives_destruction() {
    PROGRAM.passes("sleepers");
}

#[test]
fn identifiers_and_events_outlive_their_channel() {
    PROGRAM.passes("channel_first");
}

#[test]
fn waiting_threads_are_clean_under_valgrind() {
    PROGRAM.is_clean_under_valgrind(&["sleepers", "channel_first"]);
}
