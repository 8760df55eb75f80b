//! The common part of queue pairs in every state.
#![forbid(unsafe_code)]

use super::destination::Destination;
use super::error::BuildError;
use crate::buffer::LocalBuffer;
use crate::cq::{CompletionQueue, Reservation};
use crate::mr::RemoteAccess;
use crate::outstanding::{Kind, Outstanding, WorkId};
use crate::pd::ProtectionDomain;
use crate::slices::Memory;
use crate::srq::Attachment;
use crate::work::{BatchError, PostError, ReceiveRequest, SendRequest};
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::qp::ModifyError;
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

/// The result of posting.
pub(super) struct Posted<R> {
    /// The number of work requests that were posted.
    pub(super) count: usize,
    /// The identifier of the last one.
    pub(super) last: Option<WorkId>,
    /// The error of the next one.
    pub(super) error: Option<PostError>,
    /// The next one, if the queue is full.
    pub(super) rejected: Option<R>,
    /// The buffer of the next one, if it failed otherwise.
    pub(super) returned: Option<LocalBuffer>,
}

impl<R> Posted<R> {
    /// Nothing was posted.
    pub(super) fn failed(error: PostError, memory: Memory) -> Self {
        Posted {
            count: 0,
            last: None,
            error: Some(error),
            rejected: None,
            returned: memory.into_buffer(),
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

    /// Moves the queue pair to RESET, in which it completes nothing more.
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

    pub(super) fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        match self.post_one_receive(request, Kind::Signaled).error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Posts a receive, for a future if it is awaited.
    pub(super) fn post_one_receive(
        &self,
        request: ReceiveRequest,
        kind: Kind,
    ) -> Posted<ReceiveRequest> {
        let cap = self.qp.cap();
        // The lock is released before the buffers of a rejected request are dropped.
        let Some(mut ring) = self.outstanding.own_receives() else {
            let error = urxe_proto::queue::PostError::SharedReceives;
            return Posted::failed(error.into(), request.memory);
        };
        if let Err(error) = request.check(self.pd.driver().id(), cap.max_recv_sge) {
            return Posted::failed(error, request.memory);
        }
        if ring.is_full() {
            drop(ring);
            let capacity = cap.max_recv_wr;
            return Posted {
                rejected: Some(request),
                ..Posted::failed(PostError::QueueFull { capacity }, Memory::default())
            };
        }
        let entry = ring.push(request.wr_id, request.memory, kind);
        let id = entry.id();
        if kind == Kind::Awaited {
            self.recv_cq().tasks().register(id.to_driver());
        }
        let elements = entry.memory.elements(entry.extent());
        match self.qp.post_receive(id.to_driver(), &elements) {
            Ok(()) => Posted {
                count: 1,
                last: Some(id),
                error: None,
                rejected: None,
                returned: None,
            },
            Err(error) => {
                let newest = ring.pop_newest();
                drop(ring);
                if kind == Kind::Awaited {
                    self.recv_cq().tasks().remove(id.to_driver());
                }
                let memory = newest.map(|entry| entry.memory).unwrap_or_default();
                Posted::failed(error.into(), memory)
            }
        }
    }

    /// Posts one work request; `to` is the destination of a datagram.
    pub(super) fn post_send(
        &self,
        request: SendRequest<'_>,
        to: Option<&Destination>,
    ) -> Result<(), PostError> {
        request.check(self.pd.driver().id(), &self.qp.cap())?;
        match self.post_checked([request], to, false).error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Posts one work request for a future.
    pub(super) fn post_awaited<'r>(
        &self,
        request: SendRequest<'r>,
        to: Option<&Destination>,
    ) -> Posted<SendRequest<'r>> {
        match request.check(self.pd.driver().id(), &self.qp.cap()) {
            Ok(()) => self.post_checked([request], to, true),
            Err(error) => Posted::failed(error, request.memory),
        }
    }

    /// Posts work requests up to the first invalid one.
    pub(super) fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
        to: Option<&Destination>,
    ) -> Result<(), BatchError> {
        let (pd, cap) = (self.pd.driver().id(), self.qp.cap());
        // Collected first: the caller's iterator must not run under the locks of posting.
        let mut checked = Vec::new();
        let mut invalid = None;
        for request in requests {
            if let Err(error) = request.check(pd, &cap) {
                invalid = Some(error);
                break;
            }
            checked.push(request);
        }
        let posted = self.post_checked(checked, to, false);
        match posted.error.or(invalid) {
            Some(source) => Err(BatchError {
                posted: posted.count,
                source,
            }),
            None => Ok(()),
        }
    }

    /// Posts checked work requests up to the first one that fails; `awaited` ones are those of
    /// futures.
    pub(super) fn post_checked<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
        to: Option<&Destination>,
        awaited: bool,
    ) -> Posted<SendRequest<'r>> {
        // The buffers of a rejected request are dropped last, outside the locks: that may
        // deregister memory, which waits for posting to end.
        let mut failed = None;
        let mut result = Posted {
            count: 0,
            last: None,
            error: None,
            rejected: None,
            returned: None,
        };
        let mut ring = self.outstanding.sends();
        let mut posting = self.qp.start_posting();
        for request in requests {
            if ring.is_full() {
                result.error = Some(PostError::QueueFull {
                    capacity: self.qp.cap().max_send_wr,
                });
                result.rejected = Some(request);
                break;
            }
            let kind = match request.is_signaled() {
                _ if awaited => Kind::Awaited,
                true => Kind::Signaled,
                false => Kind::Unsignaled,
            };
            let entry = ring.push(request.wr_id, request.memory, kind);
            let id = entry.id();
            if awaited {
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
            if let Err(source) = posted {
                result.error = Some(source.into());
                failed = ring.pop_newest();
                break;
            }
            result.last = Some(id);
            result.count += 1;
        }
        // Other threads may poll completions while the packets are transmitted.
        drop(ring);
        drop(posting);
        if let Some(failed) = failed {
            if awaited {
                self.send_cq().tasks().remove(failed.id().to_driver());
            }
            result.returned = failed.memory.into_buffer();
        }
        result
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
