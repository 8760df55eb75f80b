//! Two endpoints of a reliable connection over a network that does anything.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::pair::check);
