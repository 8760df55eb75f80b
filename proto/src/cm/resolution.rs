//! Service ID resolution (12.11): finding the datagram queue pair of a service.
//!
//! The requester retransmits until the reply arrives. The responder caches its reply for a time, so
//! that a retransmitted request is answered without asking the program again.

use super::connection::CallError;
use super::deadlines::Deadlines;
use super::outbox::Outbox;
use super::retransmission::Retransmission;
use super::wire::private_data::{Info, PrivateData};
use super::wire::{Mad, Message, ServiceId, SidrRep, SidrReq, SidrStatus, sidr};
use super::{Address, Awaited, CommId, Event, ListenerId, timing};
use crate::ids::{Gid, PKey, QKey, Qpn};
use crate::time::Time;
use std::collections::{HashMap, VecDeque};

/// The parameters of a service ID resolution.
#[derive(Clone, Copy, Debug)]
pub struct Resolve {
    /// The path to the peer.
    pub address: Address,
    /// The service.
    pub service: ServiceId,
    /// The response timeout of the peer: 4.096 us x 2^n, n up to 31.
    pub response_timeout: u8,
    /// The most retransmissions of the request.
    pub max_retries: u8,
    /// Private data for the peer's program.
    pub private_data: PrivateData<{ sidr::REQ_PRIVATE_DATA }>,
}

/// A program's answer to a resolution request.
#[derive(Clone, Copy, Debug)]
pub struct SidrAnswer {
    /// The status.
    pub status: SidrStatus,
    /// Additional information.
    pub info: Info,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The queue key of that queue pair.
    pub qkey: QKey,
    /// Private data for the peer's program.
    pub private_data: PrivateData<{ sidr::REP_PRIVATE_DATA }>,
}

impl SidrAnswer {
    /// Returns an answer without a queue pair.
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

/// The most cached replies.
const MAX_CACHED_REPLIES: usize = 1024;
/// The lifetime of a cached reply, 8.6 s as a time exponent: twice the retransmission interval of
/// the RDMA CM.
const REPLY_LIFETIME: u8 = timing::RESPONSE_TIMEOUT + 1;

/// The requester of a resolution, and its request ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Requester {
    gid: Gid,
    request_id: u32,
}

#[derive(Debug)]
enum Role {
    /// Active: request sent.
    Active(Retransmission),
    /// Passive: request reported to the program.
    Passive {
        requester: Requester,
        /// The listener whose backlog the request occupies.
        listener: Option<ListenerId>,
    },
    /// Passive: replied; the reply is cached.
    Replied { requester: Requester, mad: Box<Mad> },
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
    requesters: HashMap<Requester, CommId>,
    /// Cached replies, oldest first.
    cached: VecDeque<CommId>,
    deadlines: Deadlines,
}

impl Resolutions {
    /// Whether `id` is in use.
    pub fn contains(&self, id: CommId) -> bool {
        self.of.contains_key(&id)
    }

    /// The identifiers of open resolutions: all except cached replies.
    pub fn ids(&self) -> impl Iterator<Item = CommId> {
        self.of.keys().copied().filter(|id| self.is_open(*id))
    }

    /// Whether `id` is a resolution that has not been answered.
    pub fn is_open(&self, id: CommId) -> bool {
        let found = self.of.get(&id);
        found.is_some_and(|r| !matches!(r.role, Role::Replied { .. }))
    }

    /// The number of cached replies.
    pub fn cached(&self) -> usize {
        self.cached.len()
    }

    /// The time at which to call [`Self::handle_timeout`].
    pub fn deadline(&self) -> Time {
        self.deadlines.first()
    }

    /// Starts a resolution: sends a SIDR_REQ.
    pub fn resolve(
        &mut self,
        id: CommId,
        transaction: u64,
        request: &Resolve,
        now: Time,
        out: &mut Outbox,
    ) {
        let message = Message::SidrReq(SidrReq {
            request_id: id.0,
            pkey: PKey::DEFAULT,
            service: request.service,
            private_data: request.private_data,
        });
        let mad = Box::new(message.to_mad(transaction));
        let interval = timing::duration(request.response_timeout);
        let retransmission = Retransmission::new(mad, request.max_retries, interval, now);
        out.send_mad(request.address, retransmission.mad());
        self.deadlines.set(id, retransmission.due());
        let resolution = Resolution {
            role: Role::Active(retransmission),
            address: request.address,
            transaction,
            service: request.service,
        };
        self.of.insert(id, resolution);
    }

    /// Returns whether a request is a duplicate. If it has been answered, resends the reply.
    pub fn is_duplicate(&self, address: &Address, req: &SidrReq, out: &mut Outbox) -> bool {
        let found = self.requesters.get(&requester(address, req));
        let Some(resolution) = found.and_then(|id| self.of.get(id)) else {
            return false;
        };
        out.counters.duplicates += 1;
        if let Role::Replied { mad, .. } = &resolution.role {
            out.send_mad(resolution.address, mad.clone());
        }
        true
    }

    /// Handles a new request for a service that has a listener.
    pub fn on_req(
        &mut self,
        id: CommId,
        listener: ListenerId,
        address: Address,
        transaction: u64,
        req: &SidrReq,
        out: &mut Outbox,
    ) {
        let requester = requester(&address, req);
        let resolution = Resolution {
            role: Role::Passive {
                requester,
                listener: Some(listener),
            },
            address,
            transaction,
            service: req.service,
        };
        self.of.insert(id, resolution);
        self.requesters.insert(requester, id);
        out.events.push_back(Event::ResolutionRequest {
            listener,
            id,
            address,
            req: Box::new(*req),
        });
    }

    /// Handles a SIDR_REP.
    pub fn on_rep(&mut self, address: &Address, rep: &SidrRep, out: &mut Outbox) {
        let id = CommId(rep.request_id);
        let expected = self.of.get(&id).is_some_and(|resolution| {
            matches!(resolution.role, Role::Active(_))
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

    /// Releases the backlog of the listener. Returns the listener if the request still occupied it.
    pub fn leave_backlog(&mut self, id: CommId) -> Option<ListenerId> {
        match &mut self.of.get_mut(&id)?.role {
            Role::Passive { listener, .. } => listener.take(),
            _ => None,
        }
    }

    /// Answers a request. Returns the listener if the request still occupied its backlog.
    pub fn answer(
        &mut self,
        now: Time,
        id: CommId,
        answer: &SidrAnswer,
        out: &mut Outbox,
    ) -> Result<Option<ListenerId>, CallError> {
        let resolution = self.of.get_mut(&id).ok_or(CallError::Unknown(id))?;
        let Role::Passive {
            requester,
            listener,
        } = resolution.role
        else {
            return Err(CallError::Unknown(id));
        };
        let message = reply(requester.request_id, resolution.service, answer);
        let mad = Box::new(message.to_mad(resolution.transaction));
        out.send_mad(resolution.address, mad.clone());
        resolution.role = Role::Replied { requester, mad };
        self.deadlines
            .set(id, now + timing::duration(REPLY_LIFETIME));
        self.cache(id);
        Ok(listener)
    }

    /// Detaches the program. Returns the listener if a request still occupied its backlog.
    pub fn abandon(&mut self, now: Time, id: CommId, out: &mut Outbox) -> Option<ListenerId> {
        match self.of.get(&id)?.role {
            Role::Active(_) => {
                self.remove(id);
                None
            }
            Role::Passive { .. } => {
                let refusal = SidrAnswer::refusal(SidrStatus::REJECTED);
                self.answer(now, id, &refusal, out).ok().flatten()
            }
            Role::Replied { .. } => None,
        }
    }

    /// Handles all deadlines up to `now`.
    pub fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        while let Some(id) = self.deadlines.pop(now) {
            let Some(resolution) = self.of.get_mut(&id) else {
                continue;
            };
            let Role::Active(retransmission) = &mut resolution.role else {
                self.cached.retain(|cached| *cached != id);
                self.remove(id);
                continue;
            };
            match retransmission.retransmit(now) {
                Some(mad) => {
                    out.counters.retransmitted += 1;
                    out.send_mad(resolution.address, mad);
                    self.deadlines.set(id, retransmission.due());
                }
                None => {
                    self.remove(id);
                    let awaited = Awaited::SidrRep;
                    out.events.push_back(Event::TimedOut { id, awaited });
                }
            }
        }
    }

    /// Caches one more reply, at most [`MAX_CACHED_REPLIES`].
    fn cache(&mut self, id: CommId) {
        self.cached.push_back(id);
        if self.cached.len() > MAX_CACHED_REPLIES
            && let Some(oldest) = self.cached.pop_front()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, id: CommId) {
        self.deadlines.set(id, Time::NEVER);
        let removed = self.of.remove(&id).map(|resolution| resolution.role);
        if let Some(Role::Passive { requester, .. } | Role::Replied { requester, .. }) = removed {
            self.requesters.remove(&requester);
        }
    }

    /// Whether there are neither resolutions nor cached replies.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
            && self.requesters.is_empty()
            && self.cached.is_empty()
            && self.deadlines.is_empty()
    }
}

fn requester(address: &Address, req: &SidrReq) -> Requester {
    Requester {
        gid: address.remote,
        request_id: req.request_id,
    }
}

/// Returns the SIDR_REP for an answer.
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
