//! Handling of peers' messages, and the events that they raise.

use super::channel::{ConnectionDetails, DatagramDetails, Details, EventKind};
use super::connection::{Connection, path_vector};
use super::id::{Id, Service, State};
use super::port_space::ServiceId;
use super::resolve::{self, Bound, Path};
use crate::path;
use crate::queues::gsi::{Gsi, Handler};
use crate::sync::lock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use urxe_net::DEFAULT_TTL;
use urxe_proto::cm::timing::{PACKET_LIFE_TIME, SERVICE_TIMEOUT};
use urxe_proto::cm::wire::{IpHeader, PrivateData, Rep, Req, SidrRep, SidrReq, SidrStatus};
use urxe_proto::cm::{Address, Awaited, CommId, Event, MraWhen};

impl Handler for Id {
    fn handle(&self, gsi: &Gsi, event: Event) {
        match event {
            Event::Request {
                id, address, req, ..
            } => self.handle_req(gsi, id, address, &req),
            Event::ResolutionRequest {
                id, address, req, ..
            } => self.handle_sidr_req(gsi, id, address, &req),
            Event::Reply { id, rep } => self.handle_rep(gsi, id, &rep),
            Event::Ready { .. } | Event::Established { .. } => {
                self.raise_if_connecting(EventKind::Established, 0, Details::None);
            }
            // The protocol extends its timeout. The application needs no event.
            Event::Delayed { .. } => {}
            Event::Rejected {
                reason,
                private_data,
                ..
            } => {
                let details = ConnectionDetails {
                    private_data: private_data.to_vec(),
                    ..ConnectionDetails::default()
                };
                let status = i32::from(reason.0);
                let details = Details::Connection(Box::new(details));
                self.raise_if_connecting(EventKind::Rejected, status, details);
            }
            Event::TimedOut { awaited, .. } => {
                let kind = match awaited {
                    Awaited::Rep | Awaited::Rtu | Awaited::SidrRep => EventKind::Unreachable,
                    Awaited::Drep => return self.disconnected(-libc::ETIMEDOUT),
                };
                self.raise_if_connecting(kind, -libc::ETIMEDOUT, Details::None);
            }
            Event::DisconnectRequest { .. }
            | Event::Disconnected { .. }
            | Event::PeerLost { .. } => self.disconnected(0),
            Event::TimeWaitExit { .. } => {
                if lock(&self.inner).state == State::Disconnected {
                    self.raise(EventKind::TimewaitExit, 0, Details::None);
                }
            }
            Event::Resolved { rep, .. } => self.handle_sidr_rep(&rep),
        }
    }
}

impl Id {
    /// Raises an event, unless the connection has ended.
    fn raise_if_connecting(&self, kind: EventKind, status: i32, details: Details) {
        let inner = lock(&self.inner);
        if inner.state == State::Connecting {
            self.raise(kind, status, details);
        }
    }

    /// Raises the event of the connection's end, once: later reports of it are ignored.
    fn disconnected(&self, status: i32) {
        let mut inner = lock(&self.inner);
        if inner.state == State::Connecting {
            inner.state = State::Disconnected;
            self.raise(EventKind::Disconnected, status, Details::None);
        }
    }

    /// Handles a request for a connection.
    fn handle_req(&self, gsi: &Gsi, id: CommId, address: Address, req: &Req) {
        let parsed = Self::parse_request(&address, &req.private_data);
        let Some((header, private_data, bound)) = parsed else {
            return gsi.abandon(id);
        };
        if self.service() != Service::Connected(req.transport) {
            tracing::debug!(?req.transport, "rejected: the listener has another transport");
            return gsi.abandon(id);
        }
        let path = Path {
            source: address.local,
            destination: req.primary.local_gid,
            mtu: req.mtu().unwrap_or(bound.device.active_mtu()),
            hop_limit: req.primary.hop_limit,
            traffic_class: req.primary.traffic_class,
            flow_label: req.primary.flow_label,
            sl: req.primary.sl,
            rate: req.primary.packet_rate,
            packet_life_time: req.primary.local_ack_timeout.saturating_sub(1),
        };
        let details = Details::Connection(Box::new(ConnectionDetails {
            private_data: private_data.to_vec(),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qpn: req.qpn,
            ece: req.ece,
        }));
        if self.announce(
            gsi,
            id,
            (bound, path),
            addresses(req.service, header),
            details,
        ) {
            // The application may answer late. A repeated REQ is answered with an MRA.
            let nothing = PrivateData::default();
            let _ = gsi.delay(id, SERVICE_TIMEOUT, &nothing, MraWhen::IfRepeated);
        }
    }

    /// Handles a request for the queue pair of a datagram service.
    fn handle_sidr_req(&self, gsi: &Gsi, id: CommId, address: Address, req: &SidrReq) {
        let parsed = Self::parse_request(&address, &req.private_data);
        let Some((header, private_data, bound)) = parsed else {
            return gsi.abandon(id);
        };
        let path = Path {
            source: address.local,
            destination: address.remote,
            mtu: bound.device.active_mtu(),
            hop_limit: DEFAULT_TTL,
            traffic_class: address.traffic_class,
            flow_label: 0,
            sl: 0,
            rate: 0,
            packet_life_time: PACKET_LIFE_TIME,
        };
        let details = Details::Datagram(Box::new(DatagramDetails {
            private_data: private_data.to_vec(),
            ..DatagramDetails::default()
        }));
        self.announce(
            gsi,
            id,
            (bound, path),
            addresses(req.service, header),
            details,
        );
    }

    /// Returns the IP header and the rest of a request's private data, and the device of its
    /// destination address.
    fn parse_request<'a>(
        address: &Address,
        private_data: &'a [u8],
    ) -> Option<(IpHeader, &'a [u8], Bound)> {
        let (header, private_data) = IpHeader::parse(private_data)
            .inspect_err(|error| tracing::debug!(?address, %error, "a request is rejected"))
            .ok()?;
        let bound = resolve::device_of_gid(address.local).ok()??;
        Some((header, private_data, bound))
    }

    /// Creates an identifier for a request, and raises [`EventKind::ConnectRequest`] with it.
    /// Returns false if the listener is closed or the peer has withdrawn the request.
    fn announce(
        &self,
        gsi: &Gsi,
        comm_id: CommId,
        (bound, path): (Bound, Path),
        (source, destination): (SocketAddr, SocketAddr),
        details: Details,
    ) -> bool {
        let Ok(own_gsi) = path::get().gsi() else {
            // Not reached: queue pair 1, which calls this function, exists.
            return false;
        };
        let channel = Arc::clone(&lock(&self.channel));
        let new_id = Id::new(&channel, self.space(), self.service());
        let mut inner = lock(&new_id.inner);
        inner.state = State::Connecting;
        inner.source = Some(source);
        inner.destination = Some(destination);
        inner.bind_to(&new_id.me, bound);
        inner.path = Some(path);
        inner.connection = Some(Connection::new(own_gsi, comm_id, true));
        let is_silent = self.silences_requests.load(Ordering::Acquire);
        new_id.is_silent.store(is_silent, Ordering::Release);
        drop(inner);
        if gsi.adopt(comm_id, Arc::clone(&new_id) as _).is_err() {
            // The peer has withdrawn the request.
            return false;
        }
        // Checked under the listener's lock: either the listener is closed by now, or its `close`
        // removes the event.
        let inner = lock(&self.inner);
        if inner.state != State::Listening {
            drop(inner);
            new_id.close();
            return false;
        }
        self.raise_connect_request(new_id, details);
        true
    }

    /// Handles the peer's reply.
    fn handle_rep(&self, gsi: &Gsi, id: CommId, rep: &Rep) {
        let nothing = PrivateData::default();
        // As for a REQ, the application may answer late: a repeated REP is answered with an MRA.
        let _ = gsi.delay(id, SERVICE_TIMEOUT, &nothing, MraWhen::IfRepeated);
        let details = Details::Connection(Box::new(ConnectionDetails {
            private_data: rep.private_data.to_vec(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qpn: rep.qpn,
            ece: rep.ece,
        }));
        self.raise_if_connecting(EventKind::ConnectResponse, 0, details);
    }

    /// Handles the peer's answer with the queue pair of the datagram service.
    fn handle_sidr_rep(&self, rep: &SidrRep) {
        let inner = lock(&self.inner);
        let mut found = DatagramDetails {
            private_data: rep.private_data.to_vec(),
            ..DatagramDetails::default()
        };
        let (kind, status) = match rep.status {
            SidrStatus::VALID => (EventKind::Established, 0),
            SidrStatus(status) => (EventKind::Unreachable, i32::from(status)),
        };
        if let (SidrStatus::VALID, Some(bound), Some(path)) =
            (rep.status, &inner.bound, &inner.path)
        {
            found.av = path_vector(bound, path);
            found.qpn = rep.qpn;
            found.qkey = rep.qkey;
        }
        if inner.state == State::Connecting {
            self.raise(kind, status, Details::Datagram(Box::new(found)));
        }
    }
}

/// Returns the local and the remote address and port of a request.
fn addresses(service: ServiceId, header: IpHeader) -> (SocketAddr, SocketAddr) {
    let port = service.port().map_or(0, |(_, port)| port);
    (SocketAddr::new(header.destination, port), header.source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::id::{Service, Transport};
    use crate::cm::{ConnParam, EventChannel, PortSpace};

    /// The test injects the timeout: the protocol's own takes more than a minute.
    #[test]
    fn request_timeout_raises_unreachable() {
        let channel = Arc::new(EventChannel::new().unwrap());
        let services = [
            (
                PortSpace::Tcp,
                Service::Connected(Transport::Rc),
                Awaited::Rep,
            ),
            (PortSpace::Udp, Service::Datagram, Awaited::SidrRep),
        ];
        for (space, service, awaited) in services {
            let id = Id::new(&channel, space, service);
            id.resolve_address(None, "127.0.0.1:9".parse().unwrap())
                .unwrap();
            id.resolve_route().unwrap();
            id.connect(&ConnParam::default()).unwrap();
            for kind in [EventKind::AddressResolved, EventKind::RouteResolved] {
                assert_eq!(channel.next().unwrap().kind, kind);
            }
            let gsi = path::get().gsi().unwrap();
            let comm_id = lock(&id.inner).connection.as_ref().unwrap().id;
            let event = Event::TimedOut {
                id: comm_id,
                awaited,
            };
            Id::handle(&id, gsi, event);
            let event = channel.next().unwrap();
            assert_eq!(event.kind, EventKind::Unreachable);
            assert_eq!(event.status, -libc::ETIMEDOUT);
            id.close();
        }
    }

    #[test]
    fn dreq_timeout_raises_disconnected_once() {
        let channel = Arc::new(EventChannel::new().unwrap());
        let id = Id::new(&channel, PortSpace::Tcp, Service::Connected(Transport::Rc));
        lock(&id.inner).state = State::Connecting;
        let gsi = path::get().gsi().unwrap();
        for awaited in [Awaited::Drep, Awaited::Drep, Awaited::Rep] {
            let event = Event::TimedOut {
                id: CommId(1),
                awaited,
            };
            Id::handle(&id, gsi, event);
        }
        let event = channel.next().unwrap();
        assert_eq!(
            (event.kind, event.status),
            (EventKind::Disconnected, -libc::ETIMEDOUT)
        );
        // Later reports of the end raise no event.
        rustix::fs::fcntl_setfl(channel.fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
        let nothing = channel.next().unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        id.close();
    }
}
