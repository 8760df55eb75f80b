//! Streams of bytes over RDMA, in the shape of `std::net`: [`RdmaStream`] and [`RdmaListener`].
//!
//! They use the protocol of librdmacm's rsockets, so the other end may also be a C program over
//! rsockets, such as `rstream`, or one under `urxe run --rsockets`. Data is written into the
//! receive buffer of the peer by RDMA WRITE.
//!
//! A stream implements [`Read`](std::io::Read) and [`Write`](std::io::Write), with the feature
//! `tokio` also tokio's `AsyncRead` and `AsyncWrite`, and with the feature `async-io` those of
//! `futures-io`. The runtime is selected as for all futures of this crate, see
//! [`reactor`](crate::reactor). Either threads or tasks may wait for one stream at a time, not
//! both.
//!
//! The process has one background thread for all streams, which accepts connections, detects their
//! ends, and closes the connections of streams that tasks have dropped.
//!
//! ```
//! use std::io::{Read, Write};
//! use urxe::net::{RdmaListener, RdmaStream};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = RdmaListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr();
//! let client = std::thread::spawn(move || -> std::io::Result<()> {
//!     let mut stream = RdmaStream::connect_blocking(address)?;
//!     stream.write_all(b"hello")?;
//!     stream.shutdown_blocking(std::net::Shutdown::Write)
//! });
//! let mut received = String::new();
//! listener.accept_blocking()?.read_to_string(&mut received)?;
//! assert_eq!(received, "hello");
//! client.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(any(feature = "tokio", feature = "async-io"))]
mod asynchronous;
mod data;
mod listener;
mod stream;

pub use listener::RdmaListener;
pub use stream::{RdmaStream, ReadHalf, WriteHalf};

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_rsockets::StreamSocket;
use urxe_rsockets::error::Error;

/// A socket that is closed when this is dropped.
#[derive(Debug)]
struct Owned {
    socket: Arc<StreamSocket>,
    /// Whether tasks use the socket. Dropping it then does not wait, as that would stop the thread's
    /// other tasks.
    is_used_by_tasks: AtomicBool,
}

impl Owned {
    fn new(socket: Arc<StreamSocket>) -> Owned {
        Owned {
            socket,
            is_used_by_tasks: AtomicBool::new(false),
        }
    }

    fn used_by_task(&self) {
        self.is_used_by_tasks.store(true, Ordering::Relaxed);
    }

    fn is_used_by_tasks(&self) -> bool {
        self.is_used_by_tasks.load(Ordering::Relaxed)
    }
}

impl Deref for Owned {
    type Target = StreamSocket;

    fn deref(&self) -> &StreamSocket {
        &self.socket
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match self.is_used_by_tasks() {
            true => self.socket.close_in_background(),
            false => self.socket.close(),
        }
    }
}

fn to_io(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Returns `None` for an operation that would have to wait.
fn unless_blocked<T>(result: Result<T, Error>) -> io::Result<Option<T>> {
    match result.map_err(to_io) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
