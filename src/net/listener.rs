//! Listeners for streams.
#![forbid(unsafe_code)]

use super::{Owned, RdmaStream, to_io};
use crate::reactor::{Reactor, Readable};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::{Context, Poll};
use urxe_rsockets::StreamSocket;

/// The connections that the process accepts before the program takes them.
const BACKLOG: i32 = 128;

/// A listener for [`RdmaStream`]s.
///
/// Connections are established before the program takes them, as with TCP. Dropping the listener
/// closes those that it has not taken.
///
/// ```
/// use std::io::{Read, Write};
/// use std::thread;
/// use urxe::net::{RdmaListener, RdmaStream};
///
/// # fn main() -> urxe::Result<()> {
/// let listener = RdmaListener::bind(("127.0.0.1", 0))?;
/// let address = listener.local_addr();
/// assert!(listener.try_accept()?.is_none());
/// let client = thread::spawn(move || RdmaStream::connect_blocking(address));
/// let mut stream = listener.accept_blocking()?;
/// stream.write_all(b"welcome")?;
/// drop(stream);
/// let mut received = String::new();
/// client.join().unwrap()?.read_to_string(&mut received)?;
/// assert_eq!(received, "welcome");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RdmaListener {
    socket: Owned,
    readable: Readable,
}

impl RdmaListener {
    /// Listens on an address; port 0 selects a free port. (`rbind`, `rlisten`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::RdmaListener;
    ///
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// println!("listening on {}", listener.local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the address, for instance that the port is in use.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<RdmaListener> {
        super::stream::first_success(address, |address| {
            let socket = Owned::new(StreamSocket::new(address.is_ipv6()).map_err(to_io)?);
            socket.bind(address).map_err(to_io)?;
            socket.listen(BACKLOG).map_err(to_io)?;
            Ok(RdmaListener {
                socket,
                readable: Readable::default(),
            })
        })
    }

    /// The address that the listener is bound to.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::RdmaListener;
    ///
    /// assert_ne!(RdmaListener::bind("127.0.0.1:0")?.local_addr().port(), 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_address()
    }

    /// Takes a connection, and waits until there is one. (`raccept`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::{RdmaListener, RdmaStream};
    ///
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// let stream = listener.accept_blocking()?;
    /// assert_eq!(stream.peer_addr()?, client.join().unwrap()?.local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn accept_blocking(&self) -> io::Result<RdmaStream> {
        Ok(RdmaStream::new(self.socket.accept().map_err(to_io)?))
    }

    /// Takes a connection; `None` if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::RdmaListener;
    ///
    /// assert!(RdmaListener::bind("127.0.0.1:0")?.try_accept()?.is_none());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`RdmaListener::accept_blocking`].
    pub fn try_accept(&self) -> io::Result<Option<RdmaStream>> {
        Ok(self
            .socket
            .try_accept()
            .map_err(to_io)?
            .map(RdmaStream::new))
    }

    /// Takes a connection, and waits until there is one.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::{RdmaListener, RdmaStream};
    ///
    /// # async_io::block_on(async {
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// let stream = listener.accept().await?;
    /// assert_eq!(stream.local_addr(), client.join().unwrap()?.peer_addr()?);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the reactor.
    pub async fn accept(&self) -> io::Result<RdmaStream> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    /// Takes a connection, or wakes the task when there is one.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::future::poll_fn;
    /// use urxe::net::{RdmaListener, RdmaStream};
    ///
    /// # async_io::block_on(async {
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// let stream = poll_fn(|context| listener.poll_accept(context)).await?;
    /// client.join().unwrap()?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the reactor.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<RdmaStream>> {
        let accept = || {
            let accepted = self.try_accept()?;
            Ok(accepted.inspect(RdmaStream::used_by_task))
        };
        self.socket
            .arm(|fd| self.readable.poll_take(context, fd, accept))
    }

    /// Selects the reactor for the futures of the listener.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::{RdmaListener, RdmaStream};
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// listener.use_reactor(AsyncIo);
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// listener.accept().await?;
    /// client.join().unwrap()?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.readable.use_reactor(Arc::new(reactor));
    }
}
