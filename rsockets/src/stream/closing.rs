//! Closes sockets without blocking the caller.

use super::link::Link;
use super::{Phase, StreamSocket};
use crate::service::Closing;
use crate::sync::lock;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_proto::rsocket::stream::Shutdown;

impl StreamSocket {
    /// Closes the socket like [`StreamSocket::close`], without waiting: if sent data has not
    /// arrived yet, the service thread closes it later.
    ///
    /// No other call may use the socket afterwards.
    pub fn close_in_background(self: &Arc<Self>) {
        let connected = match &lock(&self.state).phase {
            Phase::Connected(link) if self.process == process::id() => Some(Arc::clone(link)),
            _ => None,
        };
        // Without a connection there is nothing to wait for.
        let Some(link) = connected else {
            return self.close();
        };
        let closing = ClosingStream::new(self, link);
        if !closing.advance() {
            self.service.close_later(Arc::new(closing));
        }
    }
}

/// A connection that is closed once the sent data has arrived or the connection has failed.
///
/// Its creator passes it to the service thread of the process, which calls [`Closing::advance`]
/// when the descriptor is readable.
#[derive(Debug)]
struct ClosingStream {
    socket: Arc<StreamSocket>,
    link: Arc<Link>,
    /// Whether the shutdown message was sent to the peer.
    announced: AtomicBool,
}

impl ClosingStream {
    fn new(socket: &Arc<StreamSocket>, link: Arc<Link>) -> ClosingStream {
        ClosingStream {
            socket: Arc::clone(socket),
            link,
            announced: AtomicBool::new(false),
        }
    }
}

impl Closing for ClosingStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    fn advance(&self) -> bool {
        // The descriptor becomes readable for completions after `arm`. The call of `try_shut_down`
        // below processes those before it.
        self.link.clear();
        self.link.arm();
        let mut announced = self.announced.load(Ordering::Relaxed);
        let result = self.socket.try_shut_down(Shutdown::Both, &mut announced);
        self.announced.store(announced, Ordering::Relaxed);
        match result {
            Err(error) if error.errno() == Errno::AGAIN.raw_os_error() => return false,
            Err(error) => tracing::debug!(%error, "a stream was not closed in order"),
            Ok(()) => {}
        }
        self.socket.release();
        true
    }
}
