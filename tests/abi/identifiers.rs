//! Identifiers of the connection manager, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("identifiers");

#[track_caller]
fn passes(case: &str) {
    PROGRAM.passes(case);
}

#[test]
fn identifier_calls_are_checked_against_their_state() {
    passes("states");
}

#[test]
fn addresses_resolve_to_devices_and_ports_are_exclusive() {
    passes("addresses");
}

#[test]
fn unacknowledged_events_block_destruction_of_their_identifier() {
    passes("events");
}

#[test]
fn synchronous_identifiers_wait_for_their_events() {
    passes("synchronous");
}

#[test]
fn rdma_create_qp_creates_missing_domain_and_queues() {
    passes("queue_pairs");
}

#[test]
fn name_resolution_follows_the_hints() {
    passes("names");
}

#[test]
fn options_are_checked() {
    passes("options");
}

#[test]
fn devices_are_opened_once() {
    passes("devices");
}

#[test]
fn processes_share_ports_if_both_set_reuse() {
    passes("shared_ports");
}

#[test]
fn loopback_addresses_have_no_device_and_resolve_to_the_first() {
    passes("loopback");
}

#[test]
fn requests_to_link_local_addresses_are_of_their_device() {
    passes("link_local");
}

#[test]
fn a_port_in_use_is_reported_as_by_the_kernel() {
    passes("ports_in_use");
}
