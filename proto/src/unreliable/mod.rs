//! What the unreliable services, [`crate::uc`], [`crate::ud`] and [`crate::raw`], have in common: a
//! send queue whose requests are done when they have gone out, and whose errors end in SQE
//! (10.3.1.6). How each of them receives is its own.

mod core;
pub(crate) mod marks;
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

pub(crate) use self::core::{Core, Told};
use marks::Marks;

/// What sets one unreliable service apart from the others, and the state that only it has.
pub trait Service {
    /// A work request, of an operation that the service has, as it is queued.
    ///
    /// # Errors
    /// When it does not say something that the service needs.
    fn prepare<'a>(wr: &SendWr<'a>) -> Result<SendWr<'a>, PostError> {
        Ok(*wr)
    }

    /// The PSN that is expected next, where packets are expected in order.
    fn expected(&self) -> Option<Psn> {
        None
    }

    /// The queue pair has come to `attr.state`.
    fn entered(&mut self, _attr: &QpAttr) {}

    /// What keeps it from overrunning its peer, where anything does.
    fn marks(&mut self) -> Option<&mut Marks> {
        None
    }

    /// The lengths that work requests may have, where each is a whole frame.
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
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.core.attr.state
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Its attributes now, the PSNs being the next that is sent and, on a connection, the next that
    /// is expected.
    pub fn attributes(&self) -> QpAttr {
        self.core.attributes(self.service.expected())
    }

    /// What its send queue was made for.
    pub fn send_queue_size(&self) -> SendQueueSize {
        self.core.send_queue_size()
    }

    /// How many more work requests its send queue holds.
    pub fn send_queue_room(&self) -> u32 {
        self.core.send_queue_room()
    }

    /// Changes attributes, and the state if `mask` says so (11.2.4.2). Nothing changes when it is
    /// refused.
    ///
    /// # Errors
    /// As [`QpAttr::change`].
    pub fn modify<H: Host>(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
    ) -> Result<(), TransitionError> {
        let before = self.core.attr.state;
        self.core.modify(new, mask, now, host)?;
        if self.core.attr.state != before {
            self.service.entered(&self.core.attr);
        }
        Ok(())
    }

    /// Takes a send work request. In SQE and in the error state it is flushed at once (10.3.1.6,
    /// 10.3.1.7).
    ///
    /// # Errors
    /// [`PostError::Operation`] for what the service does not have ([`crate::work::SendOp::is_of`]), those of its
    /// [`Service::prepare`], and those of the queue.
    pub fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        if !wr.op.is_of(self.core.service()) {
            return Err(PostError::Operation);
        }
        self.core.post_send(&S::prepare(wr)?, now, host)
    }

    /// A receive was posted to the queue pair's own queue: in the error state it is flushed at
    /// once.
    pub fn receive_posted<H: Host>(&mut self, host: &mut H) {
        self.core.receive_posted(host);
    }

    /// Sends what there is to send; work requests complete as their last packets are taken.
    /// Returns true when there is more: the sink was full, or the next datagram goes to another
    /// destination.
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
        match service.marks() {
            None => core.poll_transmit(now, host, out),
            Some(marks) => marks.poll_transmit(core, now, host, out),
        }
    }

    /// An error of the completion queue, or of the device: the queue pair goes to error without a
    /// completion of its own (10.9.3).
    pub fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        self.core.fail(now, host);
    }
}
