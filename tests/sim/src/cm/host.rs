//! A host: a connection manager, and a program that acts at random.

use super::record::{Progress, Record, Role};
use super::stats::Stats;
use crate::rng::Rng;
use rand::RngExt;
use std::collections::HashMap;
use std::time::Duration;
use urxe_proto::cm::wire::{
    Ece, Info, PortSpace, PrivateData, RejectReason, ServiceId, SidrStatus, Transport,
};
use urxe_proto::cm::{
    Accept, Address, CallError, CommId, Connect, ConnectionParameters, Event, Ids, ListenAt,
    Manager, MraWhen, Resolve, SidrAnswer, State, timing,
};
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::time::Time;

pub const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);
/// The maximum number of pending REQs: low, so that some are dropped.
const BACKLOG: usize = 3;

/// Identifiers drawn from a generator of the run.
#[derive(Debug)]
pub struct RandomIds(pub Rng);

impl Ids for RandomIds {
    fn comm_id(&mut self) -> u32 {
        self.0.random()
    }
    fn transaction(&mut self) -> u64 {
        self.0.random()
    }
}

/// A future action of a program.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Connect,
    Resolve,
    Accept(CommId),
    Reject(CommId),
    Delay(CommId),
    Ready(CommId),
    Disconnect(CommId),
    Abandon(CommId),
    Answer(CommId),
}

#[derive(Debug)]
pub struct Host {
    pub index: usize,
    pub manager: Manager<RandomIds>,
    pub records: HashMap<CommId, Record>,
    /// The number of its crashes.
    pub incarnation: u32,
    /// Whether it is off for the rest of the run.
    pub is_off: bool,
    next_qpn: u32,
}

pub fn gid(index: usize) -> Gid {
    Gid::from_ip([192, 0, 2, index as u8 + 1].into())
}

impl Host {
    pub fn new(index: usize, ids: Rng) -> Self {
        Host {
            index,
            manager: listening_manager(ids),
            records: HashMap::new(),
            incarnation: 0,
            is_off: false,
            next_qpn: 16,
        }
    }

    /// Discards all state, and restarts with the same QPNs.
    pub fn crash(&mut self, ids: Rng) {
        self.manager = listening_manager(ids);
        self.records.clear();
        self.incarnation += 1;
        self.next_qpn = 16;
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    fn guid(&self) -> u64 {
        0x1000 + self.index as u64
    }

    /// Returns the program's reactions to an event, with their delays.
    pub fn on_event(
        &mut self,
        event: &Event,
        rng: &mut Rng,
        stats: &mut Stats,
    ) -> Vec<(Duration, Step)> {
        let id = event.id();
        match event {
            Event::Request { req, .. } => {
                let peer = Some(CommId(req.local_comm_id));
                let record = Record::new(Role::Server, peer);
                assert!(self.records.insert(id, record).is_none());
                let first = match rng.random_range(0..100) {
                    0..10 => Step::Reject(id),
                    10..15 => Step::Abandon(id),
                    15..35 => Step::Delay(id),
                    _ => Step::Accept(id),
                };
                return vec![(reaction_delay(rng), first)];
            }
            Event::ResolutionRequest { .. } => {
                let record = Record::new(Role::Resolver, None);
                assert!(self.records.insert(id, record).is_none());
                let step = match rng.random_range(0..10) {
                    0 => Step::Abandon(id),
                    _ => Step::Answer(id),
                };
                return vec![(reaction_delay(rng), step)];
            }
            _ => {}
        }
        // Events may be older than the program's decision to abandon.
        let Some(record) = self.records.get_mut(&id).filter(|r| !r.abandoned) else {
            return Vec::new();
        };
        record.check_event(event);
        match event {
            Event::Reply { rep, .. } => {
                record.peer = Some(CommId(rep.local_comm_id));
                let step = match rng.random_range(0..100) {
                    0..5 => Step::Reject(id),
                    5..10 => Step::Abandon(id),
                    10..20 => Step::Delay(id),
                    _ => Step::Ready(id),
                };
                vec![(reaction_delay(rng), step)]
            }
            Event::Ready { .. } | Event::Established { .. } => {
                stats.established += 1;
                vec![(use_time(rng), end_step(id, rng))]
            }
            Event::DisconnectRequest { .. } => vec![(reaction_delay(rng), end_step(id, rng))],
            Event::Rejected { reason, .. } => {
                stats.rejected += 1;
                stats.stale += u64::from(*reason == RejectReason::STALE_CONNECTION);
                Vec::new()
            }
            Event::TimedOut { .. } => {
                stats.timed_out += 1;
                Vec::new()
            }
            Event::Delayed { .. } => {
                stats.delayed += 1;
                Vec::new()
            }
            Event::Resolved { .. } => {
                stats.resolved += 1;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Performs an action of the program. It is refused if the peer's message overtook it.
    pub fn act(
        &mut self,
        step: Step,
        now: Time,
        hosts: usize,
        rng: &mut Rng,
        stats: &mut Stats,
    ) -> Vec<(Duration, Step)> {
        let id = match step {
            Step::Connect => return self.connect(now, hosts, rng),
            Step::Resolve => {
                let parameters = self.resolve_params(hosts, rng);
                let id = self.manager.resolve(now, &parameters).unwrap();
                self.records.insert(id, Record::new(Role::Requester, None));
                return Vec::new();
            }
            Step::Accept(id)
            | Step::Reject(id)
            | Step::Delay(id)
            | Step::Ready(id)
            | Step::Disconnect(id)
            | Step::Abandon(id)
            | Step::Answer(id) => id,
        };
        let qpn = self.qpn();
        let guid = self.guid();
        let Some(record) = self.records.get_mut(&id).filter(|r| !r.abandoned) else {
            return Vec::new();
        };
        let before = self.manager.state(id);
        let mut next = Vec::new();
        let done = match step {
            Step::Accept(_) => self.manager.accept(now, id, &accept(qpn, guid, rng)),
            Step::Reject(_) => {
                let (info, data) = (Info::default(), PrivateData::default());
                let done = self
                    .manager
                    .reject(now, id, RejectReason::CONSUMER, info, &data);
                if done.is_ok() {
                    record.rejected = true;
                    record.progress = match before {
                        State::RepSent | State::MraRepReceived => Progress::TimeWait,
                        _ => Progress::End,
                    };
                }
                done
            }
            Step::Delay(_) => {
                let when = if rng.random() {
                    MraWhen::Now
                } else {
                    MraWhen::IfRepeated
                };
                let then = match record.role {
                    Role::Client => Step::Ready(id),
                    _ => Step::Accept(id),
                };
                next.push((reaction_delay(rng) * 4, then));
                self.manager.delay(id, 20, &PrivateData::default(), when)
            }
            Step::Ready(_) => {
                let done = self.manager.ready(id, &PrivateData::default());
                if done.is_ok() {
                    record.ready = true;
                    next.push((use_time(rng), end_step(id, rng)));
                }
                done
            }
            Step::Disconnect(_) => {
                let done = self.manager.disconnect(now, id, &PrivateData::default());
                if done.is_ok() && before == State::DreqReceived {
                    record.progress = Progress::TimeWait;
                }
                done
            }
            Step::Abandon(_) => {
                stats.abandoned += 1;
                stats.abandoned_before_reply += u64::from(before == State::ReqSent);
                record.abandoned = true;
                self.manager.abandon(now, id);
                Ok(())
            }
            _ => {
                record.progress = Progress::End;
                self.manager.answer(now, id, &sidr_answer(qpn))
            }
        };
        if let Err(CallError::State { state, .. }) = done {
            assert_eq!(state, before);
        }
        next
    }

    fn connect(&mut self, now: Time, hosts: usize, rng: &mut Rng) -> Vec<(Duration, Step)> {
        let parameters = Connect {
            address: self.random_address(hosts, rng),
            service: SERVICE,
            ca_guid: self.guid(),
            transport: Transport::Rc,
            qpn: self.qpn(),
            ece: Ece::default(),
            starting_psn: Psn::new(rng.random()),
            responder_resources: rng.random_range(0..16),
            initiator_depth: rng.random_range(0..16),
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: rng.random_range(0..8),
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
            private_data: PrivateData::default(),
        };
        let id = self.manager.connect(now, &parameters).unwrap();
        self.records.insert(id, Record::new(Role::Client, None));
        match rng.random_range(0..10) {
            0 => vec![(reaction_delay(rng) / 4, Step::Abandon(id))],
            _ => Vec::new(),
        }
    }

    fn resolve_params(&self, hosts: usize, rng: &mut Rng) -> Resolve {
        Resolve {
            address: self.random_address(hosts, rng),
            service: SERVICE,
            response_timeout: timing::RESPONSE_TIMEOUT,
            max_retries: timing::MAX_RETRIES,
            private_data: PrivateData::default(),
        }
    }

    fn random_address(&self, hosts: usize, rng: &mut Rng) -> Address {
        Address {
            local: gid(self.index),
            // The remote host may be this one.
            remote: gid(rng.random_range(0..hosts)),
            remote_qpn: Qpn::GSI,
            traffic_class: 0,
        }
    }

    pub fn parameters(&self, id: CommId) -> Option<&ConnectionParameters> {
        self.manager.parameters(id)
    }
}

fn listening_manager(ids: Rng) -> Manager<RandomIds> {
    let mut manager = Manager::new(RandomIds(ids));
    manager
        .listen(SERVICE, &[ListenAt::AllV4], BACKLOG)
        .unwrap();
    manager
}

fn accept(qpn: Qpn, ca_guid: u64, rng: &mut Rng) -> Accept {
    Accept {
        ca_guid,
        qpn,
        ece: Ece::default(),
        starting_psn: Psn::new(rng.random()),
        responder_resources: rng.random_range(0..16),
        initiator_depth: rng.random_range(0..16),
        ack_delay: 15,
        flow_control: true,
        rnr_retry_count: rng.random_range(0..8),
        srq: false,
        private_data: PrivateData::default(),
    }
}

fn sidr_answer(qpn: Qpn) -> SidrAnswer {
    SidrAnswer {
        status: SidrStatus::VALID,
        info: Info::default(),
        qpn,
        qkey: QKey(0x0123_4567),
        private_data: PrivateData::default(),
    }
}

/// Returns the step by which a program ends a connection.
fn end_step(id: CommId, rng: &mut Rng) -> Step {
    match rng.random_range(0..4) {
        0 => Step::Abandon(id),
        _ => Step::Disconnect(id),
    }
}

/// Returns the time before a program's answer.
fn reaction_delay(rng: &mut Rng) -> Duration {
    Duration::from_millis(rng.random_range(0..3000))
}

/// Returns the time for which a connection is used. Now and then it exceeds the time after which
/// the manager gives up on a message that is lost every time.
fn use_time(rng: &mut Rng) -> Duration {
    let longest = match rng.random_range(0..10) {
        0 => 200_000,
        _ => 20_000,
    };
    Duration::from_millis(rng.random_range(0..longest))
}
