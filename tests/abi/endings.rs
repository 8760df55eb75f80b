//! Threads that wait at what other threads destroy, in a C program; once more under valgrind, which sees
//! each look at memory that was freed.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("endings");

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
    PROGRAM.is_clean_under_valgrind(&["sleepers", "channel_first"]);
}
