//! librdmacm: connections by IP address and port. Identifiers and their events are
//! `urxe_driver::cm`'s; queue pairs and what they need are made by the functions of libibverbs beside.

pub(super) mod address;
pub(super) mod addrinfo;
pub(super) mod channel;
pub(super) mod connection;
pub(super) mod devices;
pub(super) mod endpoint;
pub(super) mod event;
pub(super) mod id;
pub(super) mod multicast;
pub(super) mod option;
pub(super) mod qp;
pub(super) mod srq;
