//! Disconnection and TimeWait (12.9.8.4, 12.9.9).

use super::*;
use crate::cm::wire::Dreq;

/// Delivers the client's DREQ, which the server answers.
#[track_caller]
fn server_accepts_dreq(pair: &mut Pair, ids: (CommId, CommId)) {
    pair.deliver();
    assert!(matches!(
        pair.event(SERVER),
        Event::DisconnectRequest { .. }
    ));
    pair.disconnect(SERVER, ids.1);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Disconnected { .. }));
}

#[test]
fn dreq_and_drep_end_a_connection() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.disconnect(CLIENT, ids.0);
    assert_eq!(pair.state(CLIENT, ids.0), State::DreqSent);
    pair.deliver();
    assert!(matches!(
        pair.event(SERVER),
        Event::DisconnectRequest { .. }
    ));
    assert_eq!(pair.state(SERVER, ids.1), State::DreqReceived);
    pair.disconnect(SERVER, ids.1);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Disconnected { .. }));
    assert_eq!(pair.states(ids), (State::TimeWait, State::TimeWait));
    // A round trip and the ACK delay (12.9.8.4).
    assert_eq!(pair.wait_for(CLIENT), timing::duration(17));
    assert_eq!(pair.wait_for(SERVER), Duration::ZERO);
    assert!(matches!(pair.event(CLIENT), Event::TimeWaitExit { .. }));
    assert!(matches!(pair.event(SERVER), Event::TimeWaitExit { .. }));
    pair.assert_empty();
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.disconnect(CLIENT, ids.0);
    pair.disconnect(SERVER, ids.1);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Disconnected { .. }));
    assert!(matches!(pair.event(SERVER), Event::Disconnected { .. }));
    assert_eq!(pair.states(ids), (State::TimeWait, State::TimeWait));
    pair.finish();
    pair.event(CLIENT);
    pair.event(SERVER);
    pair.assert_empty();
}

#[test]
fn duplicate_dreq_in_time_wait_gets_the_drep_again() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.disconnect(CLIENT, ids.0);
    pair.collect();
    let (_, dreq) = pair.sent.back().cloned().unwrap();
    pair.deliver();
    pair.event(SERVER);
    pair.disconnect(SERVER, ids.1);
    assert_eq!(pair.drop_in_flight(), 1);
    pair.arrive(SERVER, &dreq.mad[..]);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Disconnected { .. }));
    pair.assert_no_event();
}

#[test]
fn unanswered_dreqs_can_be_retransmitted_before_their_timeout() {
    let mut pair = Pair::new();
    let ids = pair.established();
    assert!(!pair.sides[CLIENT].awaits_drep());
    assert!(!pair.sides[CLIENT].retransmit_dreqs());
    pair.disconnect(CLIENT, ids.0);
    assert_eq!(pair.drop_in_flight(), 1);
    assert!(pair.sides[CLIENT].awaits_drep());
    assert!(pair.sides[CLIENT].retransmit_dreqs());
    server_accepts_dreq(&mut pair, ids);
    assert!(!pair.sides[CLIENT].awaits_drep());
    assert!(!pair.sides[CLIENT].retransmit_dreqs());
}

#[test]
fn duplicate_dreq_is_ignored_before_the_program_answers() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.disconnect(CLIENT, ids.0);
    pair.deliver();
    pair.event(SERVER);
    pair.wait_for(CLIENT);
    pair.deliver();
    pair.assert_no_event();
    assert_eq!(pair.counters(SERVER).duplicates, 1);
}

#[test]
fn dreq_may_arrive_before_the_rtu() {
    let mut pair = Pair::new();
    let ids = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    pair.ready(ids.0);
    assert_eq!(pair.drop_in_flight(), 1);
    pair.disconnect(CLIENT, ids.0);
    server_accepts_dreq(&mut pair, ids);
}

#[test]
fn dreq_and_drep_carry_private_data() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let now = pair.now;
    let data = PrivateData::new(b"bye").unwrap();
    pair.sides[CLIENT].disconnect(now, ids.0, &data).unwrap();
    pair.deliver();
    let Event::DisconnectRequest { private_data, .. } = pair.event(SERVER) else {
        panic!("not ended");
    };
    assert_eq!(private_data[..4], *b"bye\0");
    pair.sides[SERVER].disconnect(now, ids.1, &data).unwrap();
    pair.deliver();
    let Event::Disconnected { private_data, .. } = pair.event(CLIENT) else {
        panic!("not ended");
    };
    assert_eq!(private_data[..4], *b"bye\0");
}

#[test]
fn abandoned_connection_still_disconnects() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.sides[CLIENT].abandon(pair.now, ids.0);
    // Its DREQ is lost and retransmitted.
    assert_eq!(pair.drop_in_flight(), 1);
    pair.wait_for(CLIENT);
    pair.deliver();
    assert!(matches!(
        pair.event(SERVER),
        Event::DisconnectRequest { .. }
    ));
    pair.sides[SERVER].abandon(pair.now, ids.1);
    pair.finish();
    pair.assert_empty();
}

#[test]
fn abandoned_connection_is_rejected_or_disconnected_in_every_state() {
    // After the REQ, the REP, the RTU and the DREQ have arrived; `side` then abandons.
    for step in 0..5 {
        for side in [CLIENT, SERVER] {
            let mut pair = Pair::new();
            let client = pair.connect();
            let mut server = None;
            if step >= 1 || side == SERVER {
                pair.deliver();
                server = Some(pair.requested());
            }
            if step >= 2 {
                pair.accept(server.unwrap());
                if step >= 3 || side == CLIENT {
                    pair.deliver();
                    pair.event(CLIENT);
                }
            }
            if step >= 3 {
                pair.ready(client);
                pair.deliver();
                pair.event(SERVER);
            }
            if step >= 4 {
                pair.disconnect(1 - side, [server.unwrap(), client][side]);
                pair.deliver();
                pair.event(side);
            }
            let (mine, other) = if side == CLIENT {
                (client, server)
            } else {
                (server.unwrap(), Some(client))
            };
            pair.sides[side].abandon(pair.now, mine);
            pair.deliver();
            if let Some(other) = other {
                let event = pair.event(1 - side);
                let expected = match step {
                    0..=2 => matches!(event, Event::Rejected { .. } | Event::Reply { .. }),
                    3 => matches!(event, Event::DisconnectRequest { .. }),
                    _ => matches!(event, Event::Disconnected { .. }),
                };
                assert!(expected, "step {step}, side {side}: {event:?}");
                pair.sides[1 - side].abandon(pair.now, other);
            }
            while pair.sides[1 - side].poll_event().is_some() {}
            pair.finish();
            pair.sides[SERVER].handle_timeout(Time::NEVER);
            while pair.sides[SERVER].poll_event().is_some() {}
            pair.assert_empty();
        }
    }
}

#[test]
fn abandoned_connection_answers_a_dreq_by_itself() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.sides[CLIENT].abandon(pair.now, ids.0);
    pair.drop_in_flight();
    pair.disconnect(SERVER, ids.1);
    pair.deliver();
    assert!(matches!(pair.event(SERVER), Event::Disconnected { .. }));
    pair.finish();
    pair.event(SERVER);
    pair.assert_empty();
}

#[test]
fn dreq_in_time_wait_without_an_earlier_drep_gets_one() {
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.disconnect(CLIENT, ids.0);
    pair.deliver();
    pair.event(SERVER);
    pair.disconnect(SERVER, ids.1);
    pair.deliver();
    pair.event(CLIENT);
    // The client has sent a DREQ and received its DREP; then a late DREQ arrives.
    let dreq = Message::Dreq(Dreq {
        local_comm_id: ids.1.0,
        remote_comm_id: ids.0.0,
        remote_qpn: Qpn::new(0x11),
        private_data: PrivateData::default(),
    });
    pair.say(CLIENT, &dreq);
    assert!(matches!(pair.take(), (CLIENT, Message::Drep(_))));
    pair.assert_no_event();
}

#[test]
fn lost_peer_is_sent_a_dreq() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let now = pair.now;
    assert!(pair.sides[CLIENT].peer_lost(now, ids.0));
    assert!(matches!(pair.event(CLIENT), Event::PeerLost { .. }));
    assert_eq!(pair.state(CLIENT, ids.0), State::DreqSent);
    // Only once, and not after the connection has ended.
    assert!(!pair.sides[CLIENT].peer_lost(now, ids.0));
    // The peer still exists.
    server_accepts_dreq(&mut pair, ids);
    pair.finish();
    pair.event(CLIENT);
    pair.event(SERVER);
    pair.assert_empty();
}
