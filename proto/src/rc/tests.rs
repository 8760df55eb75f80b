//! Scenarios, named after the rules that they check.
