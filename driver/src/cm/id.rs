//! Identifiers: one end of a connection, a listener, or a user of datagrams. Like sockets.
//!
//! What may be done when is as in the kernel's connection manager, and so are the errors, but for
//! this: an address of the loopback interface is an address like others, of the device `urxe_lo`.
//!
//! Locks are taken in this order: `inner`, `channel`, the channel's queue, or the tables of ports and of
//! the protocol.

#[cfg(test)]
mod tests;

use super::channel::{Details, Event, EventChannel, EventKind};
use super::connection::Connection;
use super::error::CmError;
use super::gsi::Listener;
use super::multicast::Group;
use super::port_space::{PortClaim, PortSpace, PortWish};
use super::resolve::{self, Bound, Path, ResolveError};
use crate::event_queue::{AckCount, lock};
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_net::DEFAULT_TTL;
use urxe_proto::cm::timing::PACKET_LIFE_TIME;
pub use urxe_proto::cm::wire::Transport;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey};
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};

/// The queue key of datagrams and multicast groups in [`PortSpace::Udp`] (A11.6).
pub const UDP_QKEY: QKey = QKey(0x0123_4567);

/// The static rate of a path: that of four lanes of 10 Gb/s, as the ports have it.
const RATE_40_GBPS: u8 = 7;

/// The largest ACK timeout (9.7.6.1.3).
const MAX_ACK_TIMEOUT: u8 = 31;

/// What an identifier is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// New.
    Idle,
    /// It has an address and a port.
    Bound,
    /// It knows the device that leads to its destination.
    AddressResolved,
    /// It knows the path too.
    RouteResolved,
    /// It listens.
    Listening,
    /// It has a connection, or is about to.
    Connecting,
    /// Its connection has ended.
    Disconnected,
    /// Its device is gone.
    WithoutDevice,
    /// It is being destroyed.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle => "unbound",
            State::Bound => "bound, but its address not resolved",
            State::AddressResolved => "without a route",
            State::RouteResolved => "ready to connect",
            State::Listening => "listening",
            State::Connecting => "connected, or about to be",
            State::Disconnected => "disconnected",
            State::WithoutDevice => "without its device, which is gone",
            State::Closed => "being destroyed",
        })
    }
}

/// Which queue pair an identifier is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// A connection of this kind.
    Connected(Transport),
    /// Datagrams.
    Datagram,
}

/// An identifier.
#[derive(Debug)]
pub struct Id {
    pub(super) me: Weak<Id>,
    space: PortSpace,
    service: Service,
    pub(super) channel: Mutex<Arc<EventChannel>>,
    pub(super) inner: Mutex<Inner>,
    /// Events that the program has not acknowledged.
    pub acks: AckCount,
    /// A number for whoever made this identifier, to find its own object by.
    pub tag: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub state: State,
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
    pub bound: Option<Bound>,
    pub port: Option<PortClaim>,
    pub path: Option<Path>,
    pub options: Options,
    pub listener: Option<Listener>,
    pub connection: Option<Connection>,
    pub groups: Vec<Arc<Group>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub type_of_service: u8,
    pub reuse_address: bool,
    /// Whether an unspecified address of IPv6 is meant for IPv6 alone; as the system has it if `None`.
    pub v6_only: Option<bool>,
    pub ack_timeout: Option<u8>,
}

/// Where an identifier is, and where its peer.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Its own address and port.
    pub source: Option<SocketAddr>,
    /// Its peer's.
    pub destination: Option<SocketAddr>,
    /// Its device.
    pub bound: Option<Bound>,
}

impl Addresses {
    /// The GIDs of both, as far as they are known.
    pub fn gids(&self) -> (Option<Gid>, Option<Gid>) {
        let gid = |address: Option<SocketAddr>| address.map(|address| Gid::from_ip(address.ip()));
        (gid(self.source), gid(self.destination))
    }
}

impl Id {
    /// A new one, whose events go to `channel`.
    pub fn new(channel: &Arc<EventChannel>, space: PortSpace, service: Service) -> Arc<Id> {
        let inner = Inner {
            state: State::Idle,
            source: None,
            destination: None,
            bound: None,
            port: None,
            path: None,
            options: Options::default(),
            listener: None,
            connection: None,
            groups: Vec::new(),
        };
        Arc::new_cyclic(|me| Id {
            me: Weak::clone(me),
            space,
            service,
            channel: Mutex::new(Arc::clone(channel)),
            inner: Mutex::new(inner),
            acks: AckCount::default(),
            tag: AtomicUsize::new(0),
        })
    }

    /// Its port space.
    pub fn space(&self) -> PortSpace {
        self.space
    }

    /// What it is for.
    pub fn service(&self) -> Service {
        self.service
    }

    /// What it is now.
    pub fn state(&self) -> State {
        lock(&self.inner).state
    }

    /// Where it is.
    pub fn addresses(&self) -> Addresses {
        let inner = lock(&self.inner);
        Addresses {
            source: inner.source,
            destination: inner.destination,
            bound: inner.bound.clone(),
        }
    }

    /// The path to its peer, once it is resolved.
    pub fn path(&self) -> Option<Path> {
        lock(&self.inner).path.clone()
    }

    /// The number that whoever made it has set, see [`Id::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }

    /// The type of service of its packets.
    pub fn set_type_of_service(&self, type_of_service: u8) {
        lock(&self.inner).options.type_of_service = type_of_service;
    }

    /// Whether it shares its address and port with others that do so too.
    ///
    /// # Errors
    /// [`CmError::State`] when others may be sharing it already.
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        if !reuse {
            inner.expect("to stop sharing its address", &[State::Idle])?;
        }
        inner.options.reuse_address = reuse;
        if let Some(port) = &inner.port {
            port.set_reuse(reuse);
        }
        Ok(())
    }

    /// Whether an unspecified address of IPv6 leaves IPv4 alone.
    ///
    /// # Errors
    /// [`CmError::State`] when it is more than bound.
    pub fn set_v6_only(&self, v6_only: bool) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("to choose IP versions", &[State::Idle, State::Bound])?;
        inner.options.v6_only = Some(v6_only);
        Ok(())
    }

    /// The ACK timeout of its queue pair, 4.096 us x 2^n for n to 31.
    ///
    /// # Errors
    /// [`CmError::Option`] when there is no such timeout, or the queue pair has none.
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<(), CmError> {
        if timeout > MAX_ACK_TIMEOUT || self.service == Service::Datagram {
            return Err(CmError::Option {
                option: "ACK timeout of this kind of queue pair",
                value: timeout.into(),
            });
        }
        lock(&self.inner).options.ack_timeout = Some(timeout);
        Ok(())
    }

    /// Binds it to an address, and to a port of it; port 0 is one that is free.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("binding an address", &[State::Idle])?;
        let bound = match address.ip().is_unspecified() {
            true => None,
            false => Some(resolve::device_of(address)?),
        };
        inner.take_port(self.space, address)?;
        if let Some(bound) = bound {
            inner.bind_to(&self.me, bound);
        }
        Ok(())
    }

    /// Finds the device that leads to a destination; [`EventKind::AddressResolved`] or
    /// [`EventKind::AddressError`] tells. An identifier that is not bound is bound to `source`, or
    /// where the kernel would send from.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), CmError> {
        let to = resolve::destination(destination);
        if self.state() == State::Idle
            && let Some(source) = source
        {
            self.bind(source)?;
        }
        let mut inner = lock(&self.inner);
        inner.expect("resolving an address", &[State::Idle, State::Bound])?;
        if let Some(source) = inner.source
            && source.is_ipv4() != to.is_ipv4()
        {
            return Err(CmError::Versions);
        }
        let from = match (&inner.bound, inner.source) {
            (Some(_), Some(source)) => {
                resolve::check_route(source, to)?;
                source
            }
            _ => resolve::source_for(to)?,
        };
        if inner.state == State::Idle {
            inner.take_port(self.space, from)?;
        }
        if inner.bound.is_none() {
            match resolve::device_of(from) {
                Ok(bound) => inner.bind_to(&self.me, bound),
                Err(error @ (ResolveError::NoDevice(_) | ResolveError::NotHere(_))) => {
                    tracing::warn!("connection manager: {error}");
                    self.tell(EventKind::AddressError, -libc::ENODEV, Details::None);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let port = inner.source.map_or(0, |source| source.port());
        inner.source = Some(resolve::with_port(from, port));
        inner.destination = Some(to);
        inner.state = State::AddressResolved;
        self.tell(EventKind::AddressResolved, 0, Details::None);
        Ok(())
    }

    /// Finds the path to the destination; [`EventKind::RouteResolved`] tells.
    ///
    /// # Errors
    /// [`CmError::State`].
    pub fn resolve_route(&self) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("resolving a route", &[State::AddressResolved])?;
        let path = inner.usual_path().ok_or(CmError::NoDevice)?;
        self.take_path(&mut inner, path);
        Ok(())
    }

    /// Gives it a path in place of [`Id::resolve_route`].
    ///
    /// # Errors
    /// [`CmError::State`].
    pub fn set_path(&self, path: Path) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("setting a path", &[State::AddressResolved])?;
        self.take_path(&mut inner, path);
        Ok(())
    }

    /// The path MTU is this at most, if the path is known and no request is on its way.
    pub fn limit_mtu(&self, mtu: Mtu) {
        if let Some(path) = &mut lock(&self.inner).path {
            path.mtu = path.mtu.min(mtu);
        }
    }

    /// The packets of the path have this type of service, if the path is known and no request is on its way.
    pub fn mark_path(&self, type_of_service: u8) {
        if let Some(path) = &mut lock(&self.inner).path {
            path.traffic_class = type_of_service;
        }
    }

    fn take_path(&self, inner: &mut Inner, path: Path) {
        inner.path = Some(path);
        inner.state = State::RouteResolved;
        self.tell(EventKind::RouteResolved, 0, Details::None);
    }

    /// The attributes with which its queue pair goes to `state`.
    ///
    /// # Errors
    /// [`CmError::NoDevice`] before it has one; [`CmError::State`] for what the connection does not
    /// know yet.
    pub fn qp_attributes(&self, state: QpState) -> Result<(QpAttr, AttrMask), CmError> {
        let inner = lock(&self.inner);
        if let (Some(connection), Service::Connected(_)) = (&inner.connection, self.service) {
            return inner.connection_attributes(connection, state);
        }
        if inner.bound.is_none() {
            return Err(CmError::NoDevice);
        }
        let mut attr = QpAttr {
            state,
            port: Bound::PORT,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
        match self.service {
            Service::Connected(_) => {
                attr.access = Access::empty();
                Ok((attr, mask | AttrMask::ACCESS_FLAGS))
            }
            Service::Datagram if self.space == PortSpace::IpoIb => Err(CmError::NoIpoib),
            Service::Datagram => {
                attr.qkey = UDP_QKEY;
                Ok((attr, mask | AttrMask::QKEY))
            }
        }
    }

    /// Tells that what a name stands for is known: finding it out is not done here.
    pub fn address_info_resolved(&self) {
        self.tell(EventKind::AddressInfoResolved, 0, Details::None);
    }

    /// Puts an event of the program's own into the channel.
    pub fn write_event(&self, status: i32, number: u64) {
        self.tell(EventKind::User, status, Details::User(number));
    }

    /// Sends its events, those that wait included, to another channel; then waits until those that
    /// the program has are acknowledged.
    pub fn migrate(&self, to: &Arc<EventChannel>) {
        let mut channel = lock(&self.channel);
        if !Arc::ptr_eq(&channel, to) {
            for event in channel.retract(|event| self.owns(event)) {
                to.push(event);
            }
            *channel = Arc::clone(to);
        }
        drop(channel);
        self.acks.wait();
    }

    /// Ends what it does, and takes back its events. Whoever destroys it acknowledges what events of
    /// it are left, and then waits with [`AckCount::wait`].
    pub fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.state = State::Closed;
        inner.leave_device(self);
        inner.port = None;
        inner.leave();
        inner.groups.clear();
        drop(inner);
        let channel = Arc::clone(&lock(&self.channel));
        for event in channel.retract(|event| self.owns(event)) {
            if event.kind == EventKind::ConnectRequest {
                // Nobody will ever see it.
                event.id.close();
            }
        }
    }

    fn owns(&self, event: &Event) -> bool {
        std::ptr::eq(&**event.owner(), self)
    }

    pub(super) fn tell(&self, kind: EventKind, status: i32, details: Details) {
        let Some(id) = self.me.upgrade() else {
            return;
        };
        lock(&self.channel).push(Event {
            id,
            listener: None,
            kind,
            status,
            details,
        });
    }

    /// Tells of a new identifier.
    pub(super) fn tell_of(&self, id: Arc<Id>, kind: EventKind, details: Details) {
        lock(&self.channel).push(Event {
            id,
            listener: self.me.upgrade(),
            kind,
            status: 0,
            details,
        });
    }
}

impl Inner {
    pub(super) fn expect(&self, call: &'static str, states: &[State]) -> Result<(), CmError> {
        if states.contains(&self.state) {
            return Ok(());
        }
        let state = self.state;
        Err(CmError::State { call, state })
    }

    /// Whether an unspecified address of IPv6 is meant for IPv6 alone.
    pub fn v6_only(&self) -> bool {
        self.options.v6_only.unwrap_or_else(system_binds_v6_only)
    }

    /// Binds to `address`, of whose device nothing is said here.
    fn take_port(&mut self, space: PortSpace, address: SocketAddr) -> Result<(), CmError> {
        let v6_only = self.v6_only();
        let port = PortClaim::take(PortWish {
            space,
            address: address.ip(),
            port: address.port(),
            both_versions: !v6_only,
            reuse: self.options.reuse_address,
        })?;
        self.source = Some(resolve::with_port(address, port.port()));
        self.port = Some(port);
        self.state = State::Bound;
        Ok(())
    }

    /// The path between source and destination: on RoCE the addresses tell it.
    fn usual_path(&self) -> Option<Path> {
        let bound = self.bound.as_ref()?;
        Some(Path {
            source: bound.gid(),
            destination: Gid::from_ip(self.destination?.ip()),
            mtu: bound.device.active_mtu(),
            hop_limit: DEFAULT_TTL,
            traffic_class: self.options.type_of_service,
            flow_label: 0,
            sl: 0,
            rate: RATE_40_GBPS,
            packet_life_time: PACKET_LIFE_TIME,
        })
    }
}

/// Whether sockets of IPv6 leave IPv4 alone unless they say otherwise.
fn system_binds_v6_only() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
}
