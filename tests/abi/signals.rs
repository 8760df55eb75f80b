//! Signals that accesses of peers raise, in a C program.

use super::c_program::CProgram;

#[test]
fn handler_of_the_program_catches_what_the_access_of_a_peer_raises() {
    CProgram("signals").passes("write_barrier");
}
