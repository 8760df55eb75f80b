//! Sockets over RDMA, as rdma-core's rsockets are: the stream over a reliable connection, datagrams over
//! queue pairs of datagrams, and by number what a program has of both.
//!
//! - [`stream`]: streams. What is written where is `urxe_proto::rsocket`'s to decide; `link` gives it a queue pair,
//!   memory and threads that wait, `connect` a connection.
//! - [`datagram`][]: datagrams.
//! - [`service`]: the thread that does what no call of the program does.
//! - [`settings`]: sizes and options.
//! - [`wait`]: waiting for one socket. [`watch`]: waking those who wait for several sockets.
//! - [`data`]: the program's data.
#![forbid(unsafe_code)]

pub mod data;
pub mod datagram;
mod device;
pub mod error;
mod service;
pub mod settings;
pub mod stream;
mod wait;
pub mod watch;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub use datagram::DatagramSocket;
pub use stream::StreamSocket;

/// What a number stands for.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A stream.
    Stream(Arc<StreamSocket>),
    /// Datagrams.
    Datagram(Arc<DatagramSocket>),
}

static SOCKETS: RwLock<Option<HashMap<RawFd, Socket>>> = RwLock::new(None);

/// Gives a socket its number: that of a descriptor which it holds.
pub fn insert(number: RawFd, socket: Socket) {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.get_or_insert_default().insert(number, socket);
}

/// The socket of a number.
pub fn find(number: RawFd) -> Option<Socket> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.as_ref()?.get(&number).cloned()
}

/// Takes a number back.
pub fn remove(number: RawFd) -> Option<Socket> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.as_mut()?.remove(&number)
}

/// Takes a lock whose data is never left half changed by a panic.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
