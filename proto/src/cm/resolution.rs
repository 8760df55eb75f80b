//! Service ID resolution (12.11): which datagram queue pair has a service.
//!
//! Who asks repeats its request until the reply comes. Who is asked keeps its reply for a while, so
//! that a request that is repeated because the reply was lost does not trouble the program again.

use super::connection::CallError;
use super::deadlines::Deadlines;
use super::outbox::Outbox;
use super::repeat::Repeat;
use super::wire::private_data::{Info, PrivateData};
use super::wire::{Mad, Message, ServiceId, SidrRep, SidrReq, SidrStatus, sidr};
use super::{Address, Awaited, CommId, Event, ListenerId, timing};
use crate::ids::{Gid, PKey, QKey, Qpn};
use crate::time::Time;
use std::collections::{HashMap, VecDeque};

/// A service whose queue pair a program wants to know.
#[derive(Clone, Copy, Debug)]
pub struct Resolve {
    /// Whom to ask.
    pub address: Address,
    /// The service.
    pub service: ServiceId,
    /// How soon the peer should answer: 4.096 us x 2^n for n to 31.
    pub response_timeout: u8,
    /// How often the request is repeated.
    pub max_retries: u8,
    /// For the peer's program.
    pub private_data: PrivateData<{ sidr::REQ_PRIVATE_DATA }>,
}

/// What a program says to a resolution.
#[derive(Clone, Copy, Debug)]
pub struct SidrAnswer {
    /// What becomes of it.
    pub status: SidrStatus,
    /// More about it.
    pub info: Info,
    /// The queue pair that has the service.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: QKey,
    /// For the peer's program.
    pub private_data: PrivateData<{ sidr::REP_PRIVATE_DATA }>,
}

impl SidrAnswer {
    /// An answer that gives no queue pair.
    pub fn refusal(status: SidrStatus) -> Self {
        SidrAnswer {
            status,
            info: Info::default(),
            qpn: Qpn::default(),
            qkey: QKey(0),
            private_data: PrivateData::default(),
        }
    }
}

/// How many answers are kept.
const MOST_KEPT: usize = 1024;
/// How long an answer is kept: twice as long as the RDMA CM waits before it asks again.
const KEPT_FOR: u8 = timing::RESPONSE_TIMEOUT + 1;

/// Who asked, and the number that it gave its request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Asker {
    gid: Gid,
    request_id: u32,
}

#[derive(Debug)]
enum Role {
    /// We ask.
    Asking(Repeat),
    /// We are asked, and the program has the question.
    Asked {
        asker: Asker,
        /// Who listened, until the program takes the request up.
        listener: Option<ListenerId>,
    },
    /// We were asked, and this is what we said.
    Answered { asker: Asker, mad: Box<Mad> },
}

#[derive(Debug)]
struct Resolution {
    role: Role,
    address: Address,
    transaction: u64,
    service: ServiceId,
}

/// All resolutions.
#[derive(Debug, Default)]
pub(super) struct Resolutions {
    of: HashMap<CommId, Resolution>,
    askers: HashMap<Asker, CommId>,
    /// Answers that are kept, the oldest first.
    kept: VecDeque<CommId>,
    deadlines: Deadlines,
}

impl Resolutions {
    /// Whether `id` is taken.
    pub fn contains(&self, id: CommId) -> bool {
        self.of.contains_key(&id)
    }

    /// Those that are open: all but kept answers.
    pub fn ids(&self) -> impl Iterator<Item = CommId> {
        self.of.keys().copied().filter(|id| self.is_open(*id))
    }

    /// Whether there is one that has not been answered.
    pub fn is_open(&self, id: CommId) -> bool {
        let found = self.of.get(&id);
        found.is_some_and(|r| !matches!(r.role, Role::Answered { .. }))
    }

    /// How many answers are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// When to look at the clock.
    pub fn deadline(&self) -> Time {
        self.deadlines.first()
    }

    /// Asks.
    pub fn resolve(
        &mut self,
        id: CommId,
        transaction: u64,
        wanted: &Resolve,
        now: Time,
        out: &mut Outbox,
    ) {
        let message = Message::SidrReq(SidrReq {
            request_id: id.0,
            pkey: PKey::DEFAULT,
            service: wanted.service,
            private_data: wanted.private_data,
        });
        let mad = Box::new(message.to_mad(transaction));
        let interval = timing::duration(wanted.response_timeout);
        let repeat = Repeat::new(mad, wanted.max_retries, interval, now);
        out.send_mad(wanted.address, repeat.mad());
        self.deadlines.set(id, repeat.due());
        let resolution = Resolution {
            role: Role::Asking(repeat),
            address: wanted.address,
            transaction,
            service: wanted.service,
        };
        self.of.insert(id, resolution);
    }

    /// Whether a request has come before. If it was answered, it is answered again.
    pub fn is_duplicate(&self, address: &Address, req: &SidrReq, out: &mut Outbox) -> bool {
        let found = self.askers.get(&asker(address, req));
        let Some(resolution) = found.and_then(|id| self.of.get(id)) else {
            return false;
        };
        out.counters.duplicates += 1;
        if let Role::Answered { mad, .. } = &resolution.role {
            out.send_mad(resolution.address, mad.clone());
        }
        true
    }

    /// A request that has not come before, for somebody who listens.
    pub fn on_req(
        &mut self,
        id: CommId,
        listener: ListenerId,
        address: Address,
        transaction: u64,
        req: &SidrReq,
        out: &mut Outbox,
    ) {
        let asker = asker(&address, req);
        let resolution = Resolution {
            role: Role::Asked {
                asker,
                listener: Some(listener),
            },
            address,
            transaction,
            service: req.service,
        };
        self.of.insert(id, resolution);
        self.askers.insert(asker, id);
        out.events.push_back(Event::ResolutionRequest {
            listener,
            id,
            address,
            req: Box::new(*req),
        });
    }

    /// A reply.
    pub fn on_rep(&mut self, address: &Address, rep: &SidrRep, out: &mut Outbox) {
        let id = CommId(rep.request_id);
        let expected = self.of.get(&id).is_some_and(|resolution| {
            matches!(resolution.role, Role::Asking(_))
                && resolution.address.remote == address.remote
                && resolution.address.local == address.local
        });
        if !expected {
            out.counters.unmatched += 1;
            return;
        }
        self.remove(id);
        let rep = Box::new(*rep);
        out.events.push_back(Event::Resolved { id, rep });
    }

    /// The program takes a request up. Returns who listened for it, if it waited.
    pub fn take_up(&mut self, id: CommId) -> Option<ListenerId> {
        match &mut self.of.get_mut(&id)?.role {
            Role::Asked { listener, .. } => listener.take(),
            _ => None,
        }
    }

    /// Answers a request. Returns who listened for it, if it waited.
    pub fn answer(
        &mut self,
        now: Time,
        id: CommId,
        answer: &SidrAnswer,
        out: &mut Outbox,
    ) -> Result<Option<ListenerId>, CallError> {
        let resolution = self.of.get_mut(&id).ok_or(CallError::Unknown(id))?;
        let Role::Asked { asker, listener } = resolution.role else {
            return Err(CallError::Unknown(id));
        };
        let message = reply(asker.request_id, resolution.service, answer);
        let mad = Box::new(message.to_mad(resolution.transaction));
        out.send_mad(resolution.address, mad.clone());
        resolution.role = Role::Answered { asker, mad };
        self.deadlines.set(id, now + timing::duration(KEPT_FOR));
        self.keep(id);
        Ok(listener)
    }

    /// The program has no more to do with one. Returns who listened for it, if it waited.
    pub fn abandon(&mut self, now: Time, id: CommId, out: &mut Outbox) -> Option<ListenerId> {
        match self.of.get(&id)?.role {
            Role::Asking(_) => {
                self.remove(id);
                None
            }
            Role::Asked { .. } => {
                let refusal = SidrAnswer::refusal(SidrStatus::REJECTED);
                self.answer(now, id, &refusal, out).ok().flatten()
            }
            Role::Answered { .. } => None,
        }
    }

    /// Looks at the clock.
    pub fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        while let Some(id) = self.deadlines.pop(now) {
            let Some(resolution) = self.of.get_mut(&id) else {
                continue;
            };
            let Role::Asking(repeat) = &mut resolution.role else {
                self.kept.retain(|kept| *kept != id);
                self.remove(id);
                continue;
            };
            match repeat.again(now) {
                Some(mad) => {
                    out.counters.repeated += 1;
                    out.send_mad(resolution.address, mad);
                    self.deadlines.set(id, repeat.due());
                }
                None => {
                    self.remove(id);
                    let awaited = Awaited::SidrRep;
                    out.events.push_back(Event::TimedOut { id, awaited });
                }
            }
        }
    }

    /// Keeps one more answer, and no more than [`MOST_KEPT`].
    fn keep(&mut self, id: CommId) {
        self.kept.push_back(id);
        if self.kept.len() > MOST_KEPT
            && let Some(oldest) = self.kept.pop_front()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, id: CommId) {
        self.deadlines.set(id, Time::NEVER);
        let removed = self.of.remove(&id).map(|resolution| resolution.role);
        if let Some(Role::Asked { asker, .. } | Role::Answered { asker, .. }) = removed {
            self.askers.remove(&asker);
        }
    }

    /// Whether nothing is left, kept answers included.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
            && self.askers.is_empty()
            && self.kept.is_empty()
            && self.deadlines.is_empty()
    }
}

fn asker(address: &Address, req: &SidrReq) -> Asker {
    Asker {
        gid: address.remote,
        request_id: req.request_id,
    }
}

/// The reply to a request.
pub(super) fn reply(request_id: u32, service: ServiceId, answer: &SidrAnswer) -> Message {
    Message::SidrRep(SidrRep {
        request_id,
        status: answer.status,
        info: answer.info,
        qpn: answer.qpn,
        service,
        qkey: answer.qkey,
        private_data: answer.private_data,
    })
}
