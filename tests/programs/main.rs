//! Unmodified verbs programs of Debian, and the C examples, over urxe.
//!
//! All are in one test binary, so that tests can take turns: each needs the whole machine.

#[path = "../common/mod.rs"]
mod common;

mod asyncwatch;
mod capture;
mod cluster;
mod connection_manager;
mod devices;
mod dissect;
mod doctor;
mod examples;
mod extended_connections;
mod faults;
mod fio;
mod first_errors;
mod forking;
mod fuzz;
mod hostile;
mod idle_peers;
mod installed;
mod libfabric;
mod namespaces;
mod path_mtu;
mod perf;
mod perftest;
mod pingpong;
mod preload;
mod processes;
mod rdma;
mod restricted;
mod routed;
mod rsockets;
mod selection;
mod shared_receives;
mod stand_ins;
mod stat;
mod sysfs;
mod top;
mod ucx;
mod unreliable;
mod urxe_run;
mod vendored;
