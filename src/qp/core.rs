//! The common part of queue pairs in every state.
#![forbid(unsafe_code)]

use super::destination::Destination;
use super::error::BuildError;
use crate::buffer::Extent;
use crate::cq::{CompletionQueue, Reservation};
use crate::mr::RemoteAccess;
use crate::outstanding::Outstanding;
use crate::pd::ProtectionDomain;
use crate::slices::Memory;
use crate::srq::Attachment;
use crate::work::{BatchError, PostError, ReceiveRequest, SendRequest};
use crate::work_ring::{Kind, Ring, WorkId};
use std::mem;
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
        let mut refused = Memory::default();
        self.post_one_receive(request, Kind::Signaled, &mut refused)?;
        // It is empty, for which a drop would test.
        mem::forget(refused);
        Ok(())
    }

    /// Posts a receive, for a future if it is awaited. On an error the memory is stored in
    /// `refused`, which must be empty. [`PostError::QueueFull`] means that there is no room yet.
    // Inlined, with the request by value and without its memory in the result, since a move of it
    // costs as much as a lock.
    #[inline(always)]
    pub(super) fn post_one_receive(
        &self,
        request: ReceiveRequest,
        kind: Kind,
        refused: &mut Memory,
    ) -> Result<WorkId, PostError> {
        let Some(mut ring) = self.outstanding.own_receives() else {
            *refused = request.memory;
            return Err(urxe_proto::queue::PostError::SharedReceives.into());
        };
        let max_sge = self.qp.cap().max_recv_sge;
        if let Err(error) = request.memory.check(self.pd.driver().id(), max_sge) {
            *refused = request.memory;
            return Err(error);
        }
        let elements = request.memory.elements(Extent::Capacity);
        if ring.is_full() {
            *refused = request.memory;
            let capacity = ring.capacity();
            return Err(PostError::QueueFull { capacity });
        }
        let id = ring.push(request.wr_id, request.memory, kind);
        if kind == Kind::Awaited {
            self.recv_cq().tasks().register(id.to_driver());
        }
        match self.qp.post_receive(id.to_driver(), &elements) {
            Ok(()) => Ok(id),
            Err(error) => {
                take_back(&mut ring, refused);
                drop(ring);
                if kind == Kind::Awaited {
                    self.recv_cq().tasks().remove(id.to_driver());
                }
                Err(error.into())
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
        let mut refused = Memory::default();
        let kind = request.operation.kind();
        self.post_one_send(request, to, kind, &mut refused)?;
        // It is empty, for which a drop would test.
        mem::forget(refused);
        Ok(())
    }

    /// Posts one work request, for a future if it is awaited. On an error the memory is stored in
    /// `refused`, which must be empty. [`PostError::QueueFull`] means that there is no room yet.
    // See `post_one_receive` for the arguments.
    #[inline(always)]
    pub(super) fn post_one_send(
        &self,
        request: SendRequest<'_>,
        to: Option<&Destination>,
        kind: Kind,
        refused: &mut Memory,
    ) -> Result<WorkId, PostError> {
        if let Err(error) = request.check(self.pd.driver().id(), &self.qp.cap()) {
            *refused = request.memory;
            return Err(error);
        }
        let mut ring = self.outstanding.sends();
        let mut posting = self.qp.start_posting();
        let posted = self.post(&mut ring, &mut posting, request, to, kind, refused);
        // Other threads may poll completions while the packets are transmitted, when `posting` is
        // dropped.
        drop(ring);
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
        let mut result = Ok(());
        for request in requests {
            result = request.check(pd, &cap);
            if result.is_err() {
                break;
            }
            checked.push(request);
        }
        let mut posted = 0;
        let mut refused = Memory::default();
        let mut requests = checked.into_iter();
        let mut ring = self.outstanding.sends();
        let mut posting = self.qp.start_posting();
        for request in &mut requests {
            let kind = request.operation.kind();
            match self.post(&mut ring, &mut posting, request, to, kind, &mut refused) {
                Ok(_) => posted += 1,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        drop(ring);
        drop(posting);
        result.map_err(|source| BatchError { posted, source })
    }

    /// Posts a checked work request. On an error the memory is stored in `refused`.
    #[inline(always)]
    fn post(
        &self,
        ring: &mut Ring,
        posting: &mut Posting<'_>,
        request: SendRequest<'_>,
        to: Option<&Destination>,
        kind: Kind,
        refused: &mut Memory,
    ) -> Result<WorkId, PostError> {
        if ring.is_full() {
            *refused = request.memory;
            let capacity = ring.capacity();
            return Err(PostError::QueueFull { capacity });
        }
        let elements = request.memory.elements(Extent::Length);
        let operation = &request.operation;
        let id = ring.push(operation.wr_id, request.memory, kind);
        if kind == Kind::Awaited {
            self.send_cq().tasks().register(id.to_driver());
        }
        let payload = match operation.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&elements),
        };
        let wr = SendWr {
            wr_id: id.to_driver(),
            op: operation.op,
            flags: operation.flags,
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
                take_back(ring, refused);
                Err(error.into())
            }
        }
    }
}

/// Takes the memory of the newest work request, which could not be posted.
#[cold]
#[inline(never)]
fn take_back(ring: &mut Ring, refused: &mut Memory) {
    if let Some(newest) = ring.pop_newest() {
        *refused = newest.memory;
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
