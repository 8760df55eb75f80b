//! The functions of `rsocket.h`; `urxe_rsockets` implements the sockets.

mod data;
pub(super) mod epoll;
mod lookup;
pub(super) mod name;
pub(super) mod option;
pub(super) mod poll;
pub(super) mod socket;
pub(super) mod transfer;
mod wait;
