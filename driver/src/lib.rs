//! The RoCEv2 endpoint of a process.

pub mod net;
