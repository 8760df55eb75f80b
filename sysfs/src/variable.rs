//! Variables for the environment of a program.

use std::ffi::OsString;

/// A variable for the program's environment: name and value.
pub type Variable = (&'static str, OsString);
