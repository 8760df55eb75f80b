//! Shared receive queues and extended reliable connections, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("shared");

#[test]
fn shared_queue_is_checked_resized_and_busy_while_used() {
    PROGRAM.passes("queues");
}

#[test]
fn domain_belongs_to_a_file_and_is_kept_while_it_is_used() {
    PROGRAM.passes("domains");
}

#[test]
fn a_target_fails_when_the_completion_queue_of_its_receives_overruns() {
    PROGRAM.passes("overrun_target");
}

#[test]
fn an_opened_target_lives_until_its_last_close() {
    PROGRAM.passes("targets");
}
