//! Sockets over RDMA, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("rsockets");

#[test]
fn streams_connect_and_say_why_they_do_not() {
    PROGRAM.passes("connecting");
}

#[test]
fn what_is_received_is_what_was_sent_however_it_is_asked_for() {
    PROGRAM.passes("receiving");
}

#[test]
fn threads_send_and_receive_at_the_same_time() {
    PROGRAM.passes("threads");
}

#[test]
fn sockets_are_waited_for_together_with_descriptors() {
    PROGRAM.passes("waiting");
}

#[test]
fn epoll_knows_sockets_and_descriptors() {
    PROGRAM.passes("epolling");
}

#[test]
fn a_stream_ends_one_way_or_both() {
    PROGRAM.passes("endings");
}

#[test]
fn the_end_of_a_killed_peer_is_found_out() {
    PROGRAM.passes("killed");
}

#[test]
fn options_are_kept_and_checked() {
    PROGRAM.passes("options");
}

#[test]
fn mapped_memory_is_written_by_the_peer() {
    PROGRAM.passes("mapping");
}

#[test]
fn datagrams_come_whole_with_their_sender() {
    PROGRAM.passes("datagrams");
}
