//! `liburxe.so`: the exported symbols, each under its version node.
//!
//! `build.rs` generates them from `symbols.txt`: for each symbol and node a jump to the function
//! behind it, and the functions of unsupported symbols.
//!
//! Jumps are used instead of `#[no_mangle]`, because a shared object may export several versions of
//! a name, and only an assembler label can carry a version. Besides, Rust programs that use
//! `urxe_verbs` do not export these names, so they can link the real libibverbs too.

use urxe_verbs::calls::*;
use urxe_verbs::unsupported;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
