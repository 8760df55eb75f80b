//! Datagram sockets: a UDP socket, whose address is the socket's, and a queue pair of datagrams for each local
//! address that is sent from. The first datagrams to a peer go over UDP and tell it our queue pair; it
//! answers with its own, and from then on they go between queue pairs.

mod link;
mod udp;

use crate::data::{Sink, Source};
use crate::error::Error;
use crate::lock;
use crate::service::{self, Service};
use crate::settings::{Settings, defaults};
use crate::wait::{Waited, Waiters};
use crate::watch::Watchers;
use link::{Arrived, DatagramLink};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_driver::AddressHandle;
use urxe_proto::ids::Qpn;
use urxe_proto::rsocket::datagram::UdpHeader;
use urxe_proto::rsocket::stream::LOW_WATER;

/// The most bytes of a datagram with its header.
pub(super) const SLOT: u32 = LOW_WATER;

/// A socket of datagrams.
#[derive(Debug)]
pub struct DatagramSocket {
    me: Weak<DatagramSocket>,
    service: Arc<Service>,
    process: u32,
    /// Its descriptor is the socket's number.
    udp: OwnedFd,
    state: Mutex<State>,
    waiters: Waiters,
    /// Those who wait for it among others.
    pub watchers: Arc<Watchers>,
    /// `O_NONBLOCK` and others, as `fcntl` has them.
    pub status_flags: AtomicI32,
    /// `FD_CLOEXEC`, as `fcntl` has it.
    pub descriptor_flags: AtomicI32,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    /// Whether the thread looks after it.
    looked_after: bool,
    connected: Option<SocketAddr>,
    /// By our address, with its port.
    links: HashMap<SocketAddr, DatagramLink>,
    peers: HashMap<SocketAddr, Peer>,
    arrived: VecDeque<Received>,
}

/// What is known of who is sent to.
#[derive(Clone, Debug)]
struct Peer {
    /// From where.
    from: SocketAddr,
    /// Its queue pair and the way to it, once it has answered.
    queue_pair: Option<(Arc<AddressHandle>, Qpn)>,
}

/// A datagram that waits for the program.
#[derive(Debug)]
enum Received {
    /// In a receive of this link.
    In(SocketAddr, Arrived),
    /// It came with an introduction.
    Here(SocketAddr, Vec<u8>),
}

impl Waited for State {
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
    /// A new one, of IPv6 or IPv4.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(v6: bool) -> Result<Arc<DatagramSocket>, Error> {
        let watchers = Arc::default();
        let waiters = Waiters::new(&watchers)?;
        let (service, udp) = (service::get()?, udp::open(v6)?);
        let state = State {
            settings: defaults().settings,
            looked_after: false,
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

    /// Its number.
    pub fn number(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// Its UDP socket, for options, and for who waits for introductions.
    pub fn udp(&self) -> &OwnedFd {
        &self.udp
    }

    /// Whether no call waits.
    pub fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Its sizes.
    pub fn settings(&self) -> Settings {
        lock(&self.state).settings
    }

    /// Changes its sizes. False when it is in use already.
    pub fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = lock(&self.state);
        let early = state.links.is_empty();
        if early {
            change(&mut state.settings);
        }
        early
    }

    /// Has introductions received.
    fn look_after(&self, state: &mut State) {
        if !std::mem::replace(&mut state.looked_after, true)
            && let Some(me) = self.me.upgrade()
        {
            self.service.look_after(&me);
        }
    }

    /// Binds it to an address.
    ///
    /// # Errors
    /// Those of `bind`.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        rustix::net::bind(&self.udp, &address).map_err(Error::from)?;
        self.look_after(&mut lock(&self.state));
        Ok(())
    }

    /// Sends to this peer from now on.
    ///
    /// # Errors
    /// Those of `connect`; when there is no way to it.
    pub fn connect(&self, to: SocketAddr) -> Result<(), Error> {
        let mut state = lock(&self.state);
        // As with librdmacm the UDP socket is connected, so that its address is known.
        rustix::net::connect(&self.udp, &to).map_err(Error::from)?;
        self.look_after(&mut state);
        self.peer(&mut state, to)?;
        state.connected = Some(to);
        Ok(())
    }

    /// What is known of a peer; a queue pair to send from, if there was none.
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

    /// Sends a datagram; where it is connected to, if `to` does not say where.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `EMSGSIZE`, `EAGAIN`, and when there is no way to the peer.
    pub fn send(
        &self,
        source: &mut dyn Source,
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> Result<u64, Error> {
        let len = source.left();
        let mut state = lock(&self.state);
        let to = to.or(state.connected).ok_or(Errno::DESTADDRREQ)?;
        self.look_after(&mut state);
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

    /// Tells a peer our queue pair, with data or in answer to that.
    fn introduce(
        &self,
        state: &State,
        peer: &Peer,
        to: SocketAddr,
        data: Option<&[u8]>,
    ) -> Result<(), Error> {
        let link = state.links.get(&peer.from).ok_or(Errno::BADF)?;
        let said = UdpHeader {
            qpn: link.qpn(),
            address: peer.from.ip(),
            data: data.is_some(),
        };
        let header = said.header();
        udp::send(&self.udp, &[header.bytes(), data.unwrap_or(&[])], to)
    }

    /// Receives a datagram, as much of it as there is room for; where it comes from.
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
        self.look_after(&mut lock(&self.state));
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
            link.done_with(&datagram);
        }
        Ok((room - sink.room(), from))
    }

    /// Introductions have come.
    pub(super) fn introduced(&self) {
        let mut buffer = [0; SLOT as usize];
        while let Some((len, from)) = udp::receive(&self.udp, &mut buffer) {
            let Some((said, header)) = UdpHeader::parse(&buffer[..len]) else {
                continue;
            };
            if said.address.is_ipv4() != from.ip().to_canonical().is_ipv4() {
                continue;
            }
            if let Err(error) = self.take_introduction(&said, from, &buffer[header..len]) {
                tracing::warn!("rsocket: {from} cannot be answered: {error}");
            }
        }
    }

    fn take_introduction(
        &self,
        said: &UdpHeader,
        from: SocketAddr,
        data: &[u8],
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let peer = self.peer(&mut state, from)?;
        if said.data {
            self.introduce(&state, &peer, from, None)?;
        }
        let known = peer.queue_pair.as_ref().map(|(_, qpn)| *qpn);
        let link = state.links.get(&peer.from).ok_or(Errno::BADF)?;
        let cq = Arc::clone(link.cq());
        if known != Some(said.qpn) {
            let handle = link.handle_for(from.ip())?;
            if let Some(peer) = state.peers.get_mut(&from) {
                peer.queue_pair = Some((handle, said.qpn));
            }
        }
        let (_, most) = state.settings.of_datagrams();
        if said.data && state.arrived.len() < usize::from(most) {
            state.arrived.push_back(Received::Here(from, data.to_vec()));
        }
        drop(state);
        self.waiters.interrupt(&cq);
        Ok(())
    }

    /// What can be done now: receive, send.
    pub fn ready(&self) -> (bool, bool) {
        let mut state = lock(&self.state);
        self.look_after(&mut state);
        self.waiters.process(&mut *state);
        (!state.arrived.is_empty(), state.can_send())
    }

    /// From now on a change makes the descriptor readable that is given to `with`.
    pub fn arm<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        lock(&self.state).arm();
        with(self.waiters.fd())
    }

    /// The descriptor of [`DatagramSocket::arm`] was readable.
    pub fn clear(&self) {
        self.waiters.clear(&self.state);
    }

    /// Ends it; waits until what was sent has gone out.
    pub fn close(&self) {
        if self.process != process::id() {
            // As for streams.
            std::mem::forget(self.me.upgrade());
            return;
        }
        self.service.leave_alone(self);
        let gone = self.waiters.wait(&self.state, false, |state| {
            Ok(state.links.values().all(DatagramLink::is_idle))
        });
        if let Err(error) = gone {
            tracing::debug!(%error, "datagrams did not go out");
        }
        self.watchers.notify();
    }
}

/// The address of a GID, or IPv4, as it is compared.
fn canonical(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}
