//! Limits of tables and waiting times.

use super::*;

/// Returns a REQ of another connection for each `n`.
fn another(n: u32) -> Message {
    let mut req = req();
    req.local_comm_id = 0x8000 + n;
    req.qpn = Qpn::new(0x8000 + n);
    Message::Req(req)
}

/// Returns the REJ of a peer that gives up the request [`another`].
fn withdrawal(n: u32) -> Message {
    Message::Rej(wire::Rej {
        local_comm_id: 0x8000 + n,
        remote_comm_id: 0,
        answered: wire::Answered::Other,
        reason: RejectReason::TIMEOUT,
        info: guid(CLIENT).to_be_bytes().into(),
        private_data: PrivateData::default(),
    })
}

/// Returns the request of the next event, and the number of its queue pair as passed to
/// [`another`].
fn request(pair: &mut Pair) -> (CommId, u32) {
    match pair.event(SERVER) {
        Event::Request { id, req, .. } => (id, req.qpn.get() - 0x8000),
        other => panic!("{other:?}"),
    }
}

/// Returns a pair whose backlog of 8 requests is full, with the first of them, while further
/// `waiting` requests wait.
fn full_backlog(waiting: u32) -> (Pair, CommId) {
    let mut pair = Pair::new();
    for n in 0..8 + waiting {
        pair.say(SERVER, &another(n));
    }
    pair.assert_silence();
    let (first, _) = request(&mut pair);
    for n in 1..8 {
        assert_eq!(request(&mut pair).1, n);
    }
    pair.assert_no_event();
    assert_eq!(pair.counters(SERVER).awaiting_backlog, u64::from(waiting));
    (pair, first)
}

#[test]
fn requests_beyond_the_backlog_are_reported_in_their_order_when_it_has_room() {
    let (mut pair, first) = full_backlog(3);
    // Retransmissions of one that waits change nothing.
    pair.say(SERVER, &another(10));
    assert_eq!(pair.counters(SERVER).duplicates, 1);
    pair.sides[SERVER].leave_backlog(pair.now, first);
    let (second, n) = request(&mut pair);
    assert_eq!(n, 8);
    pair.assert_no_event();
    pair.accept(second);
    assert_eq!(request(&mut pair).1, 9);
    pair.assert_no_event();
    assert_eq!(pair.counters(SERVER).over_backlog, 0);
}

#[test]
fn request_that_its_peer_gives_up_while_it_waits_is_not_reported() {
    let (mut pair, first) = full_backlog(2);
    pair.say(SERVER, &withdrawal(8));
    pair.sides[SERVER].leave_backlog(pair.now, first);
    assert_eq!(request(&mut pair).1, 9);
    pair.assert_no_event();
}

#[test]
fn request_whose_peer_is_silent_while_it_waits_is_not_reported() {
    let (mut pair, first) = full_backlog(2);
    pair.now = pair.now + Duration::from_secs(60);
    pair.say(SERVER, &another(9));
    pair.sides[SERVER].leave_backlog(pair.now, first);
    assert_eq!(request(&mut pair).1, 9);
    pair.assert_no_event();
}

#[test]
fn request_that_reuses_the_id_of_an_expired_one_replaces_it() {
    let (mut pair, first) = full_backlog(1);
    pair.now = pair.now + Duration::from_secs(60);
    let Message::Req(mut req) = another(8) else {
        unreachable!("another() returns a REQ")
    };
    req.qpn = Qpn::new(0x9000);
    pair.say(SERVER, &Message::Req(req));
    pair.sides[SERVER].leave_backlog(pair.now, first);
    assert_eq!(request(&mut pair).1, 0x1000);
    pair.assert_no_event();
}

#[test]
fn requests_that_wait_are_dropped_with_their_listener() {
    let mut manager = Manager::new(Counting(1));
    let listener = manager.listen(SERVICE, &[ListenAt::AllV4], 1).unwrap();
    for n in 0..3 {
        manager.handle_mad(Time(0), address(SERVER), &another(n).to_mad(1));
    }
    let id = manager.poll_event().unwrap().id();
    manager.close(listener);
    manager.leave_backlog(Time(0), id);
    assert!(manager.poll_event().is_none());
    while manager.poll_transmit().is_some() {}
    manager.handle_mad(Time(0), address(SERVER), &another(2).to_mad(1));
    let transmit = manager.poll_transmit().unwrap();
    let Message::Rej(rej) = Message::parse(&transmit.mad[..]).unwrap().1 else {
        panic!("no REJ");
    };
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn requests_beyond_those_that_may_wait_are_dropped() {
    let mut manager = Manager::new(Counting(1));
    manager.listen(SERVICE, &[ListenAt::AllV4], 1).unwrap();
    for n in 0..16_386 {
        manager.handle_mad(Time(0), address(SERVER), &another(n).to_mad(1));
    }
    assert_eq!(manager.counters().awaiting_backlog, 16_384);
    assert_eq!(manager.counters().over_backlog, 1);
}

#[test]
fn request_taken_up_by_the_program_releases_the_backlog() {
    let mut pair = Pair::new();
    for n in 0..100 {
        pair.say(SERVER, &another(n));
        let id = pair.requested();
        pair.sides[SERVER].leave_backlog(pair.now, id);
        pair.sides[SERVER].leave_backlog(pair.now, id);
    }
    assert_eq!(pair.counters(SERVER).awaiting_backlog, 0);
}

#[test]
fn answered_or_withdrawn_request_releases_the_backlog() {
    let mut pair = Pair::new();
    for n in 0..100 {
        pair.say(SERVER, &another(n));
        let id = pair.requested();
        match n % 3 {
            0 => pair.accept(id),
            1 => pair.sides[SERVER].abandon(pair.now, id),
            _ => {
                pair.say(SERVER, &withdrawal(n));
                assert!(matches!(pair.event(SERVER), Event::Rejected { .. }));
            }
        }
    }
    assert_eq!(pair.counters(SERVER).awaiting_backlog, 0);
}

#[test]
fn requests_survive_the_close_of_their_listener() {
    let mut manager = Manager::new(Counting(1));
    let listener = manager.listen(SERVICE, &[ListenAt::AllV4], 1).unwrap();
    let mad = Message::Req(req()).to_mad(1);
    manager.handle_mad(Time(0), address(SERVER), &mad);
    let id = manager.poll_event().unwrap().id();
    manager.close(listener);
    manager.accept(Time(0), id, &accept()).unwrap();
    assert_eq!(manager.state(id), State::RepSent);
}

#[test]
fn identifiers_that_are_zero_or_in_use_are_skipped() {
    /// Returns 0 first, then the same number.
    #[derive(Debug)]
    struct ConstantIds(bool);
    impl Ids for ConstantIds {
        fn comm_id(&mut self) -> u32 {
            if std::mem::replace(&mut self.0, true) {
                7
            } else {
                0
            }
        }
        fn transaction(&mut self) -> u64 {
            1
        }
    }
    let mut manager = Manager::new(ConstantIds(false));
    assert_eq!(manager.connect(Time(0), &connect()), Ok(CommId(7)));
    assert_eq!(manager.connect(Time(0), &connect()), Err(NoCommId));
    // The peer gets a REJ.
    manager.listen(SERVICE, &[ListenAt::AllV4], 8).unwrap();
    while manager.poll_transmit().is_some() {}
    let mad = Message::Req(req()).to_mad(1);
    manager.handle_mad(Time(0), address(SERVER), &mad);
    let transmit = manager.poll_transmit().unwrap();
    let Message::Rej(rej) = Message::parse(&transmit.mad[..]).unwrap().1 else {
        panic!("no REJ");
    };
    assert_eq!(rej.reason, RejectReason::NO_RESOURCES);
}

#[test]
fn timeouts_from_a_peer_are_clamped() {
    let mut pair = Pair::new();
    let mut req = req();
    req.local_response_timeout = 31;
    req.primary.local_ack_timeout = 31;
    pair.say(SERVER, &Message::Req(req));
    let server = pair.requested();
    pair.accept(server);
    assert_eq!(pair.wait_for(SERVER), timing::duration(24));
    req.local_comm_id += 1;
    req.qpn = Qpn::new(0x77);
    req.local_response_timeout = 0;
    pair.drop_in_flight();
    pair.say(SERVER, &Message::Req(req));
    let server = pair.requested();
    pair.accept(server);
    assert_eq!(pair.wait_for(SERVER), Duration::from_millis(1));
}

#[test]
fn thousand_connections_leave_the_tables_empty() {
    let mut pair = Pair::new();
    for n in 0..1000u32 {
        let wanted = Connect {
            qpn: Qpn::new(n + 100),
            ..connect()
        };
        let client = pair.connect_as(&wanted);
        pair.deliver();
        let server = pair.requested();
        let answer = Accept {
            qpn: Qpn::new(n + 100),
            ..accept()
        };
        let now = pair.now;
        pair.sides[SERVER].accept(now, server, &answer).unwrap();
        pair.deliver();
        pair.event(CLIENT);
        pair.ready(client);
        pair.deliver();
        pair.event(SERVER);
        pair.sides[CLIENT].abandon(now, client);
        pair.deliver();
        pair.sides[SERVER].abandon(now, server);
        pair.deliver();
        pair.event(SERVER);
    }
    assert_eq!(pair.sides[CLIENT].open(), 1000);
    pair.finish();
    pair.assert_empty();
}
