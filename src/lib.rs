//! urxe: verbs programs without a NIC, a kernel module or root.

pub mod abi;
