//! The C programs of this folder under valgrind: the library accesses no invalid or uninitialized
//! memory, and its structures have their full size.

use super::c_program::CProgram;

#[test]
fn creation_and_destruction_are_clean_under_valgrind() {
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
fn posting_is_clean_under_valgrind() {
    CProgram("objects").is_clean_under_valgrind(&["posting", "builders", "threads"]);
}

#[test]
fn regions_and_windows_have_their_addresses() {
    CProgram("memory").is_clean_under_valgrind(&["rereg", "windows", "together", "paging"]);
    CProgram("memory").is_clean_under_valgrind(&["device_memory", "buffers"]);
}

#[test]
fn shared_and_extended_objects_are_clean_under_valgrind() {
    CProgram("shared").is_clean_under_valgrind(&["queues", "domains", "targets"]);
    CProgram("extended").is_clean_under_valgrind(&["refusals", "parent_domains", "imports"]);
}
