//! epoll for sockets over RDMA, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("rsocket_epoll");

#[test]
fn epoll_knows_sockets_and_descriptors() {
    PROGRAM.passes("epolling");
}

#[test]
fn epoll_forgets_closed_sockets_and_descriptors() {
    PROGRAM.passes("closing");
}

#[test]
fn epoll_reports_ready_descriptors_in_turn() {
    PROGRAM.passes("turns");
}

#[test]
fn edge_triggered_epoll_reports_what_is_newly_signalled() {
    PROGRAM.passes("edges");
}

#[test]
fn edge_triggered_epoll_reports_each_connection_of_a_listener() {
    PROGRAM.passes("arrivals");
}

#[test]
fn threads_that_wait_for_one_epoll_instance_lose_no_change() {
    PROGRAM.passes("waiters");
}

#[test]
fn waiting_threads_reuse_their_descriptor() {
    PROGRAM.passes("reuse");
}

#[test]
fn epoll_instances_are_waited_for_by_others() {
    PROGRAM.passes("nesting");
}

#[test]
fn a_child_process_leaves_its_parents_sockets_alone() {
    PROGRAM.passes("forking");
}
