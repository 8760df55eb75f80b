//! Timeouts, retries and duplicates (12.9.8.1, 12.9.8.2).

use super::*;
use crate::cm::wire::Answered;

/// The response timeout of the RDMA CM: a round trip and the peer's response time.
fn answer_time() -> Duration {
    timing::duration(16) * 2 + timing::duration(20)
}

/// The delay of an MRA with a service timeout of 22.
fn mra_time() -> Duration {
    timing::duration(22) + timing::duration(17)
}

fn mra(pair: &mut Pair, side: usize, id: CommId, when: MraWhen) {
    let private_data = PrivateData::new(b"wait").unwrap();
    pair.sides[side].delay(id, 22, &private_data, when).unwrap();
}

#[test]
fn req_is_retransmitted_max_cm_retries_times_12_9_8_1() {
    let mut pair = Pair::new();
    let id = pair.connect();
    for _ in 0..=15 {
        assert!(matches!(pair.take(), (CLIENT, Message::Req(_))));
        pair.assert_no_event();
        pair.wait_for(CLIENT);
    }
    // The retransmissions take the time that all would take at the interval of the RDMA CM.
    assert_eq!(pair.now.since(Time(0)), answer_time() * 16);
    let event = pair.event(CLIENT);
    let awaited = Awaited::Rep;
    assert!(matches!(event, Event::TimedOut { awaited: a, .. } if a == awaited));
    assert!(event.is_last());
    let rej = rej(&mut pair, CLIENT);
    assert_eq!(rej.reason, RejectReason::TIMEOUT);
    assert_eq!(*rej.info, guid(CLIENT).to_be_bytes());
    assert_eq!(pair.state(CLIENT, id), State::Idle);
    assert_eq!(pair.counters(CLIENT).retransmitted, 15);
    pair.assert_empty();
}

#[test]
fn req_of_a_process_that_was_stopped_is_retransmitted_before_it_fails() {
    let mut pair = Pair::new();
    let id = pair.connect();
    assert!(matches!(pair.take(), (CLIENT, Message::Req(_))));
    let now = pair.now + answer_time() * 17;
    pair.now = now;
    pair.sides[CLIENT].handle_timeout(now);
    assert_eq!(pair.state(CLIENT, id), State::ReqSent);
    assert!(matches!(pair.take(), (CLIENT, Message::Req(_))));
    assert!(pair.wait_for(CLIENT) > Duration::ZERO);
}

#[test]
fn req_is_first_retransmitted_after_a_second_to_a_peer_without_a_measured_round_trip() {
    let mut pair = Pair::new();
    pair.connect();
    let seconds = [0, 0, 0].map(|_: u8| pair.wait_for(CLIENT));
    assert_eq!(seconds, [1, 2, 4].map(Duration::from_secs));
    // From here on the interval is longer than that of the RDMA CM.
    assert!(pair.wait_for(CLIENT) >= answer_time());
}

#[test]
fn req_is_first_retransmitted_after_the_measured_round_trip() {
    let mut pair = Pair::new();
    let wanted = |n: u32| Connect {
        qpn: Qpn::new(n),
        ..connect()
    };
    pair.connect_as(&wanted(1));
    pair.deliver();
    let server = pair.requested();
    pair.now = pair.now + Duration::from_millis(200);
    pair.accept(server);
    pair.deliver();
    pair.event(CLIENT);
    pair.connect_as(&wanted(2));
    pair.drop_in_flight();
    // The mean of one measurement, and four times its half as the deviation. The REP of the first
    // connection is due later.
    let waited = [0, 0, 0].map(|_: u8| pair.wait_for(CLIENT));
    assert_eq!(waited, [600, 1200, 2400].map(Duration::from_millis));
    assert_eq!(pair.drop_in_flight(), 3);
    assert_eq!(pair.counters(CLIENT).retransmitted, 3);
}

#[test]
fn rep_is_retransmitted_and_then_the_connection_fails_12_9_8_1() {
    let mut pair = Pair::new();
    let (_, server) = pair.accepted();
    for _ in 0..=15 {
        assert!(matches!(pair.take(), (SERVER, Message::Rep(_))));
        // The REQ determines the response timeout of the REP.
        assert_eq!(pair.wait_for(SERVER), timing::duration(20));
    }
    assert!(matches!(
        pair.event(SERVER),
        Event::TimedOut {
            awaited: Awaited::Rtu,
            ..
        }
    ));
    assert_eq!(rej(&mut pair, SERVER).reason, RejectReason::TIMEOUT);
    assert_eq!(pair.state(SERVER, server), State::TimeWait);
    pair.wait_for(SERVER);
    assert!(matches!(pair.event(SERVER), Event::TimeWaitExit { .. }));
}

#[test]
fn rep_and_dreq_are_first_retransmitted_after_the_measured_round_trip() {
    let mut pair = Pair::new();
    let accepted = |pair: &mut Pair, n: u32| {
        pair.connect_as(&Connect {
            qpn: Qpn::new(n),
            ..connect()
        });
        pair.deliver();
        let server = pair.requested();
        let answer = Accept {
            qpn: Qpn::new(n),
            ..accept()
        };
        pair.sides[SERVER]
            .accept(pair.now, server, &answer)
            .unwrap();
        server
    };
    let server = accepted(&mut pair, 1);
    pair.deliver();
    let client = pair.event(CLIENT).id();
    pair.now = pair.now + Duration::from_millis(200);
    pair.ready(client);
    pair.deliver();
    pair.event(SERVER);
    accepted(&mut pair, 2);
    pair.drop_in_flight();
    assert_eq!(pair.wait_for(SERVER), Duration::from_millis(600));
    assert!(matches!(pair.take(), (SERVER, Message::Rep(_))));
    assert_eq!(pair.wait_for(SERVER), Duration::from_millis(1200));
    pair.drop_in_flight();
    pair.disconnect(SERVER, server);
    pair.drop_in_flight();
    assert_eq!(pair.wait_for(SERVER), Duration::from_millis(600));
    assert!(matches!(pair.take(), (SERVER, Message::Dreq(_))));
}

#[test]
fn round_trip_of_a_req_is_a_measurement_for_the_dreq() {
    let mut pair = Pair::new();
    let (client, _) = pair.established();
    pair.disconnect(CLIENT, client);
    pair.drop_in_flight();
    assert_eq!(pair.wait_for(CLIENT), Duration::from_millis(50));
    assert!(matches!(pair.take(), (CLIENT, Message::Dreq(_))));
}

#[test]
fn peer_that_missed_every_rtu_gets_a_rej() {
    let mut pair = Pair::new();
    let ids = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    pair.ready(ids.0);
    // Each REP arrives, and each RTU is lost.
    for _ in 0..15 {
        assert_eq!(pair.drop_in_flight(), 1);
        pair.wait_for(SERVER);
        let (_, transmit) = {
            pair.collect();
            pair.sent.pop_front().unwrap()
        };
        pair.arrive(CLIENT, &transmit.mad[..]);
    }
    assert_eq!(pair.drop_in_flight(), 1);
    pair.wait_for(SERVER);
    pair.deliver();
    assert!(matches!(pair.event(SERVER), Event::TimedOut { .. }));
    let Event::Rejected { reason, last, .. } = pair.event(CLIENT) else {
        panic!("not rejected");
    };
    assert_eq!((reason, last), (RejectReason::TIMEOUT, false));
    assert_eq!(pair.states(ids), (State::TimeWait, State::TimeWait));
}

#[test]
fn dreq_is_retransmitted_and_then_the_connection_ends_12_9_8_1() {
    let mut pair = Pair::new();
    let (client, _) = pair.established();
    pair.disconnect(CLIENT, client);
    for _ in 0..=15 {
        assert!(matches!(pair.take(), (CLIENT, Message::Dreq(_))));
        pair.assert_no_event();
        pair.wait_for(CLIENT);
    }
    assert_eq!(pair.now.since(Time(0)), answer_time() * 16);
    assert!(matches!(
        pair.event(CLIENT),
        Event::TimedOut {
            awaited: Awaited::Drep,
            ..
        }
    ));
    assert_eq!(pair.state(CLIENT, client), State::TimeWait);
}

#[test]
fn duplicate_req_is_ignored_before_the_program_answers_12_9_8_2() {
    let mut pair = Pair::new();
    pair.connect();
    pair.deliver();
    let server = pair.requested();
    pair.wait_for(CLIENT);
    pair.deliver();
    pair.assert_no_event();
    assert_eq!(pair.counters(SERVER).duplicates, 1);
    assert_eq!(pair.state(SERVER, server), State::ReqReceived);
}

#[test]
fn duplicate_req_gets_the_rep_again_12_9_8_2() {
    let mut pair = Pair::new();
    let (client, _) = pair.accepted();
    assert_eq!(pair.drop_in_flight(), 1);
    pair.wait_for(CLIENT);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Reply { .. }));
    pair.assert_no_event();
    assert_eq!(pair.state(CLIENT, client), State::RepReceived);
}

#[test]
fn duplicate_reqs_do_not_keep_a_connection_that_gets_no_rtu_12_9_8_1() {
    let mut pair = Pair::new();
    // The REP of the next connection is retransmitted after a measured round trip.
    pair.established();
    let wanted = Connect {
        qpn: Qpn::new(2),
        ..connect()
    };
    pair.connect_as(&wanted);
    pair.collect();
    let req = pair.sent[0].1.mad.clone();
    pair.deliver();
    let server = pair.requested();
    let answer = Accept {
        qpn: Qpn::new(2),
        ..accept()
    };
    let accepted = pair.now;
    pair.sides[SERVER]
        .accept(accepted, server, &answer)
        .unwrap();
    while pair.state(SERVER, server) == State::RepSent {
        pair.now = pair.now + Duration::from_millis(20);
        assert!(pair.now < accepted + answer_time() * 32);
        pair.arrive(SERVER, &req[..]);
        if pair.sides[SERVER].deadline() <= pair.now {
            pair.sides[SERVER].handle_timeout(pair.now);
        }
        pair.drop_in_flight();
    }
}

#[test]
fn duplicate_rep_gets_the_rtu_again_12_9_8_2() {
    let mut pair = Pair::new();
    let ids = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    pair.ready(ids.0);
    assert_eq!(pair.drop_in_flight(), 1);
    pair.wait_for(SERVER);
    pair.deliver();
    assert!(matches!(pair.event(SERVER), Event::Ready { .. }));
    pair.assert_no_event();
    assert_eq!(pair.states(ids), (State::Established, State::Established));
}

#[test]
fn duplicate_rep_is_ignored_before_the_program_answers_12_9_8_2() {
    let mut pair = Pair::new();
    let (client, _) = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    pair.wait_for(SERVER);
    pair.deliver();
    pair.assert_no_event();
    assert_eq!(pair.state(CLIENT, client), State::RepReceived);
    assert_eq!(pair.counters(CLIENT).duplicates, 1);
}

#[test]
fn mra_for_a_req_delays_its_retransmission_12_6_6() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.deliver();
    let server = pair.requested();
    mra(&mut pair, SERVER, server, MraWhen::Now);
    pair.deliver();
    let Event::Delayed {
        service_timeout,
        private_data,
        ..
    } = pair.event(CLIENT)
    else {
        panic!("not delayed");
    };
    assert_eq!((service_timeout, &private_data[..5]), (22, &b"wait\0"[..]));
    assert_eq!(pair.state(CLIENT, client), State::MraReqReceived);
    assert_eq!(pair.wait_for(CLIENT), mra_time());
    assert_eq!(pair.state(CLIENT, client), State::ReqSent);
    // The retransmitted REQ gets the MRA again, which delays once more.
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Delayed { .. }));
    assert_eq!(pair.wait_for(CLIENT), mra_time());
    pair.drop_in_flight();
    pair.accept(server);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Reply { .. }));
}

#[test]
fn mra_counts_once_for_each_req_12_6_6() {
    let mut pair = Pair::new();
    pair.connect();
    pair.deliver();
    let server = pair.requested();
    mra(&mut pair, SERVER, server, MraWhen::Now);
    pair.collect();
    let (_, first) = pair.sent.back().cloned().unwrap();
    pair.deliver();
    pair.event(CLIENT);
    let deadline = pair.sides[CLIENT].deadline();
    pair.now = pair.now + Duration::from_secs(1);
    pair.arrive(CLIENT, &first.mad[..]);
    pair.assert_no_event();
    assert_eq!(pair.sides[CLIENT].deadline(), deadline);
    assert_eq!(pair.counters(CLIENT).duplicates, 1);
}

#[test]
fn mra_can_be_deferred_until_the_req_is_retransmitted() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.deliver();
    let server = pair.requested();
    mra(&mut pair, SERVER, server, MraWhen::IfRepeated);
    pair.assert_silence();
    assert_eq!(pair.state(SERVER, server), State::MraReqSent);
    pair.wait_for(CLIENT);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Delayed { .. }));
    pair.accept(server);
    pair.deliver();
    assert!(matches!(pair.event(CLIENT), Event::Reply { .. }));
    assert_eq!(pair.state(CLIENT, client), State::RepReceived);
}

#[test]
fn mra_for_a_rep_delays_its_retransmission_12_6_6() {
    let mut pair = Pair::new();
    let ids = pair.accepted();
    pair.deliver();
    pair.event(CLIENT);
    mra(&mut pair, CLIENT, ids.0, MraWhen::Now);
    pair.deliver();
    assert!(matches!(pair.event(SERVER), Event::Delayed { .. }));
    assert_eq!(pair.states(ids), (State::MraRepSent, State::MraRepReceived));
    assert_eq!(pair.wait_for(SERVER), mra_time());
    pair.deliver();
    assert!(matches!(pair.event(SERVER), Event::Delayed { .. }));
    pair.ready(ids.0);
    pair.deliver();
    assert!(matches!(pair.event(SERVER), Event::Ready { .. }));
}

#[test]
fn mra_never_shortens_the_timeout() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.deliver();
    let before = pair.sides[CLIENT].deadline();
    let mra = Message::Mra(wire::Mra {
        local_comm_id: 9,
        remote_comm_id: client.0,
        answered: Answered::Req,
        service_timeout: 0,
        private_data: PrivateData::default(),
    });
    pair.say(CLIENT, &mra);
    assert_eq!(pair.state(CLIENT, client), State::MraReqReceived);
    assert!(pair.sides[CLIENT].deadline() >= before);
}

/// A path with a round trip of 200 ms that loses 5% of the messages.
#[derive(Default)]
struct FarPath {
    /// Messages in flight in the order of their arrival, with the receiving side.
    in_flight: VecDeque<(Time, usize, Transmit)>,
    random: u32,
    lost: u64,
}

impl FarPath {
    /// Puts the messages that the managers have sent on the path.
    fn send(&mut self, pair: &mut Pair) {
        pair.collect();
        let arrival = pair.now + Duration::from_millis(100);
        for (side, transmit) in pair.sent.drain(..) {
            // The constants of ANSI C's example of `rand`.
            self.random = self.random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            if (self.random >> 16).is_multiple_of(20) {
                self.lost += 1;
            } else {
                self.in_flight.push_back((arrival, 1 - side, transmit));
            }
        }
    }

    /// Advances the clock to the next arrival or deadline. Returns false if there is none.
    fn step(&mut self, pair: &mut Pair) -> bool {
        self.send(pair);
        let deadline = pair.sides.iter().map(Manager::deadline).min().unwrap();
        let arrival = self.in_flight.front().map_or(Time::NEVER, |(at, ..)| *at);
        if arrival.min(deadline) == Time::NEVER {
            return false;
        }
        pair.now = arrival.min(deadline);
        if arrival <= deadline {
            let (_, side, transmit) = self.in_flight.pop_front().unwrap();
            pair.arrive(side, &transmit.mad[..]);
        } else {
            let now = pair.now;
            pair.sides
                .iter_mut()
                .for_each(|side| side.handle_timeout(now));
        }
        true
    }
}

#[test]
fn connections_over_a_path_of_200_ms_with_5_percent_loss_are_all_established() {
    let mut pair = Pair::new();
    let mut path = FarPath::default();
    let (mut replied, mut ready) = (0, 0);
    for _ in 0..100 {
        let client = pair.connect();
        let before = (replied, ready);
        while (replied, ready) != (before.0 + 1, before.1 + 1) {
            assert!(path.step(&mut pair), "no message and no deadline is left");
            while let Some(event) = pair.sides[SERVER].poll_event() {
                match event {
                    Event::Request { id, .. } => pair.accept(id),
                    Event::Ready { .. } => ready += 1,
                    other => panic!("{other:?}"),
                }
            }
            while let Some(event) = pair.sides[CLIENT].poll_event() {
                match event {
                    Event::Reply { .. } => {
                        replied += 1;
                        pair.ready(client);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        pair.disconnect(CLIENT, client);
        while path.step(&mut pair) {
            for side in [CLIENT, SERVER] {
                while let Some(event) = pair.sides[side].poll_event() {
                    if let Event::DisconnectRequest { id, .. } = event {
                        pair.disconnect(side, id);
                    }
                }
            }
        }
    }
    assert_eq!((replied, ready), (100, 100));
    // Each message is sent again only because it or its answer was lost.
    let retransmitted = pair.counters(CLIENT).retransmitted + pair.counters(SERVER).retransmitted;
    assert!(path.lost > 10 && retransmitted > 0);
    assert!(
        retransmitted <= path.lost,
        "{retransmitted} of {}",
        path.lost
    );
}
