//! Unreliable connection (9.8.2): SEND and WRITE to one peer, without acknowledgements.
//!
//! A message of which a packet is lost is lost as a whole, and neither end is told. The requester
//! is that of all unreliable services; `responder` decides what becomes of what comes in.
//!
//! Between two processes of a host nothing holds the sender back, and no wire loses packets but the
//! receiver's socket buffer, which a fast sender overruns. So there, and only if it is told to
//! ([`UcQp::mark_every`]), it sends a *mark* now and then, in an opcode of its own that the specification
//! leaves to manufacturers (9.2.1), which the peer sends back when it has read so far; until then it
//! does not go on for much longer. A peer that does not know marks drops them, and after a while it gets none.

mod responder;
#[cfg(test)]
mod tests;

use crate::host::{Host, QpEvent};
use crate::ids::{Gid, Qpn};
use crate::psn::Psn;
use crate::qp::{QpAttr, QpState, QpType};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::service::hears;
use crate::time::Time;
use crate::unreliable::marks::Marks;
use crate::unreliable::{Core, Service, UnreliableQp};
use crate::wire::{Operation, Packet, Transport};
use crate::work::SendWr;
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
pub type UcQp = UnreliableQp<Uc>;

/// Unreliable connection: what comes from the peer, and how far it has come.
#[derive(Debug, Default)]
pub struct Uc {
    responder: Responder,
    marks: Marks,
    /// Whether the first packet in RTR was announced.
    established: bool,
}

impl Service for Uc {
    /// It goes to the peer, whatever it says.
    fn prepare<'a>(wr: &SendWr<'a>) -> Result<SendWr<'a>, PostError> {
        Ok(SendWr { dest: None, ..*wr })
    }

    fn expected(&self) -> Option<Psn> {
        Some(self.responder.expected())
    }

    fn marks(&mut self) -> Option<&mut Marks> {
        Some(&mut self.marks)
    }

    fn entered(&mut self, attr: &QpAttr) {
        match attr.state {
            QpState::Rtr => self.responder = Responder::expecting(attr.rq_psn),
            QpState::Reset | QpState::Err => *self = Uc::default(),
            _ => {}
        }
    }
}

impl UnreliableQp<Uc> {
    /// A queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] for its send queue.
    pub fn new(config: UcConfig) -> Result<Self, NoMemory> {
        Ok(UnreliableQp {
            core: Core::new(
                QpType::Uc,
                Transport::Uc,
                config.qpn,
                config.send,
                config.signal_all,
                QpAttr::default(),
            )?,
            service: Uc::default(),
        })
    }

    /// Whether it has gone over to its alternate path since this was last asked: its packets go another
    /// way then (17.2.8).
    pub fn take_migrated(&mut self) -> bool {
        self.core.migration.take_migrated()
    }

    /// From now on a mark goes out after so many bytes, 0 being for none, and twice as many more at most
    /// before it is answered.
    pub fn mark_every(&mut self, bytes: u32) {
        self.service.marks.set_every(bytes);
    }

    /// When to call [`UcQp::handle_timeout`]: the peer may not answer.
    pub fn deadline(&self) -> Time {
        match self.core.has_sends() {
            true => self.service.marks.deadline(),
            false => Time::NEVER,
        }
    }

    /// The deadline has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.service.marks.handle_timeout(now) {
            self.core.counters.marks_unanswered += 1;
        }
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
        let (attr, migration) = (&mut core.attr, &mut core.migration);
        if !hears(attr, migration, &mut core.counters, from, bth, host) {
            return;
        }
        let info = bth.opcode.info();
        if !matches!(info.transport, Transport::Uc | Transport::Own) {
            core.counters.malformed += 1;
            return;
        }
        core.counters.received_packets += 1;
        if info.transport == Transport::Own {
            match info.operation {
                Operation::Mark => self.service.marks.owe(bth.psn),
                _ => self.service.marks.seen(bth.psn),
            }
            return;
        }
        core.migration
            .heard(&mut core.attr, from, bth.mig_req, host);
        if core.attr.state == QpState::Rtr && !self.service.established {
            self.service.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        let (mut cx, _, receive) = core.parts(now);
        match self
            .service
            .responder
            .handle(&mut cx, packet, receive, host)
        {
            Outcome::Continue => {}
            Outcome::Failed => core.end(now, host),
        }
    }
}
