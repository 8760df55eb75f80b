//! The C programs beside this file once more, under valgrind: neither does the library look at memory that is not there,
//! or go by what nobody has written, nor do the structures that it gives them end early.

use super::c_program::CProgram;

#[test]
fn making_and_ending_objects_looks_at_nothing_else() {
    CProgram("objects").is_clean_under_valgrind(&[
        "devices",
        "queries",
        "memory",
        "creation",
        "transitions",
        "notifications",
        "addresses",
    ]);
}

#[test]
fn posting_looks_at_nothing_but_what_it_is_given() {
    CProgram("objects").is_clean_under_valgrind(&["posting", "builders", "threads"]);
}

#[test]
fn regions_and_windows_are_where_they_were_registered() {
    CProgram("memory").is_clean_under_valgrind(&["rereg", "windows", "together", "paging"]);
    CProgram("memory").is_clean_under_valgrind(&["device_memory", "buffers"]);
}

#[test]
fn shared_and_extended_objects_look_at_nothing_else() {
    CProgram("shared").is_clean_under_valgrind(&["queues", "domains", "targets"]);
    CProgram("extended").is_clean_under_valgrind(&["refusals", "parent_domains", "imports"]);
}
