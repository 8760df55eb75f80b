//! Interfaces and addresses that change under identifiers, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("changes");

#[test]
fn identifiers_are_told_that_their_device_is_gone() {
    PROGRAM.passes("device_removed");
}

#[test]
fn identifiers_are_told_that_their_link_has_another_address() {
    PROGRAM.passes("address_changed");
}

#[test]
fn who_listens_everywhere_hears_at_addresses_that_come_later() {
    PROGRAM.passes("later_address");
}
