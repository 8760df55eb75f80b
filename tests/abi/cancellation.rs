//! Cancellation of threads, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("cancellation");

#[test]
fn thread_that_waits_for_an_event_is_cancelled() {
    PROGRAM.passes("blocked");
}

#[test]
fn cancellation_loses_no_event() {
    PROGRAM.passes("races");
}

#[test]
fn thread_that_has_disabled_cancellation_waits_on() {
    PROGRAM.passes("disabled");
}

#[test]
fn pending_cancellation_is_acted_on_before_an_event_is_taken() {
    PROGRAM.passes("does_not_block");
}

#[test]
fn only_waiting_calls_are_cancellation_points() {
    PROGRAM.passes("other_calls");
}

#[test]
fn thread_that_is_cancelled_forks_and_ends_the_process() {
    PROGRAM.passes("ends");
}
