//! Support for integration tests that run other programs over urxe: places (this host, network
//! namespaces, other users), execution with a time limit and captured output, and requirements.

pub mod capture;
pub mod devices;
pub mod namespace;
pub mod perftest;
pub mod pingpong;
pub mod place;
pub mod require;
pub mod run;
pub mod skip_test;
pub mod stat;
pub mod tcp;
