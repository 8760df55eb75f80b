//! The C ABI from outside: its layouts against the headers, its symbols in the built library, and
//! its pure functions against rdma-core's own.

#[path = "../common/left_out.rs"]
mod left_out;

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
mod rsockets;
mod shared;
mod signals;
mod stress;
mod symbols;
mod unaligned;
mod valgrind;
