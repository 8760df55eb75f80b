//! The extended verbs, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("extended");

#[test]
fn completions_are_stamped_by_both_clocks() {
    PROGRAM.passes("timestamps");
}

#[test]
fn unsupported_fields_and_flags_are_refused() {
    PROGRAM.passes("refusals");
}

#[test]
fn moderated_queue_notifies_after_the_count_or_the_period() {
    PROGRAM.passes("moderation");
}

#[test]
fn queue_that_ignores_overrun_keeps_the_newest() {
    PROGRAM.passes("overrun");
}

#[test]
fn overrun_of_its_completion_queue_is_fatal_to_a_work_queue() {
    PROGRAM.passes("work_queue_overrun");
}

#[test]
fn objects_of_a_parent_domain_use_its_allocators() {
    PROGRAM.passes("parent_domains");
}

#[test]
fn frames_are_steered_by_matching_flows() {
    PROGRAM.passes("raw_packets");
}

#[test]
fn objects_are_imported_by_their_handles_within_the_process() {
    PROGRAM.passes("imports");
}

#[test]
fn rate_limit_bounds_the_throughput() {
    PROGRAM.passes("rate_limit");
}

#[test]
fn an_atomic_whose_result_does_not_fit_is_refused_at_posting() {
    PROGRAM.passes("short_atomics");
}
