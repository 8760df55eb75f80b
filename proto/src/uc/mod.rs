//! Unreliable connection (9.8.2): SEND and RDMA WRITE to one peer, without acknowledgements.
//!
//! A message that loses a packet is dropped as a whole, and neither side is notified. The requester
//! is shared by all unreliable services; `responder` processes incoming packets.
//!
//! # Flow control between same-host peers
//!
//! Between two processes of a host nothing limits the sender. Packets are lost only when a fast
//! sender overruns the receiver's socket buffer. Against that the sender can use flow control
//! ([`UcQp::set_probe_interval`]). After every so many bytes it sends a *probe*, with a
//! manufacturer specific opcode (9.2.1). The peer echoes it after it has read all packets before
//! it. With two probes outstanding, the sender stops at the next one until an echo arrives. A peer
//! that does not know probes drops them. After ten consecutive timeouts of 100 ms the sender stops
//! sending them.

mod responder;
#[cfg(test)]
mod tests;

use crate::host::Host;
use crate::ids::{Gid, Qpn};
use crate::psn::Psn;
use crate::qp::{QpAttr, QpState, QpType};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::time::Time;
use crate::unreliable::flow_control::FlowControl;
use crate::unreliable::{Core, Service, UnreliableQp};
use crate::wire::{Operation, Packet, Transport};
use crate::work::SendWr;
use responder::{Outcome, Responder};

/// The parameters of an unreliable connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct UcConfig {
    /// The queue pair number.
    pub qpn: Qpn,
    /// The limits of the send queue.
    pub send: SendQueueSize,
    /// Whether every work request generates a completion.
    pub signal_all: bool,
}

/// An unreliable connected queue pair.
pub type UcQp = UnreliableQp<Uc>;

/// The unreliable connection service: responder and flow control.
#[derive(Debug, Default)]
pub struct Uc {
    responder: Responder,
    flow_control: FlowControl,
}

impl Service for Uc {
    /// Removes the destination: a connection has only one.
    fn prepare<'a>(wr: &SendWr<'a>) -> Result<SendWr<'a>, PostError> {
        Ok(SendWr { dest: None, ..*wr })
    }

    fn expected(&self) -> Option<Psn> {
        Some(self.responder.expected())
    }

    fn flow_control(&mut self) -> Option<&mut FlowControl> {
        Some(&mut self.flow_control)
    }

    fn state_changed(&mut self, attr: &QpAttr) {
        match attr.state {
            QpState::Rtr => self.responder = Responder::expecting(attr.rq_psn),
            QpState::Reset | QpState::Err => *self = Uc::default(),
            _ => {}
        }
    }
}

impl UnreliableQp<Uc> {
    /// Returns a queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] when the send queue could not be allocated.
    pub fn new(config: UcConfig) -> Result<Self, NoMemory> {
        Ok(UnreliableQp {
            core: Core::new(
                QpType::Uc,
                config.qpn,
                config.send,
                config.signal_all,
                QpAttr::default(),
            )?,
            service: Uc::default(),
        })
    }

    /// Returns whether the connection has migrated to its alternate path since the last call
    /// (17.2.8).
    ///
    /// The caller must then send to the new path.
    pub fn take_migrated(&mut self) -> bool {
        self.core.base.migration.take_migrated()
    }

    /// Sets the number of bytes between flow-control probes; 0 disables them.
    ///
    /// At most twice as many further bytes are sent before a probe is echoed.
    pub fn set_probe_interval(&mut self, bytes: u32) {
        self.service.flow_control.set_interval(bytes);
    }

    /// The time at which to call [`UcQp::handle_timeout`]; [`Time::NEVER`] while no probe blocks
    /// sends.
    pub fn deadline(&self) -> Time {
        match self.core.has_sends() {
            true => self.service.flow_control.deadline(),
            false => Time::NEVER,
        }
    }

    /// Handles the deadline: an echo is missing. Call [`UcQp::poll_transmit`] afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.service.flow_control.handle_timeout(now) {
            self.core.base.counters.flow_probes_unanswered += 1;
        }
    }

    /// Handles a packet for this queue pair whose ICRC is valid. `from` is its source address.
    ///
    /// Call [`UcQp::poll_transmit`] afterwards: an echo may be due, or sends may no longer be
    /// blocked.
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        from: Gid,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.header.bth;
        let core = &mut self.core;
        if !core.base.accepts_packet(from, bth, host) {
            return;
        }
        let info = bth.opcode.info();
        if !matches!(info.transport, Transport::Uc | Transport::Manufacturer) {
            core.base.counters.malformed += 1;
            return;
        }
        core.base.counters.received_packets += 1;
        if info.transport == Transport::Manufacturer {
            match info.operation {
                Operation::FlowProbe => self.service.flow_control.probe_received(bth.psn),
                _ => self.service.flow_control.echo_received(bth.psn),
            }
            return;
        }
        core.base.packet_accepted(from, bth, host);
        let (mut cx, placement) = core.receive_side(now);
        match self
            .service
            .responder
            .handle(&mut cx, packet, placement, host)
        {
            Outcome::Continue => {}
            Outcome::Failed => core.enter_error(now, host),
        }
    }
}
