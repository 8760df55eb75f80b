//! The ICRC of a sender whose IPv4 identification is not known.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::icrc::check);
