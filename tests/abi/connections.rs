//! Connections of the connection manager, by C programs.

use super::c_program::CProgram;

/// Both ends in one process.
const PROGRAM: CProgram = CProgram("connections");

#[track_caller]
fn passes(case: &str) {
    PROGRAM.passes(case);
}

#[test]
fn connections_carry_data_and_private_data_both_ways() {
    passes("connections");
}

#[test]
fn end_of_a_request_is_reported_by_rdma_accept_only() {
    passes("withdrawn");
}

#[test]
fn datagram_services_are_found_and_used() {
    passes("datagram_services");
}

#[test]
fn endpoints_need_no_event_loop() {
    passes("endpoints");
}

#[test]
fn ece_options_are_exchanged_by_req_and_rep() {
    passes("options_of_vendors");
}

#[test]
fn both_sides_must_request_the_same_transport() {
    passes("unreliable");
}

#[test]
fn retry_counts_come_from_the_peer() {
    passes("retries");
}

#[test]
fn pending_requests_migrate_with_their_listener() {
    passes("migrated_listener");
}
