//! Port 4791: the sockets of this host's addresses, routes that start there, and the descriptors
//! that wake the progress thread.

mod append_list;
mod batches;
mod open;
pub mod route;
mod waker;
mod watch;

pub(crate) use batches::BatchPool;

pub(crate) use open::{LocalPort, Ports, ReceiveSocket, Receiver, SeenPolls};
pub(crate) use waker::Waker;
pub(crate) use watch::WatchSet;
