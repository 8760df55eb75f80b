//! Datagrams, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("datagrams");

#[test]
fn datagram_needs_a_destination_and_the_queue_key() {
    PROGRAM.passes("posting");
}

#[test]
fn receiver_replies_using_the_datagrams_grh() {
    PROGRAM.passes("answers");
}

#[test]
fn service_level_of_a_receive_encodes_the_network_type() {
    PROGRAM.passes("service_level");
}

#[test]
fn attached_queue_pairs_receive_their_groups_datagrams() {
    PROGRAM.passes("groups");
}

#[test]
fn block_self_multicast_loopback_drops_own_datagrams() {
    PROGRAM.passes("own_blocked");
}

#[test]
fn datagrams_are_received_at_new_addresses() {
    PROGRAM.passes("later_address");
}
