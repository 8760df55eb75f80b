//! Forked children and their parents, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("forks");

#[test]
fn child_that_outlives_its_parent_keeps_neither_slot_nor_port() {
    PROGRAM.passes("outlives");
}

#[test]
fn children_that_end_at_once_disturb_nobody() {
    PROGRAM.passes("idle");
}

#[test]
fn what_a_child_becomes_has_no_file_of_ours() {
    PROGRAM.passes("execs");
}

#[test]
fn daemon_has_connections_of_its_own() {
    PROGRAM.passes("daemonizes");
}

#[test]
fn fork_safety_is_there_whether_asked_for_or_not() {
    PROGRAM.passes("safety");
}

#[test]
fn children_use_the_library_while_threads_of_their_parent_do() {
    PROGRAM.passes("busy_parents");
}

#[test]
fn child_writes_messages_while_a_thread_of_its_parent_does() {
    PROGRAM.passes("messages");
}
