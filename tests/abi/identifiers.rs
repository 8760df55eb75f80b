//! Identifiers of the connection manager, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("identifiers");

#[track_caller]
fn passes(case: &str) {
    PROGRAM.passes(case);
}

#[test]
fn identifiers_allow_what_their_state_allows() {
    passes("states");
}

#[test]
fn addresses_lead_to_devices_and_ports_are_one_s_own() {
    passes("addresses");
}

#[test]
fn events_wait_in_their_channel_and_hold_their_identifier() {
    passes("events");
}

#[test]
fn synchronous_identifiers_wait_for_their_events() {
    passes("synchronous");
}

#[test]
fn queue_pairs_are_made_with_what_the_program_leaves_out() {
    passes("queue_pairs");
}

#[test]
fn names_are_resolved_as_the_hints_say() {
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
fn processes_share_ports_if_both_wish_so() {
    passes("shared_ports");
}

#[test]
fn loopback_addresses_are_of_no_device_and_lead_to_the_first_one() {
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
