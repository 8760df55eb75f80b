//! Many connections at once, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("many_connections");

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    PROGRAM.passes("thousand");
}

#[test]
fn five_hundred_simultaneous_clients_are_served() {
    PROGRAM.passes("room_for_all");
}

#[test]
fn clients_beyond_the_backlog_are_served_after_retransmission() {
    PROGRAM.passes("small_backlog");
}
