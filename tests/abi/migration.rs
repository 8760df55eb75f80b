//! Automatic path migration, by a C program: between two addresses of this host, and between two
//! hosts of which one loses an address.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("migration");

#[test]
fn armed_connections_migrate_on_demand_and_back() {
    PROGRAM.passes("on_demand");
}

#[test]
fn invalid_alternate_paths_are_refused() {
    PROGRAM.passes("refusals");
}

#[test]
fn a_path_migration_mismatch_raises_an_event() {
    PROGRAM.passes("disagreement");
}

#[test]
fn transfer_continues_when_the_primary_address_is_lost() {
    PROGRAM.passes("lost_address");
}

#[test]
fn transfer_continues_when_the_peer_loses_the_primary_address() {
    PROGRAM.passes("failing_path");
}
