//! A connection manager whose application calls it in any state, while peers send any message.

use arbitrary::Arbitrary;
use std::net::Ipv4Addr;
use std::time::Duration;
use urxe_proto::cm::wire::{
    Attribute, Ece, Info, MadHeader, Message, PortSpace, PrivateData, RejectReason, ServiceId,
    SidrStatus, Transport, mad,
};
use urxe_proto::cm::{
    Accept, Address, CommId, Connect, Event, Ids, ListenAt, Manager, MraWhen, Resolve, SidrAnswer,
    timing,
};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::time::Time;

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);
const BACKLOG: usize = 4;
/// The number of peers.
const PEERS: u8 = 3;

/// Runs the input that `bytes` encode.
///
/// # Panics
/// If a rule is violated.
pub fn check(bytes: &[u8]) {
    crate::target::with_input(bytes, |input: Input| input.run());
}

/// The steps of the application and of the peers.
#[derive(Arbitrary, Debug)]
pub struct Input {
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A message with these contents.
    Arrive {
        from: u8,
        attribute: u8,
        transaction: u8,
        local: u8,
        remote: u8,
        /// Offsets, and the bytes to put there.
        pieces: Vec<(u8, [u8; 4])>,
    },
    /// An earlier outgoing message with one byte changed, as a peer could return it.
    Echo {
        which: u8,
        at: u8,
        value: u8,
    },
    /// A datagram of arbitrary bytes.
    Noise(Vec<u8>),
    Call {
        id: u8,
        call: Call,
    },
    Connect {
        to: u8,
        timeout: u8,
    },
    Resolve {
        to: u8,
        timeout: u8,
    },
    Wait(u32),
    Expire,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Call {
    Accept,
    Reject(u16),
    Ready,
    Establish,
    Delay(u8, bool),
    Disconnect,
    Answer(u8),
    Abandon,
}

#[derive(Debug)]
struct SequentialIds(u32);

impl Ids for SequentialIds {
    fn comm_id(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }

    fn transaction(&mut self) -> u64 {
        self.0 += 1;
        self.0.into()
    }
}

fn address(peer: u8) -> Address {
    Address {
        local: Gid::from(Ipv4Addr::new(192, 0, 2, 1)),
        remote: Gid::from(Ipv4Addr::new(192, 0, 2, 2 + peer % PEERS)),
        remote_qpn: Qpn::GSI,
        traffic_class: 0,
    }
}

struct Harness {
    manager: Manager<SequentialIds>,
    now: Time,
    /// Identifiers that exist or have existed.
    known: Vec<CommId>,
    /// Identifiers whose last event was returned.
    ended: Vec<CommId>,
    sent: Vec<(Address, Box<mad::Mad>)>,
}

impl Input {
    fn run(&self) {
        let mut manager = Manager::new(SequentialIds(0));
        manager
            .listen(SERVICE, &[ListenAt::AllV4], BACKLOG)
            .expect("the address is free");
        let mut harness = Harness {
            manager,
            now: Time(0),
            known: vec![CommId(0)],
            ended: Vec::new(),
            sent: Vec::new(),
        };
        for step in &self.steps {
            harness.step(step);
            harness.collect();
        }
        harness.end();
    }
}

impl Harness {
    fn id(&self, choice: u8) -> CommId {
        // 0 is the newest.
        let back = usize::from(choice) % self.known.len();
        self.known[self.known.len() - 1 - back]
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Arrive {
                from,
                attribute,
                transaction,
                local,
                remote,
                pieces,
            } => {
                let mut bytes = [0; mad::LEN];
                let at = usize::from(*attribute) % Attribute::ALL.len();
                let header = MadHeader {
                    attribute: Attribute::ALL[at],
                    transaction: (*transaction).into(),
                    modifier: 0,
                };
                header.emit(&mut bytes);
                let body = &mut bytes[MadHeader::LEN..];
                body[..4].copy_from_slice(&u32::from(*local).to_be_bytes());
                body[4..8].copy_from_slice(&self.id(*remote).0.to_be_bytes());
                if matches!(header.attribute, Attribute::Req) {
                    body[8..16].copy_from_slice(&SERVICE.0.to_be_bytes());
                }
                for (at, piece) in pieces {
                    let at = usize::from(*at).min(body.len() - 4);
                    body[at..at + 4].copy_from_slice(piece);
                }
                self.manager.handle_mad(now, address(*from), &bytes);
            }
            Step::Echo { which, at, value } => {
                if let Some((to, mad)) = self.sent.iter().rev().nth((*which).into()) {
                    let (to, mut mad) = (*to, mad.clone());
                    mad[usize::from(*at)] = *value;
                    self.manager.handle_mad(now, to, &mad[..]);
                }
            }
            Step::Noise(bytes) => self.manager.handle_mad(now, address(0), bytes),
            Step::Call { id, call } => self.call(self.id(*id), *call),
            Step::Connect { to, timeout } => {
                let id = self.manager.connect(now, &connect(*to, *timeout));
                self.known.push(id.expect("identifiers are available"));
            }
            Step::Resolve { to, timeout } => {
                let wanted = Resolve {
                    address: address(*to),
                    service: SERVICE,
                    response_timeout: timeout % 32,
                    max_retries: timeout / 32,
                    private_data: PrivateData::default(),
                };
                let id = self.manager.resolve(now, &wanted);
                self.known.push(id.expect("identifiers are available"));
            }
            Step::Wait(ms) => {
                self.now = now + Duration::from_millis((*ms).into());
                self.manager.handle_timeout(self.now);
            }
            Step::Expire => self.expire(),
        }
    }

    fn expire(&mut self) {
        let deadline = self.manager.deadline();
        if deadline != Time::NEVER {
            self.now = self.now.max(deadline);
            self.manager.handle_timeout(self.now);
            assert!(
                self.manager.deadline() > self.now,
                "the deadline has not moved"
            );
        }
    }

    fn call(&mut self, id: CommId, call: Call) {
        let (now, manager) = (self.now, &mut self.manager);
        let existed = manager.exists(id);
        let result = match call {
            Call::Accept => manager.accept(now, id, &accept()),
            Call::Reject(reason) => manager.reject(
                now,
                id,
                RejectReason(reason),
                Info::default(),
                &PrivateData::default(),
            ),
            Call::Ready => manager.ready(id, &PrivateData::default()),
            Call::Establish => manager.establish(id),
            Call::Delay(timeout, later) => {
                let when = match later {
                    true => MraWhen::IfRepeated,
                    false => MraWhen::Now,
                };
                manager.delay(id, timeout % 32, &PrivateData::default(), when)
            }
            Call::Disconnect => manager.disconnect(now, id, &PrivateData::default()),
            Call::Answer(status) => {
                let answer = SidrAnswer::refusal(SidrStatus(status));
                manager.answer(now, id, &answer)
            }
            Call::Abandon => {
                manager.abandon(now, id);
                self.ended.push(id);
                Ok(())
            }
        };
        assert!(existed || result.is_err() || matches!(call, Call::Abandon));
    }

    fn collect(&mut self) {
        while let Some(transmit) = self.manager.poll_transmit() {
            Message::parse(&transmit.mad[..]).expect("an outgoing message is well-formed");
            self.sent.push((transmit.address, transmit.mad));
        }
        while let Some(event) = self.manager.poll_event() {
            let id = event.id();
            assert!(!self.ended.contains(&id), "{event:?} after the last event");
            match &event {
                Event::Request { .. } | Event::ResolutionRequest { .. } => self.known.push(id),
                _ => assert!(
                    self.known.contains(&id),
                    "{event:?} of an unknown identifier"
                ),
            }
            if event.is_last() {
                assert!(!self.manager.exists(id));
                self.ended.push(id);
            }
        }
        let left = self.known.iter().filter(|id| self.manager.exists(**id));
        assert!(left.count() <= self.manager.open());
    }

    /// Abandons all identifiers and runs all timers, after which the manager must be empty.
    fn end(&mut self) {
        self.manager.abandon_all(self.now);
        for _ in 0..10_000 {
            while self.manager.poll_transmit().is_some() {}
            assert!(
                self.manager.poll_event().is_none(),
                "an event of an abandoned identifier"
            );
            if self.manager.deadline() == Time::NEVER {
                assert!(
                    self.manager.is_empty(),
                    "the manager is not empty: {:?}",
                    self.manager
                );
                return;
            }
            self.expire();
        }
        panic!("the timers do not end");
    }
}

fn connect(to: u8, timeout: u8) -> Connect {
    Connect {
        address: address(to),
        service: SERVICE,
        ca_guid: 1,
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
        remote_response_timeout: timeout % 32,
        local_response_timeout: timeout.rotate_left(3) % 32,
        max_cm_retries: timeout / 16,
        private_data: PrivateData::default(),
    }
}

fn accept() -> Accept {
    Accept {
        ca_guid: 2,
        qpn: Qpn::new(0x22),
        ece: Ece::default(),
        starting_psn: Psn::new(0x2222),
        responder_resources: 4,
        initiator_depth: 3,
        ack_delay: 15,
        flow_control: true,
        rnr_retry_count: 5,
        srq: false,
        private_data: PrivateData::default(),
    }
}
