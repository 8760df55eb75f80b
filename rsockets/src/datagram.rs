//! Datagram sockets, as in rdma-core: a UDP socket that owns the address, and a UD queue pair for
//! each local address in use. The first datagrams to a peer go over UDP and introduce the sender's
//! queue pair. The peer answers with its own, and later datagrams go between the queue pairs.

mod link;
mod udp;

use crate::data::{Sink, Source};
use crate::error::Error;
use crate::service::{self, Datagrams, Service};
use crate::settings::{Settings, defaults};
use crate::stream::Ready;
use crate::sync::lock;
use crate::wait::{Progress, Waitable, Waiters};
use crate::watch::{Signals, Watchers};
use link::{Arrived, DatagramLink, SLOT};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_driver::AddressHandle;
use urxe_proto::ids::Qpn;
use urxe_proto::rsocket::datagram::UdpHeader;

/// A datagram socket.
#[derive(Debug)]
pub struct DatagramSocket {
    me: Weak<DatagramSocket>,
    service: Arc<Service>,
    process: u32,
    /// The UDP socket. Its descriptor is the socket's number.
    udp: OwnedFd,
    state: Mutex<State>,
    waiters: Waiters,
    /// The threads that wait for several sockets including this one.
    pub watchers: Arc<Watchers>,
    /// The file status flags of `fcntl`, such as `O_NONBLOCK`.
    pub status_flags: AtomicI32,
    /// The descriptor flags of `fcntl`: `FD_CLOEXEC`.
    pub descriptor_flags: AtomicI32,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    /// Whether the service thread receives introductions.
    has_service: bool,
    connected: Option<SocketAddr>,
    /// The queue pairs by local address and port.
    links: HashMap<SocketAddr, DatagramLink>,
    peers: HashMap<SocketAddr, Peer>,
    arrived: VecDeque<Received>,
}

/// A destination of datagrams.
#[derive(Clone, Debug)]
struct Peer {
    /// The local address.
    from: SocketAddr,
    /// The queue pair and its address handle, once the peer has answered.
    queue_pair: Option<(Arc<AddressHandle>, Qpn)>,
}

/// A received datagram that the program has not read.
#[derive(Debug)]
enum Received {
    /// In a receive buffer of this link.
    In(SocketAddr, Arrived),
    /// The data of an introduction.
    Here(SocketAddr, Vec<u8>),
}

impl Waitable for State {
    fn process(&mut self) -> bool {
        let mut changed = false;
        let (_, most) = self.settings.of_datagrams();
        for (at, link) in &mut self.links {
            changed |= link.process(|arrived| {
                let fits = self.arrived.len() < usize::from(most);
                if fits {
                    self.arrived.push_back(Received::In(*at, arrived));
                }
                fits
            });
        }
        changed
    }

    fn progress(&self) -> Progress {
        Progress {
            unread: self.arrived.len(),
            can_send: self.can_send(),
            ..Progress::default()
        }
    }

    fn arm(&self) {
        for link in self.links.values() {
            link.arm();
        }
    }
}

impl State {
    fn can_send(&self) -> bool {
        self.links.values().all(DatagramLink::can_send)
    }
}

impl DatagramSocket {
    /// Creates a socket for IPv6 or IPv4.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn new(v6: bool) -> Result<Arc<DatagramSocket>, Error> {
        let watchers = Arc::default();
        let waiters = Waiters::new(&watchers)?;
        let (service, udp) = (service::get()?, udp::open(v6)?);
        let state = State {
            settings: defaults().settings,
            has_service: false,
            connected: None,
            links: HashMap::new(),
            peers: HashMap::new(),
            arrived: VecDeque::new(),
        };
        Ok(Arc::new_cyclic(|me| DatagramSocket {
            me: Weak::clone(me),
            service,
            process: process::id(),
            udp,
            state: Mutex::new(state),
            waiters,
            watchers,
            status_flags: AtomicI32::new(0),
            descriptor_flags: AtomicI32::new(0),
        }))
    }

    /// Returns the socket's number.
    pub fn number(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// Returns whether the socket belongs to the process that forked this one, which cannot use it.
    pub fn is_inherited(&self) -> bool {
        self.process != process::id()
    }

    /// Returns the UDP socket, for options and for receiving introductions.
    pub fn udp(&self) -> &OwnedFd {
        &self.udp
    }

    /// Returns whether the socket is nonblocking.
    pub fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Returns the sizes.
    pub fn settings(&self) -> Settings {
        lock(&self.state).settings
    }

    /// Changes the sizes. Returns false if the socket is in use.
    pub fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = lock(&self.state);
        let early = state.links.is_empty();
        if early {
            change(&mut state.settings);
        }
        early
    }

    /// Registers the socket with the service thread, which receives introductions.
    fn register(&self, state: &mut State) {
        if !std::mem::replace(&mut state.has_service, true) {
            self.service
                .register_datagrams(Weak::<Self>::clone(&self.me));
        }
    }

    /// Binds the socket to an address.
    ///
    /// # Errors
    /// Those of `bind(2)`.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        rustix::net::bind(&self.udp, &address).map_err(Error::from)?;
        self.register(&mut lock(&self.state));
        Ok(())
    }

    /// Sets the destination of datagrams.
    ///
    /// # Errors
    /// Those of `connect(2)`, or an error if the peer is unreachable.
    pub fn connect(&self, to: SocketAddr) -> Result<(), Error> {
        let mut state = lock(&self.state);
        // Connects the UDP socket, as librdmacm does, so that the local address is known.
        rustix::net::connect(&self.udp, &to).map_err(Error::from)?;
        self.register(&mut state);
        self.peer(&mut state, to)?;
        state.connected = Some(to);
        Ok(())
    }

    /// Returns the state of a peer, and creates a queue pair for its local address if needed.
    fn peer(&self, state: &mut State, to: SocketAddr) -> Result<Peer, Error> {
        if let Some(peer) = state.peers.get(&to) {
            return Ok(peer.clone());
        }
        let from = udp::source_for(&self.udp, to)?;
        if !state.links.contains_key(&from) {
            let link = DatagramLink::new(from, &state.settings, &self.waiters)?;
            state.links.insert(from, link);
        }
        let queue_pair = None;
        let peer = Peer { from, queue_pair };
        state.peers.insert(to, peer.clone());
        Ok(peer)
    }

    /// Sends a datagram to `to`, or to the connected peer.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `EMSGSIZE`, `EAGAIN`, or an error if the peer is unreachable.
    pub fn send(
        &self,
        source: &mut dyn Source,
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> Result<u64, Error> {
        let len = source.left();
        let mut state = lock(&self.state);
        let to = to.or(state.connected).ok_or(Errno::DESTADDRREQ)?;
        self.register(&mut state);
        let peer = self.peer(&mut state, to)?;
        let most = state
            .links
            .get(&peer.from)
            .map_or(0, DatagramLink::most_data);
        if len > most.into() {
            return Err(Errno::MSGSIZE.into());
        }
        if peer.queue_pair.is_none() {
            let mut data = vec![0; len as usize];
            source.take(&mut data);
            self.introduce(&state, &peer, to, Some(&data))?;
            return Ok(len);
        }
        drop(state);
        let nonblocking = dont_wait || self.is_nonblocking();
        let mut state = self.waiters.wait(&self.state, nonblocking, |state| {
            let link = state.links.get(&peer.from);
            Ok(link.is_none_or(DatagramLink::can_send))
        })?;
        let (Some((handle, qpn)), Some(link)) = (&peer.queue_pair, state.links.get_mut(&peer.from))
        else {
            return Err(Errno::BADF.into());
        };
        link.send(source, handle, *qpn)?;
        Ok(len)
    }

    /// Sends an introduction over UDP, with data or as a response.
    fn introduce(
        &self,
        state: &State,
        peer: &Peer,
        to: SocketAddr,
        data: Option<&[u8]>,
    ) -> Result<(), Error> {
        let link = state.links.get(&peer.from).ok_or(Errno::BADF)?;
        let introduction = UdpHeader {
            qpn: link.qpn(),
            address: peer.from.ip(),
            data: data.is_some(),
        };
        let header = introduction.header();
        udp::send(&self.udp, &[header.bytes(), data.unwrap_or(&[])], to)
    }

    /// Receives a datagram, truncated to the room in `sink`, and returns the sender's address.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    pub fn receive(
        &self,
        sink: &mut dyn Sink,
        dont_wait: bool,
        peek: bool,
    ) -> Result<(u64, SocketAddr), Error> {
        let nonblocking = dont_wait || self.is_nonblocking();
        self.register(&mut lock(&self.state));
        let waited = self.waiters.wait(&self.state, nonblocking, |state| {
            Ok(!state.arrived.is_empty())
        });
        let mut state = waited?;
        let room = sink.room();
        let State { links, arrived, .. } = &mut *state;
        let from = match arrived.front().ok_or(Errno::AGAIN)? {
            Received::Here(from, data) => {
                let len = usize::try_from(room).map_or(data.len(), |room| data.len().min(room));
                sink.put(&data[..len]);
                *from
            }
            Received::In(at, datagram) => {
                if let Some(link) = links.get(at) {
                    link.give(datagram, sink)?;
                }
                datagram.from
            }
        };
        if !peek
            && let Some(Received::In(at, datagram)) = arrived.pop_front()
            && let Some(link) = links.get(&at)
        {
            link.release(&datagram);
        }
        Ok((room - sink.room(), from))
    }

    fn take_introduction(
        &self,
        introduction: &UdpHeader,
        from: SocketAddr,
        data: &[u8],
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let peer = self.peer(&mut state, from)?;
        if introduction.data {
            self.introduce(&state, &peer, from, None)?;
        }
        let known = peer.queue_pair.as_ref().map(|(_, qpn)| *qpn);
        let link = state.links.get(&peer.from).ok_or(Errno::BADF)?;
        let cq = Arc::clone(link.cq());
        if known != Some(introduction.qpn) {
            let handle = link.handle_for(from.ip())?;
            if let Some(peer) = state.peers.get_mut(&from) {
                peer.queue_pair = Some((handle, introduction.qpn));
            }
        }
        let (_, most) = state.settings.of_datagrams();
        let mut new = Signals::default();
        if introduction.data && state.arrived.len() < usize::from(most) {
            state.arrived.push_back(Received::Here(from, data.to_vec()));
            new = Signals::INPUT;
        }
        self.waiters.interrupt(&cq, new);
        Ok(())
    }

    /// Returns the readiness.
    pub fn ready(&self) -> Ready {
        let mut state = lock(&self.state);
        self.register(&mut state);
        self.waiters.process(&mut *state);
        Ready {
            readable: !state.arrived.is_empty(),
            has_data: !state.arrived.is_empty(),
            writable: state.can_send(),
            signals: self.waiters.signals(),
            ..Ready::default()
        }
    }

    /// Enables notifications and calls `with` with the descriptor that becomes readable on a
    /// change.
    pub fn arm<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        lock(&self.state).arm();
        with(self.waiters.fd())
    }

    /// Clears the readiness of the descriptor of [`DatagramSocket::arm`].
    pub fn clear(&self) {
        self.waiters.clear(&self.state);
    }

    /// Closes the socket after all datagrams were sent.
    pub fn close(&self) {
        if self.is_inherited() {
            // As for streams: in a forked child the objects belong to the parent.
            std::mem::forget(self.me.upgrade());
            return;
        }
        self.service.unregister_datagrams(self);
        let gone = self.waiters.wait(&self.state, false, |state| {
            Ok(state.links.values().all(DatagramLink::is_idle))
        });
        if let Err(error) = gone {
            tracing::debug!(%error, "datagrams were not sent");
        }
        self.watchers.notify();
    }
}

impl Datagrams for DatagramSocket {
    fn udp(&self) -> &OwnedFd {
        &self.udp
    }

    fn receive_introductions(&self) {
        let mut buffer = [0; SLOT as usize];
        while let Some((len, from)) = udp::receive(&self.udp, &mut buffer) {
            let Some((introduction, header)) = UdpHeader::parse(&buffer[..len]) else {
                continue;
            };
            if introduction.address.is_ipv4() != from.ip().to_canonical().is_ipv4() {
                continue;
            }
            if let Err(error) = self.take_introduction(&introduction, from, &buffer[header..len]) {
                tracing::warn!("rsocket: cannot answer {from}: {error}");
            }
        }
    }
}
