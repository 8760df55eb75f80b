//! Stream sockets: what they are bound to, how connections come about, and their options. A connection itself
//! is a [`link`].

mod connect;
mod end;
mod iomap;
mod link;

pub use link::Ready;

use super::data::{Sink, Source};
use super::error::Error;
use super::lock;
use super::service::{self, Service};
use super::settings::{Settings, defaults};
use super::watch::Watchers;
use link::Link;
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;
use urxe_driver::cm::id::{Service as Kind, Transport};
use urxe_driver::cm::{Id, PortSpace};
use urxe_driver::event_queue::EventQueue;
use urxe_driver::{Mr, Pd};
use urxe_proto::mtu::Mtu;
use urxe_proto::rsocket::stream::{Phase as LinkPhase, Shutdown};

/// A stream socket.
#[derive(Debug)]
pub struct StreamSocket {
    me: Weak<StreamSocket>,
    service: Arc<Service>,
    /// A forked child has its parent's sockets, and can do nothing with them.
    process: u32,
    id: Arc<Id>,
    /// Who listened for it.
    listener: Option<Weak<StreamSocket>>,
    /// Connections that wait for [`StreamSocket::accept`]. Its descriptor is the socket's number.
    arrivals: EventQueue<Arc<StreamSocket>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Those who wait for it among others.
    pub watchers: Arc<Watchers>,
    /// `O_NONBLOCK` and others, as `fcntl` has them.
    pub status_flags: AtomicI32,
    /// `FD_CLOEXEC`, as `fcntl` has it.
    pub descriptor_flags: AtomicI32,
    v6: bool,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    settings: Settings,
    options: Options,
    backlog: usize,
    /// What `SO_ERROR` says next.
    error: i32,
}

#[derive(Clone, Debug)]
enum Phase {
    Idle,
    Bound,
    Listening,
    /// The peer was asked.
    Connecting(Arc<Link>),
    /// There is, or was, a connection.
    Connected(Arc<Link>),
    /// There never was one.
    Failed,
}

/// Options that say nothing more than what they were set to, or little.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_OOBINLINE`.
    pub oob_inline: bool,
    /// `SO_LINGER`; a socket always lingers until what it sent has arrived.
    pub linger: bool,
    /// `TCP_NODELAY`; nothing is ever delayed.
    pub no_delay: bool,
    /// `IPV6_V6ONLY`.
    pub v6_only: bool,
    /// `IP_TOS`.
    pub type_of_service: i32,
    /// `SO_KEEPALIVE`.
    pub keep_alive: bool,
    /// `TCP_KEEPIDLE`; the system's if 0.
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
    /// A new one, of IPv6 or IPv4.
    ///
    /// # Errors
    /// When the process has no descriptor left.
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
            backlog: 0,
            error: 0,
        };
        let socket = Arc::new_cyclic(|me| StreamSocket {
            me: Weak::clone(me),
            service,
            process: process::id(),
            id,
            listener,
            arrivals,
            state: Mutex::new(state),
            changed: Condvar::new(),
            watchers: Arc::default(),
            status_flags: AtomicI32::new(0),
            descriptor_flags: AtomicI32::new(0),
            v6,
        });
        let number = socket.service.register(&socket);
        socket.id.tag.store(number, Ordering::Release);
        Ok(socket)
    }

    /// Its number.
    pub fn number(&self) -> RawFd {
        self.arrivals.fd().as_raw_fd()
    }

    /// The number by which the service knows it.
    pub(super) fn service_number(&self) -> usize {
        self.id.tag()
    }

    /// Its connection, if it has or had one.
    fn link(&self) -> Result<Arc<Link>, Error> {
        if self.process != process::id() {
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

    /// Its connection; one that is being made is waited for, unless the call must not wait.
    fn link_for(&self, nonblocking: bool) -> Result<Arc<Link>, Error> {
        if !nonblocking {
            self.wait_connected()?;
        }
        self.link()
    }

    /// Whether a call with these flags must not wait.
    fn must_not_wait(&self, dont_wait: bool) -> bool {
        dont_wait || self.is_nonblocking()
    }

    /// Whether no call waits.
    pub fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Sends, as much as there is room for if it must not wait.
    ///
    /// # Errors
    /// `ECONNRESET` when nobody receives any more; `EAGAIN`.
    pub fn send(&self, source: &mut dyn Source, dont_wait: bool) -> Result<u64, Error> {
        let nonblocking = self.must_not_wait(dont_wait);
        self.link_for(nonblocking)?.send(source, nonblocking)
    }

    /// Receives; 0 bytes when there is nothing more to come.
    ///
    /// # Errors
    /// `ECONNRESET` when the connection broke; `EAGAIN`.
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

    /// Writes to memory that the peer has mapped.
    ///
    /// # Errors
    /// As for [`StreamSocket::send`].
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

    /// The domain in which memory is registered that the socket maps.
    ///
    /// # Errors
    /// `EINVAL` without a connection.
    pub fn domain(&self) -> Result<Arc<Pd>, Error> {
        let link = self.link().map_err(|_| Errno::INVAL)?;
        Ok(Arc::clone(&link.iomaps.pd))
    }

    /// Maps registered memory, by `offset`; for the peer to write to, or not.
    ///
    /// # Errors
    /// `ENOMEM` when the peer has no room to be told of it.
    pub fn map(&self, mr: Mr, offset: u64, for_peer: bool) -> Result<(), Error> {
        let link = self.link().map_err(|_| Errno::INVAL)?;
        link.iomaps
            .add(mr, offset, for_peer, link.peer_iomap_entries())
    }

    /// Ends a mapping.
    ///
    /// # Errors
    /// `EINVAL` when there is none of this memory.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<(), Error> {
        let link = self.link().map_err(|_| Errno::INVAL)?;
        link.iomaps.remove(addr, len)
    }

    /// Shuts one way or both down.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn shut_down(&self, how: Shutdown) -> Result<(), Error> {
        if self.process != process::id() {
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

    /// Ends it. Waits until what was sent has arrived.
    pub fn close(&self) {
        if self.process != process::id() {
            // What it has belongs to the parent: dropping it would end what the parent uses.
            std::mem::forget(self.me.upgrade());
            return;
        }
        if let Err(error) = self.shut_down(Shutdown::Both) {
            tracing::debug!(%error, "a stream did not end in order");
        }
        self.service.forget(self);
        self.id.close();
        while let Some(unseen) = self.arrivals.take() {
            unseen.close();
        }
        self.watchers.notify();
    }

    /// What can be done now.
    pub fn ready(&self) -> Ready {
        let phase = lock(&self.state).phase.clone();
        match phase {
            Phase::Connected(link) => link.ready(),
            Phase::Failed => Ready {
                readable: true,
                writable: true,
                failed: true,
                ..Ready::default()
            },
            Phase::Listening => Ready {
                readable: self.has_arrivals(),
                ..Ready::default()
            },
            Phase::Idle | Phase::Bound | Phase::Connecting(_) => Ready::default(),
        }
    }

    /// From now on a change makes the descriptor readable that is given to `with`.
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

    /// The descriptor of [`StreamSocket::arm`] was readable.
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

    /// Its own address.
    pub fn local_address(&self) -> SocketAddr {
        let known = self.id.addresses().source;
        known.unwrap_or_else(|| self.unspecified())
    }

    /// Its peer's address, if it has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.addresses().destination
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        matches!(lock(&self.state).phase, Phase::Listening)
    }

    /// Whether it is of IPv6.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    fn unspecified(&self) -> SocketAddr {
        match self.v6 {
            true => (Ipv6Addr::UNSPECIFIED, 0).into(),
            false => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Its sizes; those of the connection once there is one.
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

    /// Changes its sizes, for a connection to come. False when there is one already.
    pub fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = lock(&self.state);
        let early = matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening);
        if early {
            change(&mut state.settings);
        }
        early
    }

    /// Its options.
    pub fn options(&self) -> Options {
        lock(&self.state).options
    }

    /// Changes options that are only kept.
    pub fn change_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut lock(&self.state).options);
    }

    /// Shares its address with others.
    ///
    /// # Errors
    /// As for [`Id::set_reuse_address`].
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), Error> {
        if matches!(lock(&self.state).phase, Phase::Idle) {
            self.id.set_reuse_address(reuse)?;
        }
        self.change_options(|options| options.reuse_address = reuse);
        Ok(())
    }

    /// Leaves IPv4 alone.
    ///
    /// # Errors
    /// As for [`Id::set_v6_only`].
    pub fn set_v6_only(&self, v6_only: bool) -> Result<(), Error> {
        self.id.set_v6_only(v6_only)?;
        self.change_options(|options| options.v6_only = v6_only);
        Ok(())
    }

    /// The type of service of its packets.
    pub fn set_type_of_service(&self, value: i32) {
        // As in an IP header.
        self.id.set_type_of_service(value as u8);
        self.change_options(|options| options.type_of_service = value);
    }

    /// Looks now and then whether the peer is there, or does not.
    pub fn set_keep_alive(&self, on: bool) {
        self.change_options(|options| options.keep_alive = on);
        match on {
            true => self.service.begin_keep_alive(self),
            false => self.service.end_keep_alive(self),
        }
    }

    /// After how many seconds it looks, at least 1.
    pub fn set_keep_idle(&self, seconds: u32) {
        self.change_options(|options| options.keep_idle = seconds);
        if self.options().keep_alive {
            self.service.begin_keep_alive(self);
        }
    }

    /// After how long it looks whether the peer is there.
    pub(super) fn keep_idle(&self) -> Duration {
        let seconds = match self.options().keep_idle {
            0 => system_keep_idle(),
            set => set,
        };
        Duration::from_secs(seconds.into())
    }

    /// Looks whether the peer is there.
    pub(super) fn keep_alive(&self) {
        if let Ok(link) = self.link() {
            link.keep_alive();
        }
    }

    /// What went wrong last, once.
    pub fn take_error(&self) -> i32 {
        std::mem::take(&mut lock(&self.state).error)
    }

    /// Whether it is connected.
    pub fn is_connected(&self) -> bool {
        self.link()
            .is_ok_and(|link| link.phase() == LinkPhase::Connected)
    }

    /// The largest payload of a packet, once the way is known.
    pub fn path_mtu(&self) -> Option<Mtu> {
        Some(self.id.path()?.mtu)
    }
}

/// The system's time for TCP, in seconds.
fn system_keep_idle() -> u32 {
    const USUAL: u32 = 7200;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(USUAL)
}
