//! The rules of communication management, tested between two managers.

mod disconnect;
mod fuzz;
mod limits;
mod pacing;
mod rejections;
mod resolution;
mod retransmission;
mod setup;

use super::wire::{Ece, Message, PortSpace, PrivateData, RejectReason, Req, ServiceId, Transport};
use super::*;
use crate::ids::{Gid, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Predictable identifiers.
#[derive(Debug)]
struct Counting(u32);

impl Ids for Counting {
    fn comm_id(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }

    fn transaction(&mut self) -> u64 {
        self.0 += 1;
        u64::from(self.0) << 32
    }
}

type TestManager = Manager<Counting>;

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn gid(side: usize) -> Gid {
    Gid::from_ip([192, 0, 2, side as u8 + 1].into())
}

fn guid(side: usize) -> u64 {
    0xaaaa_0000 + side as u64
}

/// The addresses of a MAD from `side` to the other.
fn address(side: usize) -> Address {
    Address {
        local: gid(side),
        remote: gid(1 - side),
        remote_qpn: Qpn::GSI,
        traffic_class: 0,
    }
}

fn connect() -> Connect {
    Connect {
        address: address(CLIENT),
        service: SERVICE,
        ca_guid: guid(CLIENT),
        transport: Transport::Rc,
        qpn: Qpn::new(0x11),
        ece: Ece::default(),
        starting_psn: Psn::new(0x1111),
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        path_mtu: Mtu::B1024,
        packet_rate: 3,
        flow_label: 0,
        hop_limit: 64,
        sl: 0,
        packet_life_time: timing::PACKET_LIFE_TIME,
        ack_delay: 15,
        remote_response_timeout: timing::RESPONSE_TIMEOUT,
        local_response_timeout: timing::RESPONSE_TIMEOUT,
        max_cm_retries: timing::MAX_RETRIES,
        private_data: PrivateData::new(b"please").unwrap(),
    }
}

fn accept() -> Accept {
    Accept {
        ca_guid: guid(SERVER),
        qpn: Qpn::new(0x22),
        ece: Ece::default(),
        starting_psn: Psn::new(0x2222),
        responder_resources: 4,
        initiator_depth: 3,
        ack_delay: 15,
        flow_control: true,
        rnr_retry_count: 5,
        srq: false,
        private_data: PrivateData::new(b"welcome").unwrap(),
    }
}

/// Two managers and a clock.
struct Pair {
    sides: [TestManager; 2],
    now: Time,
    /// MADs in flight, oldest first, with the sending side.
    sent: VecDeque<(usize, Transmit)>,
}

impl Pair {
    /// Returns a pair in which the server listens.
    fn new() -> Self {
        let mut sides = [Manager::new(Counting(0x100)), Manager::new(Counting(0x200))];
        sides[SERVER]
            .listen(SERVICE, &[ListenAt::AllV4], 8)
            .unwrap();
        Pair {
            sides,
            now: Time(0),
            sent: VecDeque::new(),
        }
    }

    fn collect(&mut self) {
        for (side, manager) in self.sides.iter_mut().enumerate() {
            while let Some(transmit) = manager.poll_transmit() {
                self.sent.push_back((side, transmit));
            }
        }
    }

    /// Removes the next message in flight.
    #[track_caller]
    fn take(&mut self) -> (usize, Message) {
        self.collect();
        let (side, transmit) = self.sent.pop_front().expect("a message");
        (side, Message::parse(&transmit.mad[..]).unwrap().1)
    }

    /// Drops all messages in flight; returns their number.
    fn drop_in_flight(&mut self) -> usize {
        self.collect();
        self.sent.drain(..).count()
    }

    #[track_caller]
    fn assert_silence(&mut self) {
        self.collect();
        assert!(self.sent.is_empty(), "{:?}", self.take());
    }

    /// Delivers all messages in flight, and those sent in response.
    fn deliver(&mut self) {
        self.collect();
        while let Some((side, transmit)) = self.sent.pop_front() {
            self.arrive(1 - side, &transmit.mad[..]);
            self.collect();
        }
    }

    /// Delivers bytes from the other side.
    fn arrive(&mut self, side: usize, mad: &[u8]) {
        let now = self.now;
        self.sides[side].handle_mad(now, address(side), mad);
    }

    fn say(&mut self, to: usize, message: &Message) {
        self.arrive(to, &message.to_mad(77));
    }

    #[track_caller]
    fn event(&mut self, side: usize) -> Event {
        self.sides[side].poll_event().expect("an event")
    }

    #[track_caller]
    fn assert_no_event(&mut self) {
        for side in [CLIENT, SERVER] {
            let event = self.sides[side].poll_event();
            assert!(event.is_none(), "{event:?}");
        }
    }

    /// Advances the clock to a side's next deadline and handles it; returns the time advanced.
    #[track_caller]
    fn wait_for(&mut self, side: usize) -> Duration {
        let deadline = self.sides[side].deadline();
        assert!(deadline != Time::NEVER, "nothing to wait for");
        let waited = deadline - self.now;
        self.now = deadline.max(self.now);
        let now = self.now;
        self.sides[side].handle_timeout(now);
        waited
    }

    fn connect(&mut self) -> CommId {
        self.connect_as(&connect())
    }

    fn connect_as(&mut self, wanted: &Connect) -> CommId {
        let now = self.now;
        self.sides[CLIENT].connect(now, wanted).unwrap()
    }

    /// Takes the request event of the server's program.
    #[track_caller]
    fn requested(&mut self) -> CommId {
        match self.event(SERVER) {
            Event::Request { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    fn accept(&mut self, id: CommId) {
        let now = self.now;
        self.sides[SERVER].accept(now, id, &accept()).unwrap();
    }

    fn disconnect(&mut self, side: usize, id: CommId) {
        let now = self.now;
        let private_data = PrivateData::default();
        self.sides[side].disconnect(now, id, &private_data).unwrap();
    }

    fn ready(&mut self, id: CommId) {
        let private_data = PrivateData::new(b"ready").unwrap();
        self.sides[CLIENT].ready(id, &private_data).unwrap();
    }

    /// Returns a connection with the server's REP in flight.
    #[track_caller]
    fn accepted(&mut self) -> (CommId, CommId) {
        let client = self.connect();
        self.deliver();
        let server = self.requested();
        self.accept(server);
        (client, server)
    }

    /// Returns an established connection.
    #[track_caller]
    fn established(&mut self) -> (CommId, CommId) {
        let ids = self.accepted();
        self.deliver();
        assert!(matches!(self.event(CLIENT), Event::Reply { .. }));
        self.ready(ids.0);
        self.deliver();
        assert!(matches!(self.event(SERVER), Event::Ready { .. }));
        ids
    }

    fn state(&self, side: usize, id: CommId) -> State {
        self.sides[side].state(id)
    }

    fn counters(&self, side: usize) -> Counters {
        *self.sides[side].counters()
    }

    /// The states of a connection at both sides.
    fn states(&self, (client, server): (CommId, CommId)) -> (State, State) {
        (self.state(CLIENT, client), self.state(SERVER, server))
    }

    /// Advances the clock until neither side has a deadline.
    fn finish(&mut self) {
        loop {
            self.deliver();
            let first = self.sides.iter().map(Manager::deadline).min().unwrap();
            if first == Time::NEVER {
                break;
            }
            self.now = first;
            for side in &mut self.sides {
                side.handle_timeout(first);
            }
        }
    }

    /// Asserts that both managers are empty.
    #[track_caller]
    fn assert_empty(&mut self) {
        self.assert_no_event();
        for side in &self.sides {
            assert!(side.is_empty(), "{side:?}");
        }
    }
}

/// Returns the REJ that `side` sent.
#[track_caller]
fn rej(pair: &mut Pair, side: usize) -> wire::Rej {
    match pair.take() {
        (from, Message::Rej(rej)) if from == side => rej,
        other => panic!("{other:?}"),
    }
}

/// Returns the REP of a server that the test does not have, with this queue pair.
fn rep_of(qpn: u32, client: CommId) -> wire::Rep {
    wire::Rep {
        local_comm_id: 0x999,
        remote_comm_id: client.0,
        qkey: QKey(0),
        qpn: Qpn::new(qpn),
        eecn: 0,
        ece: Ece::default(),
        starting_psn: Psn::new(0),
        responder_resources: 0,
        initiator_depth: 0,
        target_ack_delay: 0,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 0,
        srq: false,
        ca_guid: guid(SERVER),
        private_data: PrivateData::default(),
    }
}

/// Returns a REQ as the client sends it.
fn req() -> Req {
    let mut pair = Pair::new();
    pair.connect();
    match pair.take() {
        (CLIENT, Message::Req(req)) => req,
        other => panic!("{other:?}"),
    }
}
