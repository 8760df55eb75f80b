//! Processes that share a port, and neighbours that do anything.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::sharing::check);
