//! Unreliable connection (9.8.2): SEND and WRITE to one peer, without acknowledgements.
//!
//! A message of which a packet is lost is lost as a whole, and neither end is told. The requester
//! is that of all unreliable services; `responder` decides what becomes of what comes in.

mod responder;
#[cfg(test)]
mod tests;

use crate::host::{Host, QpEvent, Transmit};
use crate::ids::{Gid, PKey, Qpn};
use crate::qp::{AttrMask, Counters, QpAttr, QpState, QpType, TransitionError};
use crate::queue::{PostError, SendQueueSize};
use crate::time::Time;
use crate::unreliable::Core;
use crate::wire::{Packet, Transport};
use crate::work::{SendOp, SendWr};
use responder::{Outcome, Responder};

/// What an unreliable connected queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct UcConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its send queue.
    pub send: SendQueueSize,
    /// Whether every send makes a completion.
    pub signal_all: bool,
}

/// An unreliable connected queue pair.
#[derive(Debug)]
pub struct UcQp {
    core: Core,
    responder: Responder,
    /// Whether the first packet in RTR was announced.
    established: bool,
}

impl UcQp {
    /// A queue pair in RESET.
    pub fn new(config: UcConfig) -> Self {
        UcQp {
            core: Core::new(
                QpType::Uc,
                Transport::Uc,
                config.qpn,
                config.send,
                config.signal_all,
                QpAttr::default(),
            ),
            responder: Responder::default(),
            established: false,
        }
    }

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

    /// Its attributes now, the PSNs being the next that is sent and the next that is expected.
    pub fn attributes(&self) -> QpAttr {
        self.core.attributes(Some(self.responder.expected()))
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
        let (_, to) = self.core.modify(new, mask, now, host)?;
        match to {
            QpState::Rtr => self.responder = Responder::expecting(self.core.attr.rq_psn),
            QpState::Reset | QpState::Err => {
                self.responder = Responder::default();
                self.established = false;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a send work request. In SQE and in the error state it is flushed at once (10.3.1.6,
    /// 10.3.1.7).
    ///
    /// # Errors
    /// [`PostError::Operation`] for all but SEND and WRITE, with immediate data or without, and what
    /// is local: the others need a reliable service.
    pub fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        match wr.op {
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::BindMw(_)
            | SendOp::LocalInv(_) => {}
            SendOp::SendInv(_)
            | SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. } => return Err(PostError::Operation),
        }
        self.core
            .post_send(&SendWr { dest: None, ..*wr }, now, host)
    }

    /// A receive was posted to the queue pair's own queue: in the error state it is flushed at
    /// once.
    pub fn receive_posted<H: Host>(&mut self, host: &mut H) {
        self.core.receive_posted(host);
    }

    /// Handles a packet for this queue pair whose ICRC was right. `from` is its source address.
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        from: Gid,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.header.bth;
        let core = &mut self.core;
        if !core.attr.state.handles_packets() {
            core.counters.dropped_in_state += 1;
            return;
        }
        // A connected queue pair hears its peer only (9.6.1.5 by way of A17.4.5).
        if from != core.attr.av.dgid {
            core.counters.foreign += 1;
            return;
        }
        if !PKey::DEFAULT.matches(bth.pkey) {
            core.counters.bad_pkey += 1;
            return;
        }
        if bth.opcode.info().transport != Transport::Uc {
            core.counters.malformed += 1;
            return;
        }
        core.counters.received_packets += 1;
        if core.attr.state == QpState::Rtr && !self.established {
            self.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        let (mut cx, _, receive) = core.parts(now);
        match self.responder.handle(&mut cx, packet, receive, host) {
            Outcome::Continue => {}
            Outcome::Failed => core.end(now, host),
        }
    }

    /// When [`UcQp::handle_timeout`] should be called: never, as no answer is awaited.
    pub fn deadline(&self) -> Time {
        Time::NEVER
    }

    /// Looks at the clock, which says nothing to this service.
    pub fn handle_timeout<H: Host>(&mut self, _now: Time, _host: &mut H) {}

    /// Sends what there is to send; work requests complete as their last packets are taken.
    /// Returns true when the sink was full and there is more.
    pub fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        self.core.poll_transmit(now, host, out)
    }

    /// An error of the completion queue, or of the device: the queue pair goes to error without a
    /// completion of its own (10.9.3).
    pub fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        self.core.fail(now, host);
    }
}
