//! Sockets over RDMA, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("rsockets");

#[test]
fn streams_connect_or_report_the_error() {
    PROGRAM.passes("connecting");
}

#[test]
fn the_backlog_limits_connections_that_are_not_accepted() {
    PROGRAM.passes("backlog");
}

#[test]
fn every_receive_call_returns_the_sent_bytes() {
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
fn a_stream_ends_one_way_or_both() {
    PROGRAM.passes("endings");
}

#[test]
fn a_killed_peer_is_detected() {
    PROGRAM.passes("killed");
}

#[test]
fn a_signal_interrupts_rconnect_as_sa_restart_determines() {
    PROGRAM.passes("interrupted");
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
fn datagrams_have_their_length_and_source() {
    PROGRAM.passes("datagrams");
}
