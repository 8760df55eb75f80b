//! Streams.
#![forbid(unsafe_code)]

use super::data::{Incoming, Outgoing};
use super::{Owned, to_io, unless_blocked};
use crate::reactor::{Reactor, Readable};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use urxe_proto::rsocket::stream::Shutdown as Direction;
use urxe_rsockets::StreamSocket;
use urxe_rsockets::watch::Wake;

/// A stream of bytes over RDMA.
///
/// `&RdmaStream` can be read and written too, so two threads may share one.
/// [`RdmaStream::into_split`] makes two halves for two tasks.
///
/// Dropping it closes the connection after the peer has received the sent data, or the connection
/// has failed. In a thread, the drop waits for that. If tasks have used the stream, the drop does
/// not wait, and a background thread closes the connection. Data is lost if the process ends
/// before: await the shutdown in a task that sends the last data.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use urxe::net::{RdmaListener, RdmaStream};
///
/// let listener = RdmaListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// let (server, client) = tokio::join!(listener.accept(), RdmaStream::connect(address));
/// let (mut server, mut client) = (server?, client?);
/// client.write_all(b"hello").await?;
/// drop(client);
/// let mut received = String::new();
/// server.read_to_string(&mut received).await?;
/// assert_eq!(received, "hello");
/// # Ok(())
/// # })}
/// ```
#[derive(Debug)]
pub struct RdmaStream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Owned,
    readable: Readable,
    /// Whether the message that nothing more is sent was sent to the peer.
    announced_end: AtomicBool,
    /// Whether that message must be sent as soon as the send queue has room, since the half for
    /// writing was dropped.
    end_is_due: AtomicBool,
}

impl Inner {
    /// Shuts down the direction to the peer; `None` if that would block.
    fn try_end(&self) -> io::Result<Option<()>> {
        let mut announced = self.announced_end.load(Ordering::Acquire);
        let result = self.socket.try_shut_down(Direction::Write, &mut announced);
        self.announced_end.store(announced, Ordering::Release);
        unless_blocked(result)
    }

    /// Sends the shutdown message if the send queue has room for it. Otherwise the reading task
    /// sends it later, or the connection is closed before.
    fn send_due_end(&self) {
        let is_blocked = match self.try_end() {
            Ok(ended) => ended.is_none(),
            Err(error) => {
                tracing::debug!(%error, "a stream's end was not announced");
                false
            }
        };
        let is_due = is_blocked && !self.announced_end.load(Ordering::Acquire);
        self.end_is_due.store(is_due, Ordering::Release);
    }
}

impl RdmaStream {
    pub(super) fn new(socket: Arc<StreamSocket>) -> RdmaStream {
        Self::of(Owned::new(socket))
    }

    fn of(socket: Owned) -> RdmaStream {
        RdmaStream(Arc::new(Inner {
            socket,
            readable: Readable::default(),
            announced_end: AtomicBool::new(false),
            end_is_due: AtomicBool::new(false),
        }))
    }

    /// Connects to a listener, and waits until the connection is established. (`rconnect`.)
    ///
    /// The addresses are tried in turn.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::io::{Read, Write};
    /// use urxe::net::{RdmaListener, RdmaStream};
    ///
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let server = std::thread::spawn(move || listener.accept_blocking()?.write_all(b"hello"));
    /// let mut stream = RdmaStream::connect_blocking(address)?;
    /// let mut received = String::new();
    /// stream.read_to_string(&mut received)?;
    /// assert_eq!(received, "hello");
    /// server.join().unwrap()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The reason why the last address failed.
    pub fn connect_blocking(address: impl ToSocketAddrs) -> io::Result<RdmaStream> {
        first_success(address, |address| {
            let socket = Owned::new(StreamSocket::new(address.is_ipv6()).map_err(to_io)?);
            socket.connect(address).map_err(to_io)?;
            Ok(Self::of(socket))
        })
    }

    /// Connects to a listener.
    ///
    /// The addresses are tried in turn. Each is resolved synchronously: that waits for the link
    /// layer's address of a peer on the local network that is not known yet.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::net::{RdmaListener, RdmaStream};
    ///
    /// # async_io::block_on(async {
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// let stream = RdmaStream::connect(listener.local_addr()).await?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The reason why the last address failed.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<RdmaStream> {
        let mut last = no_address();
        for address in address.to_socket_addrs()? {
            match Self::connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_to(address: SocketAddr) -> io::Result<RdmaStream> {
        let socket = Owned::new(StreamSocket::new(address.is_ipv6()).map_err(to_io)?);
        socket.used_by_task();
        let (wake, readable) = (Wake::new()?, Readable::default());
        socket.watchers.add(&wake);
        let flags = &socket.status_flags;
        flags.fetch_or(libc::O_NONBLOCK, Ordering::Relaxed);
        let attempt = || {
            // Cleared first: a change after the attempt makes the descriptor readable again.
            wake.clear();
            let error = match socket.connect(address) {
                Ok(()) => return Ok(Some(())),
                Err(error) => error.errno(),
            };
            match (error, socket.take_error()) {
                (libc::EINPROGRESS, 0) => Ok(None),
                (error, 0) | (_, error) => Err(io::Error::from_raw_os_error(error)),
            }
        };
        std::future::poll_fn(|context| readable.poll_take(context, wake.fd(), attempt)).await?;
        flags.fetch_and(!libc::O_NONBLOCK, Ordering::Relaxed);
        socket.watchers.remove(&wake);
        Ok(Self::of(socket))
    }

    /// The local address.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// assert_eq!(client.local_addr(), server.peer_addr()?);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.0.socket.local_address()
    }

    /// The peer's address.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// println!("a connection from {}", server.peer_addr()?);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ENOTCONN` if it is unknown.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let address = self.0.socket.peer_address();
        address.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    }

    /// Shuts down one or both directions, and waits until sent data has arrived. (`rshutdown`.)
    ///
    /// After [`Shutdown::Write`] the peer reads the end of the stream, and may still send.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::net::Shutdown;
    ///
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// client.write_all(b"question")?;
    /// client.shutdown_blocking(Shutdown::Write)?;
    /// let mut question = String::new();
    /// server.read_to_string(&mut question)?;
    /// assert_eq!(question, "question");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the connection manager.
    pub fn shutdown_blocking(&self, how: Shutdown) -> io::Result<()> {
        let direction = match how {
            Shutdown::Read => Direction::Read,
            Shutdown::Write => Direction::Write,
            Shutdown::Both => Direction::Both,
        };
        if how != Shutdown::Read {
            self.0.announced_end.store(true, Ordering::Release);
        }
        self.0.socket.shut_down(direction).map_err(to_io)
    }

    /// Shuts down the direction to the peer, or wakes the task when sent data has arrived.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::future::poll_fn;
    ///
    /// # async_io::block_on(async {
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// poll_fn(|context| client.poll_shutdown(context)).await?;
    /// // The server reads the end of the stream.
    /// assert_eq!(server.read(&mut [0; 8])?, 0);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the reactor or of the connection manager.
    pub fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &*self.0;
        self.poll_ready(context, || inner.try_end())
    }

    /// Reads into the slices in order, or wakes the task when there is data. 0 bytes are the end of
    /// the stream, or a read without room.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::future::poll_fn;
    /// use std::io::IoSliceMut;
    ///
    /// # async_io::block_on(async {
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// server.write_all(b"head")?;
    /// let (mut first, mut second) = ([0; 2], [0; 2]);
    /// let mut slices = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    /// let read = poll_fn(|context| client.poll_read_vectored(context, &mut slices)).await?;
    /// assert_eq!((read, &first, &second), (4, b"he", b"ad"));
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`Read::read`] of the stream, or the error of the reactor.
    pub fn poll_read_vectored(
        &self,
        context: &mut Context<'_>,
        slices: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_ready(context, || unless_blocked(self.receive(slices, true)))
    }

    /// Writes the slices in order, as much as there is room for, or wakes the task when there is
    /// room.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::future::poll_fn;
    /// use std::io::IoSlice;
    ///
    /// # async_io::block_on(async {
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// let slices = [IoSlice::new(b"head"), IoSlice::new(b"body")];
    /// assert_eq!(poll_fn(|context| client.poll_write_vectored(context, &slices)).await?, 8);
    /// let mut received = [0; 8];
    /// server.read_exact(&mut received)?;
    /// assert_eq!(&received, b"headbody");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`Write::write`] of the stream, or the error of the reactor.
    pub fn poll_write_vectored(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_ready(context, || unless_blocked(self.send(slices, true)))
    }

    /// Selects the reactor for the tasks that use the stream.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::future::poll_fn;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// client.use_reactor(AsyncIo);
    /// poll_fn(|context| client.poll_shutdown(context)).await?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.0.readable.use_reactor(Arc::new(reactor));
    }

    /// Splits the stream into a half for reading and one for writing.
    ///
    /// Dropping the half for writing shuts down that direction; if tasks have used the stream, it
    /// does not wait. The connection is closed after both are dropped, like an
    /// [undivided one](RdmaStream).
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::thread;
    /// use urxe::net::{RdmaListener, RdmaStream};
    ///
    /// # fn main() -> urxe::Result<()> {
    /// let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = thread::spawn(move || -> std::io::Result<()> {
    ///     let (mut reader, mut writer) = RdmaStream::connect_blocking(address)?.into_split();
    ///     let writing = thread::spawn(move || writer.write_all(b"question"));
    ///     let mut answer = String::new();
    ///     reader.read_to_string(&mut answer)?;
    ///     assert_eq!(answer, "answer");
    ///     writing.join().unwrap()
    /// });
    /// let mut server = listener.accept_blocking()?;
    /// let mut question = String::new();
    /// server.read_to_string(&mut question)?;
    /// server.write_all(b"answer")?;
    /// drop(server);
    /// client.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let other = RdmaStream(Arc::clone(&self.0));
        (ReadHalf(self), WriteHalf(other))
    }

    fn receive(
        &self,
        slices: &mut [IoSliceMut<'_>],
        dont_wait: bool,
    ) -> Result<usize, urxe_rsockets::error::Error> {
        let mut sink = Incoming::new(slices);
        let received = self.0.socket.receive(&mut sink, dont_wait, false, false);
        Ok(received? as usize)
    }

    fn send(
        &self,
        slices: &[IoSlice<'_>],
        dont_wait: bool,
    ) -> Result<usize, urxe_rsockets::error::Error> {
        let mut source = Outgoing::new(slices);
        Ok(self.0.socket.send(&mut source, dont_wait)? as usize)
    }

    pub(super) fn used_by_task(&self) {
        self.0.socket.used_by_task();
    }

    /// Calls `attempt` until it does not have to wait.
    fn poll_ready<T>(
        &self,
        context: &Context<'_>,
        mut attempt: impl FnMut() -> io::Result<Option<T>>,
    ) -> Poll<io::Result<T>> {
        self.used_by_task();
        if let Some(value) = attempt()? {
            return Poll::Ready(Ok(value));
        }
        let inner = &*self.0;
        let mut attempt = || {
            if inner.end_is_due.load(Ordering::Acquire) {
                inner.send_due_end();
            }
            attempt()
        };
        let socket = &inner.socket;
        let take = || {
            // A completion after `arm` makes the descriptor readable; the attempt that follows
            // finds those before it.
            socket.clear();
            socket.arm(|_| ());
            attempt()
        };
        socket.arm(|fd| self.0.readable.poll_take(context, fd, take))
    }
}

/// Returns the first success among the addresses, or the last error.
pub(super) fn first_success<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = no_address();
    for address in addresses.to_socket_addrs()? {
        match attempt(address) {
            Ok(value) => return Ok(value),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")
}

impl Read for &RdmaStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(slices, false).map_err(to_io)
    }
}

impl Write for &RdmaStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(slices, false).map_err(to_io)
    }

    /// Does nothing: data is sent when it is written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for RdmaStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(slices)
    }
}

impl Write for RdmaStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    /// Does nothing: data is sent when it is written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The half of a stream for reading, see [`RdmaStream::into_split`].
///
/// ```
/// # use urxe::prelude::*;
/// # use std::io::{Read, Write};
/// # use urxe::net::{RdmaListener, RdmaStream};
/// # let listener = RdmaListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
/// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
/// let (mut reader, writer) = client.into_split();
/// server.write_all(b"hello")?;
/// let mut received = [0; 5];
/// reader.read_exact(&mut received)?;
/// assert_eq!(&received, b"hello");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct ReadHalf(RdmaStream);

/// The half of a stream for writing, see [`RdmaStream::into_split`].
///
/// ```
/// # use urxe::prelude::*;
/// # use std::io::{Read, Write};
/// # use urxe::net::{RdmaListener, RdmaStream};
/// # let listener = RdmaListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
/// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
/// let (reader, mut writer) = client.into_split();
/// writer.write_all(b"hello")?;
/// // Dropping it shuts down this direction.
/// drop(writer);
/// let mut received = String::new();
/// server.read_to_string(&mut received)?;
/// assert_eq!(received, "hello");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteHalf(RdmaStream);

impl ReadHalf {
    /// The stream.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// let (reader, writer) = client.into_split();
    /// assert_eq!(reader.stream().peer_addr()?, server.local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn stream(&self) -> &RdmaStream {
        &self.0
    }
}

impl WriteHalf {
    /// The stream.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use std::io::{Read, Write};
    /// # use urxe::net::{RdmaListener, RdmaStream};
    /// # let listener = RdmaListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || RdmaStream::connect_blocking(address));
    /// # let (mut server, mut client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// let (reader, writer) = client.into_split();
    /// assert_eq!(writer.stream().local_addr(), reader.stream().local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn stream(&self) -> &RdmaStream {
        &self.0
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        let inner = &*self.0.0;
        if inner.announced_end.load(Ordering::Acquire) {
            return;
        }
        if inner.socket.is_used_by_tasks() {
            return inner.send_due_end();
        }
        if let Err(error) = self.0.shutdown_blocking(Shutdown::Write) {
            tracing::debug!(%error, "a stream's end was not announced");
        }
    }
}

impl Read for ReadHalf {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(slices)
    }
}

impl Write for WriteHalf {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(slices)
    }

    /// Does nothing: data is sent when it is written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
