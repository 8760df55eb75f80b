//! Support for integration tests that run other programs over urxe: runners (this host, network
//! namespaces, other users), execution with a time limit and captured output, and requirements.

pub mod capture;
pub mod devices;
pub mod namespace;
pub mod perftest;
pub mod pingpong;
pub mod require;
pub mod run;
pub mod runner;
pub mod skip_test;
pub mod stat;
pub mod tcp;
