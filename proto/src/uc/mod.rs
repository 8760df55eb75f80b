//! Unreliable connection (9.8.2): SEND and WRITE to one peer, without acknowledgements.
//!
//! A message of which a packet is lost is lost as a whole, and neither end is told. The requester
//! is that of all unreliable services; `responder` decides what becomes of what comes in.

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
use crate::unreliable::{Core, Service, UnreliableQp};
use crate::wire::{Packet, Transport};
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
        if bth.opcode.info().transport != Transport::Uc {
            core.counters.malformed += 1;
            return;
        }
        core.counters.received_packets += 1;
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
