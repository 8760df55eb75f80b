//! Interfaces and addresses that change under identifiers, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("changes");

#[test]
fn device_removal_is_reported_to_identifiers() {
    PROGRAM.passes("device_removed");
}

#[test]
fn link_address_change_is_reported_to_identifiers() {
    PROGRAM.passes("address_changed");
}

#[test]
fn a_wildcard_listener_covers_new_addresses() {
    PROGRAM.passes("later_address");
}
