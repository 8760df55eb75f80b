//! Stream sockets: addresses, connection phases and options. The connection itself is a
//! `link::Link`.

mod backlog;
mod closing;
mod connect;
mod end;
mod iomap;
mod link;

pub use link::Ready;

use super::data::{Sink, Source};
use super::error::Error;
use super::service::{self, Service, Stream};
use super::settings::{Settings, defaults};
use super::sync::lock;
use super::watch::Watchers;
use backlog::Backlog;
use link::Link;
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use urxe_driver::cm::id::{Service as Kind, Transport};
use urxe_driver::cm::{Event, Id, PortSpace};
use urxe_driver::event_queue::EventQueue;
use urxe_driver::{Mr, Pd};
use urxe_proto::mtu::Mtu;
use urxe_proto::rsocket::stream::{Phase as LinkPhase, Shutdown};

/// A stream socket.
#[derive(Debug)]
pub struct StreamSocket {
    me: Weak<StreamSocket>,
    service: Arc<Service>,
    /// The process that created the socket. A forked child cannot use its parent's sockets.
    process: u32,
    id: Arc<Id>,
    /// The listening socket of an accepted connection.
    listener: Option<Weak<StreamSocket>>,
    /// Connections for [`StreamSocket::accept`]. The queue's descriptor is the socket's number.
    arrivals: EventQueue<Arc<StreamSocket>>,
    state: Mutex<State>,
    /// The threads that wait for several sockets including this one, or for its connection.
    pub watchers: Arc<Watchers>,
    /// The file status flags of `fcntl`, such as `O_NONBLOCK`.
    pub status_flags: AtomicI32,
    /// The descriptor flags of `fcntl`: `FD_CLOEXEC`.
    pub descriptor_flags: AtomicI32,
    v6: bool,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    settings: Settings,
    options: Options,
    backlog: Backlog,
    /// The pending error for `SO_ERROR` of a connection that was never established.
    error: i32,
    /// Whether `SO_ERROR` has reported the failure of the established connection.
    has_reported_failure: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Idle,
    Bound,
    Listening,
    /// A connection request was sent.
    Connecting(Arc<Link>),
    /// The connection is or was established.
    Connected(Arc<Link>),
    /// The connection was never established.
    Failed,
}

/// The socket options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_OOBINLINE`.
    pub oob_inline: bool,
    /// `SO_LINGER`; close always waits until sent data has arrived.
    pub linger: bool,
    /// `TCP_NODELAY`; data is never delayed.
    pub no_delay: bool,
    /// `IPV6_V6ONLY`.
    pub v6_only: bool,
    /// `IP_TOS`.
    pub type_of_service: i32,
    /// `SO_KEEPALIVE`.
    pub keep_alive: bool,
    /// `TCP_KEEPIDLE` in seconds; 0 is the system's default.
    pub keep_idle: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            reuse_address: false,
            oob_inline: false,
            linger: true,
            no_delay: false,
            v6_only: false,
            type_of_service: 0,
            keep_alive: false,
            keep_idle: 0,
        }
    }
}

impl StreamSocket {
    /// Creates a socket for IPv6 or IPv4.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn new(v6: bool) -> Result<Arc<StreamSocket>, Error> {
        let service = service::get()?;
        let id = Id::new(
            service.channel(),
            PortSpace::Tcp,
            Kind::Connected(Transport::Rc),
        );
        Self::of(
            service,
            id,
            None,
            v6,
            defaults().settings,
            Options::default(),
        )
    }

    fn of(
        service: Arc<Service>,
        id: Arc<Id>,
        listener: Option<Weak<StreamSocket>>,
        v6: bool,
        settings: Settings,
        options: Options,
    ) -> Result<Arc<StreamSocket>, Error> {
        let arrivals = EventQueue::of_rare_events()?;
        let state = State {
            phase: Phase::Idle,
            settings,
            options,
            backlog: Backlog::default(),
            error: 0,
            has_reported_failure: false,
        };
        let socket = Arc::new_cyclic(|me| StreamSocket {
            me: Weak::clone(me),
            service,
            process: process::id(),
            id,
            listener,
            arrivals,
            state: Mutex::new(state),
            watchers: Arc::default(),
            status_flags: AtomicI32::new(0),
            descriptor_flags: AtomicI32::new(0),
            v6,
        });
        let number = socket.service.register(Arc::<Self>::downgrade(&socket));
        socket.id.tag.store(number, Ordering::Release);
        Ok(socket)
    }

    /// Returns the socket's number.
    pub fn number(&self) -> RawFd {
        self.arrivals.fd().as_raw_fd()
    }

    /// Returns whether the socket belongs to the process that forked this one, which cannot use it.
    pub fn is_inherited(&self) -> bool {
        self.process != process::id()
    }

    /// Returns the connection, if it is or was established.
    fn link(&self) -> Result<Arc<Link>, Error> {
        if self.is_inherited() {
            return Err(Errno::BADF.into());
        }
        match &lock(&self.state).phase {
            Phase::Connected(link) => Ok(Arc::clone(link)),
            Phase::Connecting(_) => Err(Errno::AGAIN.into()),
            Phase::Idle | Phase::Bound | Phase::Listening | Phase::Failed => {
                Err(Errno::NOTCONN.into())
            }
        }
    }

    /// Returns the connection; waits until it is established, unless nonblocking.
    fn link_for(&self, nonblocking: bool) -> Result<Arc<Link>, Error> {
        if !nonblocking {
            self.wait_connected()?;
        }
        self.link()
    }

    /// Returns whether a call is nonblocking, by its flag `MSG_DONTWAIT` or by the socket.
    fn must_not_wait(&self, dont_wait: bool) -> bool {
        dont_wait || self.is_nonblocking()
    }

    /// Returns whether the socket is nonblocking.
    pub fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Sends data; if nonblocking, as much as there is room for.
    ///
    /// # Errors
    /// `ECONNRESET` if the peer receives no more; `EAGAIN` if nonblocking and there is no room.
    pub fn send(&self, source: &mut dyn Source, dont_wait: bool) -> Result<u64, Error> {
        let nonblocking = self.must_not_wait(dont_wait);
        self.link_for(nonblocking)?.send(source, nonblocking)
    }

    /// Receives data; 0 bytes if the peer sends no more.
    ///
    /// # Errors
    /// `ECONNRESET` if the connection failed; `EAGAIN` if nonblocking and there is no data.
    pub fn receive(
        &self,
        sink: &mut dyn Sink,
        dont_wait: bool,
        all: bool,
        peek: bool,
    ) -> Result<u64, Error> {
        let nonblocking = self.must_not_wait(dont_wait);
        let link = self.link_for(nonblocking)?;
        link.receive(sink, nonblocking, all, peek)
    }

    /// Writes to the peer's mapped memory.
    ///
    /// # Errors
    /// Those of [`StreamSocket::send`].
    pub fn write_mapped(
        &self,
        source: &mut dyn Source,
        offset: u64,
        dont_wait: bool,
    ) -> Result<u64, Error> {
        let nonblocking = self.must_not_wait(dont_wait);
        let link = self.link_for(nonblocking)?;
        link.write_mapped(source, offset, nonblocking)
    }

    /// Returns the protection domain for memory to be mapped.
    ///
    /// # Errors
    /// `EINVAL` without a connection.
    pub fn domain(&self) -> Result<Arc<Pd>, Error> {
        let link = self.link().map_err(|_| Errno::INVAL)?;
        Ok(Arc::clone(&link.iomaps.pd))
    }

    /// Maps registered memory at `offset`; with `for_peer`, the peer may write to it.
    ///
    /// # Errors
    /// `ENOMEM` if the peer's list of mappings has no free entry.
    pub fn map(&self, mr: Mr, offset: u64, for_peer: bool) -> Result<(), Error> {
        let link = self.link().map_err(|_| Errno::INVAL)?;
        link.iomaps
            .add(mr, offset, for_peer, link.peer_iomap_entries())
    }

    /// Removes a mapping.
    ///
    /// # Errors
    /// `EINVAL` if the memory is not mapped.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<(), Error> {
        let link = self.link().map_err(|_| Errno::INVAL)?;
        link.iomaps.remove(addr, len)
    }

    /// Shuts down one or both directions.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn shut_down(&self, how: Shutdown) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        let link = match &lock(&self.state).phase {
            Phase::Connected(link) => Arc::clone(link),
            _ => return Ok(()),
        };
        if how != Shutdown::Read {
            self.service.end_keep_alive(self);
        }
        link.shut_down(how)?;
        if link.phase() != LinkPhase::Connected {
            self.id.disconnect()?;
        }
        Ok(())
    }

    /// Shuts down one or both directions like [`StreamSocket::shut_down`], without waiting.
    ///
    /// `announced` is whether the shutdown message has been sent to the peer; the call updates it.
    ///
    /// # Errors
    /// `EAGAIN` until sent data has arrived: the caller repeats the call.
    pub fn try_shut_down(&self, how: Shutdown, announced: &mut bool) -> Result<(), Error> {
        let link = self.link()?;
        if how != Shutdown::Read {
            self.service.end_keep_alive(self);
        }
        link.try_shut_down(how, announced)?;
        if link.phase() != LinkPhase::Connected {
            self.id.disconnect()?;
        }
        Ok(())
    }

    /// Waits until sent data has arrived, and closes the socket.
    pub fn close(&self) {
        if self.is_inherited() {
            // In a forked child the objects belong to the parent and must not be dropped.
            std::mem::forget(self.me.upgrade());
            return;
        }
        if let Err(error) = self.shut_down(Shutdown::Both) {
            tracing::debug!(%error, "a stream was not closed in order");
        }
        self.release();
    }

    /// Closes the connection and those that were not accepted, and wakes the waiting threads.
    fn release(&self) {
        self.service.forget(self);
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Listening) {
            // No connection and no request is added from now on.
            state.phase = Phase::Idle;
        }
        let pending = state.backlog.take_pending();
        drop(state);
        for (request, _) in pending {
            request.close();
        }
        self.id.close();
        while let Some(unaccepted) = self.arrivals.take() {
            unaccepted.close();
        }
        self.watchers.notify();
    }

    /// Returns the readiness.
    pub fn ready(&self) -> Ready {
        let state = lock(&self.state);
        let none = Ready {
            signals: self.watchers.signals(),
            ..Ready::default()
        };
        match &state.phase {
            Phase::Connected(link) => {
                let link = Arc::clone(link);
                drop(state);
                link.ready()
            }
            Phase::Failed => Ready {
                readable: true,
                has_ended: true,
                writable: true,
                failed: true,
                ..none
            },
            Phase::Listening => Ready {
                readable: self.has_arrivals(),
                ..none
            },
            Phase::Idle | Phase::Bound | Phase::Connecting(_) => none,
        }
    }

    /// Enables notifications and calls `with` with the descriptor that becomes readable on a
    /// change.
    pub fn arm<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let phase = lock(&self.state).phase.clone();
        match phase {
            Phase::Connected(link) => {
                link.arm();
                with(link.fd())
            }
            _ => with(self.arrivals.fd()),
        }
    }

    /// Clears the readiness of the descriptor of [`StreamSocket::arm`].
    pub fn clear(&self) {
        if let Ok(link) = self.link() {
            link.clear();
        }
    }

    fn has_arrivals(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(self.arrivals.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Returns the local address.
    pub fn local_address(&self) -> SocketAddr {
        let known = self.id.addresses().source;
        known.unwrap_or_else(|| self.unspecified())
    }

    /// Returns the peer's address, if any.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.addresses().destination
    }

    /// Returns whether the socket listens.
    pub fn is_listening(&self) -> bool {
        matches!(lock(&self.state).phase, Phase::Listening)
    }

    /// Returns whether the socket is for IPv6.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    fn unspecified(&self) -> SocketAddr {
        match self.v6 {
            true => (Ipv6Addr::UNSPECIFIED, 0).into(),
            false => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Returns the sizes of queues and buffers; those of the connection, if there is one.
    pub fn settings(&self) -> Settings {
        let state = lock(&self.state);
        let mut settings = state.settings;
        if let Phase::Connecting(link) | Phase::Connected(link) = &state.phase {
            let sizes = link.sizes();
            settings.send_queue = sizes.send_queue;
            settings.receive_queue = sizes.receive_queue;
            settings.send_buffer = sizes.send_buffer;
            settings.receive_buffer = sizes.receive_buffer;
        }
        settings
    }

    /// Changes the sizes before a connection exists. Returns false afterwards.
    pub fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = lock(&self.state);
        let early = matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening);
        if early {
            change(&mut state.settings);
        }
        early
    }

    /// Returns the options.
    pub fn options(&self) -> Options {
        lock(&self.state).options
    }

    /// Changes the stored options.
    pub fn change_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut lock(&self.state).options);
    }

    /// Sets `SO_REUSEADDR`.
    ///
    /// # Errors
    /// Those of [`Id::set_reuse_address`].
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), Error> {
        if matches!(lock(&self.state).phase, Phase::Idle) {
            self.id.set_reuse_address(reuse)?;
        }
        self.change_options(|options| options.reuse_address = reuse);
        Ok(())
    }

    /// Sets `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// Those of [`Id::set_v6_only`].
    pub fn set_v6_only(&self, v6_only: bool) -> Result<(), Error> {
        self.id.set_v6_only(v6_only)?;
        self.change_options(|options| options.v6_only = v6_only);
        Ok(())
    }

    /// Sets `IP_TOS`.
    pub fn set_type_of_service(&self, value: i32) {
        // The field of the IP header has 8 bits.
        self.id.set_type_of_service(value as u8);
        self.change_options(|options| options.type_of_service = value);
    }

    /// Sets `SO_KEEPALIVE`: enables keep-alive probes.
    pub fn set_keep_alive(&self, on: bool) {
        self.change_options(|options| options.keep_alive = on);
        match on {
            true => self.service.begin_keep_alive(self),
            false => self.service.end_keep_alive(self),
        }
    }

    /// Sets `TCP_KEEPIDLE`, at least 1 second.
    pub fn set_keep_idle(&self, seconds: u32) {
        self.change_options(|options| options.keep_idle = seconds);
        if self.options().keep_alive {
            self.service.begin_keep_alive(self);
        }
    }

    /// Returns and clears the pending error. The failure of an established connection is one
    /// `ECONNRESET`.
    pub fn take_error(&self) -> i32 {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Connected(link) if !state.has_reported_failure && link.ready().failed => {
                state.has_reported_failure = true;
                libc::ECONNRESET
            }
            _ => std::mem::take(&mut state.error),
        }
    }

    /// Returns whether the connection is established.
    pub fn is_connected(&self) -> bool {
        self.link()
            .is_ok_and(|link| link.phase() == LinkPhase::Connected)
    }

    /// Returns the path MTU, once the route is known.
    pub fn path_mtu(&self) -> Option<Mtu> {
        Some(self.id.path()?.mtu)
    }
}

/// Returns the system's `tcp_keepalive_time` in seconds.
fn system_keep_idle() -> u32 {
    const DEFAULT: u32 = 7200;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT)
}

impl Stream for StreamSocket {
    fn service_number(&self) -> usize {
        self.id.tag()
    }

    fn handle_event(&self, event: &Event) {
        self.on_event(event);
    }

    fn keep_idle(&self) -> Duration {
        let seconds = match self.options().keep_idle {
            0 => system_keep_idle(),
            set => set,
        };
        Duration::from_secs(seconds.into())
    }

    fn keep_alive(&self) {
        if let Ok(link) = self.link() {
            link.keep_alive();
        }
    }
}
