//! Connections between identifiers of this process, through the connection manager's API.

mod common;
#[path = "../../tests/common/own_network.rs"]
mod own_network;

use common::{ALL, Buffer, End};
use rustix::event::{PollFd, PollFlags, poll};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use urxe_driver::cm::channel::{ConnectionDetails, DatagramDetails, Details};
use urxe_driver::cm::id::{Service, Transport};
use urxe_driver::cm::{CmError, ConnParam, Event, EventChannel, EventKind, Id, PortSpace, State};
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::qp::{AttrMask, QpState};
use urxe_proto::wire::Feth;
use urxe_proto::work::{SendOp, WcStatus};

const LOOPBACK: &str = "127.0.0.1:0";

fn channel() -> Arc<EventChannel> {
    Arc::new(EventChannel::new().unwrap())
}

fn loopback() -> SocketAddr {
    LOOPBACK.parse().unwrap()
}

/// Returns a listener, and the address at which it listens.
fn listener(
    channel: &Arc<EventChannel>,
    space: PortSpace,
    at: SocketAddr,
) -> (Arc<Id>, SocketAddr) {
    let id = Id::new(channel, space, service(space));
    id.bind(at).unwrap();
    id.listen(0).unwrap();
    let port = id.addresses().source.unwrap().port();
    let mut to = loopback();
    to.set_port(port);
    (id, to)
}

fn service(space: PortSpace) -> Service {
    match space {
        PortSpace::Udp => Service::Datagram,
        _ => Service::Connected(Transport::Rc),
    }
}

/// Returns an identifier with a resolved route, ready to connect.
fn resolved(channel: &Arc<EventChannel>, space: PortSpace, to: SocketAddr) -> Arc<Id> {
    let id = Id::new(channel, space, service(space));
    id.resolve_address(None, to).unwrap();
    expect(channel, EventKind::AddressResolved);
    id.resolve_route().unwrap();
    expect(channel, EventKind::RouteResolved);
    id
}

#[track_caller]
fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = channel.next().unwrap();
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

#[track_caller]
fn connection(event: &Event) -> &ConnectionDetails {
    match &event.details {
        Details::Connection(details) => details,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn datagram(event: &Event) -> &DatagramDetails {
    match &event.details {
        Details::Datagram(details) => details,
        other => panic!("{other:?}"),
    }
}

/// Returns parameters with the queue pair number `qpn`. A peer rejects a number that is in use as
/// stale, and the tests run in parallel, so no two connections of these tests have the same number.
fn conn_param(text: &str, qpn: u32) -> ConnParam {
    ConnParam {
        private_data: text.as_bytes().to_vec(),
        qpn: Qpn::new(qpn),
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

#[track_caller]
fn invalid(result: Result<(), CmError>) {
    assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn a_connection_is_established_used_and_disconnected() {
    let (theirs, ours) = (channel(), channel());
    let (server, to) = listener(&theirs, PortSpace::Tcp, loopback());
    let client = resolved(&ours, PortSpace::Tcp, to);
    invalid(client.ready());
    invalid(client.disconnect());
    client.connect(&conn_param("hello", 0x101)).unwrap();
    invalid(client.connect(&conn_param("hello", 0x101)));

    let request = expect(&theirs, EventKind::ConnectRequest);
    assert!(Arc::ptr_eq(request.listener.as_ref().unwrap(), &server));
    let asked = connection(&request);
    assert_eq!(asked.private_data.len(), 56);
    assert_eq!(&asked.private_data[..6], b"hello\0");
    // The client's initiator depth is the server's responder resources, and the reverse.
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 3));
    assert_eq!((asked.retry_count, asked.rnr_retry_count), (6, 7));
    assert_eq!(asked.qpn, Qpn::new(0x101));
    let peer = Arc::clone(&request.id);
    let addresses = peer.addresses();
    assert_eq!(addresses.source.unwrap(), to);
    assert_eq!(addresses.destination, client.addresses().source);
    let bound = addresses.bound.unwrap();
    assert!(Arc::ptr_eq(
        &bound.device,
        &client.addresses().bound.unwrap().device
    ));
    invalid(peer.ready());

    let (attr, mask) = peer.qp_attributes(QpState::Rtr).unwrap();
    assert!(mask.contains(AttrMask::AV | AttrMask::RQ_PSN | AttrMask::MAX_DEST_RD_ATOMIC));
    assert_eq!(attr.dest_qpn, Qpn::new(0x101));
    assert_eq!(attr.av.dgid, bound.gid());
    let server_psn = attr.rq_psn;
    invalid(client.qp_attributes(QpState::Rtr).map(|_| ()));
    peer.accept(&conn_param("welcome", 0x102)).unwrap();

    let response = expect(&ours, EventKind::ConnectResponse);
    assert_eq!(connection(&response).private_data.len(), 196);
    assert!(connection(&response).private_data.starts_with(b"welcome\0"));
    let (attr, _) = client.qp_attributes(QpState::Rtr).unwrap();
    assert_eq!(attr.dest_qpn, Qpn::new(0x102));
    let client_psn = attr.rq_psn;
    let (attr, mask) = client.qp_attributes(QpState::Rts).unwrap();
    assert_eq!((attr.sq_psn, attr.retry_cnt), (server_psn, 6));
    assert!(mask.contains(AttrMask::TIMEOUT | AttrMask::RNR_RETRY));
    let (attr, _) = peer.qp_attributes(QpState::Rts).unwrap();
    assert_eq!(attr.sq_psn, client_psn);

    client.ready().unwrap();
    assert!(Arc::ptr_eq(
        &expect(&theirs, EventKind::Established).id,
        &peer
    ));
    client.disconnect().unwrap();
    expect(&theirs, EventKind::Disconnected);
    assert_eq!(peer.state(), State::Disconnected);
    peer.disconnect().unwrap();
    assert_eq!(expect(&ours, EventKind::Disconnected).status, 0);
    for id in [server, client, peer] {
        id.close();
    }
}

/// Makes a queue pair ready as the connection of `id` determines.
fn make_ready(id: &Id, end: &End, states: &[QpState]) {
    for state in states {
        let (attr, mask) = id.qp_attributes(*state).unwrap();
        end.qp.modify(&attr, mask).unwrap();
    }
}

/// The retransmission timeout of a queue pair.
fn timeout(end: &End) -> Duration {
    let report = urxe_driver::stat::report();
    let mut all = report.queue_pairs.iter();
    let of = all.find(|qp| qp.qpn == end.qp.qpn().get()).unwrap();
    assert_eq!(of.round_trip, None, "nothing was sent");
    Duration::from_nanos(of.retransmission_timeout.unwrap())
}

#[test]
fn messages_are_counted() {
    let count = |name| urxe_driver::stat::report().process.get(name).copied();
    let names = ["cm_tx_msgs", "cm_rx_msgs"];
    let before = names.map(|name| count(name).unwrap_or(0));
    let (theirs, ours) = (channel(), channel());
    let (server, to) = listener(&theirs, PortSpace::Tcp, loopback());
    let client = resolved(&ours, PortSpace::Tcp, to);
    client.connect(&conn_param("", 0x131)).unwrap();
    let request = expect(&theirs, EventKind::ConnectRequest);
    request.id.reject(RejectReason::CONSUMER, b"").unwrap();
    expect(&ours, EventKind::Rejected);
    // The REQ and the REJ. Other tests send messages at the same time.
    for (name, before) in names.into_iter().zip(before) {
        assert!(count(name).unwrap() >= before + 2, "{name}");
    }
    for id in [server, client, Arc::clone(&request.id)] {
        id.close();
    }
}

/// Connects two queue pairs, that of the passive side first. Returns the identifiers.
fn connect([passive, active]: [&End; 2]) -> [Arc<Id>; 3] {
    use QpState::{Init, Rtr, Rts};
    let (theirs, ours) = (channel(), channel());
    let (server, to) = listener(&theirs, PortSpace::Tcp, loopback());
    let client = resolved(&ours, PortSpace::Tcp, to);
    let own = conn_param("", active.qp.qpn().get());
    client.connect(&own).unwrap();
    let request = expect(&theirs, EventKind::ConnectRequest);
    make_ready(&request.id, passive, &[Init, Rtr, Rts]);
    let own = conn_param("", passive.qp.qpn().get());
    request.id.accept(&own).unwrap();
    expect(&ours, EventKind::ConnectResponse);
    make_ready(&client, active, &[Init, Rtr, Rts]);
    client.ready().unwrap();
    expect(&theirs, EventKind::Established);
    [server, client, Arc::clone(&request.id)]
}

#[test]
fn exchange_of_messages_seeds_the_retransmission_timeout_of_both_ends() {
    let (passive, active) = (End::new(None, 16), End::new(None, 16));
    let ids = connect([&passive, &active]);
    // The timeout without a round trip (RFC 6298, 2.1).
    let unknown = Duration::from_secs(1);
    assert!(timeout(&active) < unknown);
    assert!(timeout(&passive) < unknown);
    for id in ids {
        id.close();
    }
}

#[test]
fn peer_of_a_connection_may_flush() {
    let (passive, active) = (End::new(None, 16), End::new(None, 16));
    let ids = connect([&passive, &active]);
    let there = Buffer::new(&passive.pd, 64, ALL | Access::FLUSH_GLOBAL);
    let flush = SendOp::Flush {
        addr: there.mr.addr(),
        rkey: there.mr.rkey(),
        len: 64,
        how: Feth::GLOBAL_VISIBILITY,
    };
    active.post(1, flush, &[]);
    assert_eq!(active.completion().status, WcStatus::Success);
    for id in ids {
        id.close();
    }
}

#[test]
fn a_wildcard_listener_receives_requests_and_rejects() {
    let (theirs, ours) = (channel(), channel());
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let (server, to) = listener(&theirs, PortSpace::Tcp, anywhere);
    let client = resolved(&ours, PortSpace::Tcp, to);
    client.connect(&conn_param("", 0x111)).unwrap();
    let request = expect(&theirs, EventKind::ConnectRequest);
    request.id.reject(RejectReason::CONSUMER, b"no").unwrap();
    let rejected = expect(&ours, EventKind::Rejected);
    assert_eq!(rejected.status, i32::from(RejectReason::CONSUMER.0));
    assert_eq!(connection(&rejected).private_data.len(), 148);
    assert!(connection(&rejected).private_data.starts_with(b"no\0"));
    for id in [server, client, Arc::clone(&request.id)] {
        id.close();
    }
}

#[test]
fn a_request_without_a_listener_is_rejected() {
    let ours = channel();
    let mut to = loopback();
    // No test listens at the lowest port.
    to.set_port(1);
    let client = resolved(&ours, PortSpace::Tcp, to);
    client.connect(&conn_param("", 0x121)).unwrap();
    let rejected = expect(&ours, EventKind::Rejected);
    assert_eq!(
        rejected.status,
        i32::from(RejectReason::INVALID_SERVICE_ID.0)
    );
    client.close();
}

#[test]
fn closing_a_listener_rejects_its_backlog() {
    let (theirs, ours) = (channel(), channel());
    let (server, to) = listener(&theirs, PortSpace::Tcp, loopback());
    let client = resolved(&ours, PortSpace::Tcp, to);
    client.connect(&conn_param("", 0x131)).unwrap();
    // Wait until the request has arrived; it is not accepted.
    let mut waiting = [PollFd::from_borrowed_fd(theirs.fd(), PollFlags::IN)];
    poll(&mut waiting, None).unwrap();
    server.close();
    let rejected = expect(&ours, EventKind::Rejected);
    assert_eq!(rejected.status, i32::from(RejectReason::CONSUMER.0));
    client.close();
}

#[test]
fn a_peer_that_ends_its_identifier_ends_the_connection() {
    let (theirs, ours) = (channel(), channel());
    let (server, to) = listener(&theirs, PortSpace::Tcp, loopback());
    let client = resolved(&ours, PortSpace::Tcp, to);
    client.connect(&conn_param("", 0x141)).unwrap();
    let peer = Arc::clone(&expect(&theirs, EventKind::ConnectRequest).id);
    peer.accept(&conn_param("", 0x142)).unwrap();
    expect(&ours, EventKind::ConnectResponse);
    client.ready().unwrap();
    expect(&theirs, EventKind::Established);
    client.close();
    expect(&theirs, EventKind::Disconnected);
    for id in [server, peer] {
        id.close();
    }
}

#[test]
fn sidr_resolves_a_datagram_service() {
    let (theirs, ours) = (channel(), channel());
    let (server, to) = listener(&theirs, PortSpace::Udp, loopback());
    let client = resolved(&ours, PortSpace::Udp, to);
    client.connect(&conn_param("who?", 0)).unwrap();
    let request = expect(&theirs, EventKind::ConnectRequest);
    assert_eq!(datagram(&request).private_data.len(), 180);
    assert!(datagram(&request).private_data.starts_with(b"who?\0"));
    request.id.accept(&conn_param("me", 0x33)).unwrap();
    let found = expect(&ours, EventKind::Established);
    let service = datagram(&found);
    assert_eq!(
        (service.qpn, service.qkey),
        (Qpn::new(0x33), QKey(0x0123_4567))
    );
    assert_eq!(service.av.dgid, Gid::from_ip(to.ip()));
    assert!(service.private_data.starts_with(b"me\0"));

    let other = resolved(&ours, PortSpace::Udp, to);
    other.connect(&conn_param("", 0)).unwrap();
    let request = expect(&theirs, EventKind::ConnectRequest);
    request.id.reject(RejectReason::CONSUMER, b"").unwrap();
    assert_eq!(expect(&ours, EventKind::Unreachable).status, 2);
    for id in [server, client, other] {
        id.close();
    }
}

#[test]
fn oversized_private_data_is_refused() {
    let ours = channel();
    let (server, to) = listener(&ours, PortSpace::Tcp, loopback());
    let client = resolved(&ours, PortSpace::Tcp, to);
    invalid(client.connect(&conn_param(&"x".repeat(57), 0x161)));
    client.connect(&conn_param(&"x".repeat(56), 0x161)).unwrap();
    let peer = Arc::clone(&expect(&ours, EventKind::ConnectRequest).id);
    invalid(peer.reject(RejectReason::CONSUMER, &[0; 149]));
    peer.reject(RejectReason::CONSUMER, &[0; 148]).unwrap();
    for id in [server, client, peer] {
        id.close();
    }
}

#[test]
fn peer_is_rejected_when_the_reply_cannot_be_sent() {
    for (space, kind, status) in [
        (PortSpace::Tcp, EventKind::Rejected, 28),
        (PortSpace::Udp, EventKind::Unreachable, 2),
    ] {
        let (theirs, ours) = (channel(), channel());
        let (server, to) = listener(&theirs, space, loopback());
        let client = resolved(&ours, space, to);
        client.connect(&conn_param("", 0x171)).unwrap();
        let peer = Arc::clone(&expect(&theirs, EventKind::ConnectRequest).id);
        invalid(peer.accept(&conn_param(&"x".repeat(197), 0x172)));
        assert_eq!(expect(&ours, kind).status, status);
        for id in [server, client, peer] {
            id.close();
        }
    }
}
