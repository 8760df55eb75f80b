//! How the integration tests run programs that know nothing of urxe: where (this host, network
//! namespaces, another user), how (with a time limit, both outputs kept) and what these tests
//! need from the machine.

pub mod capture;
pub mod devices;
pub mod left_out;
pub mod namespace;
pub mod perftest;
pub mod pingpong;
pub mod place;
pub mod require;
pub mod run;
pub mod stat;
pub mod tcp;
