use super::*;

fn id() -> (Arc<EventChannel>, Arc<Id>) {
    let channel = Arc::new(EventChannel::new().unwrap());
    let id = Id::new(&channel, PortSpace::Tcp, Service::Connected(Transport::Rc));
    (channel, id)
}

fn address(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().unwrap(), 0)
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(result: Result<T, CmError>) {
    assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn an_address_resolves_to_a_device_and_a_path() {
    let (channel, id) = id();
    invalid(id.resolve_route());
    invalid(id.qp_attributes(QpState::Init));
    id.resolve_address(None, address("127.0.0.1")).unwrap();
    assert_eq!(channel.next().unwrap().kind, EventKind::AddressResolved);
    assert_eq!(id.state(), State::AddressResolved);
    let addresses = id.addresses();
    assert_ne!(addresses.source.unwrap().port(), 0);
    let first = crate::device::devices().unwrap().remove(0);
    assert!(Arc::ptr_eq(&addresses.bound.unwrap().device, &first));

    invalid(id.resolve_address(None, address("127.0.0.1")));
    invalid(id.bind(address("127.0.0.1")));
    id.resolve_route().unwrap();
    assert_eq!(channel.next().unwrap().kind, EventKind::RouteResolved);
    let path = id.path().unwrap();
    assert_eq!(path.source, path.destination);
    invalid(id.resolve_route());
}

#[test]
fn a_bound_identifier_keeps_its_address_and_ip_version() {
    let (_channel, id) = id();
    id.bind(address("127.0.0.1")).unwrap();
    let port = id.addresses().source.unwrap().port();
    invalid(id.resolve_address(None, address("::1")));
    id.resolve_address(None, address("127.0.0.1")).unwrap();
    assert_eq!(id.addresses().source.unwrap().port(), port);
}

#[test]
fn a_source_address_of_another_host_is_refused() {
    let (channel, id) = id();
    id.bind(address("0.0.0.0")).unwrap();
    id.resolve_address(None, address("127.9.9.9")).unwrap();
    assert_eq!(channel.next().unwrap().status, 0);
    let other = Id::new(&channel, PortSpace::Tcp, Service::Connected(Transport::Rc));
    let error = other.resolve_address(Some(address("192.0.2.77")), address("127.0.0.1"));
    assert_eq!(error.unwrap_err().errno(), libc::EADDRNOTAVAIL);
    assert_eq!(other.state(), State::Idle);
}

#[test]
fn a_loopback_address_selects_no_device_until_a_destination_is_resolved() {
    let (channel, id) = id();
    for bound in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
        let id = Id::new(&channel, PortSpace::Tcp, Service::Connected(Transport::Rc));
        id.bind(address(bound)).unwrap();
        assert!(id.addresses().bound.is_none(), "{bound}");
    }
    id.bind(address("127.0.0.1")).unwrap();
    let port = id.addresses().source.unwrap().port();
    id.resolve_address(None, address("127.0.0.1")).unwrap();
    let addresses = id.addresses();
    let source = addresses.source.unwrap();
    assert_eq!(
        (source.ip(), source.port()),
        (address("127.0.0.1").ip(), port)
    );
    let gid = addresses.bound.as_ref().unwrap().gid();
    assert_eq!(addresses.gids(), (Some(gid), Some(gid)));
}

#[test]
fn options_are_refused_in_other_states() {
    let (_channel, id) = id();
    invalid(id.set_ack_timeout(32));
    id.set_ack_timeout(31).unwrap();
    id.set_reuse_address(true).unwrap();
    id.bind(address("127.0.0.1")).unwrap();
    invalid(id.set_reuse_address(false));
    id.set_v6_only(true).unwrap();
    id.resolve_address(None, address("127.0.0.1")).unwrap();
    invalid(id.set_v6_only(false));
}

#[test]
fn migrate_moves_events_and_close_retracts_them() {
    let (first, id) = id();
    let second = Arc::new(EventChannel::new().unwrap());
    let other = Id::new(&first, PortSpace::Udp, Service::Datagram);
    for number in [1, 2] {
        id.write_event(0, number);
        other.write_event(0, 10 * number);
    }
    id.migrate(&second);
    id.write_event(0, 3);
    let number = |channel: &EventChannel| match channel.next().unwrap().details {
        Details::User(number) => number,
        other => panic!("{other:?}"),
    };
    assert_eq!((number(&second), number(&second)), (1, 2));
    assert_eq!(number(&first), 10);
    id.close();
    other.close();
    for channel in [&first, &second] {
        rustix::fs::fcntl_setfl(channel.fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
        let nothing = channel.next().unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
fn closing_an_identifier_frees_its_port() {
    let (channel, id) = id();
    id.bind(address("127.0.0.1")).unwrap();
    let source = id.addresses().source.unwrap();
    let other = Id::new(&channel, PortSpace::Tcp, Service::Connected(Transport::Rc));
    let error = other.bind(source).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    id.close();
    other.bind(source).unwrap();
}
