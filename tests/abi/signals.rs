//! Signals that accesses of peers raise, in a C program.

use super::c_program::CProgram;

#[test]
fn a_sigsegv_handler_of_the_program_runs_for_remote_accesses() {
    CProgram("signals").passes("write_barrier");
}
