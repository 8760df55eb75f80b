//! Rejections and errors of the connection manager, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("outcomes");

#[test]
fn each_reject_reason_is_reported() {
    PROGRAM.passes("rejections");
}

#[test]
fn failed_queue_pair_transition_is_a_connect_error() {
    PROGRAM.passes("connect_error");
}

#[test]
fn a_route_without_a_device_is_an_address_error() {
    PROGRAM.passes("address_error");
}

#[test]
fn group_that_cannot_be_joined_is_a_multicast_error() {
    PROGRAM.passes("multicast_error");
}

#[test]
fn peer_without_a_route_is_refused_at_once() {
    PROGRAM.passes("no_route");
}

#[test]
fn request_whose_packets_cannot_be_sent_fails_after_its_retries() {
    PROGRAM.passes("route_lost");
}

#[test]
fn queue_pair_of_another_device_is_refused() {
    PROGRAM.passes("other_device");
}
