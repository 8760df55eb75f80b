//! The common part of the unreliable services [`crate::uc`], [`crate::ud`] and [`crate::raw`].
//!
//! A work request completes when its last packet is sent, and a send error leads to SQE (10.3.1.6).
//! Each service implements reception itself.

mod core;
pub(crate) mod flow_control;
mod requester;
#[cfg(test)]
pub(crate) mod testing;

use crate::host::{Host, Transmit};
use crate::ids::Qpn;
use crate::psn::Psn;
use crate::qp::{AttrMask, Counters, QpAttr, QpState, TransitionError};
use crate::queue::{PostError, SendQueueSize};
use crate::time::Time;
use crate::work::SendWr;
use std::ops::RangeInclusive;

pub(crate) use self::core::{Core, drop_message};
use flow_control::FlowControl;

/// The properties and the state that distinguish one unreliable service from the others.
pub trait Service {
    /// Returns the work request as it is to be queued. Its operation is supported by the service.
    ///
    /// # Errors
    /// [`PostError`] when the work request lacks something that the service requires.
    fn prepare<'a>(wr: &SendWr<'a>) -> Result<SendWr<'a>, PostError> {
        Ok(*wr)
    }

    /// The expected PSN, where the service has one.
    fn expected(&self) -> Option<Psn> {
        None
    }

    /// Called when the queue pair has entered `attr.state`.
    fn state_changed(&mut self, _attr: &QpAttr) {}

    /// The flow control of the service, if it has one.
    fn flow_control(&mut self) -> Option<&mut FlowControl> {
        None
    }

    /// The permitted lengths of work requests that are whole frames.
    fn frames(&self) -> Option<RangeInclusive<usize>> {
        None
    }
}

/// A queue pair of an unreliable service.
#[derive(Debug)]
pub struct UnreliableQp<S> {
    pub(crate) core: Core,
    pub(crate) service: S,
}

impl<S: Service> UnreliableQp<S> {
    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.core.base.qpn()
    }

    /// The current state.
    pub fn state(&self) -> QpState {
        self.core.base.attr.state
    }

    /// The counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.core.base.counters
    }

    /// The current attributes.
    ///
    /// `sq_psn` is the PSN of the next packet to send and, on a connection, `rq_psn` the expected
    /// PSN.
    pub fn attributes(&self) -> QpAttr {
        self.core
            .base
            .attributes(self.core.requester(), self.service.expected())
    }

    /// The limits of the send queue.
    pub fn send_queue_size(&self) -> SendQueueSize {
        self.core.requester().size()
    }

    /// The number of work requests that can still be posted to the send queue.
    pub fn send_queue_room(&self) -> u32 {
        self.core.requester().queue_room()
    }

    /// Changes attributes, and the state if `mask` contains [`AttrMask::STATE`] (11.2.4.2).
    ///
    /// Nothing changes on an error. Call [`Self::poll_transmit`] afterwards.
    ///
    /// # Errors
    /// As for [`QpAttr::change`].
    pub fn modify<H: Host>(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
    ) -> Result<(), TransitionError> {
        let before = self.core.base.attr.state;
        self.core.modify(new, mask, now, host)?;
        if self.core.base.attr.state != before {
            self.service.state_changed(&self.core.base.attr);
        }
        Ok(())
    }

    /// Posts a send work request. Call [`Self::poll_transmit`] to send it.
    ///
    /// In SQE and in the error state it is flushed at once (10.3.1.6, 10.3.1.7).
    ///
    /// # Errors
    /// [`PostError::Operation`] when the service does not support the operation
    /// ([`crate::qp::QpType::supports`]), and the errors of [`Service::prepare`] and of
    /// the queue.
    pub fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.core.base.check_post(wr)?;
        self.core.post_send(&S::prepare(wr)?, now, host)
    }

    /// Must be called after a receive was posted to the queue pair's own receive queue.
    ///
    /// In the error state the receive is flushed at once.
    pub fn receive_posted<H: Host>(&mut self, host: &mut H) {
        self.core.base.receive_posted(host);
    }

    /// Stages packets until nothing remains or the sink is full.
    ///
    /// A work request completes when its last packet is committed. Returns true when more remains:
    /// the sink was full, or the next datagram has another address handle. Call again when the sink
    /// has room, and for datagrams with a sink for [`crate::ud::UdQp::next_destination`].
    pub fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        if let Some(frames) = self.service.frames() {
            return self.core.poll_frames(now, frames, host, out);
        }
        let UnreliableQp { core, service } = self;
        match service.flow_control() {
            None => core.poll_transmit(now, host, out),
            Some(flow_control) => flow_control.poll_transmit(core, now, host, out),
        }
    }

    /// Handles a fatal error of the completion queue or the device (10.9.3).
    ///
    /// The queue pair enters the error state, flushes its queues and reports
    /// [`crate::host::QpEvent::Fatal`].
    pub fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        self.core.fail(now, host);
    }
}
