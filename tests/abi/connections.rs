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
fn datagram_services_are_found_and_used() {
    passes("datagram_services");
}

#[test]
fn endpoints_need_no_event_loop() {
    passes("endpoints");
}

#[test]
fn vendors_options_travel_with_request_and_answer() {
    passes("options_of_vendors");
}

#[test]
fn the_kind_of_a_connection_is_that_of_both_sides() {
    passes("unreliable");
}

#[test]
fn each_end_retries_as_the_other_wishes() {
    passes("retries");
}
