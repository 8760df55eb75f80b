//! ICRC verification without knowledge of the IPv4 identification.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::icrc::check);
