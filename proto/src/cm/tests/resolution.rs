//! Service ID resolution (12.11).

use super::*;
use crate::cm::wire::{Info, SidrRep, SidrStatus};

fn wanted() -> Resolve {
    Resolve {
        address: address(CLIENT),
        service: SERVICE,
        response_timeout: 20,
        max_retries: 15,
        private_data: PrivateData::new(b"where").unwrap(),
    }
}

fn answer() -> SidrAnswer {
    SidrAnswer {
        status: SidrStatus::VALID,
        info: Info::default(),
        qpn: Qpn::new(0x1234),
        qkey: QKey(0x0123_4567),
        private_data: PrivateData::new(b"here").unwrap(),
    }
}

fn resolve(pair: &mut Pair) -> CommId {
    let now = pair.now;
    pair.sides[CLIENT].resolve(now, &wanted()).unwrap()
}

/// Takes the resolution request of the server's program.
#[track_caller]
fn asked(pair: &mut Pair) -> CommId {
    match pair.event(SERVER) {
        Event::ResolutionRequest { id, req, .. } => {
            assert_eq!(req.private_data[..6], *b"where\0");
            id
        }
        other => panic!("{other:?}"),
    }
}

/// Returns a resolution whose request the server's program has.
#[track_caller]
fn asking(pair: &mut Pair) -> (CommId, CommId) {
    let id = resolve(pair);
    pair.deliver();
    (id, asked(pair))
}

fn reply(pair: &mut Pair, question: CommId) {
    let now = pair.now;
    pair.sides[SERVER].answer(now, question, &answer()).unwrap();
}

#[track_caller]
fn resolved(pair: &mut Pair, expected: CommId) -> SidrRep {
    let event = pair.event(CLIENT);
    assert!(event.is_last());
    match event {
        Event::Resolved { id, rep } => {
            assert_eq!(id, expected);
            *rep
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn request_gets_the_queue_pair_and_its_key_12_11() {
    let mut pair = Pair::new();
    let (id, question) = asking(&mut pair);
    reply(&mut pair, question);
    pair.deliver();
    let rep = resolved(&mut pair, id);
    assert_eq!(rep.status, SidrStatus::VALID);
    assert_eq!((rep.qpn, rep.qkey), (Qpn::new(0x1234), QKey(0x0123_4567)));
    assert_eq!(rep.service, SERVICE);
    assert_eq!(rep.private_data[..5], *b"here\0");
    assert_eq!(pair.sides[CLIENT].open() + pair.sides[SERVER].open(), 0);
    pair.finish();
    pair.assert_empty();
}

#[test]
fn request_for_an_unsupported_service_is_answered_12_11_2() {
    let mut pair = Pair::new();
    let now = pair.now;
    let wanted = Resolve {
        service: ServiceId::of_port(PortSpace::Udp, 1),
        ..wanted()
    };
    let id = pair.sides[CLIENT].resolve(now, &wanted).unwrap();
    pair.deliver();
    assert_eq!(resolved(&mut pair, id).status, SidrStatus::UNSUPPORTED);
    pair.assert_empty();
}

#[test]
fn request_is_retransmitted_max_cm_retries_times() {
    let mut pair = Pair::new();
    let id = resolve(&mut pair);
    for _ in 0..=15 {
        assert!(matches!(pair.take(), (CLIENT, Message::SidrReq(_))));
        assert_eq!(pair.wait_for(CLIENT), timing::duration(20));
    }
    let event = pair.event(CLIENT);
    assert_eq!(event.id(), id);
    assert!(event.is_last());
    assert!(matches!(
        event,
        Event::TimedOut {
            awaited: Awaited::SidrRep,
            ..
        }
    ));
    pair.assert_empty();
}

#[test]
fn retransmitted_request_gets_the_cached_reply() {
    let mut pair = Pair::new();
    let (id, question) = asking(&mut pair);
    // The request is retransmitted before the answer, and after the loss of the reply.
    pair.wait_for(CLIENT);
    pair.deliver();
    pair.assert_no_event();
    reply(&mut pair, question);
    assert_eq!(pair.drop_in_flight(), 1);
    pair.wait_for(CLIENT);
    pair.deliver();
    resolved(&mut pair, id);
    pair.assert_no_event();
    assert_eq!(pair.counters(SERVER).duplicates, 2);
    pair.finish();
    pair.assert_empty();
}

#[test]
fn abandoned_request_is_rejected() {
    let mut pair = Pair::new();
    let (id, question) = asking(&mut pair);
    pair.sides[SERVER].abandon(pair.now, question);
    pair.deliver();
    assert_eq!(resolved(&mut pair, id).status, SidrStatus::REJECTED);
    let now = pair.now;
    assert_eq!(
        pair.sides[SERVER].answer(now, question, &answer()),
        Err(CallError::Unknown(question))
    );
}

#[test]
fn reply_for_an_unknown_id_is_dropped() {
    let mut pair = Pair::new();
    let (id, question) = asking(&mut pair);
    pair.sides[CLIENT].abandon(pair.now, id);
    reply(&mut pair, question);
    pair.deliver();
    pair.assert_no_event();
    assert_eq!(pair.counters(CLIENT).unmatched, 1);
}

#[test]
fn resolution_requests_count_towards_the_backlog() {
    let mut pair = Pair::new();
    for _ in 0..9 {
        resolve(&mut pair);
    }
    pair.deliver();
    assert_eq!(pair.counters(SERVER).over_backlog, 1);
    let question = asked(&mut pair);
    reply(&mut pair, question);
    resolve(&mut pair);
    pair.deliver();
    assert_eq!(pair.counters(SERVER).over_backlog, 1);
}

#[test]
fn cached_replies_are_bounded() {
    let mut pair = Pair::new();
    for _ in 0..1500 {
        let (id, question) = asking(&mut pair);
        reply(&mut pair, question);
        pair.deliver();
        resolved(&mut pair, id);
    }
    assert_eq!(pair.sides[SERVER].cached_replies(), 1024);
    pair.finish();
    pair.assert_empty();
}

#[test]
fn request_taken_up_by_the_program_releases_the_backlog() {
    let mut pair = Pair::new();
    for n in 0..100 {
        resolve(&mut pair);
        pair.deliver();
        let question = asked(&mut pair);
        pair.sides[SERVER].leave_backlog(pair.now, question);
        if n % 2 == 0 {
            let now = pair.now;
            pair.sides[SERVER].abandon(now, question);
            pair.deliver();
            assert!(pair.event(CLIENT).is_last());
        }
    }
    assert_eq!(pair.counters(SERVER).over_backlog, 0);
}
