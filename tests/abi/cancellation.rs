//! Cancellation of threads, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("cancellation");

#[test]
fn thread_that_waits_for_an_event_is_cancelled() {
    PROGRAM.passes("blocked");
}

#[test]
fn event_that_comes_while_a_thread_is_cancelled_is_not_lost() {
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
fn calls_that_do_not_wait_for_events_are_no_cancellation_points() {
    PROGRAM.passes("other_calls");
}

#[test]
fn thread_that_is_cancelled_forks_and_ends_the_process() {
    PROGRAM.passes("ends");
}
