//! A queue pair of any service in any state, between a peer and a program that do anything.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::queue_pair::check);
