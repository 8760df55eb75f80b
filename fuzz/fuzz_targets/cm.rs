//! The connection manager between an arbitrary application and arbitrary peers.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::cm::check);
