//! `liburxe.so`: the exported symbols, each under its version node. `build.rs` generates them from
//! `symbols.txt`: a jump for each symbol and node to the function that serves it, and the functions of
//! what is not supported.
//!
//! Jumps instead of `#[no_mangle]`, since a shared object may export several versions of a name, and
//! only an assembler label can carry one. Besides, the names stay out of Rust programs that use
//! `urxe_verbs`: they can link the real libibverbs beside it.

use urxe_verbs::calls::*;
use urxe_verbs::unsupported;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
