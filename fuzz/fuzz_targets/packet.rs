//! Whatever bytes come: they parse or are refused, and what parsed is the same when written anew.
#![cfg_attr(fuzzing, no_main)]

urxe_fuzz::target!(urxe_fuzz::packet::check);
