//! Threads that wait at objects that other threads destroy, and devices that are closed before
//! their objects, by a C program; also under valgrind, which detects accesses to freed memory.

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
fn closing_a_device_ends_the_objects_that_are_left() {
    PROGRAM.passes("device_first");
}

#[test]
fn closing_a_device_closes_its_descriptors() {
    PROGRAM.passes("device_only");
}

#[test]
fn objects_live_until_the_last_context_that_shares_them_is_closed() {
    PROGRAM.passes("imported_device");
}

#[test]
fn endings_are_clean_under_valgrind() {
    let cases = [
        "sleepers",
        "channel_first",
        "device_first",
        "imported_device",
    ];
    PROGRAM.is_clean_under_valgrind(&cases);
}
