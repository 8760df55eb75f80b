//! The C ABI under a program that calls verbs in any order with any arguments.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::abi::check);
