//! Rejections and dropped messages (12.6.7, 12.9.8.3).

use super::*;
use crate::cm::wire::{Answered, ApStatus, Apr, Dreq, Info, Lap, Path, Rej};

fn reject(pair: &mut Pair, side: usize, id: CommId) -> Result<(), CallError> {
    let now = pair.now;
    let (info, private_data) = (
        Info::new(b"info").unwrap(),
        PrivateData::new(b"no").unwrap(),
    );
    pair.sides[side].reject(now, id, RejectReason::CONSUMER, info, &private_data)
}

#[track_caller]
fn assert_rejected(pair: &mut Pair, side: usize, expected: RejectReason) -> bool {
    match pair.event(side) {
        Event::Rejected { reason, last, .. } => {
            assert_eq!(reason, expected);
            last
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the REJ of a changed REQ.
#[track_caller]
fn rej_of(change: impl FnOnce(&mut Req)) -> Rej {
    let mut pair = Pair::new();
    let mut req = req();
    change(&mut req);
    pair.say(SERVER, &Message::Req(req));
    let rej = rej(&mut pair, SERVER);
    assert_eq!(
        (rej.local_comm_id, rej.remote_comm_id),
        (0, req.local_comm_id)
    );
    assert_eq!(rej.answered, Answered::Req);
    assert_eq!(pair.counters(SERVER).refused, 1);
    pair.assert_empty();
    rej
}

#[test]
fn rejected_req_reports_the_reason_12_6_7() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.deliver();
    let server = pair.requested();
    reject(&mut pair, SERVER, server).unwrap();
    assert_eq!(pair.state(SERVER, server), State::Idle);
    pair.deliver();
    let Event::Rejected {
        id,
        reason,
        info,
        private_data,
        last,
    } = pair.event(CLIENT)
    else {
        panic!("not rejected");
    };
    assert_eq!((id, reason, last), (client, RejectReason::CONSUMER, true));
    assert_eq!((&*info, &private_data[..3]), (&b"info"[..], &b"no\0"[..]));
    pair.assert_empty();
}

#[test]
fn req_can_be_rejected_after_an_mra_12_6_7() {
    let mut pair = Pair::new();
    pair.connect();
    pair.deliver();
    let server = pair.requested();
    pair.sides[SERVER]
        .delay(server, 22, &PrivateData::default(), MraWhen::Now)
        .unwrap();
    pair.deliver();
    pair.event(CLIENT);
    reject(&mut pair, SERVER, server).unwrap();
    pair.deliver();
    assert!(assert_rejected(&mut pair, CLIENT, RejectReason::CONSUMER));
    pair.assert_empty();
}

#[test]
fn rep_can_be_rejected_12_6_7() {
    let mut pair = Pair::new();
    let (client, _) = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    reject(&mut pair, CLIENT, client).unwrap();
    pair.collect();
    let (_, transmit) = pair.sent.back().unwrap();
    let Message::Rej(rej) = Message::parse(&transmit.mad[..]).unwrap().1 else {
        panic!("no REJ");
    };
    assert_eq!(rej.answered, Answered::Rep);
    pair.deliver();
    assert!(assert_rejected(&mut pair, SERVER, RejectReason::CONSUMER));
    pair.assert_empty();
}

#[test]
fn established_connection_cannot_be_rejected() {
    let mut pair = Pair::new();
    let (client, _) = pair.established();
    let state = State::Established;
    assert_eq!(
        reject(&mut pair, CLIENT, client),
        Err(CallError::State { id: client, state })
    );
    let unknown = CommId(0xdead);
    assert_eq!(
        reject(&mut pair, CLIENT, unknown),
        Err(CallError::Unknown(unknown))
    );
}

#[test]
fn reason_4_withdrawn_request_is_found_by_the_guid_12_6_7_2() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.deliver();
    let server = pair.requested();
    pair.sides[CLIENT].abandon(pair.now, client);
    pair.deliver();
    assert!(assert_rejected(&mut pair, SERVER, RejectReason::TIMEOUT));
    assert_eq!(pair.state(SERVER, server), State::Idle);
    pair.assert_empty();
}

#[test]
fn reason_6_rep_for_an_unknown_id_12_9_8_3() {
    let mut pair = Pair::new();
    let (client, server) = pair.accepted();
    pair.sides[CLIENT].abandon(pair.now, client);
    // The REP goes to the client before the client's REJ arrives.
    pair.collect();
    let at = pair
        .sent
        .iter()
        .position(|(side, _)| *side == SERVER)
        .unwrap();
    let (_, rep) = pair.sent.remove(at).unwrap();
    pair.drop_in_flight();
    pair.arrive(CLIENT, &rep.mad[..]);
    pair.deliver();
    assert!(assert_rejected(
        &mut pair,
        SERVER,
        RejectReason::INVALID_COMM_ID
    ));
    assert_eq!(pair.state(SERVER, server), State::Idle);
    pair.assert_empty();
}

#[test]
fn reason_8_service_without_a_listener() {
    let mut pair = Pair::new();
    let wanted = Connect {
        service: ServiceId::of_port(PortSpace::Tcp, 1),
        ..connect()
    };
    pair.connect_as(&wanted);
    pair.deliver();
    assert!(assert_rejected(
        &mut pair,
        CLIENT,
        RejectReason::INVALID_SERVICE_ID
    ));
    pair.assert_empty();
}

#[test]
fn reason_8_listener_at_another_address() {
    let mut manager = Manager::new(Counting(1));
    let elsewhere = Gid::from_ip([198, 51, 100, 1].into());
    manager
        .listen(SERVICE, &[ListenAt::One(elsewhere)], 8)
        .unwrap();
    let mad = Message::Req(req()).to_mad(1);
    manager.handle_mad(Time(0), address(SERVER), &mad);
    let transmit = manager.poll_transmit().unwrap();
    let Message::Rej(rej) = Message::parse(&transmit.mad[..]).unwrap().1 else {
        panic!("no REJ");
    };
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn reason_9_unsupported_transport() {
    let rej = rej_of(|req| req.transport = Transport::Rd);
    assert_eq!(rej.reason, RejectReason::INVALID_TRANSPORT);
    let rej = rej_of(|req| req.transport = Transport::Extended(5));
    assert_eq!(rej.reason, RejectReason::INVALID_TRANSPORT);
}

#[test]
fn reason_12_primary_gid_differs_from_the_destination_address() {
    let rej = rej_of(|req| req.primary.remote_gid = gid(CLIENT));
    assert_eq!(rej.reason, RejectReason::PRIMARY_GID);
    assert_eq!(*rej.info, gid(SERVER).0);
}

#[test]
fn reason_26_invalid_path_mtu() {
    for mtu in [0, 6, 15] {
        let rej = rej_of(|req| req.path_mtu = mtu);
        assert_eq!(rej.reason, RejectReason::INVALID_PATH_MTU);
        assert_eq!(*rej.info, [Mtu::B4096 as u8]);
    }
}

#[test]
fn reason_10_req_for_a_queue_pair_in_use_12_9_8_3_1() {
    let mut pair = Pair::new();
    let (_, server) = pair.established();
    // The client's process exits, and another one uses its queue pair.
    pair.sides[CLIENT] = Manager::new(Counting(0x300));
    let client = pair.connect();
    pair.deliver();
    assert!(!assert_rejected(
        &mut pair,
        CLIENT,
        RejectReason::STALE_CONNECTION
    ));
    assert_eq!(pair.state(CLIENT, client), State::TimeWait);
    // The old connection is disconnected; the new process answers the DREQ.
    assert!(matches!(pair.event(SERVER), Event::Disconnected { .. }));
    assert_eq!(pair.state(SERVER, server), State::TimeWait);
    // A new connection is possible after TimeWait.
    pair.finish();
    pair.event(CLIENT);
    pair.event(SERVER);
    pair.assert_empty();
    pair.established();
}

#[test]
fn reason_10_rep_with_a_queue_pair_in_use_12_9_8_3_1() {
    let mut pair = Pair::new();
    let (old, _) = pair.established();
    // The server's process exits, and another one uses its queue pair.
    pair.sides[SERVER] = Manager::new(Counting(0x300));
    pair.sides[SERVER]
        .listen(SERVICE, &[ListenAt::AllV4], 8)
        .unwrap();
    let wanted = Connect {
        qpn: Qpn::new(0x33),
        ..connect()
    };
    let client = pair.connect_as(&wanted);
    pair.deliver();
    let server = pair.requested();
    pair.accept(server);
    pair.deliver();
    assert!(!assert_rejected(
        &mut pair,
        SERVER,
        RejectReason::STALE_CONNECTION
    ));
    assert!(matches!(pair.event(CLIENT), Event::Disconnected { id, .. } if id == old));
    assert_eq!(pair.state(SERVER, server), State::TimeWait);
    // After both TimeWaits, the retransmitted REQ is a new one and succeeds.
    pair.wait_for(CLIENT);
    assert!(matches!(pair.event(CLIENT), Event::TimeWaitExit { id } if id == old));
    pair.wait_for(SERVER);
    assert!(matches!(pair.event(SERVER), Event::TimeWaitExit { .. }));
    pair.wait_for(CLIENT);
    pair.deliver();
    let server = pair.requested();
    pair.accept(server);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Reply { id, .. } if id == client));
}

#[test]
fn duplicate_req_of_an_ended_connection_is_stale_12_9_8_3_1() {
    let mut pair = Pair::new();
    pair.connect();
    pair.collect();
    let (_, old) = pair.sent.back().cloned().unwrap();
    pair.deliver();
    let server = pair.requested();
    pair.accept(server);
    pair.deliver();
    let client = pair.event(CLIENT).id();
    pair.ready(client);
    pair.deliver();
    pair.event(SERVER);
    pair.disconnect(SERVER, server);
    pair.deliver();
    pair.event(CLIENT);
    pair.disconnect(CLIENT, client);
    pair.deliver();
    pair.event(SERVER);
    assert_eq!(pair.state(SERVER, server), State::TimeWait);
    pair.arrive(SERVER, &old.mad[..]);
    assert_eq!(
        rej(&mut pair, SERVER).reason,
        RejectReason::STALE_CONNECTION
    );
    pair.assert_no_event();
}

#[test]
fn queue_pair_may_be_reused_after_its_connection_has_ended() {
    let mut pair = Pair::new();
    let (client, server) = pair.established();
    pair.disconnect(CLIENT, client);
    pair.deliver();
    pair.event(SERVER);
    pair.disconnect(SERVER, server);
    pair.deliver();
    pair.event(CLIENT);
    assert_eq!(
        pair.states((client, server)),
        (State::TimeWait, State::TimeWait)
    );
    pair.established();
}

#[test]
fn dreq_for_an_unknown_id_gets_a_drep_12_9_8_3() {
    let mut pair = Pair::new();
    let dreq = Message::Dreq(Dreq {
        local_comm_id: 5,
        remote_comm_id: 6,
        remote_qpn: Qpn::new(7),
        private_data: PrivateData::default(),
    });
    pair.say(SERVER, &dreq);
    let (_, Message::Drep(drep)) = pair.take() else {
        panic!("no DREP");
    };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (6, 5));
    assert_eq!(pair.counters(SERVER).unmatched, 1);
}

#[test]
fn dreq_for_another_queue_pair_is_dropped() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let dreq = Message::Dreq(Dreq {
        local_comm_id: ids.0.0,
        remote_comm_id: ids.1.0,
        remote_qpn: Qpn::new(0x99),
        private_data: PrivateData::default(),
    });
    pair.say(SERVER, &dreq);
    pair.assert_silence();
    pair.assert_no_event();
    assert_eq!(pair.state(SERVER, ids.1), State::Established);
}

#[test]
fn only_the_peer_can_end_a_connection() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let other = Address {
        remote: Gid::from_ip([203, 0, 113, 9].into()),
        ..address(SERVER)
    };
    let dreq = Message::Dreq(Dreq {
        local_comm_id: ids.0.0,
        remote_comm_id: ids.1.0,
        remote_qpn: Qpn::new(0x22),
        private_data: PrivateData::default(),
    });
    let rej = Message::Rej(Rej {
        local_comm_id: ids.0.0,
        remote_comm_id: ids.1.0,
        answered: Answered::Other,
        reason: RejectReason::CONSUMER,
        info: Info::default(),
        private_data: PrivateData::default(),
    });
    let mut other_qp = req();
    other_qp.local_comm_id = 0x777;
    for message in [dreq, rej, Message::Req(other_qp)] {
        let mad = message.to_mad(1);
        pair.sides[SERVER].handle_mad(Time(0), other, &mad);
        assert_eq!(pair.state(SERVER, ids.1), State::Established);
    }
}

#[test]
fn other_messages_for_unknown_ids_are_dropped_silently() {
    let mut pair = Pair::new();
    let rtu = Message::Rtu(wire::Rtu {
        local_comm_id: 1,
        remote_comm_id: 2,
        private_data: PrivateData::default(),
    });
    let drep = Message::Drep(wire::Drep {
        local_comm_id: 1,
        remote_comm_id: 2,
        private_data: PrivateData::default(),
    });
    let mra = Message::Mra(wire::Mra {
        local_comm_id: 1,
        remote_comm_id: 2,
        answered: Answered::Rep,
        service_timeout: 3,
        private_data: PrivateData::default(),
    });
    let rej = Message::Rej(Rej {
        local_comm_id: 1,
        remote_comm_id: 2,
        answered: Answered::Req,
        reason: RejectReason::CONSUMER,
        info: Info::default(),
        private_data: PrivateData::default(),
    });
    let apr = Message::Apr(Apr {
        local_comm_id: 1,
        remote_comm_id: 2,
        status: ApStatus::LOADED,
        info: Info::default(),
        private_data: PrivateData::default(),
    });
    for message in [rtu, drep, mra, rej, apr] {
        pair.say(SERVER, &message);
        pair.assert_silence();
    }
    assert_eq!(pair.counters(SERVER).unmatched, 5);
    pair.assert_empty();
}

#[test]
fn rep_with_another_remote_id_is_dropped() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let rep = Message::Rep(rep_of(0x44, ids.0));
    pair.say(CLIENT, &rep);
    pair.assert_silence();
    assert_eq!(pair.state(CLIENT, ids.0), State::Established);
}

#[test]
fn lap_is_refused_as_unsupported_12_8() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let mut lap = Lap {
        local_comm_id: ids.0.0,
        remote_comm_id: ids.1.0,
        remote_qpn: Qpn::new(0x22),
        remote_response_timeout: 20,
        alternate: Path::default(),
        private_data: PrivateData::default(),
    };
    let mut status = |lap: &Lap| {
        pair.say(SERVER, &Message::Lap(*lap));
        match pair.take() {
            (SERVER, Message::Apr(apr)) => apr.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(status(&lap), ApStatus::UNSUPPORTED);
    lap.remote_comm_id = 0x999;
    assert_eq!(status(&lap), ApStatus::INVALID_COMM_ID);
}

#[test]
fn alternate_path_in_a_req_is_not_accepted_12_7_26() {
    let mut pair = Pair::new();
    let mut req = req();
    req.alternate.local_lid = 5;
    pair.say(SERVER, &Message::Req(req));
    let server = pair.requested();
    pair.accept(server);
    let (_, Message::Rep(rep)) = pair.take() else {
        panic!("no REP");
    };
    assert_eq!(rep.failover_accepted, 1);
}
