//! Memory behind the C ABI, by a C program: compiled with our headers and with rdma-core's, run
//! with our library.

use super::c_program::CProgram;

#[track_caller]
fn passes(case: &str) {
    CProgram("memory").passes(case);
}

#[test]
fn rereg_mr_supports_each_change_and_reports_each_error() {
    passes("rereg");
}

#[test]
fn windows_are_bound_and_invalidated_by_either_side() {
    passes("windows");
}

#[test]
fn binding_races_with_rereg_mr_consistently() {
    passes("together");
}

#[test]
fn unmapped_memory_is_an_error_and_the_null_region_reads_zeros() {
    passes("paging");
}

#[test]
fn device_memory_is_copied_in_words_and_registered_zero_based() {
    passes("device_memory");
}

#[test]
fn buffers_and_dma_buffers_are_registered() {
    passes("buffers");
}
