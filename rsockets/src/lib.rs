//! Sockets over RDMA, compatible with rdma-core's rsockets: streams over reliable connections, and
//! datagrams over UD queue pairs.
//!
//! - [`stream`]: streams. The state machine is `urxe_proto::rsocket`; `link` connects it to a queue
//!   pair, memory and waiting threads, and `connect` establishes connections.
//! - [`datagram`][]: datagrams.
//! - `service`: the background thread of the process.
//! - [`settings`]: sizes and options.
//! - `wait`: waiting for one socket. [`watch`]: waking threads that wait for several sockets.
//! - [`data`]: the interface to the program's data.
#![forbid(unsafe_code)]

pub mod data;
pub mod datagram;
mod device;
pub mod error;
mod service;
pub mod settings;
pub mod stream;
mod sync;
mod wait;
pub mod watch;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

pub use datagram::DatagramSocket;
pub use stream::StreamSocket;

/// A socket of either type.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A stream.
    Stream(Arc<StreamSocket>),
    /// A datagram socket.
    Datagram(Arc<DatagramSocket>),
}

static SOCKETS: RwLock<Option<HashMap<RawFd, Socket>>> = RwLock::new(None);

/// Adds a socket to the table. Its number is a descriptor that the socket owns.
pub fn insert(number: RawFd, socket: Socket) {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.get_or_insert_default().insert(number, socket);
}

/// Returns the socket with this number.
pub fn find(number: RawFd) -> Option<Socket> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.as_ref()?.get(&number).cloned()
}

/// Removes a socket from the table.
pub fn remove(number: RawFd) -> Option<Socket> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.as_mut()?.remove(&number)
}
