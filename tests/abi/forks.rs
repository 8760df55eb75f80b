//! Forked children and their parents, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("forks");

#[test]
fn child_that_outlives_its_parent_keeps_neither_slot_nor_port() {
    PROGRAM.passes("outlives");
}

#[test]
fn children_that_exit_at_once_do_not_affect_the_parent() {
    PROGRAM.passes("idle");
}

#[test]
fn exec_inherits_no_descriptor() {
    PROGRAM.passes("execs");
}

#[test]
fn a_daemonized_child_makes_its_own_connections() {
    PROGRAM.passes("daemonizes");
}

#[test]
fn fork_safety_does_not_depend_on_ibv_fork_init() {
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
