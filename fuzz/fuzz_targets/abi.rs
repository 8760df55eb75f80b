//! The verbs as a C program calls them that does anything.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::abi::check);
