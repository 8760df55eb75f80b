//! Arbitrary bytes are rejected or parse, and a parsed packet survives emission.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::packet::check);
