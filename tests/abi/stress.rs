//! Verbs from many threads at once, by a C program.

use super::c_program::CProgram;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("stress");

#[test]
fn every_verb_may_be_called_from_any_thread() {
    PROGRAM.passes("all_at_once");
}
