//! Shared receive queues: receives that the messages of several queue pairs take.
//!
//! A receive is held from its posting until the program takes its completion. A queue pair that goes
//! may have taken receives of which nobody will see a completion: it gives them back, see
//! [`Share::give_back`]. What none gives back is held until the queue itself is gone, so memory is
//! never freed before its time.
#![forbid(unsafe_code)]

use crate::cq::{CompletionQueue, CqError, Reservation};
use crate::outstanding::{SharedReceives, WorkId};
use crate::pd::ProtectionDomain;
use crate::wait::lock;
use crate::work::{PostError, ReceiveRequest, elements};
use std::sync::{Arc, Mutex, Weak};
use urxe_driver as driver;
use urxe_driver::qp::MAX_SGE;
use urxe_driver::srq::{SrqAttr, SrqChange, SrqError};
use urxe_proto::qp::{AttrMask, QpAttr, QpState};
use urxe_proto::work::Sge;

/// A shared receive queue in the making. (`ibv_srq_init_attr`.)
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

    /// How many receives it holds, 1 to 65,536, those included whose completions have not been
    /// taken. (Default 128.)
    pub fn max_wr(mut self, max: u32) -> Self {
        self.attr.max_wr = max;
        self
    }

    /// How many pieces of memory a receive has at most, 0 to 32. (Default 4.)
    pub fn max_sge(mut self, max: u32) -> Self {
        self.attr.max_sge = max;
        self
    }

    /// Makes it. (`ibv_create_srq`.)
    ///
    /// # Errors
    /// [`SrqError::Size`].
    pub fn build(self) -> Result<SharedReceiveQueue, SrqError> {
        let context = self.pd.context().driver();
        let driver = context.create_srq(self.pd.driver(), self.attr)?;
        Ok(SharedReceiveQueue(Arc::new(Inner {
            driver,
            outstanding: Arc::new(SharedReceives::new(self.attr.max_wr)),
            attr: self.attr,
            rooms: Mutex::default(),
            pd: self.pd.clone(),
        })))
    }
}

/// A shared receive queue: the messages of all queue pairs that were
/// [built with it](crate::QueuePairBuilder::receives_from) take its receives, the oldest first.
/// Clones are the same one; a queue pair keeps it, too. Threads may share it. (`ibv_srq`.)
///
/// A receive completes in the completion queue of the queue pair whose message took it, and the
/// completion says which that was. Until it is taken the receive has its place in the queue.
///
/// When a queue pair is dropped or reset, the receives that it had taken, and whose completions the
/// program has not, are gone without completions: their memory is let go, and there is room for as
/// many new ones. A program that wants to see them all calls [`QueuePair::fail`](crate::QueuePair::fail)
/// first, waits for the event [`QpLastWqeReached`](crate::EventType::QpLastWqeReached), and takes what is
/// in the completion queue.
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
///     let room = memory.slice(n * 64..(n + 1) * 64)?;
///     shared.post_receive(ReceiveRequest::into(room).id(n as u64))?;
/// }
/// // An event tells when fewer than 15 wait.
/// shared.set_limit(15)?;
///
/// let mut connections = Vec::new();
/// for _ in 0..2 {
///     let a = pd.queue_pair(&sent, &sent).build()?;
///     let b = pd.queue_pair(&sent, &received).receives_from(&shared).build()?;
///     let (at_a, at_b) = (a.endpoint(), b.endpoint());
///     let options = ConnectOptions::default();
///     connections.push((a.connect(&at_b, &options)?, b.connect(&at_a, &options)?));
/// }
/// for (n, (a, b)) in connections.iter().enumerate() {
///     a.post_send(SendRequest::send(b"hello"))?;
///     let completion = received.wait()?;
///     assert_eq!((completion.wr_id, completion.qpn), (n as u64, b.qpn()));
///     assert_eq!(completion.data()?, b"hello");
/// }
/// while context.events().next()?.kind != EventType::SrqLimitReached {}
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<driver::Srq>,
    outstanding: Arc<SharedReceives>,
    /// What it was made for.
    attr: SrqAttr,
    /// Its room in the completion queues of its queue pairs, which keep it: once in each, however
    /// many they are.
    rooms: Mutex<Vec<Weak<Reservation>>>,
    pd: ProtectionDomain,
}

impl SharedReceiveQueue {
    /// Posts a receive. Its memory must be of the queue's own protection domain; the queue pairs may
    /// have others. (`ibv_post_srq_recv`.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let inner = &*self.0;
        request.check(inner.pd.driver().id(), inner.attr.max_sge)?;
        let mut array = [Sge::default(); MAX_SGE as usize];
        let sges = elements(&request.slices, &mut array);
        let added = inner.outstanding.add(request.wr_id, request.slices);
        let id = added.map_err(|_| PostError::QueueFull {
            capacity: inner.attr.max_wr,
        })?;
        inner
            .driver
            .post_receive(id.to_driver(), sges)
            .map_err(|error| {
                inner.outstanding.remove(id);
                error.into()
            })
    }

    /// Asks for an event, [`SrqLimitReached`](crate::EventType::SrqLimitReached), when fewer receives
    /// than `limit` wait: at once if that is so already. It comes once for each time it is asked for;
    /// 0 asks for none. (`ibv_modify_srq` with `IBV_SRQ_LIMIT`.)
    ///
    /// # Errors
    /// [`SrqError::Limit`] for more than the queue holds.
    pub fn set_limit(&self, limit: u32) -> Result<(), SrqError> {
        self.0.driver.modify(SrqChange {
            limit: Some(limit),
            ..SrqChange::default()
        })
    }

    /// The limit, as long as its event has not come: 0 tells those who have several queues which of
    /// them an event is of. (`ibv_query_srq`.)
    pub fn limit(&self) -> u32 {
        self.0.driver.attributes().limit
    }

    /// How many receives have been posted and not ended: they wait, or a message is under way into
    /// them, or nobody has taken their completions.
    pub fn outstanding(&self) -> usize {
        self.0.outstanding.len()
    }

    /// The protection domain of its receives.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Srq> {
        &self.0.driver
    }

    pub(crate) fn receives(&self) -> &Arc<SharedReceives> {
        &self.0.outstanding
    }

    /// Makes one more queue pair use it, whose receives complete in this queue.
    pub(crate) fn share(&self, cq: &CompletionQueue) -> Result<Share, CqError> {
        let mut rooms = lock(&self.0.rooms);
        rooms.retain(|room| room.strong_count() > 0);
        let mut there = rooms.iter().filter_map(Weak::upgrade);
        let room = match there.find(|room| room.cq().is(cq)) {
            Some(room) => room,
            None => {
                let room = Arc::new(cq.reserve(self.0.attr.max_wr)?);
                rooms.push(Arc::downgrade(&room));
                room
            }
        };
        Ok(Share {
            srq: self.clone(),
            room,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.retire();
    }
}

/// What a queue pair has of a shared receive queue.
#[derive(Debug)]
pub(crate) struct Share {
    srq: SharedReceiveQueue,
    /// In the completion queue of its receives.
    room: Arc<Reservation>,
}

impl Share {
    /// Ends the receives that a queue pair, which is about to be reset, has taken and whose
    /// completions nobody has. In the error state it ends what it holds, and takes no more (10.2.9.4);
    /// then all of them are in the completion queue.
    pub(crate) fn give_back(&self, qp: &Arc<driver::Qp>) {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        let completions = self.room.cq().withdraw(qp.qpn(), || {
            // It is refused in RESET, in which a queue pair has nothing.
            if let Err(error) = qp.modify(&attr, AttrMask::STATE) {
                tracing::debug!(%error, qp = %qp.qpn(), "a queue pair could not be taken to error");
            }
        });
        for completion in completions {
            let id = WorkId::from_driver(completion.wr_id);
            let ended = self.srq.receives().remove(id);
            drop(ended);
        }
    }
}
