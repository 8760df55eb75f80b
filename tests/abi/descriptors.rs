//! A C program that closes descriptors of the library.

use super::c_program::CProgram;

#[test]
fn queue_pairs_fail_where_the_program_closes_their_descriptors() {
    CProgram("descriptors").passes("closed");
}
