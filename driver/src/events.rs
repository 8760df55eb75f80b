//! Asynchronous events: state changes of objects that no completion reports (11.6.3).

use crate::cq::Cq;
use crate::event_queue::EventQueue;
use crate::qp::{Qp, Share};
use crate::srq::Srq;
use std::sync::Arc;
use urxe_proto::host::QpEvent;

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

/// The object of an event.
#[derive(Clone, Debug)]
pub enum EventObject {
    /// A queue pair.
    Qp(Arc<Qp>),
    /// A queue pair, for an owner that opened it by its number.
    Share(Arc<Share>),
    /// A completion queue.
    Cq(Arc<Cq>),
    /// A shared receive queue.
    Srq(Arc<Srq>),
    /// A port, by its number from 1.
    Port(u8),
    /// The device.
    Device,
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

impl AsyncEvents {
    /// Removes the events of a queue pair that is being destroyed.
    pub(crate) fn retract_qp(&self, qp: &Qp) {
        let is_it = |event: &AsyncEvent| matches!(&event.object, EventObject::Qp(other) if std::ptr::eq(&**other, qp));
        self.retract(is_it);
    }

    /// Removes the events of a share that is being closed.
    pub(crate) fn retract_share(&self, share: &Share) {
        let is_it = |event: &AsyncEvent| matches!(&event.object, EventObject::Share(other) if std::ptr::eq(&**other, share));
        self.retract(is_it);
    }

    /// Removes the events of a completion queue that is being destroyed.
    pub(crate) fn retract_cq(&self, cq: &Cq) {
        let is_it = |event: &AsyncEvent| matches!(&event.object, EventObject::Cq(other) if std::ptr::eq(&**other, cq));
        self.retract(is_it);
    }

    /// Removes the events of a shared receive queue that is being destroyed.
    pub(crate) fn retract_srq(&self, srq: &Srq) {
        let is_it = |event: &AsyncEvent| matches!(&event.object, EventObject::Srq(other) if std::ptr::eq(&**other, srq));
        self.retract(is_it);
    }
}
