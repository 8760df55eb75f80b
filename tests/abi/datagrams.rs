//! Datagrams, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("datagrams");

#[test]
fn datagram_needs_a_destination_and_the_queue_key() {
    PROGRAM.passes("posting");
}

#[test]
fn receiver_answers_by_what_the_datagram_told() {
    PROGRAM.passes("answers");
}

#[test]
fn service_level_of_a_receive_tells_the_type_of_its_network_header() {
    PROGRAM.passes("service_level");
}

#[test]
fn attached_queue_pairs_get_what_goes_to_their_group() {
    PROGRAM.passes("groups");
}

#[test]
fn queue_pair_made_so_does_not_get_its_own_datagrams_to_a_group() {
    PROGRAM.passes("own_blocked");
}

#[test]
fn datagrams_come_to_addresses_that_were_not_there_before() {
    PROGRAM.passes("later_address");
}
