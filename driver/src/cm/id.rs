//! Identifiers: an end of a connection, a listener, or a datagram endpoint. They correspond to
//! sockets.
//!
//! States and errors are those of the kernel's connection manager. As there, a loopback address is
//! an address of no device: binding to it selects none, and resolving it selects the first active
//! one.

#[cfg(test)]
mod tests;

use super::channel::{Details, EventKind};
use super::error::CmError;
use super::group::Group;
use super::port_space::{PortClaim, PortRequest, PortSpace};
use super::resolve::{self, Bound, Path, ResolveError};
pub use super::state::State;
use crate::event_queue::{AckCount, EventQueue};
use crate::ports::route::with_port;
use crate::queues::gsi::{Gsi, Listener};
use crate::sync::{Mutex, lock};
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use urxe_net::{DEFAULT_TTL, random};
use urxe_proto::cm::CommId;
use urxe_proto::cm::timing::PACKET_LIFE_TIME;
pub use urxe_proto::cm::wire::Transport;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};

/// The queue key of datagrams and of multicast groups in [`PortSpace::Udp`] (A11.6).
pub const UDP_QKEY: QKey = QKey(0x0123_4567);

/// The static rate of paths: 40 Gb/s, four lanes of 10 Gb/s, as the ports report.
const RATE_40_GBPS: u8 = 7;

/// The largest encoded ACK timeout (9.7.6.1.3).
const MAX_ACK_TIMEOUT: u8 = 31;

/// The kind of queue pair that an identifier is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// A connection of this transport.
    Connected(Transport),
    /// Datagrams.
    Datagram,
}

/// An identifier of the connection manager.
#[derive(Debug)]
pub struct Id {
    pub(super) me: Weak<Id>,
    space: PortSpace,
    service: Service,
    pub(super) channel: Mutex<Arc<EventChannel>>,
    pub(super) inner: Mutex<Inner>,
    /// The events that the application has not acknowledged.
    pub acks: AckCount,
    /// A number that the creator of this identifier may set, to find its own object.
    pub tag: AtomicUsize,
    /// See [`Id::silence_requests`].
    pub(super) silences_requests: AtomicBool,
    /// Whether its events are dropped, other than those of the application: it is of a request that
    /// has not been accepted. Changes under `inner`.
    pub(super) is_silent: AtomicBool,
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
    /// Whether the unspecified IPv6 address covers IPv6 only; `None` for the system's default.
    pub v6_only: Option<bool>,
    pub ack_timeout: Option<u8>,
}

/// The connection or datagram service of an identifier.
#[derive(Debug)]
pub(super) struct Connection {
    /// Queue pair 1 of the process that has the connection.
    pub gsi: &'static Gsi,
    pub id: CommId,
    /// Whether the peer has sent the REQ.
    pub passive: bool,
    /// The first PSN that the local queue pair receives.
    pub starting_psn: Psn,
}

impl Connection {
    pub fn new(gsi: &'static Gsi, id: CommId, passive: bool) -> Self {
        let starting_psn = Psn::new(random::any());
        Connection {
            gsi,
            id,
            passive,
            starting_psn,
        }
    }
}

/// An event of an identifier.
#[derive(Clone, Debug)]
pub struct Event {
    /// The identifier; for a request, the new one.
    pub id: Arc<Id>,
    /// The listener, for a request.
    pub listener: Option<Arc<Id>>,
    /// The kind.
    pub kind: EventKind,
    /// 0, a negative errno, or the reason that the peer has given.
    pub status: i32,
    /// The details.
    pub details: Details,
}

impl Event {
    /// Returns the identifier whose destruction waits for the acknowledgment of this event.
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

/// The queue of events of any number of identifiers.
pub type EventChannel = EventQueue<Event>;

/// The local and the remote address of an identifier.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The local address and port.
    pub source: Option<SocketAddr>,
    /// The remote address and port.
    pub destination: Option<SocketAddr>,
    /// The device and its address to which the identifier is bound.
    pub bound: Option<Bound>,
}

impl Addresses {
    /// Returns the local and the remote GID, each if its address is known.
    pub fn gids(&self) -> (Option<Gid>, Option<Gid>) {
        let gid = |address: Option<SocketAddr>| {
            let ip = address?.ip();
            match &self.bound {
                // Packets to a loopback address are sent to the device's own address.
                Some(bound) if resolve::is_loopback(ip) => Some(bound.gid()),
                _ => Some(Gid::from_ip(ip)),
            }
        };
        (gid(self.source), gid(self.destination))
    }
}

impl Id {
    /// Creates an identifier whose events are pushed to `channel`.
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
            silences_requests: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        })
    }

    /// Returns its port space.
    pub fn space(&self) -> PortSpace {
        self.space
    }

    /// Makes the identifiers of requests to this listener raise no events until they are accepted,
    /// as in the kernel. The end of such a request is reported by [`Id::accept`] only.
    pub fn silence_requests(&self) {
        self.silences_requests.store(true, Ordering::Release);
    }

    /// Returns the kind of queue pair that it is for.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Returns its present state.
    pub fn state(&self) -> State {
        lock(&self.inner).state
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> Addresses {
        let inner = lock(&self.inner);
        Addresses {
            source: inner.source,
            destination: inner.destination,
            bound: inner.bound.clone(),
        }
    }

    /// Returns the path to its peer, once it is resolved.
    pub fn path(&self) -> Option<Path> {
        lock(&self.inner).path.clone()
    }

    /// Returns the number that its creator has set, see [`Id::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }

    /// Sets the type of service of its packets.
    pub fn set_type_of_service(&self, type_of_service: u8) {
        lock(&self.inner).options.type_of_service = type_of_service;
    }

    /// Sets whether it shares its address and port with other identifiers that do so too.
    ///
    /// # Errors
    /// [`CmError::State`] when sharing is ended after the identifier was bound.
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

    /// Sets whether the unspecified IPv6 address covers IPv6 only.
    ///
    /// # Errors
    /// [`CmError::State`] in any state but [`State::Idle`] and [`State::Bound`].
    pub fn set_v6_only(&self, v6_only: bool) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("to choose IP versions", &[State::Idle, State::Bound])?;
        inner.options.v6_only = Some(v6_only);
        Ok(())
    }

    /// Sets the ACK timeout of its queue pair: 4.096 us x 2^n, for n up to 31.
    ///
    /// # Errors
    /// [`CmError::Option`] for a larger n, and for a datagram service, whose queue pair has no
    /// timeout.
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

    /// Binds it to an address and a port; port 0 selects a free one.
    ///
    /// An address of an interface selects its device. The unspecified address and loopback
    /// addresses select none.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("binding an address", &[State::Idle])?;
        let bound = match resolve::is_of_any_device(address.ip()) {
            true => None,
            false => Some(resolve::device_of(address)?),
        };
        inner.take_port(self.space, address)?;
        if let Some(bound) = bound {
            inner.bind_to(&self.me, bound);
        }
        Ok(())
    }

    /// Finds the device for a destination; [`EventKind::AddressResolved`] or
    /// [`EventKind::AddressError`] follows. An identifier that is not bound is bound to `source`,
    /// or to the kernel's source address for the destination.
    ///
    /// A loopback destination is reached by the device to which the identifier is bound, or by the
    /// first active one. Its packets are sent from an address of that device to the same address.
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
        let to_loopback = resolve::is_loopback(to.ip());
        let from = match (&inner.bound, inner.source) {
            (Some(_), Some(source)) if to_loopback => source,
            (Some(_), Some(source)) => {
                resolve::check_route(source, to)?;
                source
            }
            _ if to_loopback => with_port(to, 0),
            (None, Some(source)) if resolve::is_loopback(source.ip()) => {
                resolve::check_route(source, to)?;
                resolve::source_for(to)?
            }
            _ => resolve::source_for(to)?,
        };
        if inner.state == State::Idle {
            inner.take_port(self.space, from)?;
        }
        if inner.bound.is_none() {
            let found = match to_loopback {
                true => resolve::first_active(to.ip()),
                false => resolve::device_of(from),
            };
            match found {
                Ok(bound) => inner.bind_to(&self.me, bound),
                Err(
                    error @ (ResolveError::NoDevice(_)
                    | ResolveError::NoneActive
                    | ResolveError::NotHere(_)),
                ) => {
                    tracing::warn!("connection manager: {error}");
                    self.raise(EventKind::AddressError, -libc::ENODEV, Details::None);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let port = inner.source.map_or(0, |source| source.port());
        inner.source = Some(with_port(from, port));
        inner.destination = Some(to);
        inner.state = State::AddressResolved;
        self.raise(EventKind::AddressResolved, 0, Details::None);
        Ok(())
    }

    /// Finds the path to the destination; [`EventKind::RouteResolved`] follows.
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

    /// Sets the path, in place of [`Id::resolve_route`].
    ///
    /// # Errors
    /// [`CmError::State`].
    pub fn set_path(&self, path: Path) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("setting a path", &[State::AddressResolved])?;
        self.take_path(&mut inner, path);
        Ok(())
    }

    /// Limits the path MTU, if the path is known. A request that has been sent keeps its MTU.
    pub fn limit_mtu(&self, mtu: Mtu) {
        if let Some(path) = &mut lock(&self.inner).path {
            path.mtu = path.mtu.min(mtu);
        }
    }

    /// Sets the path's type of service, if the path is known. A request that has been sent is
    /// unaffected.
    pub fn mark_path(&self, type_of_service: u8) {
        if let Some(path) = &mut lock(&self.inner).path {
            path.traffic_class = type_of_service;
        }
    }

    fn take_path(&self, inner: &mut Inner, path: Path) {
        inner.path = Some(path);
        inner.state = State::RouteResolved;
        self.raise(EventKind::RouteResolved, 0, Details::None);
    }

    /// Returns the attributes for the transition of its queue pair to `state`.
    ///
    /// # Errors
    /// [`CmError::NoDevice`] before it has a device. [`CmError::State`] while the connection lacks
    /// a parameter that `state` needs.
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

    /// Raises [`EventKind::AddressInfoResolved`]. The caller has resolved the name.
    pub fn address_info_resolved(&self) {
        self.raise(EventKind::AddressInfoResolved, 0, Details::None);
    }

    /// Adds an event of the application to the channel.
    pub fn write_event(&self, status: i32, number: u64) {
        self.raise(EventKind::User, status, Details::User(number));
    }

    /// Moves its pending events and all future ones to another channel. Then waits until the
    /// application has acknowledged the events that it has got.
    pub fn migrate(&self, to: &Arc<EventChannel>) {
        let mut channel = lock(&self.channel);
        if !Arc::ptr_eq(&channel, to) {
            for event in channel.extract_if(|event| self.owns(event)) {
                to.push(event);
            }
            *channel = Arc::clone(to);
        }
        drop(channel);
        self.acks.wait();
    }

    /// Ends its activity and removes its pending events. The caller acknowledges the events of it
    /// that it still has, then waits with [`AckCount::wait`].
    pub fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.state = State::Closed;
        inner.leave_device(self);
        inner.port = None;
        inner.leave();
        inner.groups.clear();
        drop(inner);
        let channel = Arc::clone(&lock(&self.channel));
        for event in channel.extract_if(|event| self.owns(event)) {
            if event.kind == EventKind::ConnectRequest {
                // No application will get this request.
                event.id.close();
            }
        }
    }

    fn owns(&self, event: &Event) -> bool {
        std::ptr::eq(&**event.owner(), self)
    }

    /// Adds an event of this identifier to its channel.
    pub(super) fn raise(&self, kind: EventKind, status: i32, details: Details) {
        if self.is_silent.load(Ordering::Acquire) && kind != EventKind::User {
            return;
        }
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

    /// Adds a connect request to the channel of this listener; `id` is the new identifier.
    pub(super) fn raise_connect_request(&self, id: Arc<Id>, details: Details) {
        lock(&self.channel).push(Event {
            id,
            listener: self.me.upgrade(),
            kind: EventKind::ConnectRequest,
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

    /// Returns whether the unspecified IPv6 address covers IPv6 only.
    pub fn v6_only(&self) -> bool {
        self.options.v6_only.unwrap_or_else(system_binds_v6_only)
    }

    /// Binds to an address and a port, without a device.
    fn take_port(&mut self, space: PortSpace, address: SocketAddr) -> Result<(), CmError> {
        let v6_only = self.v6_only();
        let port = PortClaim::take(PortRequest {
            space,
            address: address.ip(),
            port: address.port(),
            both_versions: !v6_only,
            reuse: self.options.reuse_address,
        })?;
        self.source = Some(with_port(address, port.port()));
        self.port = Some(port);
        self.state = State::Bound;
        Ok(())
    }

    /// Returns the path between source and destination. On RoCE it follows from the addresses.
    fn usual_path(&self) -> Option<Path> {
        let bound = self.bound.as_ref()?;
        Some(Path {
            source: bound.gid(),
            destination: match self.destination?.ip() {
                ip if resolve::is_loopback(ip) => bound.gid(),
                ip => Gid::from_ip(ip),
            },
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

/// Returns whether IPv6 sockets cover IPv6 only by default.
fn system_binds_v6_only() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
}
