//! The common part of queue pairs in every state.
#![forbid(unsafe_code)]

use super::destination::Destination;
use super::error::BuildError;
use crate::cq::{CompletionQueue, Reservation};
use crate::mr::RemoteAccess;
use crate::outstanding::{Kind, Outstanding, Ring, WorkId};
use crate::pd::ProtectionDomain;
use crate::slices::Memory;
use crate::srq::Attachment;
use crate::work::{BatchError, PostError, ReceiveRequest, SendRequest};
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::qp::{ModifyError, Posting};
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};
use urxe_proto::work::{Payload, SendWr};

/// The settings that a queue pair keeps through a reset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) access: RemoteAccess,
    pub(super) gid_index: u8,
    /// The largest path MTU to use; `None` for the largest that fits the interface.
    pub(super) path_mtu: Option<Mtu>,
    pub(super) responder_resources: u8,
}

/// The common part of a queue pair in every state.
///
/// Dropping it destroys the queue pair, and then drops the fields in their order.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) qp: Arc<driver::Qp>,
    pub(super) outstanding: Arc<Outstanding>,
    /// The use of a shared receive queue, if any.
    pub(super) attachment: Option<Attachment>,
    pub(super) settings: Settings,
    pub(super) pd: ProtectionDomain,
    /// The entries reserved in the completion queues, which it keeps alive: that of sends and that
    /// of receives.
    pub(super) reservations: [Reservation; 2],
}

/// A work request that was not posted. Dropping it may deregister memory, so it must not be dropped
/// while a lock is held.
pub(super) enum Refused<R> {
    /// The queue is full; it has this capacity.
    Full(u32, R),
    /// It cannot be posted.
    Invalid(PostError, Memory),
}

impl<R> From<Refused<R>> for PostError {
    fn from(refused: Refused<R>) -> Self {
        match refused {
            Refused::Full(capacity, _) => PostError::QueueFull { capacity },
            Refused::Invalid(error, _) => error,
        }
    }
}

impl Core {
    pub(super) fn gid(&self, device: &crate::Device) -> Result<Gid, BuildError> {
        let index = self.settings.gid_index;
        let gid = device.0.gid(usize::from(index));
        gid.ok_or_else(|| BuildError::NoSuchGid {
            device: device.name().to_owned(),
            index,
        })
    }

    pub(super) fn go_to(&self, state: QpState) -> Result<(), ModifyError> {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, AttrMask::STATE)
    }

    /// Moves the queue pair to RESET, in which no work request completes.
    pub(super) fn reset(&self) -> Result<(), ModifyError> {
        if let Some(attachment) = &self.attachment {
            attachment.release_receives(&self.qp);
        }
        self.go_to(QpState::Reset)
    }

    /// The completion queue of the sends.
    pub(super) fn send_cq(&self) -> &CompletionQueue {
        self.reservations[0].cq()
    }

    /// The completion queue of the receives.
    pub(super) fn recv_cq(&self) -> &CompletionQueue {
        self.reservations[1].cq()
    }

    #[inline(always)]
    pub(super) fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.post_one_receive(request, Kind::Signaled)?;
        Ok(())
    }

    /// Posts a receive, for a future if it is awaited.
    // Inlined, since a move of the request costs as much as a lock.
    #[inline(always)]
    pub(super) fn post_one_receive(
        &self,
        request: ReceiveRequest,
        kind: Kind,
    ) -> Result<WorkId, Refused<ReceiveRequest>> {
        let cap = self.qp.cap();
        // The lock is released before the buffers of a rejected request are dropped.
        let Some(mut ring) = self.outstanding.own_receives() else {
            let error = urxe_proto::queue::PostError::SharedReceives;
            return Err(Refused::Invalid(error.into(), request.memory));
        };
        if let Err(error) = request.check(self.pd.driver().id(), cap.max_recv_sge) {
            return Err(Refused::Invalid(error, request.memory));
        }
        if ring.is_full() {
            return Err(Refused::Full(cap.max_recv_wr, request));
        }
        let entry = ring.push(request.wr_id, request.memory, kind);
        let id = entry.id();
        if kind == Kind::Awaited {
            self.recv_cq().tasks().register(id.to_driver());
        }
        let elements = entry.memory.elements(entry.extent());
        match self.qp.post_receive(id.to_driver(), &elements) {
            Ok(()) => Ok(id),
            Err(error) => {
                let newest = ring.pop_newest();
                drop(ring);
                if kind == Kind::Awaited {
                    self.recv_cq().tasks().remove(id.to_driver());
                }
                let memory = newest.map(|entry| entry.memory).unwrap_or_default();
                Err(Refused::Invalid(error.into(), memory))
            }
        }
    }

    /// Posts one work request; `to` is the destination of a datagram.
    #[inline(always)]
    pub(super) fn post_send(
        &self,
        request: SendRequest<'_>,
        to: Option<&Destination>,
    ) -> Result<(), PostError> {
        let kind = request.kind();
        self.post_one_send(request, to, kind)?;
        Ok(())
    }

    /// Posts one work request, for a future if it is awaited.
    // Inlined, since a move of the request costs as much as a lock.
    #[inline(always)]
    #[expect(
        clippy::result_large_err,
        reason = "a refused request must not cost an allocation"
    )]
    pub(super) fn post_one_send<'r>(
        &self,
        request: SendRequest<'r>,
        to: Option<&Destination>,
        kind: Kind,
    ) -> Result<WorkId, Refused<SendRequest<'r>>> {
        if let Err(error) = request.check(self.pd.driver().id(), &self.qp.cap()) {
            return Err(Refused::Invalid(error, request.memory));
        }
        let mut ring = self.outstanding.sends();
        let mut posting = self.qp.start_posting();
        let posted = self.post(&mut ring, &mut posting, request, to, kind);
        // Other threads may poll completions while the packets are transmitted.
        drop(ring);
        drop(posting);
        posted
    }

    /// Posts work requests up to the first invalid one.
    pub(super) fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
        to: Option<&Destination>,
    ) -> Result<(), BatchError> {
        let (pd, cap) = (self.pd.driver().id(), self.qp.cap());
        // Collected first: the caller's iterator must not run while the locks of posting are held.
        let mut checked = Vec::new();
        let mut invalid = None;
        for request in requests {
            if let Err(error) = request.check(pd, &cap) {
                invalid = Some(error);
                break;
            }
            checked.push(request);
        }
        let mut posted = 0;
        let mut refused = None;
        let mut requests = checked.into_iter();
        let mut ring = self.outstanding.sends();
        let mut posting = self.qp.start_posting();
        for request in &mut requests {
            let kind = request.kind();
            match self.post(&mut ring, &mut posting, request, to, kind) {
                Ok(_) => posted += 1,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        drop(ring);
        drop(posting);
        match refused.map(PostError::from).or(invalid) {
            Some(source) => Err(BatchError { posted, source }),
            None => Ok(()),
        }
    }

    /// Posts a checked work request.
    #[inline(always)]
    #[expect(
        clippy::result_large_err,
        reason = "a refused request must not cost an allocation"
    )]
    fn post<'r>(
        &self,
        ring: &mut Ring,
        posting: &mut Posting<'_>,
        request: SendRequest<'r>,
        to: Option<&Destination>,
        kind: Kind,
    ) -> Result<WorkId, Refused<SendRequest<'r>>> {
        if ring.is_full() {
            return Err(Refused::Full(self.qp.cap().max_send_wr, request));
        }
        let entry = ring.push(request.wr_id, request.memory, kind);
        let id = entry.id();
        if kind == Kind::Awaited {
            self.send_cq().tasks().register(id.to_driver());
        }
        let elements = entry.memory.elements(entry.extent());
        let payload = match request.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&elements),
        };
        let wr = SendWr {
            wr_id: id.to_driver(),
            op: request.op,
            flags: request.flags,
            payload,
            dest: None,
        };
        let posted = match to {
            Some(to) => posting.post_to(&wr, &to.driver()),
            None => posting.post(&wr),
        };
        match posted {
            Ok(()) => Ok(id),
            Err(error) => {
                if kind == Kind::Awaited {
                    self.send_cq().tasks().remove(id.to_driver());
                }
                let newest = ring.pop_newest();
                let memory = newest.map(|entry| entry.memory).unwrap_or_default();
                Err(Refused::Invalid(error.into(), memory))
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Err(error) = self.reset() {
            tracing::debug!(%error, qp = %self.qp.qpn(), "a queue pair cannot be reset");
        }
        self.qp.destroy();
    }
}
