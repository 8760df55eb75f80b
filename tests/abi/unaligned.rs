//! Structures at odd addresses, by a C program: compiled with our headers and with rdma-core's, run
//! with our library.

use super::c_program::CProgram;

#[track_caller]
fn passes(case: &str) {
    CProgram("unaligned").passes(case);
}

#[test]
fn work_requests_and_their_elements_may_be_at_any_address() {
    passes("work_requests");
}

#[test]
fn attributes_may_be_at_any_address() {
    passes("attributes");
}

#[test]
fn parameters_of_connections_may_be_at_any_address() {
    passes("connections");
}
