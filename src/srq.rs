//! Shared receive queues: one queue of receives for several queue pairs.
//!
//! A receive is held from its posting until the application polls its completion. A queue pair that
//! is destroyed or reset may have taken receives whose completions the application never sees; it
//! releases them, see [`Attachment::release_receives`]. Receives that no queue pair releases are
//! held until the shared receive queue is dropped, so memory is never freed too early.
#![forbid(unsafe_code)]

use crate::buffer::Extent;
use crate::cq::{CompletionQueue, CqError, Reservation};
use crate::outstanding::SharedReceives;
use crate::pd::ProtectionDomain;
use crate::wait::lock;
use crate::work::{PostError, ReceiveRequest};
use crate::work_ring::WorkId;
use std::sync::{Arc, Mutex, Weak};
use urxe_driver as driver;
use urxe_driver::srq::{SrqAttr, SrqChange, SrqError};
use urxe_proto::qp::{AttrMask, QpAttr, QpState};

impl ProtectionDomain {
    /// Returns a builder for a shared receive queue in this domain. (`ibv_create_srq`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().max_wr(256).max_sge(1).build()?;
    /// let qp = pd.queue_pair(&cq, &cq).receives_from(&shared).build()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn shared_receive_queue(&self) -> SharedReceiveQueueBuilder<'_> {
        SharedReceiveQueueBuilder::new(self)
    }
}

/// A builder for a shared receive queue. (`ibv_srq_init_attr`.)
///
/// ```
/// # use urxe::prelude::*;
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let shared = pd.shared_receive_queue().max_wr(256).max_sge(1).build()?;
/// shared.post_receive(ReceiveRequest::into(pd.buffer(4096)?))?;
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is made until it is built"]
pub struct SharedReceiveQueueBuilder<'a> {
    pd: &'a ProtectionDomain,
    attr: SrqAttr,
}

impl<'a> SharedReceiveQueueBuilder<'a> {
    pub(crate) fn new(pd: &'a ProtectionDomain) -> Self {
        let attr = SrqAttr {
            max_wr: 128,
            max_sge: 4,
            limit: 0,
        };
        SharedReceiveQueueBuilder { pd, attr }
    }

    /// The maximum of outstanding receives, 1 to 65,536. (Default 128.)
    ///
    /// A receive is outstanding until its completion is polled.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().max_wr(1).build()?;
    /// shared.post_receive(ReceiveRequest::empty())?;
    /// assert!(shared.post_receive(ReceiveRequest::empty()).is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_wr(mut self, max: u32) -> Self {
        self.attr.max_wr = max;
        self
    }

    /// The maximum of memory slices in a receive, 0 to 32. (Default 4.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().max_sge(1).build()?;
    /// let memory = pd.register(64, RemoteAccess::empty())?;
    /// let slices = [memory.slice(..32)?, memory.slice(32..)?];
    /// assert!(shared.post_receive(ReceiveRequest::into(slices)).is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_sge(mut self, max: u32) -> Self {
        self.attr.max_sge = max;
        self
    }

    /// Creates the shared receive queue. (`ibv_create_srq`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let empty = pd.shared_receive_queue().max_wr(0).build();
    /// assert!(matches!(empty, Err(urxe::SrqError::Size)));
    /// let shared = pd.shared_receive_queue().build()?;
    /// assert_eq!(shared.outstanding(), 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SrqError::Size`] if a size is out of range.
    pub fn build(self) -> Result<SharedReceiveQueue, SrqError> {
        let context = self.pd.context().driver();
        let driver = context.create_srq(self.pd.driver(), self.attr)?;
        Ok(SharedReceiveQueue(Arc::new(Inner {
            driver,
            outstanding: Arc::new(SharedReceives::new(self.attr.max_wr)),
            attr: self.attr,
            reservations: Mutex::default(),
            pd: self.pd.clone(),
        })))
    }
}

/// A shared receive queue. (`ibv_srq`.)
///
/// Messages to all queue pairs [built with it](crate::QueuePairBuilder::receives_from) consume its
/// receives, oldest first. Clones refer to the same queue, and a queue pair keeps it alive. Threads
/// may share it.
///
/// A receive completes in the completion queue of the queue pair that consumed it; the completion
/// has the number of that queue pair. The receive occupies a place until its completion is polled.
///
/// Dropping or resetting a queue pair discards the receives that it consumed and whose completions
/// have not been polled. Their memory is released and their places become free. To poll them all,
/// call [`QueuePair::fail`](crate::QueuePair::fail) first, wait for the event
/// [`QpLastWqeReached`](crate::EventType::QpLastWqeReached), and poll the completion queue.
///
/// ```
/// use urxe::{ConnectOptions, EventType, ReceiveRequest, RemoteAccess, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = urxe::device("urxe_lo")?.open()?;
/// let pd = context.pd();
/// let (sent, received) = (context.completion_queue()?, context.completion_queue()?);
/// let shared = pd.shared_receive_queue().max_wr(16).build()?;
/// let memory = pd.register(16 * 64, RemoteAccess::empty())?;
/// for n in 0..16 {
///     let slice = memory.slice(n * 64..(n + 1) * 64)?;
///     shared.post_receive(ReceiveRequest::into(slice).id(n as u64))?;
/// }
/// // Request an event for when fewer than 15 receives are left.
/// shared.set_limit(15)?;
///
/// let mut connections = Vec::new();
/// for _ in 0..2 {
///     let a = pd.queue_pair(&sent, &sent).build()?;
///     let b = pd.queue_pair(&sent, &received).receives_from(&shared).build()?;
///     let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
///     let options = ConnectOptions::default();
///     connections.push((a.connect(&endpoint_b, &options)?, b.connect(&endpoint_a, &options)?));
/// }
/// for (n, (a, b)) in connections.iter().enumerate() {
///     a.post_send(SendRequest::send(b"hello"))?;
///     let completion = received.wait()?;
///     assert_eq!((completion.wr_id, completion.qpn), (n as u64, b.qpn()));
///     assert_eq!(completion.data()?, b"hello");
/// }
/// while context.events().wait()?.kind != EventType::SrqLimitReached {}
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<driver::Srq>,
    outstanding: Arc<SharedReceives>,
    /// The attributes at creation.
    attr: SrqAttr,
    /// The reserved entries in the completion queues of its queue pairs: one reservation for each
    /// completion queue, however many queue pairs use it. The queue pairs own them.
    reservations: Mutex<Vec<Weak<Reservation>>>,
    pd: ProtectionDomain,
}

impl SharedReceiveQueue {
    /// Posts a receive. (`ibv_post_srq_recv`.)
    ///
    /// Its memory must be of the shared receive queue's protection domain, which may differ from
    /// that of the queue pairs.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().build()?;
    /// for id in 0..16 {
    ///     shared.post_receive(ReceiveRequest::into(pd.buffer(4096)?).id(id))?;
    /// }
    /// assert_eq!(shared.outstanding(), 16);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let inner = &*self.0;
        let pd = inner.pd.driver().id();
        request.memory.check(pd, inner.attr.max_sge)?;
        let elements = request.memory.elements(Extent::Capacity);
        let added = inner.outstanding.add(request.wr_id, request.memory);
        let id = added.map_err(|_| PostError::QueueFull {
            capacity: inner.attr.max_wr,
        })?;
        inner
            .driver
            .post_receive(id.to_driver(), &elements)
            .map_err(|error| {
                inner.outstanding.remove(id);
                error.into()
            })
    }

    /// Requests the event [`SrqLimitReached`](crate::EventType::SrqLimitReached) for when
    /// fewer than `limit` receives are left. (`ibv_modify_srq` with `IBV_SRQ_LIMIT`.)
    ///
    /// If that is already so, the event is raised at once. Each call requests one event; 0 requests
    /// none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::EventType;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().build()?;
    /// shared.post_receive(ReceiveRequest::empty())?;
    /// // Fewer than two receives are posted, so the event occurs at once.
    /// shared.set_limit(2)?;
    /// assert_eq!(context.events().wait()?.kind, EventType::SrqLimitReached);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SrqError::Limit`] if `limit` is larger than the capacity of the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), SrqError> {
        self.0.driver.modify(SrqChange {
            limit: Some(limit),
            ..SrqChange::default()
        })
    }

    /// The limit, or 0 once its event has been raised. (`ibv_query_srq`.)
    ///
    /// With several shared receive queues, the value 0 identifies the one an event is about.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().build()?;
    /// for _ in 0..8 {
    ///     shared.post_receive(ReceiveRequest::empty())?;
    /// }
    /// shared.set_limit(4)?;
    /// assert_eq!(shared.limit(), 4);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn limit(&self) -> u32 {
        self.0.driver.attributes().limit
    }

    /// The number of outstanding receives.
    ///
    /// A receive is outstanding while it is queued, while a message arrives in it, and until its
    /// completion is polled.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().build()?;
    /// shared.post_receive(ReceiveRequest::empty())?;
    /// assert_eq!(shared.outstanding(), 1);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn outstanding(&self) -> usize {
        self.0.outstanding.len()
    }

    /// The protection domain of its receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().build()?;
    /// shared.post_receive(ReceiveRequest::into(shared.pd().buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Srq> {
        &self.0.driver
    }

    pub(crate) fn receives(&self) -> &Arc<SharedReceives> {
        &self.0.outstanding
    }

    /// Attaches a queue pair whose receives complete in `cq`.
    pub(crate) fn attach(&self, cq: &CompletionQueue) -> Result<Attachment, CqError> {
        let mut reservations = lock(&self.0.reservations);
        reservations.retain(|reservation| reservation.strong_count() > 0);
        let mut existing = reservations.iter().filter_map(Weak::upgrade);
        let reservation = match existing.find(|reservation| reservation.cq().is(cq)) {
            Some(reservation) => reservation,
            None => {
                let reservation = Arc::new(cq.reserve(self.0.attr.max_wr)?);
                reservations.push(Arc::downgrade(&reservation));
                reservation
            }
        };
        Ok(Attachment {
            srq: self.clone(),
            reservation,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.retire();
    }
}

/// The use of a shared receive queue by one queue pair.
#[derive(Debug)]
pub(crate) struct Attachment {
    srq: SharedReceiveQueue,
    /// The entries for receives in the queue pair's completion queue.
    reservation: Arc<Reservation>,
}

impl Attachment {
    /// Removes the receives that the queue pair has consumed and whose completions have not been
    /// polled. The caller resets or destroys the queue pair next.
    ///
    /// The error state flushes the receives that the queue pair holds, and it consumes no more
    /// (10.2.9.4). So all of them are in the completion queue afterwards.
    pub(crate) fn release_receives(&self, qp: &Arc<driver::Qp>) {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        let completions = self.reservation.cq().purge(qp.qpn(), || {
            // The transition from RESET is an error; a queue pair in RESET holds no receives.
            if let Err(error) = qp.modify(&attr, AttrMask::STATE) {
                let qp = qp.qpn();
                tracing::debug!(%error, %qp, "a queue pair cannot enter the error state");
            }
        });
        for completion in completions {
            let id = WorkId::from_driver(completion.wr_id);
            let ended = self.srq.receives().remove(id);
            drop(ended);
        }
    }
}
