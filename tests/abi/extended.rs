//! The extended verbs, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("extended");

#[test]
fn completions_are_stamped_by_both_clocks() {
    PROGRAM.passes("timestamps");
}

#[test]
fn fields_and_flags_that_there_are_not_are_refused() {
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
fn objects_of_a_parent_domain_are_where_its_allocators_say() {
    PROGRAM.passes("parent_domains");
}

#[test]
fn frames_reach_the_raw_queue_pairs_whose_flows_they_match() {
    PROGRAM.passes("raw_packets");
}

#[test]
fn objects_are_imported_by_their_handles_within_the_process() {
    PROGRAM.passes("imports");
}

#[test]
fn limited_queue_pair_is_no_faster_than_its_limit() {
    PROGRAM.passes("rate_limit");
}

#[test]
fn an_atomic_whose_result_does_not_fit_is_refused_at_posting() {
    PROGRAM.passes("short_atomics");
}
