//! Many connections at once, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("crowd");

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    PROGRAM.passes("thousand");
}

#[test]
fn five_hundred_clients_at_once_are_all_served() {
    PROGRAM.passes("room_for_all");
}

#[test]
fn clients_beyond_the_backlog_are_served_when_they_ask_again() {
    PROGRAM.passes("small_backlog");
}
