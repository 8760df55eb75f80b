//! Tests of the C ABI as programs use it: layouts against the headers, symbols of the built
//! library, pure functions against rdma-core's, and C programs.

#[path = "../common/skip_test.rs"]
mod skip_test;

mod c_program;
mod cancellation;
mod changes;
mod connections;
mod datagrams;
mod descriptors;
mod endings;
mod extended;
mod forks;
mod header_names;
mod headers;
mod identifiers;
mod inline_calls;
mod layout;
mod layout_cm;
mod layout_list;
mod library;
mod linking;
mod many_connections;
mod memory;
mod migration;
mod objects;
mod outcomes;
mod rdma_core;
mod require;
mod rsocket_epoll;
mod rsockets;
mod shared;
mod signals;
mod stress;
mod symbols;
mod unaligned;
mod valgrind;
