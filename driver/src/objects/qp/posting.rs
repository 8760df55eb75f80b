//! Posting of sends: the sends of one call are transmitted together.

use crate::lock_order::Ordered;
use crate::memory::access;
use crate::memory::regions::{Regions, regions};
use crate::path::{self, Engine};
use crate::queues::ah::Destination;
use crate::queues::limits::MAX_INLINE;
use crate::queues::qp::{Inner, Qp};
use crate::scheduling::affinity::Affinity;
use crate::scheduling::polling::Call;
use crate::sync::MutexGuard;
use std::sync::Arc;
use urxe_net::now;
use urxe_proto::ids::Srqn;
use urxe_proto::qp::{QpState, QpType};
use urxe_proto::queue::PostError;
use urxe_proto::time::Time;
use urxe_proto::work::{self, Payload, SendFlags, SendOp, SendWr, Sge, UdDestination};

/// Sends that are being posted. When this is dropped they are transmitted together, or deferred for
/// those that follow closely
/// (`crate::scheduling::coalescing`).
pub struct Posting<'a> {
    qp: &'a Arc<Qp>,
    engine: &'static Engine,
    inner: Ordered<MutexGuard<'a, Inner>>,
    held: Regions,
    now: Time,
    /// The number of sends, and the bytes of their data.
    sends: u32,
    bytes: u64,
    /// Marks the thread as inside a call of the library, so the poll detector does not count it as
    /// polling memory.
    _call: Call<'static>,
}

impl Qp {
    /// Starts to post sends. They are transmitted when the [`Posting`] is dropped, or later,
    /// together with the posts that follow (send coalescing).
    pub fn start_posting(self: &Arc<Self>) -> Posting<'_> {
        let held = regions();
        let inner = self.lock();
        let engine = path::get();
        Posting {
            qp: self,
            engine,
            inner,
            held,
            now: now(),
            sends: 0,
            bytes: 0,
            _call: engine.call_to_post(Affinity::of(self.qpn)),
        }
    }
}

/// The destination of a send.
#[derive(Clone, Copy, Debug)]
pub enum SendTarget<'a> {
    /// The peer that the queue pair is connected to.
    Peer,
    /// The destination of a datagram.
    Datagram(Destination<'a>),
    /// The owner of a shared receive queue, over XRC.
    Shared(Srqn),
}

impl Posting<'_> {
    /// The transport service of the queue pair.
    pub fn service(&self) -> QpType {
        self.qp.service
    }

    /// Checks that the state and the queue's free space allow `count` sends. No other thread posts
    /// while this `Posting` lives. A caller that has also checked the requests therefore posts all
    /// or none.
    ///
    /// # Errors
    /// [`PostError::State`] and [`PostError::Full`].
    pub fn check_room(&mut self, count: usize) -> Result<(), PostError> {
        if !self.inner.transport.state().accepts_sends() {
            return Err(PostError::State);
        }
        match self.has_room(count) {
            true => Ok(()),
            false => Err(PostError::Full),
        }
    }

    /// Returns whether there is room for `count` more sends. If not, deferred sends are transmitted
    /// first: those of an unreliable service complete then and leave the queue.
    fn has_room(&mut self, count: usize) -> bool {
        let fits = |inner: &Inner| count <= inner.transport.send_queue_room() as usize;
        if !fits(&self.inner) && !self.inner.coalescing.is_empty() {
            self.qp
                .transmit(&mut self.inner, self.now, self.held.table());
        }
        fits(&self.inner)
    }

    /// Posts a send (11.4.1.1) of a connected queue pair.
    ///
    /// # Errors
    /// See [`PostError`]; sends posted before stay posted.
    #[inline]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match wr.dest {
            None => self.push(wr),
            Some(_) => self.push(&SendWr { dest: None, ..*wr }),
        }
    }

    /// Posts a datagram (11.4.1.1) to `to`; the destination in `wr` is ignored.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Destination`] also when the address handle belongs to
    /// another protection domain (10.2.3). Sends posted before stay posted.
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
            self.inner.handles.posted(to.handle);
        }
        Ok(())
    }

    /// Posts a send over XRC to the owner of a shared receive queue (A14).
    ///
    /// # Errors
    /// See [`PostError`]; sends posted before stay posted.
    pub fn post_to_srq(&mut self, wr: &SendWr<'_>, srq: Srqn) -> Result<(), PostError> {
        self.push(&SendWr {
            dest: Some(work::Destination::Shared(srq)),
            ..*wr
        })
    }

    /// Posts a send to any kind of destination.
    ///
    /// # Errors
    /// See [`Posting::post`], [`Posting::post_to`] and [`Posting::post_to_srq`].
    #[inline]
    pub fn post_anywhere(&mut self, wr: &SendWr<'_>, to: &SendTarget<'_>) -> Result<(), PostError> {
        match to {
            SendTarget::Peer => self.post(wr),
            SendTarget::Datagram(to) => self.post_to(wr, to),
            SendTarget::Shared(srq) => self.post_to_srq(wr, *srq),
        }
    }

    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if !self.inner.coalescing.is_empty() {
            // If there is no room, `post_send` returns the error.
            self.has_room(1);
        }
        let mut host = self.qp.host(self.held.table());
        self.inner.transport.post_send(wr, self.now, &mut host)?;
        self.sends = self.sends.saturating_add(1);
        self.bytes += match wr.payload {
            Payload::Sges(sges) => Sge::total_length(sges),
            Payload::Inline(data) => data.len() as u64,
        };
        Ok(())
    }

    /// Decides whether the sends are deferred.
    fn defer(&mut self) -> bool {
        let inner = &mut *self.inner;
        // A `Posting` without sends has found the queue full, so the queue must be transmitted.
        let may_wait = self.sends > 0
            && self.qp.frames.is_none()
            && inner.pacer.is_none()
            && inner.transport.state() == QpState::Rts;
        if !may_wait {
            return false;
        }
        let Some(polls) = self.engine.polls_unless_armed(Affinity::of(self.qp.qpn)) else {
            return false;
        };
        let (qp, engine, now) = (self.qp, self.engine, self.now);
        let posted = (self.sends, self.bytes);
        inner.coalescing.defer(now, polls, posted, |is_listed| {
            engine.defer_sends(qp, is_listed, now);
        })
    }

    /// Posts a send and copies its data now, from memory that needs no key.
    ///
    /// # Safety
    /// Each element of `sges` must describe `length` readable bytes at `addr`.
    ///
    /// # Errors
    /// See [`PostError`].
    pub unsafe fn post_inline(
        &mut self,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        sges: &[Sge],
        to: &SendTarget<'_>,
    ) -> Result<(), PostError> {
        let mut data = [0; MAX_INLINE as usize];
        let mut used = 0;
        for sge in sges {
            let room = data[used..].get_mut(..sge.length as usize);
            let room = room.ok_or(PostError::TooMuchInline)?;
            // SAFETY: `sge.addr` points to `sge.length` readable bytes, and `room` has that length:
            // the contract of `post_inline`, section Safety.
            unsafe { access::copy_out(sge.addr, room) };
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
        if self.sends > 0 {
            let affinity = Affinity::of(self.qp.qpn);
            let polls = self.engine.polling().of(affinity).empty();
            self.inner.delayed_ack.posted(self.now, polls);
        }
        let is_deferred = self.defer();
        if !is_deferred {
            self.qp
                .transmit(&mut self.inner, self.now, self.held.table());
            self.inner.coalescing.posted(now);
        }
        if let Some(effects) = self.inner.take_any_effects() {
            self.engine.apply(self.qp, effects);
        }
        if !is_deferred {
            self.engine.wake_if_grantable();
        }
    }
}
