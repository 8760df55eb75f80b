//! librdmacm: connections by IP address and port.
//!
//! `urxe_driver::cm` implements identifiers and events; queue pairs and other verbs objects are
//! created by the libibverbs functions of this crate.

pub(super) mod address;
pub(super) mod addrinfo;
mod addrinfo_list;
pub(super) mod channel;
pub(super) mod connection;
pub(super) mod devices;
pub(super) mod endpoint;
pub(super) mod event;
mod held_event;
pub(super) mod id;
pub(super) mod multicast;
pub(super) mod option;
pub(super) mod qp;
mod route;
pub(super) mod sockaddr;
pub(super) mod srq;
mod synchronous;
