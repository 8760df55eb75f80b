//! Memory behind the C ABI, by a C program: compiled with our headers and with rdma-core's, run with
//! our library.

use super::c_program::CProgram;

#[track_caller]
fn passes(case: &str) {
    CProgram("memory").passes(case);
}

#[test]
fn regions_are_registered_anew_in_every_way_and_wrong_ways_are_told_apart() {
    passes("rereg");
}

#[test]
fn windows_are_bound_and_taken_away_by_either_side() {
    passes("windows");
}

#[test]
fn windows_are_bound_while_their_region_is_registered_anew() {
    passes("together");
}

#[test]
fn memory_that_is_not_there_is_an_error_and_nothing_reads_as_zeros() {
    passes("paging");
}

#[test]
fn device_memory_is_copied_in_words_and_registered_from_0() {
    passes("device_memory");
}

#[test]
fn buffers_are_registered_in_their_own_domain_and_dma_buffers_are_known() {
    passes("buffers");
}
