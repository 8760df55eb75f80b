//! Calls on connections and datagram services: connect, listen, accept, reject, disconnect.

use super::addresses::{listens_everywhere, open, open_all};
use super::error::CmError;
pub(super) use super::id::Connection;
use super::id::{Id, Inner, Service, UDP_QKEY};
use super::port_space::ServiceId;
use super::resolve::{Bound, Path, is_loopback};
use super::state::State;
use crate::path;
use crate::sync::lock;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use urxe_net::random;
use urxe_proto::cm::timing::{MAX_RETRIES, RESPONSE_TIMEOUT};
use urxe_proto::cm::wire::{Ece, Info, IpHeader, PrivateData, RejectReason, SidrStatus, Transport};
use urxe_proto::cm::{
    Accept, Address, Connect, ConnectionParameters, ListenAt, Resolve, SidrAnswer,
};
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState};

/// The local CA ACK delay that ports report: 4.096 us x 2^15, 134 ms.
pub const ACK_DELAY: u8 = 15;

/// The largest retry count: the fields have three bits.
const MAX_RETRY_COUNT: u8 = 7;

/// The largest backlog of a listener, and the one for a backlog of 0.
pub const MAX_BACKLOG: usize = 1024;

/// The parameters of one side of a connection, as `struct rdma_conn_param`.
#[derive(Clone, Debug, Default)]
pub struct ConnParam {
    /// Data for the peer's application.
    pub private_data: Vec<u8>,
    /// The number of the local queue pair.
    pub qpn: Qpn,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// The maximum number of inbound READs and atomics that are outstanding.
    pub responder_resources: u8,
    /// The maximum number of outbound READs and atomics that are outstanding.
    pub initiator_depth: u8,
    /// Whether the queue pair has end-to-end flow control.
    pub flow_control: bool,
    /// The number of retries without an acknowledgment. Ignored when accepting: the peer's REQ has
    /// set it.
    pub retry_count: u8,
    /// The number of retries after RNR NAK.
    pub rnr_retry_count: u8,
    /// The vendor options for enhanced connection establishment.
    pub ece: Ece,
}

impl Id {
    /// Listens for connections, or for SIDR requests of a datagram service. Each request raises
    /// [`EventKind::ConnectRequest`](super::EventKind::ConnectRequest).
    ///
    /// Up to `backlog` requests are reported before [`Id::leave_backlog`] is called for one; further
    /// ones wait for that, see [`Manager::listen`](urxe_proto::cm::Manager::listen). A `backlog` of
    /// 0 selects [`MAX_BACKLOG`]. An identifier that is not bound gets a port at all IPv4 addresses.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn listen(&self, backlog: usize) -> Result<(), CmError> {
        if self.state() == State::Idle {
            self.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let mut inner = lock(&self.inner);
        inner.expect("listening", &[State::Bound])?;
        let Some(port) = &inner.port else {
            return Err(CmError::NoDevice);
        };
        port.listen()?;
        match &inner.bound {
            Some(bound) => open(&[bound.address])?,
            None => open_all()?,
        }
        let backlog = match backlog {
            0 => MAX_BACKLOG,
            given => given.min(MAX_BACKLOG),
        };
        let service = ServiceId::of_port(self.space(), port.port());
        let at = inner.listen_addresses();
        let me = self.me.upgrade().ok_or(CmError::NoDevice)?;
        // `open` and `open_all` have opened the sockets, so there are no addresses to pass.
        let listener = path::get().gsi()?.listen(service, &at, [], backlog, me)?;
        inner.listener = Some(listener);
        inner.state = State::Listening;
        if inner.bound.is_none() {
            listens_everywhere(&self.me);
        }
        Ok(())
    }

    /// Checks that the queue pair for a connection is of the identifier's device: packets of
    /// another one do not come from the address that the peer expects. A number of no queue pair of
    /// this process passes; the program may have its queue pair elsewhere.
    ///
    /// # Errors
    /// [`CmError::OtherDevice`].
    pub fn check_qp(&self, qpn: Qpn) -> Result<(), CmError> {
        let inner = lock(&self.inner);
        let (Some(bound), Some(qp)) = (&inner.bound, path::get().qp(qpn)) else {
            return Ok(());
        };
        match Arc::ptr_eq(qp.device(), &bound.device) {
            true => Ok(()),
            false => Err(CmError::OtherDevice {
                given: qp.device().name().to_owned(),
                needed: bound.device.name().to_owned(),
            }),
        }
    }

    /// Sends the request for a connection, or for the queue pair of a datagram service.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn connect(&self, conn_param: &ConnParam) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("connecting", &[State::RouteResolved])?;
        let (Some(source), Some(destination)) = (inner.source, inner.destination) else {
            return Err(CmError::NoDevice);
        };
        let (Some(bound), Some(path)) = (inner.bound.clone(), inner.path.clone()) else {
            return Err(CmError::NoDevice);
        };
        open(&[bound.address])?;
        let header = IpHeader {
            source,
            destination: destination.ip(),
        };
        let private_data = [&header.to_bytes(), &conn_param.private_data[..]].concat();
        let request = Request {
            bound: &bound,
            path: &path,
            service: ServiceId::of_port(self.space(), destination.port()),
            private_data: &private_data,
        };
        let connection = match self.service() {
            Service::Connected(transport) => self.send_req(&request, transport, conn_param)?,
            Service::Datagram => self.send_sidr_req(&request)?,
        };
        inner.connection = Some(connection);
        inner.state = State::Connecting;
        Ok(())
    }

    fn send_req(
        &self,
        request: &Request<'_>,
        transport: Transport,
        conn_param: &ConnParam,
    ) -> Result<Connection, CmError> {
        let starting_psn = Psn::new(random::any());
        let req = Connect {
            address: request.address(),
            service: request.service,
            ca_guid: ca_guid(request.bound),
            transport,
            qpn: conn_param.qpn,
            starting_psn,
            responder_resources: conn_param.responder_resources,
            initiator_depth: conn_param.initiator_depth,
            flow_control: conn_param.flow_control,
            retry_count: conn_param.retry_count.min(MAX_RETRY_COUNT),
            rnr_retry_count: conn_param.rnr_retry_count.min(MAX_RETRY_COUNT),
            srq: conn_param.srq,
            path_mtu: request.path.mtu,
            packet_rate: request.path.rate,
            flow_label: request.path.flow_label,
            hop_limit: request.path.hop_limit,
            sl: request.path.sl,
            packet_life_time: request.path.packet_life_time,
            ack_delay: ACK_DELAY,
            remote_response_timeout: RESPONSE_TIMEOUT,
            local_response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: MAX_RETRIES,
            ece: conn_param.ece,
            private_data: PrivateData::new(request.private_data)?,
        };
        let gsi = path::get().gsi()?;
        let me = self.me.upgrade().ok_or(CmError::NoDevice)?;
        Ok(Connection {
            gsi,
            id: gsi.connect(request.bound.address, &req, me)?,
            passive: false,
            starting_psn,
        })
    }

    fn send_sidr_req(&self, request: &Request<'_>) -> Result<Connection, CmError> {
        let req = Resolve {
            address: request.address(),
            service: request.service,
            response_timeout: RESPONSE_TIMEOUT,
            max_retries: MAX_RETRIES,
            private_data: PrivateData::new(request.private_data)?,
        };
        let gsi = path::get().gsi()?;
        let me = self.me.upgrade().ok_or(CmError::NoDevice)?;
        let id = gsi.resolve(request.bound.address, &req, me)?;
        Ok(Connection::new(gsi, id, false))
    }

    /// Removes this request from the listener's backlog: the application has received its event.
    pub fn leave_backlog(&self) {
        if let Some(Connection { gsi, id, .. }) = &lock(&self.inner).connection {
            gsi.leave_backlog(*id);
        }
    }

    /// Accepts a request. The queue pair of a connection must already be able to receive and to
    /// send. If the reply cannot be sent, the peer is rejected, as in the kernel's `rdma_accept`.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn accept(&self, conn_param: &ConnParam) -> Result<(), CmError> {
        let inner = lock(&self.inner);
        inner.expect("accepting", &[State::Connecting])?;
        let connection = inner.passive_connection("accepting")?;
        let bound = inner.bound.as_ref().ok_or(CmError::NoDevice)?;
        self.send_reply(connection, bound, conn_param)
            .inspect_err(|_| {
                // The error of the reply is the one reported.
                let _ = self.send_rejection(connection, RejectReason::CONSUMER, &[]);
            })?;
        self.is_silent.store(false, Ordering::Release);
        Ok(())
    }

    fn send_reply(
        &self,
        connection: &Connection,
        bound: &Bound,
        conn_param: &ConnParam,
    ) -> Result<(), CmError> {
        match self.service() {
            Service::Connected(_) => {
                let accept = Accept {
                    ca_guid: ca_guid(bound),
                    qpn: conn_param.qpn,
                    starting_psn: connection.starting_psn,
                    responder_resources: conn_param.responder_resources,
                    initiator_depth: conn_param.initiator_depth,
                    ack_delay: ACK_DELAY,
                    flow_control: conn_param.flow_control,
                    rnr_retry_count: conn_param.rnr_retry_count.min(MAX_RETRY_COUNT),
                    srq: conn_param.srq,
                    ece: conn_param.ece,
                    private_data: PrivateData::new(&conn_param.private_data)?,
                };
                connection.gsi.accept(connection.id, &accept)?;
            }
            Service::Datagram => {
                let answer = SidrAnswer {
                    status: SidrStatus::VALID,
                    info: Info::default(),
                    qpn: conn_param.qpn,
                    qkey: UDP_QKEY,
                    private_data: PrivateData::new(&conn_param.private_data)?,
                };
                connection.gsi.answer(connection.id, &answer)?;
            }
        }
        Ok(())
    }

    /// Rejects a request, or the peer's reply.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), CmError> {
        let inner = lock(&self.inner);
        self.send_rejection(inner.connected("rejecting")?, reason, private_data)
    }

    fn send_rejection(
        &self,
        connection: &Connection,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        match self.service() {
            Service::Connected(_) => {
                let private_data = PrivateData::new(private_data)?;
                let info = Info::default();
                let (gsi, id) = (connection.gsi, connection.id);
                gsi.reject(id, reason, info, &private_data)?;
            }
            Service::Datagram => {
                let answer = SidrAnswer {
                    private_data: PrivateData::new(private_data)?,
                    ..SidrAnswer::refusal(SidrStatus::REJECTED)
                };
                connection.gsi.answer(connection.id, &answer)?;
            }
        }
        Ok(())
    }

    /// Sends the RTU: the queue pair is ready for the connection that the peer has accepted.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn ready(&self) -> Result<(), CmError> {
        let inner = lock(&self.inner);
        let connection = inner.connected("completing a connection")?;
        let nothing = PrivateData::default();
        connection.gsi.ready(connection.id, &nothing)?;
        Ok(())
    }

    /// Establishes an accepted connection before its RTU, since a packet of it was received.
    /// [`super::EventKind::Established`] follows.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn establish(&self) -> Result<(), CmError> {
        let inner = lock(&self.inner);
        let connection = inner.connected("establishing a connection")?;
        connection.gsi.establish(connection.id)?;
        Ok(())
    }

    /// Ends the connection, or confirms that the peer ends it. A connection that has already ended
    /// is not an error.
    ///
    /// # Errors
    /// [`CmError::State`] if the identifier never had a connection.
    pub fn disconnect(&self) -> Result<(), CmError> {
        // Flush deferred sends: requests posted before the disconnect go out before the DREQ.
        path::get().flush_deferred();
        let inner = lock(&self.inner);
        let connection = inner.connected("disconnecting")?;
        let nothing = PrivateData::default();
        let ended = connection.gsi.disconnect(connection.id, &nothing);
        if let Err(error) = ended {
            tracing::debug!(%error, "nothing to disconnect");
        }
        Ok(())
    }
}

/// The fields that a REQ and a SIDR_REQ have in common.
struct Request<'a> {
    bound: &'a Bound,
    path: &'a Path,
    service: ServiceId,
    private_data: &'a [u8],
}

impl Request<'_> {
    fn address(&self) -> Address {
        Address {
            local: self.bound.gid(),
            remote: self.path.destination,
            remote_qpn: Qpn::GSI,
            traffic_class: self.path.traffic_class,
        }
    }
}

impl Inner {
    /// Returns the addresses at which it listens.
    fn listen_addresses(&self) -> Vec<ListenAt> {
        match (&self.bound, self.source) {
            (Some(bound), _) => vec![ListenAt::One(bound.gid())],
            (None, Some(source)) if is_loopback(source.ip()) => {
                vec![ListenAt::One(Gid::from_ip(source.ip()))]
            }
            (None, Some(SocketAddr::V6(_))) if self.v6_only() => vec![ListenAt::AllV6],
            (None, Some(SocketAddr::V6(_))) => vec![ListenAt::AllV6, ListenAt::AllV4],
            (None, _) => vec![ListenAt::AllV4],
        }
    }

    /// Returns its connection.
    fn connected(&self, call: &'static str) -> Result<&Connection, CmError> {
        let state = self.state;
        let connection = self.connection.as_ref();
        connection.ok_or(CmError::State { call, state })
    }

    /// Returns its connection, if the peer has sent the REQ.
    fn passive_connection(&self, call: &'static str) -> Result<&Connection, CmError> {
        let state = self.state;
        let connection = self.connection.as_ref();
        let passive = connection.filter(|connection| connection.passive);
        passive.ok_or(CmError::State { call, state })
    }

    /// Removes its listener and its connection from queue pair 1.
    pub(super) fn leave(&mut self) {
        self.listener = None;
        if let Some(Connection { gsi, id, .. }) = self.connection.take()
            // In a forked child the connection belongs to the parent, where it continues.
            && gsi.is_usable()
        {
            gsi.abandon(id);
        }
    }

    /// Returns the attributes for the transition of a connection's queue pair to `state`.
    pub(super) fn connection_attributes(
        &self,
        connection: &Connection,
        state: QpState,
    ) -> Result<(QpAttr, AttrMask), CmError> {
        let known = connection.gsi.parameters(connection.id);
        let parameters = known.ok_or(CmError::State {
            call: "making a queue pair ready",
            state: self.state,
        })?;
        let bound = self.bound.as_ref().ok_or(CmError::NoDevice)?;
        let mut attr = QpAttr {
            state,
            port: Bound::PORT,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE
            | match state {
                QpState::Init => {
                    attr.access = access(&parameters);
                    AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS
                }
                QpState::Rtr => {
                    let dest_qpn = parameters.remote_qpn.ok_or(CmError::State {
                        call: "making a queue pair ready to receive",
                        state: self.state,
                    })?;
                    attr.av = address_vector(bound, &parameters);
                    attr.path_mtu = parameters.path_mtu;
                    attr.dest_qpn = dest_qpn;
                    attr.rq_psn = connection.starting_psn;
                    attr.max_dest_rd_atomic = parameters.responder_resources;
                    attr.min_rnr_timer = 0;
                    let all =
                        AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
                    match (parameters.transport, connection.passive) {
                        // The initiator of an XRC connection does not receive.
                        (Transport::Uc, _) | (Transport::Xrc, false) => all,
                        _ => all | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
                    }
                }
                QpState::Rts => {
                    attr.sq_psn = parameters.sq_psn;
                    attr.timeout = self.options.ack_timeout.unwrap_or(parameters.ack_timeout);
                    attr.retry_cnt = parameters.retry_count;
                    attr.rnr_retry = parameters.rnr_retry_count;
                    attr.max_rd_atomic = parameters.initiator_depth;
                    match (parameters.transport, connection.passive) {
                        (Transport::Uc, _) => AttrMask::SQ_PSN,
                        // The target of an XRC connection does not send.
                        (Transport::Xrc, true) => AttrMask::SQ_PSN | AttrMask::TIMEOUT,
                        _ => {
                            AttrMask::SQ_PSN
                                | AttrMask::TIMEOUT
                                | AttrMask::RETRY_CNT
                                | AttrMask::RNR_RETRY
                                | AttrMask::MAX_QP_RD_ATOMIC
                        }
                    }
                }
                _ => {
                    return Err(CmError::Option {
                        option: "state that a connection takes a queue pair to",
                        value: state as u32,
                    });
                }
            };
        Ok((attr, mask))
    }
}

/// Returns the access rights of the peer, limited to operations for which resources were
/// negotiated. A FLUSH uses those of READs (A19).
fn access(parameters: &ConnectionParameters) -> Access {
    let reads = match parameters.responder_resources {
        0 => Access::empty(),
        _ => Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL,
    };
    Access::REMOTE_WRITE | reads
}

fn address_vector(bound: &Bound, parameters: &ConnectionParameters) -> AddressVector {
    AddressVector {
        dgid: parameters.remote_gid,
        sgid_index: bound.gid_index,
        flow_label: parameters.flow_label,
        hop_limit: parameters.hop_limit,
        traffic_class: parameters.traffic_class,
        is_global: true,
        sl: parameters.sl,
        port: Bound::PORT,
        ..AddressVector::default()
    }
}

/// Returns the address vector of a datagram service.
pub(super) fn path_vector(bound: &Bound, path: &Path) -> AddressVector {
    AddressVector {
        dgid: path.destination,
        sgid_index: bound.gid_index,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        is_global: true,
        sl: path.sl,
        port: Bound::PORT,
        ..AddressVector::default()
    }
}

fn ca_guid(bound: &Bound) -> u64 {
    u64::from_be_bytes(bound.device.guid())
}
