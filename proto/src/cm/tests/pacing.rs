//! The limit of unanswered REQs to a destination.

use super::*;
use crate::cm::round_trip::ShortestRoundTrip;
use crate::cm::wire::Answered;

/// The first limit of unanswered REQs.
const FIRST_LIMIT: usize = 128;

/// Requests the connections with these numbers.
fn connect_many(pair: &mut Pair, numbers: std::ops::Range<u32>) -> Vec<CommId> {
    let wanted = |n| Connect {
        qpn: Qpn::new(n + 0x100),
        ..connect()
    };
    numbers.map(|n| pair.connect_as(&wanted(n))).collect()
}

/// Takes the REQs in flight, as the numbers of their connections.
fn take_reqs(pair: &mut Pair) -> Vec<u32> {
    pair.collect();
    let mads: Vec<_> = pair.sent.drain(..).map(|(_, sent)| sent.mad).collect();
    mads.iter()
        .map(|mad| match Message::parse(&mad[..]).unwrap().1 {
            Message::Req(req) => req.qpn.get() - 0x100,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The MRA of a peer whose program takes its time.
fn mra(client: CommId) -> Message {
    Message::Mra(wire::Mra {
        local_comm_id: 9,
        remote_comm_id: client.0,
        answered: Answered::Req,
        service_timeout: 24,
        private_data: PrivateData::default(),
    })
}

/// The REJ of a peer whose program rejects a request.
fn rej_of(client: u32) -> Message {
    Message::Rej(wire::Rej {
        local_comm_id: 0,
        remote_comm_id: client,
        answered: Answered::Req,
        reason: RejectReason::CONSUMER,
        info: Default::default(),
        private_data: PrivateData::default(),
    })
}

#[test]
fn unanswered_reqs_to_a_destination_are_limited() {
    let mut pair = Pair::new();
    connect_many(&mut pair, 0..300);
    assert_eq!(take_reqs(&mut pair), (0..128).collect::<Vec<_>>());
    assert_eq!(pair.counters(CLIENT).paced, 300 - FIRST_LIMIT as u64);
    // Another service has its own limit.
    let other = Connect {
        service: ServiceId(SERVICE.0 + 1),
        qpn: Qpn::new(0x100),
        ..connect()
    };
    pair.connect_as(&other);
    assert_eq!(take_reqs(&mut pair).len(), 1);
}

#[test]
fn each_answer_admits_the_next_request_in_turn() {
    let mut pair = Pair::new();
    let clients = connect_many(&mut pair, 0..300);
    take_reqs(&mut pair);
    // With round trips as short as the shortest one, the limit grows by one for each answer.
    pair.say(CLIENT, &mra(clients[5]));
    assert_eq!(take_reqs(&mut pair), [128, 129]);
    // With long ones it does not.
    pair.now = pair.now + Duration::from_millis(10);
    pair.say(CLIENT, &mra(clients[6]));
    assert_eq!(take_reqs(&mut pair), [130]);
    // A request that the program withdraws admits the next one, too.
    pair.sides[CLIENT].abandon(pair.now, clients[7]);
    rej(&mut pair, CLIENT);
    assert_eq!(take_reqs(&mut pair), [131]);
}

#[test]
fn request_that_the_program_withdraws_while_it_waits_is_never_sent() {
    let mut pair = Pair::new();
    let clients = connect_many(&mut pair, 0..131);
    take_reqs(&mut pair);
    pair.sides[CLIENT].abandon(pair.now, clients[128]);
    let (reason, info) = (RejectReason::CONSUMER, Default::default());
    let now = pair.now;
    pair.sides[CLIENT]
        .reject(now, clients[129], reason, info, &PrivateData::default())
        .unwrap();
    pair.assert_silence();
    pair.now = pair.now + Duration::from_millis(10);
    pair.say(CLIENT, &mra(clients[0]));
    assert_eq!(take_reqs(&mut pair), [130]);
}

#[test]
fn lost_reqs_halve_the_limit_and_are_retransmitted_before_later_requests() {
    let mut pair = Pair::new();
    let clients = connect_many(&mut pair, 0..500);
    take_reqs(&mut pair);
    pair.wait_for(CLIENT);
    assert_eq!(take_reqs(&mut pair), (0..64).collect::<Vec<_>>());
    assert_eq!(pair.counters(CLIENT).retransmitted, 64);
    // An answer to a REQ that was retransmitted is no measurement.
    pair.say(CLIENT, &mra(clients[0]));
    assert_eq!(take_reqs(&mut pair), [64]);
    // A late answer to one that waits takes it from the FIFO.
    pair.say(CLIENT, &mra(clients[65]));
    assert_eq!(take_reqs(&mut pair), []);
    pair.say(CLIENT, &mra(clients[1]));
    assert_eq!(take_reqs(&mut pair), [66]);
}

#[test]
fn waiting_requests_to_a_silent_peer_fail_when_the_first_do() {
    let mut pair = Pair::new();
    connect_many(&mut pair, 0..10_000);
    let time = (timing::duration(16) * 2 + timing::duration(20)) * 16;
    while pair.sides[CLIENT].deadline() <= Time(0) + time {
        pair.wait_for(CLIENT);
        pair.drop_in_flight();
    }
    let mut failed = 0;
    while let Some(event) = pair.sides[CLIENT].poll_event() {
        assert!(matches!(event, Event::TimedOut { .. }));
        failed += 1;
    }
    // The others are those that were sent meanwhile, at the smallest limit.
    assert!((9000..10_000).contains(&failed), "{failed}");
    while pair.sides[CLIENT].deadline() != Time::NEVER {
        pair.wait_for(CLIENT);
        pair.drop_in_flight();
    }
    while pair.sides[CLIENT].poll_event().is_some() {
        failed += 1;
    }
    assert_eq!(failed, 10_000);
    pair.assert_empty();
}

/// A client's burst of connections to a server in the same test.
struct Burst {
    client: TestManager,
    now: Time,
    /// The number of REQs received.
    reqs: u64,
    /// The number of REQs dropped.
    dropped: u64,
}

impl Burst {
    fn new() -> Self {
        Burst {
            client: Manager::new(Counting(0x100)),
            now: Time(0),
            reqs: 0,
            dropped: 0,
        }
    }

    /// Connects `connections` times. `answered` returns the time of the answer to a REQ, from the
    /// queue of the times of those before it, or `None` to drop the REQ.
    fn connect(
        &mut self,
        connections: u32,
        answered: impl Fn(Time, &VecDeque<(Time, u32)>) -> Option<Time>,
    ) {
        for n in 0..connections {
            let wanted = Connect {
                qpn: Qpn::new(n + 0x100),
                ..connect()
            };
            self.client.connect(self.now, &wanted).unwrap();
        }
        let (client, mut done) = (&mut self.client, 0);
        let mut queue = VecDeque::new();
        while done < connections {
            while let Some(transmit) = client.poll_transmit() {
                let Message::Req(req) = Message::parse(&transmit.mad[..]).unwrap().1 else {
                    continue;
                };
                self.reqs += 1;
                match answered(self.now, &queue) {
                    Some(at) => queue.push_back((at, req.local_comm_id)),
                    None => self.dropped += 1,
                }
            }
            let answer = queue.front().map_or(Time::NEVER, |(at, _)| *at);
            self.now = answer.min(client.deadline()).max(self.now);
            if answer <= self.now {
                let (_, id) = queue.pop_front().unwrap();
                // The MRA is the measured answer, and the REJ ends the connection.
                client.handle_mad(self.now, address(CLIENT), &mra(CommId(id)).to_mad(1));
                client.handle_mad(self.now, address(CLIENT), &rej_of(id).to_mad(1));
            }
            if client.deadline() <= self.now {
                client.handle_timeout(self.now);
            }
            while let Some(event) = client.poll_event() {
                match event {
                    Event::Rejected { .. } => done += 1,
                    Event::Delayed { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(client.is_empty());
    }
}

/// A server that handles one REQ in 50 us, drops those beyond `room`, and answers the others after
/// a round trip of 100 us. Returns the number of REQs dropped, and the time for all connections.
fn burst(connections: u32, room: usize) -> (u64, Duration) {
    let mut burst = Burst::new();
    burst.connect(connections, |now, queue| {
        let free = queue.back().map_or(now, |(answered, _)| *answered);
        let at = free.max(now + Duration::from_micros(100)) + Duration::from_micros(50);
        (queue.len() < room).then_some(at)
    });
    (burst.dropped, burst.now.since(Time(0)))
}

#[test]
fn burst_of_10_000_loses_no_req_at_a_peer_with_room_for_256() {
    let (dropped, time) = burst(10_000, 256);
    assert_eq!(dropped, 0);
    assert!(time < Duration::from_micros(55) * 10_000, "{time:?}");
}

#[test]
fn burst_of_10_000_to_a_peer_with_room_for_20_takes_less_than_90_us_each() {
    let (dropped, time) = burst(10_000, 20);
    assert!(dropped < 2000, "{dropped}");
    assert!(
        time < Duration::from_micros(90) * 10_000,
        "{time:?}, {dropped}"
    );
}

#[test]
fn timeout_backs_off_if_answers_take_longer_than_the_first_rfc_6298() {
    let mut burst = Burst::new();
    burst.connect(1, |now, _| Some(now + Duration::from_millis(1)));
    burst.connect(2000, |now, _| Some(now + Duration::from_millis(150)));
    assert!(burst.reqs < 2300, "{}", burst.reqs);
}

#[test]
fn limit_grows_on_a_path_that_has_become_longer() {
    let mut burst = Burst::new();
    burst.connect(200, |now, _| Some(now + Duration::from_millis(1)));
    let began = burst.now + ShortestRoundTrip::PERIOD * 2;
    burst.now = began;
    burst.connect(3000, |now, _| Some(now + Duration::from_millis(20)));
    // A limit of 200 would take 15 round trips.
    let time = burst.now.since(began);
    assert!(time <= Duration::from_millis(20) * 6, "{time:?}");
}

/// The REP of a peer with a stale queue pair (12.9.8.3.1) answers a REQ that waits to be
/// retransmitted.
#[test]
fn refused_rep_takes_its_req_from_the_fifo() {
    let mut pair = Pair::new();
    pair.established();
    let clients = connect_many(&mut pair, 0x1000..0x1000 + 300);
    take_reqs(&mut pair);
    pair.wait_for(CLIENT);
    // The first 64 are retransmitted, and the next 64 wait.
    assert_eq!(take_reqs(&mut pair).len(), 64);
    pair.say(CLIENT, &Message::Rep(rep_of(0x22, clients[64])));
    assert_eq!(
        rej(&mut pair, CLIENT).reason,
        RejectReason::STALE_CONNECTION
    );
    pair.drop_in_flight();
    pair.say(CLIENT, &mra(clients[0]));
    assert_eq!(take_reqs(&mut pair), [0x1000 + 65]);
    // It is retransmitted after the time that the peer may need for its TimeWait.
    let refused = pair.now;
    let is_it = |sent: &Transmit| match Message::parse(&sent.mad[..]).unwrap().1 {
        Message::Req(req) => req.local_comm_id == clients[64].0,
        _ => false,
    };
    while !pair.sent.iter().any(|(_, sent)| is_it(sent)) {
        pair.drop_in_flight();
        pair.wait_for(CLIENT);
        pair.collect();
    }
    assert!(pair.now.since(refused) >= timing::duration(20));
}

#[test]
fn rej_is_no_measurement() {
    let mut pair = Pair::new();
    let clients = connect_many(&mut pair, 0..300);
    take_reqs(&mut pair);
    pair.say(CLIENT, &rej_of(clients[0].0));
    assert_eq!(take_reqs(&mut pair), [128]);
    // The first measurement is the shortest round trip.
    pair.now = pair.now + Duration::from_millis(10);
    pair.say(CLIENT, &mra(clients[1]));
    assert_eq!(take_reqs(&mut pair), [129, 130]);
}

#[test]
fn last_early_retransmission_does_not_count() {
    let mut pair = Pair::new();
    connect_many(&mut pair, 0..300);
    take_reqs(&mut pair);
    // The limit is 64, 32 and 16. The third retransmission of 0 to 31 is the last early one: the
    // next would follow after 8 s.
    for sent in [0..64, 0..32, 0..48] {
        pair.wait_for(CLIENT);
        assert_eq!(take_reqs(&mut pair), sent.collect::<Vec<_>>());
    }
    assert_eq!(pair.now, Time(0) + Duration::from_secs(1 + 2 + 4));
}
