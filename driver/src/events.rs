//! Asynchronous events: state changes of objects that no completion reports (11.6.3).

use crate::event_queue::{AckCount, EventQueue};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use urxe_proto::host::QpEvent;
use urxe_proto::ids::Qpn;

/// The kind of an event, with the numbers of `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum EventType {
    /// A completion queue overran.
    CqErr = 0,
    /// A queue pair entered the error state for a reason that no completion reports.
    QpFatal = 1,
    /// The peer sent an invalid request.
    QpReqErr = 2,
    /// The peer violated the access rights of memory.
    QpAccessErr = 3,
    /// A packet arrived before the queue pair was in RTS.
    CommEst = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// A connection has migrated to its alternate path.
    PathMig = 6,
    /// The peer requested a migration to a path that is not the alternate path.
    PathMigErr = 7,
    /// The device's interface was removed.
    DeviceFatal = 8,
    /// The port's interface came up.
    PortActive = 9,
    /// The port's interface went down.
    PortErr = 10,
    /// A shared receive queue holds fewer receives than its limit.
    SrqLimitReached = 15,
    /// The queue pair consumes no more receives of its shared receive queue.
    QpLastWqeReached = 16,
    /// The port's GID table changed.
    GidChange = 18,
    /// A work queue entered the error state for a reason that no completion reports.
    WqFatal = 19,
}

impl From<QpEvent> for EventType {
    fn from(event: QpEvent) -> Self {
        match event {
            QpEvent::Fatal => Self::QpFatal,
            QpEvent::RequestError => Self::QpReqErr,
            QpEvent::AccessError => Self::QpAccessErr,
            QpEvent::CommunicationEstablished => Self::CommEst,
            QpEvent::SendQueueDrained => Self::SqDrained,
            QpEvent::LastWqeReached => Self::QpLastWqeReached,
            QpEvent::PathMigrated => Self::PathMig,
            QpEvent::PathMigrationRefused => Self::PathMigErr,
        }
    }
}

/// The identity of an object that events are affiliated with.
#[derive(Debug, Default)]
pub struct Origin {
    qpn: Option<Qpn>,
    /// The events that the application has taken and not acknowledged.
    pub acks: AckCount,
    tag: AtomicUsize,
}

impl Origin {
    /// Creates the identity of an object without a number.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates the identity of a queue pair, or of one owner of it.
    pub(crate) fn of_qp(qpn: Qpn) -> Arc<Self> {
        Arc::new(Origin {
            qpn: Some(qpn),
            ..Origin::default()
        })
    }

    /// The number of the queue pair; `None` for other objects.
    pub fn qpn(&self) -> Option<Qpn> {
        self.qpn
    }

    /// An opaque value that the creator of the object has set, to find its own object; 0 at first.
    #[inline]
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }

    /// Sets the value of [`Origin::tag`].
    pub fn set_tag(&self, tag: usize) {
        self.tag.store(tag, Ordering::Release);
    }
}

/// The object of an event.
#[derive(Clone, Debug)]
pub enum EventObject {
    /// A queue pair.
    Qp(Arc<Origin>),
    /// A queue pair, for an owner that opened it by its number.
    Share(Arc<Origin>),
    /// A completion queue.
    Cq(Arc<Origin>),
    /// A shared receive queue.
    Srq(Arc<Origin>),
    /// A work queue.
    Wq(Arc<Origin>),
    /// A port, by its number from 1.
    Port(u8),
    /// The device.
    Device,
}

impl EventObject {
    /// Returns the identity of the object; `None` for a port and the device.
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        match self {
            Self::Qp(origin)
            | Self::Share(origin)
            | Self::Cq(origin)
            | Self::Srq(origin)
            | Self::Wq(origin) => Some(origin),
            Self::Port(_) | Self::Device => None,
        }
    }
}

/// An asynchronous event.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// The kind of the event.
    pub kind: EventType,
    /// The object that the event concerns.
    pub object: EventObject,
}

/// The asynchronous events of one opened device.
pub type AsyncEvents = EventQueue<AsyncEvent>;

/// The end of an [`AsyncEvents`] that an object sends its events to. It does not keep the queue: an
/// object may outlive its opened device, and its events are dropped then.
#[derive(Clone, Debug)]
pub(crate) struct EventSender(Weak<AsyncEvents>);

impl EventSender {
    /// Creates a sender to a queue.
    pub(crate) fn new(events: &Arc<AsyncEvents>) -> Self {
        EventSender(Arc::downgrade(events))
    }

    /// Adds an event to the queue.
    pub(crate) fn send(&self, kind: EventType, object: EventObject) {
        if let Some(events) = self.0.upgrade() {
            events.push(AsyncEvent { kind, object });
        }
    }

    /// Removes the events of an object that is being destroyed, and waits until the application has
    /// acknowledged those that it has taken.
    pub(crate) fn end(&self, origin: &Arc<Origin>) {
        if let Some(events) = self.0.upgrade() {
            events.extract_if(|event| {
                let its = event.object.origin();
                its.is_some_and(|its| Arc::ptr_eq(its, origin))
            });
        }
        origin.acks.wait();
    }
}
