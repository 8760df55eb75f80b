//! The connection manager between peers and a program that do anything.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::cm::check);
