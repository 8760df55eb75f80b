//! Automatic path migration, by a C program: between two addresses of this host, and between two hosts
//! of which one loses an address.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("migration");

#[test]
fn armed_connections_migrate_on_demand_and_back() {
    PROGRAM.passes("on_demand");
}

#[test]
fn alternate_paths_that_cannot_be_are_refused() {
    PROGRAM.passes("refusals");
}

#[test]
fn who_has_another_alternate_path_is_told_and_stays() {
    PROGRAM.passes("disagreement");
}

#[test]
fn messages_go_on_when_the_first_paths_address_is_lost() {
    PROGRAM.passes("lost_address");
}

#[test]
fn messages_go_on_when_the_far_side_loses_the_first_paths_address() {
    PROGRAM.passes("failing_path");
}
