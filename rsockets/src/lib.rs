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
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock};

pub use datagram::DatagramSocket;
use stream::Ready;
pub use stream::StreamSocket;
use watch::Watchers;

/// A socket of either type.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A stream.
    Stream(Arc<StreamSocket>),
    /// A datagram socket.
    Datagram(Arc<DatagramSocket>),
}

impl Socket {
    /// Returns whether it belongs to the process that forked this one, which cannot use it.
    pub fn is_inherited(&self) -> bool {
        match self {
            Socket::Stream(stream) => stream.is_inherited(),
            Socket::Datagram(datagrams) => datagrams.is_inherited(),
        }
    }

    /// Returns the readiness.
    pub fn ready(&self) -> Ready {
        match self {
            Socket::Stream(stream) => stream.ready(),
            Socket::Datagram(datagrams) => datagrams.ready(),
        }
    }

    /// Returns the threads that wait for several sockets including this one.
    pub fn watchers(&self) -> &Arc<Watchers> {
        match self {
            Socket::Stream(stream) => &stream.watchers,
            Socket::Datagram(datagrams) => &datagrams.watchers,
        }
    }

    /// Enables notifications. Returns the descriptor that becomes readable on a change, `None` if
    /// only the watchers are woken.
    pub fn arm(&self) -> Option<RawFd> {
        match self {
            // The descriptor of a listener is readable while it has connections, new or not.
            Socket::Stream(stream) if stream.is_listening() => None,
            Socket::Stream(stream) => Some(stream.arm(|fd| fd.as_raw_fd())),
            Socket::Datagram(datagrams) => Some(datagrams.arm(|fd| fd.as_raw_fd())),
        }
    }

    /// Clears the readiness of the descriptor of [`Socket::arm`].
    pub fn clear(&self) {
        match self {
            Socket::Stream(stream) => stream.clear(),
            Socket::Datagram(datagrams) => datagrams.clear(),
        }
    }
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
