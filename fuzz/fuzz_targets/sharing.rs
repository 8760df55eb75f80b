//! Processes that share port 4791, among arbitrary same-host peers.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::sharing::check);
