//! Shared receive queues: receives for the messages of several queue pairs (10.2.9).
//!
//! A message consumes the oldest receive, regardless of its queue pair. The keys of a receive are
//! checked against the protection domain of the shared receive queue, not that of the queue pair.

use super::cq::Cq;
use super::limits::MAX_SGE;
use super::xrcd::{AddError, Domain};
use crate::counters::{Resource, ResourceCount};
use crate::events::{AsyncEvents, EventObject, EventSender, EventType, Origin};
use crate::pd::Pd;
use crate::sync::{Mutex, MutexGuard, lock};
use std::ops::RangeInclusive;
use std::sync::Arc;
use urxe_net::OpenError;
use urxe_proto::host::Receive;
use urxe_proto::ids::Srqn;
use urxe_proto::queue::{NoMemory, PostError, QueueInUse, RecvQueue, ResizeError};
use urxe_proto::work::Sge;

/// The maximum number of receives of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 16;
/// The maximum number of scatter/gather elements of one receive.
pub const MAX_SRQ_SGE: u32 = MAX_SGE;

/// The attributes of a shared receive queue (11.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqAttr {
    /// The maximum number of outstanding receives, 1 to [`MAX_SRQ_WR`].
    pub max_wr: u32,
    /// The maximum number of elements of a receive, at most [`MAX_SRQ_SGE`].
    pub max_sge: u32,
    /// The limit: when fewer receives are posted, one event is raised; 0 for no event.
    pub limit: u32,
}

/// The changes of a shared receive queue (11.2.3.3); `None` keeps the present value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqChange {
    /// The maximum number of outstanding receives.
    pub max_wr: Option<u32>,
    /// The limit, which rearms the event; 0 disarms it.
    pub limit: Option<u32>,
}

/// Errors of creating and changing a shared receive queue.
#[derive(Debug, thiserror::Error)]
pub enum SrqError {
    /// A size exceeds the device's limits: EINVAL.
    #[error(
        "a shared receive queue has 1 to {MAX_SRQ_WR} receives of at most {MAX_SRQ_SGE} elements"
    )]
    Size,
    /// The limit exceeds the size of the queue, so it would always be reached: EINVAL.
    #[error("a limit of {limit} receives is more than the {max_wr} that the queue holds")]
    Limit {
        /// The requested limit.
        limit: u32,
        /// The maximum number of outstanding receives.
        max_wr: u32,
    },
    /// More receives are posted than the new size permits: EINVAL.
    #[error(transparent)]
    InUse(QueueInUse),
    /// The memory for the receives cannot be allocated: ENOMEM.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// All numbers of the XRC domain are in use: ENOMEM.
    #[error("all shared receive queue numbers of the XRC domain are taken")]
    NoNumber,
    /// The transport, which assigns the number, cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<AddError> for SrqError {
    fn from(error: AddError) -> Self {
        match error {
            AddError::NoNumber => Self::NoNumber,
            AddError::NoMemory(error) => Self::NoMemory(error),
        }
    }
}

impl From<ResizeError> for SrqError {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::InUse(error) => Self::InUse(error),
            ResizeError::NoMemory(error) => Self::NoMemory(error),
        }
    }
}

impl SrqError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Size | Self::Limit { .. } | Self::InUse(_) => libc::EINVAL,
            Self::NoNumber | Self::NoMemory(_) => libc::ENOMEM,
            Self::Open(error) => error.errno(),
        }
    }
}

/// An XRC domain. Its queue pairs and shared receive queues keep it alive.
pub type Xrcd = Domain<Srq>;

/// The additional attributes of a shared receive queue of an XRC domain (A14).
#[derive(Debug)]
struct Member {
    number: Srqn,
    domain: Arc<Xrcd>,
    /// The completion queue of its receives.
    cq: Arc<Cq>,
}

#[derive(Debug)]
struct Shared {
    receives: RecvQueue,
    /// The limit; 0 while the event is disarmed.
    limit: u32,
}

impl Shared {
    /// Returns whether the limit is reached; disarms it in that case.
    fn reaches_limit(&mut self) -> bool {
        let reached = self.receives.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pd: Arc<Pd>,
    events: EventSender,
    shared: Mutex<Shared>,
    member: Option<Member>,
    _counted: Option<ResourceCount>,
    /// Its identity in asynchronous events.
    pub origin: Arc<Origin>,
}

impl Srq {
    /// Creates an empty queue, whose event is pushed to `events`. `attr.limit` is ignored: a queue
    /// is created with its event disarmed (11.2.3.1).
    ///
    /// # Errors
    /// [`SrqError::Size`] and [`SrqError::NoMemory`].
    pub fn create(
        events: &Arc<AsyncEvents>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
    ) -> Result<Arc<Srq>, SrqError> {
        check_sizes(attr)?;
        Ok(Self::new(events, pd, attr, None)?)
    }

    /// Creates an empty queue for XRC messages that name it by a number in `numbers`. Its receives
    /// complete to `cq` (A14).
    ///
    /// # Errors
    /// See [`SrqError`].
    pub(crate) fn create_with_number(
        numbers: RangeInclusive<u32>,
        domain: &Arc<Xrcd>,
        cq: &Arc<Cq>,
        events: &Arc<AsyncEvents>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
    ) -> Result<Arc<Srq>, SrqError> {
        check_sizes(attr)?;
        let srq = domain.add(numbers, |number| {
            let member = Member {
                number,
                domain: Arc::clone(domain),
                cq: Arc::clone(cq),
            };
            Self::new(events, pd, attr, Some(member))
        })?;
        Ok(srq)
    }

    fn new(
        events: &Arc<AsyncEvents>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
        member: Option<Member>,
    ) -> Result<Arc<Srq>, NoMemory> {
        let shared = Shared {
            receives: RecvQueue::new(attr.max_wr, attr.max_sge)?,
            limit: 0,
        };
        Ok(Arc::new(Srq {
            pd: Arc::clone(pd),
            events: EventSender::new(events),
            shared: Mutex::new(shared),
            member,
            _counted: pd.count(Resource::Srq),
            origin: Origin::new(),
        }))
    }

    /// Returns its number in its XRC domain, if it has one.
    pub fn number(&self) -> Option<Srqn> {
        self.member.as_ref().map(|member| member.number)
    }

    /// Returns the completion queue of its receives; `None` if it is that of each queue pair.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.member.as_ref().map(|member| &member.cq)
    }

    /// Returns its attributes. The limit is 0 after its event, and while the event is not armed.
    pub fn attributes(&self) -> SrqAttr {
        let shared = lock(&self.shared);
        SrqAttr {
            max_wr: shared.receives.capacity(),
            max_sge: shared.receives.max_sge(),
            limit: shared.limit,
        }
    }

    /// Returns the protection domain of its receives.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Changes its size, or arms its event. The event is raised immediately if fewer receives than
    /// the limit are posted.
    ///
    /// # Errors
    /// See [`SrqError`]; the queue is unchanged after an error.
    pub fn modify(&self, change: SrqChange) -> Result<(), SrqError> {
        let mut shared = lock(&self.shared);
        let max_wr = change.max_wr.unwrap_or(shared.receives.capacity());
        let limit = change.limit.unwrap_or(shared.limit);
        check_size(max_wr)?;
        if limit > max_wr {
            return Err(SrqError::Limit { limit, max_wr });
        }
        if max_wr != shared.receives.capacity() {
            shared.receives.resize(max_wr)?;
        }
        shared.limit = limit;
        self.announce(shared);
        Ok(())
    }

    /// Posts a receive (11.4.1.2).
    ///
    /// # Errors
    /// [`PostError::Full`] and [`PostError::TooManySges`].
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        lock(&self.shared).receives.post(wr_id, sges)
    }

    /// Removes the oldest receive into `into`; returns false if there is none.
    pub(crate) fn take(&self, into: &mut Receive) -> bool {
        let mut shared = lock(&self.shared);
        let taken = shared.receives.take(into);
        self.announce(shared);
        taken
    }

    /// Raises the event if the limit is reached.
    fn announce(&self, mut shared: MutexGuard<'_, Shared>) {
        let reached = shared.reaches_limit();
        drop(shared);
        if reached {
            let object = EventObject::Srq(Arc::clone(&self.origin));
            self.events.send(EventType::SrqLimitReached, object);
        }
    }

    /// Removes the queue from its domain, removes its pending events, and waits until the
    /// application has acknowledged those that it has got. To be called before the last reference
    /// is dropped.
    pub fn retire(&self) {
        self.leave_domain();
        self.events.end(&self.origin);
    }

    /// Removes the queue from its domain, if it has one: messages cannot name it any more.
    pub fn leave_domain(&self) {
        if let Some(member) = &self.member {
            member.domain.remove(member.number, self);
        }
    }
}

fn check_sizes(attr: SrqAttr) -> Result<(), SrqError> {
    check_size(attr.max_wr)?;
    if attr.max_sge > MAX_SRQ_SGE {
        return Err(SrqError::Size);
    }
    Ok(())
}

fn check_size(max_wr: u32) -> Result<(), SrqError> {
    if (1..=MAX_SRQ_WR).contains(&max_wr) {
        Ok(())
    } else {
        Err(SrqError::Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_queue::EventQueue;
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::io;

    struct Queue {
        srq: Arc<Srq>,
        events: Arc<AsyncEvents>,
        taken: Receive,
    }

    impl Queue {
        fn of(max_wr: u32) -> Self {
            let events = Arc::new(EventQueue::of_rare_events().unwrap());
            fcntl_setfl(events.fd(), OFlags::NONBLOCK).unwrap();
            let attr = SrqAttr {
                max_wr,
                max_sge: 1,
                limit: 0,
            };
            Queue {
                srq: Srq::create(&events, &Pd::new(), attr).unwrap(),
                events,
                taken: Receive::default(),
            }
        }

        fn post(&self, count: u64) {
            for wr_id in 0..count {
                self.srq.post_receive(wr_id, &[]).unwrap();
            }
        }

        fn take(&mut self) -> bool {
            self.srq.take(&mut self.taken)
        }

        fn set_limit(&self, limit: u32) -> Result<(), SrqError> {
            self.srq.modify(SrqChange {
                limit: Some(limit),
                ..SrqChange::default()
            })
        }

        fn resize(&self, max_wr: u32) -> Result<(), SrqError> {
            self.srq.modify(SrqChange {
                max_wr: Some(max_wr),
                ..SrqChange::default()
            })
        }

        /// Returns whether the queue's event was raised, and no other one.
        fn reached(&self) -> bool {
            match self.events.next() {
                Ok(event) => {
                    assert_eq!(event.kind, EventType::SrqLimitReached);
                    let EventObject::Srq(srq) = event.object else {
                        panic!("an event of another object: {:?}", event.object);
                    };
                    assert!(Arc::ptr_eq(&srq, &self.srq.origin));
                    assert!(self.events.next().is_err(), "one event only");
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    false
                }
            }
        }
    }

    #[test]
    fn limit_event_is_raised_once_per_arming() {
        let mut queue = Queue::of(8);
        queue.post(4);
        queue.set_limit(3).unwrap();
        assert!(queue.take());
        assert!(!queue.reached(), "3 are not fewer than 3");
        assert!(queue.take());
        assert!(queue.reached());
        assert_eq!(queue.srq.attributes().limit, 0, "disarmed by the event");
        assert!(queue.take() && queue.take() && !queue.take());
        assert!(!queue.reached());
    }

    #[test]
    fn limit_event_is_immediate_when_armed_below_the_limit() {
        let queue = Queue::of(8);
        queue.post(2);
        queue.set_limit(2).unwrap();
        assert!(!queue.reached());
        queue.set_limit(3).unwrap();
        assert!(queue.reached());
        queue.set_limit(0).unwrap();
        assert!(!queue.reached());
    }

    #[test]
    fn a_refused_modify_changes_nothing() {
        let queue = Queue::of(4);
        queue.post(3);
        queue.set_limit(2).unwrap();
        let before = queue.srq.attributes();
        assert!(matches!(queue.resize(2), Err(SrqError::InUse(_))));
        assert!(matches!(queue.resize(0), Err(SrqError::Size)));
        assert!(matches!(queue.resize(MAX_SRQ_WR + 1), Err(SrqError::Size)));
        assert!(matches!(queue.set_limit(5), Err(SrqError::Limit { .. })));
        let both = SrqChange {
            max_wr: Some(8),
            limit: Some(9),
        };
        assert!(queue.srq.modify(both).is_err());
        assert_eq!(queue.srq.attributes(), before);
        assert!(!queue.reached());
    }

    #[test]
    fn a_resized_queue_has_its_new_capacity() {
        let queue = Queue::of(1);
        queue.post(1);
        assert_eq!(queue.srq.post_receive(1, &[]), Err(PostError::Full));
        queue.resize(2).unwrap();
        queue.srq.post_receive(1, &[]).unwrap();
        assert_eq!(queue.srq.post_receive(2, &[]), Err(PostError::Full));
        let elements = [Sge::default(); 2];
        queue.resize(3).unwrap();
        let too_many = queue.srq.post_receive(2, &elements);
        assert_eq!(too_many, Err(PostError::TooManySges));
    }

    #[test]
    fn retiring_a_queue_retracts_its_event() {
        let queue = Queue::of(4);
        queue.set_limit(1).unwrap();
        queue.srq.retire();
        assert!(!queue.reached());
    }

    #[test]
    fn sizes_are_checked_at_creation() {
        let events = Arc::new(EventQueue::of_rare_events().unwrap());
        let create = |max_wr, max_sge| {
            let attr = SrqAttr {
                max_wr,
                max_sge,
                limit: 0,
            };
            Srq::create(&events, &Pd::new(), attr).map(|srq| srq.attributes())
        };
        assert!(matches!(create(0, 1), Err(SrqError::Size)));
        assert!(matches!(create(1, MAX_SRQ_SGE + 1), Err(SrqError::Size)));
        assert!(create(MAX_SRQ_WR, MAX_SRQ_SGE).is_ok());
        assert!(create(1, 0).is_ok(), "a receive of no elements is one");
    }
}
