//! Connection setup (12.9.7).

use super::*;
use crate::cm::wire::path::LID_PERMISSIVE;

#[test]
fn req_rep_and_rtu_establish_a_connection_12_9_7() {
    let mut pair = Pair::new();
    let client = pair.connect();
    assert_eq!(pair.state(CLIENT, client), State::ReqSent);
    pair.deliver();
    let Event::Request {
        id,
        address: from,
        req,
        ..
    } = pair.event(SERVER)
    else {
        panic!("no request");
    };
    assert_eq!(from, address(SERVER));
    assert_eq!(req.private_data[..7], *b"please\0");
    assert_eq!(pair.state(SERVER, id), State::ReqReceived);
    pair.accept(id);
    assert_eq!(pair.state(SERVER, id), State::RepSent);
    pair.deliver();
    let Event::Reply { rep, .. } = pair.event(CLIENT) else {
        panic!("no reply");
    };
    assert_eq!(rep.private_data[..8], *b"welcome\0");
    assert_eq!(pair.state(CLIENT, client), State::RepReceived);
    pair.ready(client);
    pair.deliver();
    let Event::Ready { private_data, .. } = pair.event(SERVER) else {
        panic!("not ready");
    };
    assert_eq!(private_data[..6], *b"ready\0");
    assert_eq!(
        pair.states((client, id)),
        (State::Established, State::Established)
    );
    pair.assert_silence();
    assert_eq!(pair.sides[CLIENT].deadline(), Time::NEVER);
    assert_eq!(pair.sides[SERVER].deadline(), Time::NEVER);
}

#[test]
fn both_sides_get_matching_queue_pair_parameters() {
    let mut pair = Pair::new();
    let (client, server) = pair.established();
    let client = *pair.sides[CLIENT].parameters(client).unwrap();
    let server = *pair.sides[SERVER].parameters(server).unwrap();
    assert_eq!(client.local_qpn, server.remote_qpn);
    assert_eq!(client.remote_qpn, server.local_qpn);
    // The starting PSN of a message is the first PSN that its receiver sends (12.7.31).
    assert_eq!(
        (client.rq_psn, client.sq_psn),
        (Psn::new(0x1111), Psn::new(0x2222))
    );
    assert_eq!(
        (server.rq_psn, server.sq_psn),
        (Psn::new(0x2222), Psn::new(0x1111))
    );
    // The initiator depth of one side is the responder resources of the other.
    assert_eq!((client.initiator_depth, client.responder_resources), (4, 3));
    assert_eq!((server.initiator_depth, server.responder_resources), (3, 4));
    // Each side uses the RNR retry count that the other announced.
    assert_eq!((client.rnr_retry_count, server.rnr_retry_count), (5, 6));
    assert_eq!((client.retry_count, server.retry_count), (7, 7));
    assert_eq!(
        (client.remote_gid, server.remote_gid),
        (gid(SERVER), gid(CLIENT))
    );
    assert_eq!((client.path_mtu, server.path_mtu), (Mtu::B1024, Mtu::B1024));
    assert_eq!((client.ack_timeout, server.ack_timeout), (17, 17));
}

/// As in the kernel's `cm_format_req`: RoCE paths have a hop limit and no LIDs.
#[test]
fn req_for_roce_has_permissive_lids_and_is_not_subnet_local() {
    let req = req();
    assert_eq!(req.primary.local_lid, LID_PERMISSIVE);
    assert_eq!(req.primary.remote_lid, LID_PERMISSIVE);
    assert!(!req.primary.subnet_local);
    assert_eq!(req.primary.hop_limit, 64);
    assert_eq!(
        (req.primary.local_gid, req.primary.remote_gid),
        (gid(CLIENT), gid(SERVER))
    );
    assert_eq!(req.primary.local_ack_timeout, 17);
    assert_eq!(req.alternate, wire::Path::default());
    assert_eq!(
        (req.local_response_timeout, req.remote_response_timeout),
        (20, 20)
    );
    assert_eq!(req.max_cm_retries, 15);
}

#[test]
fn answer_has_the_transaction_of_its_request_13_4_6_4() {
    let mut pair = Pair::new();
    let transaction = |pair: &mut Pair| {
        pair.collect();
        let (_, transmit) = pair.sent.back().unwrap();
        Message::parse(&transmit.mad[..]).unwrap().0
    };
    let client = pair.connect();
    let req = transaction(&mut pair);
    pair.deliver();
    let server = pair.requested();
    pair.accept(server);
    assert_eq!(transaction(&mut pair), req);
    pair.deliver();
    pair.ready(client);
    assert_eq!(transaction(&mut pair), req);
    pair.deliver();
    pair.disconnect(SERVER, server);
    let dreq = transaction(&mut pair);
    assert_ne!(dreq, req);
    pair.deliver();
    pair.disconnect(CLIENT, client);
    assert_eq!(transaction(&mut pair), dreq);
}

#[test]
fn data_before_the_rtu_establishes_the_connection_12_9_7_2() {
    let mut pair = Pair::new();
    let ids = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    pair.sides[SERVER].establish(ids.1).unwrap();
    assert!(matches!(pair.event(SERVER), Event::Established { .. }));
    assert_eq!(pair.state(SERVER, ids.1), State::Established);
    assert_eq!(pair.sides[SERVER].deadline(), Time::NEVER);
    // The late RTU changes nothing.
    pair.ready(ids.0);
    pair.deliver();
    pair.assert_no_event();
    assert_eq!(pair.counters(SERVER).duplicates, 1);
    assert_eq!(
        pair.sides[SERVER].establish(ids.1),
        Err(CallError::State {
            id: ids.1,
            state: State::Established
        })
    );
}

#[test]
fn xrc_rep_names_its_queue_pair_in_the_eecn_field_a14() {
    let mut pair = Pair::new();
    let wanted = Connect {
        transport: Transport::Xrc,
        ..connect()
    };
    let client = pair.connect_as(&wanted);
    pair.deliver();
    let server = pair.requested();
    pair.accept(server);
    pair.collect();
    let (_, transmit) = pair.sent.back().unwrap();
    let Message::Rep(rep) = Message::parse(&transmit.mad[..]).unwrap().1 else {
        panic!("no REP");
    };
    assert_eq!((rep.eecn, rep.qpn, rep.srq), (0x22, Qpn::new(0), true));
    pair.deliver();
    let parameters = pair.sides[CLIENT].parameters(client).unwrap();
    assert_eq!(parameters.remote_qpn, Some(Qpn::new(0x22)));
}

#[test]
fn process_can_connect_to_itself() {
    let mut manager = Manager::new(Counting(1));
    let now = Time(0);
    manager.listen(SERVICE, &[ListenAt::AllV4], 1).unwrap();
    let itself = Address {
        remote: gid(CLIENT),
        ..address(CLIENT)
    };
    let wanted = Connect {
        address: itself,
        ..connect()
    };
    let client = manager.connect(now, &wanted).unwrap();
    let pump = |manager: &mut TestManager| {
        while let Some(transmit) = manager.poll_transmit() {
            manager.handle_mad(now, itself, &transmit.mad[..]);
        }
    };
    pump(&mut manager);
    let Some(Event::Request { id: server, .. }) = manager.poll_event() else {
        panic!("no request");
    };
    let answer = Accept {
        ca_guid: guid(CLIENT),
        ..accept()
    };
    manager.accept(now, server, &answer).unwrap();
    pump(&mut manager);
    manager.ready(client, &PrivateData::default()).unwrap();
    pump(&mut manager);
    assert_eq!(manager.state(client), State::Established);
    assert_eq!(manager.state(server), State::Established);
    manager
        .disconnect(now, client, &PrivateData::default())
        .unwrap();
    pump(&mut manager);
    manager
        .disconnect(now, server, &PrivateData::default())
        .unwrap();
    pump(&mut manager);
    manager.handle_timeout(Time::NEVER);
    while manager.poll_event().is_some() {}
    assert!(manager.is_empty(), "{manager:?}");
}

#[test]
fn listener_of_an_address_precedes_the_wildcard() {
    let mut pair = Pair::new();
    let now = pair.now;
    let exact = pair.sides[SERVER]
        .listen(SERVICE, &[ListenAt::One(gid(SERVER))], 8)
        .unwrap();
    let listener = |pair: &mut Pair| {
        pair.connect();
        pair.deliver();
        match pair.event(SERVER) {
            Event::Request { listener, id, .. } => {
                pair.sides[SERVER].abandon(now, id);
                listener
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(listener(&mut pair), exact);
    pair.sides[SERVER].close(exact);
    assert_ne!(listener(&mut pair), exact);
}

#[test]
fn address_has_one_listener_for_a_service() {
    let mut pair = Pair::new();
    let server = &mut pair.sides[SERVER];
    assert_eq!(
        server.listen(SERVICE, &[ListenAt::AllV4], 8),
        Err(ListenError::InUse(SERVICE))
    );
    let listener = server
        .listen(SERVICE, &[ListenAt::One(gid(SERVER))], 8)
        .unwrap();
    server.listen(SERVICE, &[ListenAt::AllV6], 8).unwrap();
    assert!(
        server
            .listen(SERVICE, &[ListenAt::One(gid(SERVER))], 8)
            .is_err()
    );
    server.close(listener);
    assert!(
        server
            .listen(SERVICE, &[ListenAt::One(gid(SERVER))], 8)
            .is_ok()
    );
}

#[test]
fn wildcard_listener_is_for_one_ip_version_unless_both_are_given() {
    let v6 = Gid("2001:db8::1"
        .parse::<std::net::Ipv6Addr>()
        .unwrap()
        .octets());
    let mut manager = Manager::new(Counting(1));
    let listener = manager.listen(SERVICE, &[ListenAt::AllV4], 8).unwrap();
    assert!(manager.listens(SERVICE, gid(SERVER)));
    assert!(!manager.listens(SERVICE, v6));
    let both = [ListenAt::AllV6, ListenAt::AllV4];
    assert!(manager.listen(SERVICE, &both, 8).is_err());
    manager.close(listener);
    manager.listen(SERVICE, &both, 8).unwrap();
    assert!(manager.listens(SERVICE, gid(SERVER)) && manager.listens(SERVICE, v6));
}

#[test]
fn addressee_of_each_message() {
    use crate::cm::wire::Addressee;
    let mut pair = Pair::new();
    let ids = pair.accepted();
    pair.collect();
    let (_, Message::Rep(rep)) = pair.take() else {
        panic!("no REP");
    };
    assert_eq!(Message::Rep(rep).addressee(), Addressee::CommId(ids.0.0));
    let req = Message::Req(req());
    assert_eq!(req.addressee(), Addressee::Service(SERVICE));
    let client = pair.connect();
    pair.drop_in_flight();
    let now = pair.now;
    pair.sides[CLIENT].abandon(now, client);
    let (_, rej) = pair.take();
    assert_eq!(rej.addressee(), Addressee::AnyProcess);
}
