//! A queue pair of any service and state between an arbitrary application and peer.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::queue_pair::check);
