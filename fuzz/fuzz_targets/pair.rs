//! Two endpoints of a reliable connection over an arbitrary network.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::pair::check);
