//! Posting sends: several at once go out together.

use super::init::MAX_INLINE;
use super::{Inner, Qp};
use crate::ah::Destination;
use crate::regions::Regions;
use std::sync::{Arc, MutexGuard};
use urxe_proto::ids::Srqn;
use urxe_proto::qp::QpType;
use urxe_proto::queue::PostError;
use urxe_proto::time::Time;
use urxe_proto::work::{self, Payload, SendFlags, SendOp, SendWr, Sge, UdDestination};

/// Sends that are being posted. They go out together when this is dropped.
pub struct Posting<'a> {
    pub(super) qp: &'a Arc<Qp>,
    pub(super) inner: MutexGuard<'a, Inner>,
    pub(super) held: Regions,
    pub(super) now: Time,
}

/// Where a send goes.
#[derive(Clone, Copy, Debug)]
pub enum To<'a> {
    /// To the peer that the queue pair is connected to.
    Peer,
    /// A datagram: where it says.
    Datagram(Destination<'a>),
    /// Over an extended reliable connection: to the owner of a shared receive queue there.
    Shared(Srqn),
}

impl Posting<'_> {
    /// The queue pair's service.
    pub fn service(&self) -> QpType {
        self.qp.service
    }

    /// Checks that `count` sends can be posted as far as the state and the queue's room go. Nothing
    /// else posts meanwhile, so whoever has checked this and the requests themselves posts all or
    /// none.
    ///
    /// # Errors
    /// [`PostError::State`] and [`PostError::Full`].
    pub fn check_room(&self, count: usize) -> Result<(), PostError> {
        if !self.inner.machine.state().takes_sends() {
            return Err(PostError::State);
        }
        if count > self.inner.machine.send_queue_room() as usize {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// Posts a send (11.4.1.1) of a connected queue pair.
    ///
    /// # Errors
    /// See [`PostError`]; those posted before stay posted.
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.push(&SendWr { dest: None, ..*wr })
    }

    /// Posts a datagram (11.4.1.1); what `wr` itself says of its destination does not count.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Destination`] also when the address handle is of another
    /// protection domain (10.2.3). Those posted before stay posted.
    pub fn post_to(&mut self, wr: &SendWr<'_>, to: &Destination<'_>) -> Result<(), PostError> {
        let service = self.qp.service;
        if service == QpType::Ud && !Arc::ptr_eq(to.handle.pd(), &self.qp.pd) {
            return Err(PostError::Destination);
        }
        let dest = UdDestination {
            handle: to.handle.number(),
            qpn: to.qpn,
            qkey: to.qkey,
        };
        self.push(&SendWr {
            dest: Some(work::Destination::Datagram(dest)),
            ..*wr
        })?;
        if service == QpType::Ud {
            self.inner.destinations.posted(to.handle);
        }
        Ok(())
    }

    /// Posts a send of an extended reliable connection to the owner of a shared receive queue (A14).
    ///
    /// # Errors
    /// See [`PostError`]; those posted before stay posted.
    pub fn post_to_srq(&mut self, wr: &SendWr<'_>, srq: Srqn) -> Result<(), PostError> {
        self.push(&SendWr {
            dest: Some(work::Destination::Shared(srq)),
            ..*wr
        })
    }

    /// Posts a send wherever it goes.
    ///
    /// # Errors
    /// Those of the functions for each service.
    pub fn post_anywhere(&mut self, wr: &SendWr<'_>, to: &To<'_>) -> Result<(), PostError> {
        match to {
            To::Peer => self.post(wr),
            To::Datagram(to) => self.post_to(wr, to),
            To::Shared(srq) => self.post_to_srq(wr, *srq),
        }
    }

    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut host = self.qp.host(self.held.table());
        self.inner.machine.post_send(wr, self.now, &mut host)
    }

    /// Posts a send whose data is taken now, from memory that needs no key.
    ///
    /// # Safety
    /// The elements' memory is mapped.
    ///
    /// # Errors
    /// See [`PostError`].
    pub unsafe fn post_inline(
        &mut self,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        sges: &[Sge],
        to: &To<'_>,
    ) -> Result<(), PostError> {
        let mut data = [0; MAX_INLINE as usize];
        let mut used = 0;
        for sge in sges {
            let room = data[used..].get_mut(..sge.length as usize);
            let room = room.ok_or(PostError::TooMuchInline)?;
            // SAFETY: the caller's promise.
            unsafe { crate::memory::copy_out(sge.addr, room) };
            used += sge.length as usize;
        }
        let wr = SendWr {
            wr_id,
            op,
            flags,
            payload: Payload::Inline(&data[..used]),
            dest: None,
        };
        self.post_anywhere(&wr, to)
    }
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        self.qp.transmit(&mut self.inner, self.held.table());
    }
}
