//! Queue pairs, whose states are types: what a state does not permit does not compile.
#![forbid(unsafe_code)]

mod builder;
mod connected;
mod datagram;

pub use builder::QueuePairBuilder;
pub use connected::{PreparedQueuePair, QueuePair};
pub use datagram::{DatagramAddress, DatagramQueuePair, Destination};

use crate::cq::{CqError, Reservation};
use crate::mr::RemoteAccess;
use crate::outstanding::Outstanding;
use crate::pd::ProtectionDomain;
use crate::srq::Share;
use crate::work::{BatchError, Data, PostError, ReceiveRequest, SendRequest, elements};
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::qp::{CreateError, MAX_SGE, ModifyError};
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};
use urxe_proto::work::{Payload, SendWr, Sge};

/// Why a queue pair cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A completion queue, or the shared receive queue, belongs to another opened device.
    #[error(
        "the completion queues and the shared receive queue must be made from the same opened \
         device as the queue pair"
    )]
    OtherContext,
    /// The port has no such GID.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The index asked for.
        index: u8,
    },
    /// A completion queue has no room for its completions.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// It cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// It cannot be initialised.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl BuildError {
    /// The `errno` that a verbs program would get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::OtherContext | Self::NoSuchGid { .. } => libc::EINVAL,
            Self::Cq(error) => error.errno(),
            Self::Create(error) => error.errno(),
            Self::Modify(error) => error.errno(),
        }
    }
}

/// What a queue pair keeps through a reset.
#[derive(Clone, Copy, Debug)]
struct Settings {
    access: RemoteAccess,
    gid_index: u8,
    /// The largest that the program wants; `None` for what the interface can carry.
    path_mtu: Option<Mtu>,
    responder_resources: u8,
}

/// What a queue pair is in every state. Dropping it destroys the queue pair; the order of the fields
/// is that in which the rest goes then.
#[derive(Debug)]
struct Core {
    qp: Arc<driver::Qp>,
    outstanding: Arc<Outstanding>,
    /// What it has of a shared receive queue, if it takes receives from one.
    share: Option<Share>,
    settings: Settings,
    pd: ProtectionDomain,
    /// Its room in its completion queues, which live as long.
    _reservations: Vec<Reservation>,
}

impl Core {
    fn gid(&self, device: &crate::Device) -> Result<Gid, BuildError> {
        let index = self.settings.gid_index;
        let gid = device.0.gid(usize::from(index));
        gid.ok_or_else(|| BuildError::NoSuchGid {
            device: device.name().to_owned(),
            index,
        })
    }

    fn go_to(&self, state: QpState) -> Result<(), ModifyError> {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, AttrMask::STATE)
    }

    /// Takes it to RESET, in which nothing completes any more, whoever is still at work on it.
    fn halt(&self) -> Result<(), ModifyError> {
        if let Some(share) = &self.share {
            share.give_back(&self.qp);
        }
        self.go_to(QpState::Reset)
    }

    fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let cap = self.qp.cap();
        // The lock goes before what could not be posted is dropped.
        let mut refused = None;
        let Some(mut ring) = self.outstanding.own_receives() else {
            return Err(urxe_proto::queue::PostError::SharedReceives.into());
        };
        request.check(self.pd.driver().id(), cap.max_recv_sge)?;
        let result = if ring.is_full() {
            refused = Some(request.slices);
            Err(PostError::QueueFull {
                capacity: cap.max_recv_wr,
            })
        } else {
            let entry = ring.push(request.wr_id, request.slices, true);
            let mut array = [Sge::default(); MAX_SGE as usize];
            let sges = elements(&entry.buffers, &mut array);
            let posted = self.qp.post_receive(entry.id().to_driver(), sges);
            if posted.is_err() {
                refused = ring.take_back().map(|entry| entry.buffers);
            }
            posted.map_err(PostError::from)
        };
        drop(ring);
        drop(refused);
        result
    }

    /// Posts one work request, `to` a destination if it is a datagram.
    fn post_send(
        &self,
        request: SendRequest<'_>,
        to: Option<&Destination>,
    ) -> Result<(), PostError> {
        request.check(self.pd.driver().id(), &self.qp.cap())?;
        match self.post_checked([request], to) {
            (_, Some(error)) => Err(error),
            (_, None) => Ok(()),
        }
    }

    /// Posts several, as far as they can be.
    fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
        to: Option<&Destination>,
    ) -> Result<(), BatchError> {
        let (pd, cap) = (self.pd.driver().id(), self.qp.cap());
        // Collected before posting begins, during which none of the program's code may run.
        let mut checked = Vec::new();
        let mut wrong = None;
        for request in requests {
            if let Err(error) = request.check(pd, &cap) {
                wrong = Some(error);
                break;
            }
            checked.push(request);
        }
        let (posted, error) = self.post_checked(checked, to);
        match error.or(wrong) {
            Some(source) => Err(BatchError { posted, source }),
            None => Ok(()),
        }
    }

    /// Posts work requests that have been checked, and tells how many, and why not the next.
    fn post_checked<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
        to: Option<&Destination>,
    ) -> (usize, Option<PostError>) {
        // What could not be posted is dropped last, outside of the locks: memory may be
        // deregistered then, for which posting must have ended.
        let mut refused = None;
        let mut error = None;
        let mut count = 0;
        let mut ring = self.outstanding.sends();
        let mut posting = self.qp.start_posting();
        for request in requests {
            if ring.is_full() {
                error = Some(PostError::QueueFull {
                    capacity: self.qp.cap().max_send_wr,
                });
                refused = Some(request.data);
                break;
            }
            let signaled = request
                .flags
                .contains(urxe_proto::work::SendFlags::SIGNALED);
            let (buffers, inline) = match request.data {
                Data::Slices(slices) => (slices, None),
                Data::Inline(bytes) => (Vec::new(), Some(bytes)),
            };
            let entry = ring.push(request.wr_id, buffers, signaled);
            let mut array = [Sge::default(); MAX_SGE as usize];
            let payload = match inline {
                Some(bytes) => Payload::Inline(bytes),
                None => Payload::Sges(elements(&entry.buffers, &mut array)),
            };
            let wr = SendWr {
                wr_id: entry.id().to_driver(),
                op: request.op,
                flags: request.flags,
                payload,
                dest: None,
            };
            let posted = match to {
                Some(to) => posting.post_to(&wr, &to.driver()),
                None => posting.post(&wr),
            };
            if let Err(why) = posted {
                error = Some(why.into());
                refused = ring.take_back().map(|entry| Data::Slices(entry.buffers));
                break;
            }
            count += 1;
        }
        // Completions may be taken while the packets go out.
        drop(ring);
        drop(posting);
        drop(refused);
        (count, error)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Err(error) = self.halt() {
            tracing::debug!(%error, qp = %self.qp.qpn(), "a queue pair could not be reset");
        }
        self.qp.destroy();
    }
}
